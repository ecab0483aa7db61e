package pgbackend

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"sagecomm/internal/coll"
)

// call issues an operation, asynchronously or not, and waits for it.
func call(g *Group, op coll.Op, in, out [][]byte) error {
	work, f := g.Issue(op, in, out)
	if f == nil {
		f = finish(work)
		work.Release()
	}
	return asError(f)
}

// cut cuts a buffer into pieces, some of them empty.
func cut(b []byte, elem int, rng *rand.Rand) (pieces [][]byte) {
	for len(b) > 0 {
		n := min(len(b), (1+rng.IntN(2000))*elem)
		pieces = append(pieces, b[:n], nil)
		b = b[n:]
	}
	return append(pieces, nil)
}

func TestReduceScatterOfEveryTypeAndReduction(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		n := len(w.groups)
		for dtype := range coll.DataTypeCount {
			for op := range coll.ReduceOpCount {
				if coll.Defined(op, dtype) != nil {
					b := one(make([]byte, 16*n))
					for rank, f := range w.eachFailure(func(g *Group) *coll.Failure {
						_, f := g.Issue(coll.Op{Kind: coll.ReduceScatter, Type: dtype, Reduce: op}, b, one(make([]byte, 16)))
						return f
					}) {
						if err := expect(f, coll.Invalid, fmt.Sprintf("reduce_scatter: %v is not defined for %v", op, dtype)); err != nil {
							t.Errorf("rank %d: %v", rank, err)
						}
					}
					continue
				}
				counts := []int{0, 1, 33, 4096 / dtype.Size()}
				if op == coll.Sum { // the reference takes its time
					counts = append(counts, 300_000/n/dtype.Size())
				}
				for i, count := range counts {
					all := reducedBytes(dtype, op, n, n*count)
					w.each(func(g *Group) error {
						in := contributionBytes(dtype, op, g.rank, n, n*count)
						block := count * dtype.Size()
						want := all[g.rank*block : (g.rank+1)*block]
						out := make([]byte, block)
						if i%2 == 0 {
							out = in[g.rank*block : (g.rank+1)*block] // in place
						}
						if err := call(g, coll.Op{Kind: coll.ReduceScatter, Type: dtype, Reduce: op, Factor: premulFactor, Async: i%3 == 0}, one(in), one(out)); err != nil {
							return err
						}
						if !bytes.Equal(out, want) {
							return fmt.Errorf("%v of %d %v: wrong", op, count, dtype)
						}
						return nil
					})
				}
			}
		}
	})
}

// Gather, scatter and all_to_all give the reference's result for blocks from no byte to several chunks, in one piece
// and in many.
func TestBlocksOfEqualLength(t *testing.T) {
	inWorlds(t, func(t *testing.T, w *world) {
		n := len(w.groups)
		for salt, length := range []int{0, 1, 8, 40, 64, 1000, 8192, 100_000, 1<<20 + 12} {
			w.each(func(g *Group) error {
				rng := rand.New(rand.NewPCG(uint64(length), uint64(g.rank)))
				// between returns the block that one rank has for another.
				between := func(from, to int) []byte { return pattern(from*16+to, salt, length) }
				var mine, theirs []byte
				for other := range n {
					mine = append(mine, between(g.rank, other)...)
					theirs = append(theirs, between(other, g.rank)...)
				}
				for _, async := range []bool{false, true} {
					got := make([]byte, n*length)
					op := coll.Op{Kind: coll.AllToAll, Type: coll.Uint8, Async: async}
					if err := call(g, op, cut(mine, 1, rng), cut(got, 1, rng)); err != nil {
						return err
					}
					if !bytes.Equal(got, theirs) {
						return fmt.Errorf("all_to_all of %d bytes: wrong", length)
					}
					for root := range n {
						op := coll.Op{Kind: coll.Gather, Type: coll.Float8E4M3FN, Root: root, Async: async}
						in, out := between(g.rank, root), [][]byte(nil)
						got := make([]byte, n*length)
						if g.rank == root {
							out = one(got)
							if async { // in place
								in = got[root*length : (root+1)*length]
								copy(in, between(root, root))
							}
						}
						if err := call(g, op, one(in), out); err != nil {
							return err
						}
						if g.rank == root && !bytes.Equal(got, theirs) {
							return fmt.Errorf("gather of %d bytes to %d: wrong", length, root)
						}
						op.Kind = coll.Scatter
						one1 := make([]byte, length)
						from := [][]byte(nil)
						if g.rank == root {
							from = one(mine)
							if async {
								one1 = mine[root*length : (root+1)*length]
							}
						}
						if err := call(g, op, from, one(one1)); err != nil {
							return err
						}
						if !bytes.Equal(one1, between(root, g.rank)) {
							return fmt.Errorf("scatter of %d bytes from %d: wrong", length, root)
						}
					}
				}
				return nil
			})
		}
	})
}

func TestBlocksOfDifferentLengths(t *testing.T) {
	const seed = 20260921
	t.Logf("seed %d", seed)
	inWorlds(t, func(t *testing.T, w *world) {
		n := len(w.groups)
		for round := range 40 {
			// All ranks draw the same lengths.
			draw := rand.New(rand.NewPCG(seed, uint64(round)))
			longest := []int{0, 10, 1000, 3000, 200_000}[draw.IntN(5)]
			lengths := make([][]uint64, n) // lengths of the blocks that a rank has for each other one
			for from := range lengths {
				for range n {
					lengths[from] = append(lengths[from], 4*uint64(draw.IntN(longest/4+1)))
				}
			}
			async := round%2 == 1
			w.each(func(g *Group) error {
				rng := rand.New(rand.NewPCG(uint64(round), uint64(g.rank)))
				between := func(from, to int) []byte { return pattern(from*16+to, round, int(lengths[from][to])) }
				var mine, theirs []byte
				var come []uint64
				for other := range n {
					mine = append(mine, between(g.rank, other)...)
					theirs = append(theirs, between(other, g.rank)...)
					come = append(come, lengths[other][g.rank])
				}
				got := make([]byte, len(theirs))
				op := coll.Op{Kind: coll.AllToAll, Type: coll.Float32, InBlocks: lengths[g.rank], OutBlocks: come, Async: async}
				if err := call(g, op, cut(mine, 4, rng), cut(got, 4, rng)); err != nil {
					return err
				}
				if !bytes.Equal(got, theirs) {
					return fmt.Errorf("round %d: all_to_all of %v: wrong", round, lengths)
				}
				var all []byte
				for other := range n {
					all = append(all, pattern(other, round, int(lengths[0][other]))...)
				}
				got = make([]byte, len(all))
				op = coll.Op{Kind: coll.AllGather, Type: coll.Float32, OutBlocks: lengths[0], Async: async}
				if err := call(g, op, one(pattern(g.rank, round, int(lengths[0][g.rank]))), cut(got, 4, rng)); err != nil {
					return err
				}
				if !bytes.Equal(got, all) {
					return fmt.Errorf("round %d: all_gather of %v: wrong", round, lengths[0])
				}
				var from, total uint64
				for other := range n {
					if other < g.rank {
						from += lengths[0][other]
					}
					total += lengths[0][other]
				}
				in := contributionBytes(coll.Int32, coll.Sum, g.rank, n, int(total/4))
				want := reducedBytes(coll.Int32, coll.Sum, n, int(total/4))[from : from+lengths[0][g.rank]]
				got = make([]byte, len(want))
				op = coll.Op{Kind: coll.ReduceScatter, Type: coll.Int32, InBlocks: lengths[0], Async: async}
				if err := call(g, op, cut(in, 4, rng), cut(got, 4, rng)); err != nil {
					return err
				}
				if !bytes.Equal(got, want) {
					return fmt.Errorf("round %d: reduce_scatter of %v: wrong", round, lengths[0])
				}
				return nil
			})
		}
	})
}

func TestMismatchOfBlocks(t *testing.T) {
	for _, c := range []struct {
		name string
		op   func(rank int) (coll.Op, int, int)
		want string // in the text; the whole is in testdata/failures
	}{
		{"all_to_all", func(rank int) (coll.Op, int, int) {
			in, out := []uint64{8, 8, 8}, []uint64{8, 8, 8}
			if rank == 2 {
				in[0] = 12
			}
			return coll.Op{Kind: coll.AllToAll, Type: coll.Int32, InBlocks: in, OutBlocks: out}, 24 + int(in[0]-8), 24
		}, "rank 2"},
		{"reduce_scatter", func(rank int) (coll.Op, int, int) {
			in := []uint64{8, 4, 12}
			if rank == 1 {
				in = []uint64{12, 4, 8}
			}
			return coll.Op{Kind: coll.ReduceScatter, Type: coll.Int32, InBlocks: in}, 24, int(in[rank])
		}, "different lengths"},
		{"all_gather", func(rank int) (coll.Op, int, int) {
			op := coll.Op{Kind: coll.AllGather, Type: coll.Int32}
			if rank == 1 {
				op.OutBlocks = []uint64{8, 8, 4}
				return op, 8, 20
			}
			return op, 8, 24
		}, "different lengths"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 3)
			list := w.eachFailure(func(g *Group) *coll.Failure {
				op, in, out := c.op(g.rank)
				_, f := g.Issue(op, one(make([]byte, in)), one(make([]byte, out)))
				for f == nil {
					f = sum(g, 1)
				}
				return f
			})
			expectAll(t, list, coll.Mismatch, c.want)
		})
	}
}

func TestRefusedBlocks(t *testing.T) {
	w := newWorld(t, 2)
	w.each(func(g *Group) error {
		for _, c := range []struct {
			op      coll.Op
			in, out int
			want    string
		}{
			{coll.Op{Kind: coll.AllToAll}, 9, 8, "expected 2 equal blocks, or the lengths of the blocks"},
			{coll.Op{Kind: coll.AllToAll, InBlocks: []uint64{4, 8}}, 8, 8, "the input of 8 bytes ends within block 1"},
			{coll.Op{Kind: coll.AllToAll, InBlocks: []uint64{4, 4}}, 12, 8, "the input has 4 bytes beyond its last block"},
			{coll.Op{Kind: coll.AllToAll, Type: coll.Int32, InBlocks: []uint64{6, 6}}, 12, 8, "block 0 of the input, 6 bytes, is not whole elements of int32"},
			{coll.Op{Kind: coll.AllToAll, InBlocks: []uint64{3, 5}, OutBlocks: []uint64{5, 3}}, 8, 8, "its input block for itself has "},
			{coll.Op{Kind: coll.AllGather, OutBlocks: []uint64{6, 6}}, 4, 12, "expected an input as long as this rank's block"},
			{coll.Op{Kind: coll.AllGather, InBlocks: []uint64{6, 6}}, 12, 12, "blocks of the input cannot differ in length"},
			{coll.Op{Kind: coll.ReduceScatter}, 9, 4, "expected an input 2 times as long as the output"},
			{coll.Op{Kind: coll.ReduceScatter, InBlocks: []uint64{4, 4}}, 8, 8, "expected an output as long as this rank's block"},
			{coll.Op{Kind: coll.Gather, Root: 2}, 4, 4, "root 2 is outside the group"},
			{coll.Op{Kind: coll.Gather, Root: g.rank}, 4, 4, "expected an output 2 times as long as the input on the root"},
			{coll.Op{Kind: coll.Gather, Root: 1 - g.rank}, 4, 8, "no output on a rank that is not the root"},
			{coll.Op{Kind: coll.Scatter, Root: g.rank}, 4, 4, "expected an input 2 times as long as the output on the root"},
			{coll.Op{Kind: coll.Scatter, Root: 1 - g.rank}, 8, 4, "no input on a rank that is not the root"},
		} {
			for _, async := range []bool{false, true} {
				c.op.Async = async
				_, f := g.Issue(c.op, one(make([]byte, c.in)), one(make([]byte, c.out)))
				if err := expect(f, coll.Invalid, c.op.Kind.String(), c.want); err != nil {
					return fmt.Errorf("%+v: %w", c.op, err)
				}
			}
		}
		return asError(sum(g, 10))
	})
}
