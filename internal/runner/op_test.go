package runner

import (
	"math"
	"testing"

	"sagecomm/internal/coll"
)

// op.c repeats the rules of coll.Op, because the fast path does not enter Go. The rules agree in all combinations below:
//   - If coll.Op.Check accepts an operation, C computes the same length for it as coll.Op.Bytes.
//   - If C allows an operation on the fast path, Check accepts it.
//   - If Check accepts an operation that has a segment on each side that its kind uses, C allows it on the fast path.
func TestRulesOfOperationsAreThoseOfGo(t *testing.T) {
	n := 0
	for kind := range coll.KindCount {
		for dtype := range coll.DataTypeCount + 1 { // one invalid type is included
			op := coll.Op{Kind: kind, Type: dtype}
			if !dtype.Valid() {
				compareLengths(t, &n, op, 1)
				continue
			}
			if kind.Reduces() && !reducible(&op) {
				continue // C does not check which reductions a type has: there is no program for an undefined one
			}
			for size := 1; size <= 3; size++ {
				for op.Root = range size {
					compareLengths(t, &n, op, size)
					if !kind.Rooted() && kind.Collective() {
						break
					}
				}
				op.Root = 0
			}
		}
	}
	t.Logf("%d calls", n)
}

// reducible sets a reduction that is defined for the operation's type and reports whether there is one.
func reducible(op *coll.Op) bool {
	for op.Reduce = range coll.ReduceOpCount {
		if coll.Defined(op.Reduce, op.Type) == nil {
			return true
		}
	}
	return false
}

// lengths holds lengths of buffers. Some are multiples of an element or of the group's size, others are not; none stands for
// the absence of a buffer.
var lengths = []int64{none, 0, 1, 2, 4, 6, 8, 16, 24, 48, math.MaxInt64, math.MinInt64}

const none = -1

func compareLengths(t *testing.T, n *int, op coll.Op, size int) {
	t.Helper()
	for rank := range size {
		for _, in := range lengths {
			for _, out := range lengths {
				compare(t, op, in, out, rank, size)
				*n++
			}
		}
	}
}

// The rules of C and Go also agree on blocks of different lengths, on either side and for kinds that allow none.
func TestRulesOfBlocksAreThoseOfGo(t *testing.T) {
	of := [][]uint64{nil, {8, 8, 8}, {0, 8, 16}, {16, 8, 0}, {4, 8, 12}, {24, 0, 0}, {0, 0, 0}, {2, 4, 6}, {math.MaxUint64, 8, 16}, {math.MaxUint64 - 7, 16, 16}}
	const size = 3
	for _, kind := range []coll.Kind{coll.AllGather, coll.ReduceScatter, coll.AllToAll} {
		for _, dtype := range []coll.DataType{coll.Uint8, coll.Int32, coll.Float64} {
			for _, inBlocks := range of {
				for _, outBlocks := range of {
					op := coll.Op{Kind: kind, Type: dtype, InBlocks: inBlocks, OutBlocks: outBlocks}
					for rank := range size {
						for _, in := range lengths {
							for _, out := range lengths {
								compare(t, op, in, out, rank, size)
							}
						}
					}
				}
			}
		}
	}
}

func compare(t *testing.T, op coll.Op, in, out int64, rank, size int) {
	t.Helper()
	if in != none {
		op.In = uint64(in)
	}
	if out != none {
		op.Out = uint64(out)
	}
	bytes, fits, allowed := testOp(op, in, out, rank, size)
	err := op.Check(rank, size)
	// C takes a segment without bytes for a buffer, Go does not.
	absent := in == none || out == none || op.In == 0 || op.Out == 0
	switch {
	case err == nil && fits && bytes != op.Bytes():
		t.Errorf("%+v, rank %d of %d: %d bytes in C, %d in Go", op, rank, size, bytes, op.Bytes())
	case err == nil && !allowed && !absent && op.Kind.Collective():
		t.Errorf("%+v, rank %d of %d: allowed in Go, not in C", op, rank, size)
	case err != nil && allowed && op.Kind.Collective():
		t.Errorf("%+v, rank %d of %d: allowed in C; in Go: %v", op, rank, size, err)
	}
}
