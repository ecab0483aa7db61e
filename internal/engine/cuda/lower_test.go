package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// These tests run the commands of all ranks on memory of the host, in any order that the streams allow. A word of an inbox is
// compared as a device does.

const testSlot = 2 << 10

// world is a group of ranks whose streams run at random.
type world struct {
	size    int
	ranks   []*simulated
	chances *rand.Rand
}

type simulated struct {
	*lowering
	all   []byte // slots
	words [words][]uint32
	queue []queued
}

type queued struct {
	command
	op *operation
}

// operation is one collective of all ranks, with their buffers.
type operation struct {
	name    string
	in, out [][]byte // by rank
	want    [][]byte // by rank; nil: no output
}

func newWorld(size int, seed uint64) *world {
	w := &world{size: size, chances: rand.New(rand.NewPCG(seed, 0))}
	for rank := range size {
		s := &simulated{lowering: newLowering(rank, size, &algo.DeviceChoices{}), all: make([]byte, slotCount*testSlot)}
		s.slotBytes = testSlot
		s.choose = func(kind coll.Kind, root int, bytes uint64) algo.Class {
			c := algo.Class{Algorithm: shmplan.OneShot, Chunk: testSlot}
			if size > 2 && bytes > 700 && (kind == coll.AllReduce || kind == coll.Reduce) {
				c.Algorithm = shmplan.TwoShot
			}
			if bytes > 4000 && bytes < 10000 { // chunks of both lengths follow each other in the slots
				c.Chunk = testSlot / 4
			}
			return c
		}
		for i := range s.words {
			s.words[i] = make([]uint32, size)
		}
		w.ranks = append(w.ranks, s)
	}
	return w
}

// random returns bytes.
func (w *world) random(n uint64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(w.chances.UintN(256))
	}
	return b
}

// length returns a length, often one around the border of a chunk.
func (w *world) length() uint64 {
	border := []int{0, 64, 256, 512, 700, 1024, 2048, 4096, 8192, 17000}[w.chances.IntN(10)]
	return uint64(max(0, border+w.chances.IntN(5)-2))
}

// issue queues one random collective on all ranks.
func (w *world) issue(t *testing.T, kind coll.Kind) *operation {
	n, o := w.size, &operation{in: make([][]byte, w.size), out: make([][]byte, w.size), want: make([][]byte, w.size)}
	ops := make([]coll.Op, n)
	length, root := w.length(), w.chances.IntN(n)
	blocks := make([]uint64, n)
	uneven := w.chances.IntN(2) == 0
	for i := range blocks {
		blocks[i] = length
		if uneven {
			blocks[i] = w.length()
		}
	}
	matrix := make([][]uint64, n)
	for i := range matrix {
		matrix[i] = make([]uint64, n)
		for j := range matrix[i] {
			matrix[i][j] = w.length() * uint64(w.chances.IntN(2))
		}
	}
	total := func(list []uint64) (sum uint64) {
		for _, one := range list {
			sum += one
		}
		return sum
	}
	for r := range n {
		op := coll.Op{Kind: kind, Type: coll.Uint8, Root: root}
		switch kind {
		case coll.AllReduce, coll.Reduce:
			op.In, op.Out = length, length
		case coll.Broadcast:
			op.Out = length
			if r == root {
				op.In = length
			}
		case coll.AllGather:
			op.In, op.Out, op.OutBlocks = blocks[r], total(blocks), blocks
		case coll.ReduceScatter:
			op.In, op.Out, op.InBlocks = total(blocks), blocks[r], blocks
		case coll.Gather:
			op.In = length
			if r == root {
				op.Out = length * uint64(n)
			}
		case coll.Scatter:
			op.Out = length
			if r == root {
				op.In = length * uint64(n)
			}
		case coll.AllToAll:
			op.InBlocks, op.OutBlocks = matrix[r], make([]uint64, n)
			for from := range n {
				op.OutBlocks[from] = matrix[from][r]
			}
			op.In, op.Out = total(op.InBlocks), total(op.OutBlocks)
		}
		ops[r] = op
		o.in[r], o.out[r] = w.random(op.In), make([]byte, op.Out)
	}
	at := func(list []uint64, i int) uint64 { return total(list[:i]) }
	sum := make([]byte, len(o.in[0]))
	for _, in := range o.in {
		for i := range min(len(sum), len(in)) {
			sum[i] += in[i]
		}
	}
	for r := range n {
		switch kind {
		case coll.AllReduce:
			o.want[r] = sum
		case coll.Reduce:
			if r == root {
				o.want[r] = sum
			}
		case coll.Broadcast:
			if r != root {
				o.want[r] = o.in[root]
			}
		case coll.AllGather:
			o.want[r] = bytes.Join(o.in, nil)
		case coll.ReduceScatter:
			o.want[r] = sum[at(blocks, r) : at(blocks, r)+blocks[r]]
		case coll.Gather:
			if r == root {
				o.want[r] = bytes.Join(o.in, nil)
			}
		case coll.Scatter:
			o.want[r] = o.in[root][uint64(r)*length : uint64(r+1)*length]
		case coll.AllToAll:
			for from := range n {
				o.want[r] = append(o.want[r], o.in[from][at(matrix[from], r):at(matrix[from], r)+matrix[from][r]]...)
			}
		}
	}
	o.name = fmt.Sprintf("%v of %d bytes, root %d, blocks %v, %v, %d ranks", kind, length, root, blocks, matrix, n)
	for r, s := range w.ranks {
		for _, c := range s.lower(ops[r]) {
			s.queue = append(s.queue, queued{c, o})
		}
	}
	return o
}

// run carries all commands out.
func (w *world) run(t *testing.T) {
	for {
		var ready []int
		left := 0
		for r, s := range w.ranks {
			left += len(s.queue)
			if len(s.queue) > 0 && s.ready(&s.queue[0]) {
				ready = append(ready, r)
			}
		}
		if left == 0 {
			return
		}
		require.NotEmpty(t, ready, "all streams wait")
		r := ready[w.chances.IntN(len(ready))]
		s := w.ranks[r]
		for range 1 + w.chances.IntN(6) { // some ranks get far ahead
			if len(s.queue) == 0 || !s.ready(&s.queue[0]) {
				break
			}
			w.carryOut(r, s.queue[0])
			s.queue = s.queue[1:]
		}
	}
}

func (s *simulated) ready(q *queued) bool {
	return q.verb != await || int32(s.words[q.word][q.peer]-q.value) >= 0
}

func (w *world) carryOut(rank int, q queued) {
	switch q.verb {
	case signal:
		w.ranks[q.peer].words[q.word][rank] = q.value
	case move:
		place := func(r plan.Range) []byte {
			switch r.Space {
			case plan.Input:
				return q.op.in[rank][r.Off : r.Off+r.Len]
			case plan.Output:
				return q.op.out[rank][r.Off : r.Off+r.Len]
			}
			return w.ranks[r.Rank].all[r.Off : r.Off+r.Len]
		}
		result := make([]byte, q.move.From[0].Len)
		for _, from := range q.move.From {
			for i, b := range place(from) {
				result[i] += b
			}
		}
		for _, to := range q.move.To {
			copy(place(to), result)
		}
	}
}

var kinds = []coll.Kind{coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.ReduceScatter, coll.Gather, coll.Scatter, coll.AllToAll,
	coll.Barrier}

// Ranks whose streams run in any order carry out random collectives, many of them at once.
func TestStreams(t *testing.T) {
	for seed := range uint64(60) {
		newWorld([]int{1, 2, 3, 4, 8}[seed%5], seed).manyAtOnce(t, seed)
	}
}

func (w *world) manyAtOnce(t *testing.T, seed uint64) {
	var all []*operation
	for range 30 {
		all = append(all, w.issue(t, kinds[w.chances.IntN(len(kinds))]))
	}
	w.run(t)
	for i, o := range all {
		for r := range w.size {
			if o.want[r] != nil && !bytes.Equal(o.out[r], o.want[r]) {
				t.Fatalf("seed %d, operation %d, %s: rank %d has a wrong output", seed, i, o.name, r)
			}
		}
	}
}

// A barrier ends on no rank before it has begun on all of them.
func TestBarrier(t *testing.T) {
	w := newWorld(3, 1)
	w.issue(t, coll.Barrier)
	late := w.ranks[1].queue
	w.ranks[1].queue = nil
	for _, r := range []int{0, 2} {
		s := w.ranks[r]
		for len(s.queue) > 0 && s.ready(&s.queue[0]) {
			w.carryOut(r, s.queue[0])
			s.queue = s.queue[1:]
		}
		require.NotEmpty(t, s.queue)
	}
	w.ranks[1].queue = late
	w.run(t)
}

// The values of words go on behind 2^32, while many operations are under way.
func TestValuesWrap(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld([]int{2, 3, 4}[seed%3], seed)
		operations := 1<<(32-chunkBits) - 1 - w.chances.Uint32N(20) // before these
		for _, s := range w.ranks {
			for i := range words {
				for peer := range s.size {
					s.sent[i][peer], s.received[i][peer] = operations, operations
					s.words[i][peer] = s.received.value(i, peer, 0)
				}
			}
		}
		w.manyAtOnce(t, seed)
	}
}

// A slot that is not written for a long time has values that are too old to compare, and so has a stream that waits for none.
func TestValuesOfLongAgo(t *testing.T) {
	const long = 1<<(31-chunkBits) + 10
	blocks := func(n uint64) coll.Op {
		return coll.Op{Kind: coll.AllGather, Type: coll.Uint8, In: n, Out: 2 * n, OutBlocks: []uint64{n, n}}
	}
	from := func(root int) coll.Op { return coll.Op{Kind: coll.Broadcast, Type: coll.Uint8, Root: root, Out: 8} }
	for _, list := range [][]coll.Op{
		{from(0), from(1), from(1), from(1)}, // rank 0 writes each fourth slot
		{blocks(0)},
	} {
		w, newest := newWorld(2, 3), [2]uint32{}
		do := func(op coll.Op) {
			o := &operation{in: make([][]byte, 2), out: make([][]byte, 2)}
			for r, s := range w.ranks {
				o.in[r], o.out[r] = make([]byte, 32), make([]byte, 32)
				for _, c := range s.lower(op) {
					if c.verb == await && c.word == left {
						newest[r] = c.value
					}
					s.queue = append(s.queue, queued{c, o})
				}
			}
			w.run(t)
		}
		for range slotCount {
			do(blocks(8))
		}
		for range long {
			for _, op := range list {
				do(op)
			}
		}
		for range 2 * slotCount {
			do(blocks(8))
			for r, s := range w.ranks {
				require.Less(t, s.received.value(left, 1-r, 0)-newest[r], uint32(2*slotCount<<chunkBits), "the stream has waited for what was in its slots")
			}
		}
	}
}

// An operation of as many chunks as values have numbers for is carried out, and a longer one is refused, whatever its kind.
func TestOperationsThatAreTooLong(t *testing.T) {
	const size, chunk = 3, SlotBytes
	l := newLowering(0, size, &algo.DeviceChoices{})
	l.choose = func(coll.Kind, int, uint64) algo.Class { return algo.Class{Algorithm: shmplan.OneShot, Chunk: chunk} }
	const part, most = chunk / (size - 1), uint64(mostChunks)
	for _, op := range []func(bytes uint64) (coll.Op, uint64){
		func(n uint64) (coll.Op, uint64) { return coll.Op{Kind: coll.AllReduce, In: n, Out: n}, chunk },
		func(n uint64) (coll.Op, uint64) { return coll.Op{Kind: coll.Broadcast, Root: 1, Out: n}, chunk },
		func(n uint64) (coll.Op, uint64) { return coll.Op{Kind: coll.Reduce, Root: 1, In: n}, chunk },
		func(n uint64) (coll.Op, uint64) { return coll.Op{Kind: coll.AllGather, In: n, Out: size * n}, chunk },
		func(n uint64) (coll.Op, uint64) { return coll.Op{Kind: coll.Gather, Root: 1, In: n}, chunk },
		func(n uint64) (coll.Op, uint64) { return coll.Op{Kind: coll.Scatter, Root: 1, Out: n}, part },
		func(n uint64) (coll.Op, uint64) { return coll.Op{Kind: coll.ReduceScatter, In: size * n, Out: n}, part },
		func(n uint64) (coll.Op, uint64) {
			return coll.Op{Kind: coll.AllToAll, In: n, InBlocks: []uint64{0, n, 0}}, part
		},
		func(n uint64) (coll.Op, uint64) {
			return coll.Op{Kind: coll.AllToAll, In: size * n, Out: size * n}, part
		},
	} {
		_, cut := op(0)
		fits, _ := op(most * cut)
		long, _ := op(most*cut + 1)
		fits.Type, long.Type = coll.Uint8, coll.Uint8
		require.NoError(t, l.bound(fits), "%+v", fits)
		require.ErrorContains(t, l.bound(long), fmt.Sprintf("%d bytes have 131071 chunks, expected 131070 at most; set SAGECOMM_ENGINE=staged", most*cut+1), "%+v", long)
	}
}
