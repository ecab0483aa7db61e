package fusion

import (
	"math/rand/v2"
	"slices"
	"testing"

	"sagecomm/internal/coll"
)

func sum(t coll.DataType) coll.Op {
	return coll.Op{Kind: coll.AllReduce, Type: t, Reduce: coll.Sum, In: 64, Out: 64}
}

func with(op coll.Op, change func(*coll.Op)) coll.Op {
	change(&op)
	return op
}

func TestPlan(t *testing.T) {
	f32, f16, i64 := sum(coll.Float32), sum(coll.Float16), sum(coll.Int64)
	maximum := with(f32, func(op *coll.Op) { op.Reduce = coll.Max })
	barrier := coll.Op{Kind: coll.Barrier}
	gather := coll.Op{Kind: coll.AllGather, Type: coll.Float32, In: 8, Out: 16}
	uneven := with(gather, func(op *coll.Op) { op.Out, op.OutBlocks = 20, []uint64{8, 12} })
	even := with(gather, func(op *coll.Op) { op.OutBlocks = []uint64{8, 8} })
	scaled := with(f32, func(op *coll.Op) { op.Reduce = coll.PremulSum })
	exchange := coll.Op{Kind: coll.AllToAll, Type: coll.Float32, In: 8, Out: 8}
	from := func(root int) coll.Op {
		return coll.Op{Kind: coll.Broadcast, Type: coll.Float32, In: 8, Out: 8, Root: root}
	}
	send := coll.Op{Kind: coll.Send, Type: coll.Float32, In: 8, Root: 1}
	recv := coll.Op{Kind: coll.Recv, Type: coll.Float32, Out: 8, Root: 1}
	on := func(ops ...coll.Op) []coll.Op {
		for i := range ops {
			ops[i].Device = coll.Device{Type: coll.CUDA}
		}
		return ops
	}
	for _, c := range []struct {
		name string
		ops  []coll.Op
		want []uint32
	}{
		{"nothing", nil, []uint32{}},
		{"one", []coll.Op{f32}, []uint32{0}},
		{"one type", []coll.Op{f32, f32, f32}, []uint32{0, 0, 0}},
		{"types are grouped, in the order in which they come first", []coll.Op{f32, f16, f32, i64, f16}, []uint32{0, 1, 0, 2, 1}},
		{"nothing moves past another reduction", []coll.Op{f32, maximum, f32}, []uint32{0, 1, 2}},
		{"nor past another kind", []coll.Op{f32, gather, f32}, []uint32{0, 1, 2}},
		{"nor past a barrier", []coll.Op{f32, barrier, f32}, []uint32{0, 1, 2}},
		{"barriers are not one", []coll.Op{barrier, barrier}, []uint32{0, 1}},
		{"nor past a send", []coll.Op{f32, send, f32}, []uint32{0, 1, 2}},
		{"sends stay apart", []coll.Op{send, send, send}, []uint32{0, 1, 2}},
		{"one root", []coll.Op{from(1), from(1), from(0), from(1)}, []uint32{0, 0, 1, 2}},
		{"equal blocks join, however they are given", []coll.Op{gather, even, gather}, []uint32{0, 0, 0}},
		{"blocks of different lengths do not", []coll.Op{gather, uneven, uneven, gather}, []uint32{0, 1, 2, 0}},
		{"nor does what one rank scales", []coll.Op{scaled, scaled}, []uint32{0, 1}},
		{"on the host p2p operations keep their places", []coll.Op{recv, f32, send}, []uint32{0, 1, 2}},
		{"on a device sends come first and recvs last", on(recv, f32, f16, send, recv, f32, send), []uint32{5, 2, 3, 0, 6, 4, 1}},
		{"on a device collectives share as on the host", on(f32, f16, f32, gather), []uint32{0, 1, 0, 2}},
		{"nor what only pairs of ranks know", []coll.Op{exchange, exchange}, []uint32{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Plan(c.ops); !slices.Equal(got, c.want) {
				t.Errorf("batches %v, expected %v", got, c.want)
			}
		})
	}
}

// Whatever one rank knows alone changes nothing.
func TestPlanIsTheSameOnAllRanks(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		ops := randomOps(random)
		elsewhere := make([]coll.Op, len(ops))
		for i, op := range ops {
			op.Factor, op.Timeout = random.Float64(), 1
			if op.Kind == coll.AllToAll {
				op.InBlocks, op.In = []uint64{0, 4}, 4
			}
			if op.Kind == coll.Gather || op.Kind == coll.Reduce {
				op.Out = 0
			}
			elsewhere[i] = op
		}
		if here, there := Plan(ops), Plan(elsewhere); !slices.Equal(here, there) {
			t.Fatalf("seed %d: %v: %v here and %v there", seed, ops, here, there)
		}
	}
}

func TestBatchesAreCollectives(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		ops := randomOps(random)
		batch := Plan(ops)
		if len(batch) != len(ops) {
			t.Fatalf("seed %d: %v: %d numbers", seed, ops, len(batch))
		}
		first := map[uint32]int{}
		for i, b := range batch {
			k, seen := first[b]
			if !seen {
				if int(b) != len(first) {
					t.Fatalf("seed %d: %v: batch %d comes after %d others", seed, ops, b, len(first))
				}
				first[b] = i
				continue
			}
			apart := slices.ContainsFunc(ops[k:i], func(op coll.Op) bool { return likeOf(op) != likeOf(ops[i]) })
			if apart || ops[k].Type != ops[i].Type || !joins(ops[i]) {
				t.Fatalf("seed %d: %v: operation %d is in one batch with %d", seed, ops, i, k)
			}
		}
	}
}

func randomOps(random *rand.Rand) []coll.Op {
	ops := make([]coll.Op, random.IntN(12))
	for i := range ops {
		ops[i] = coll.Op{Kind: coll.Kind(random.IntN(int(coll.KindCount))), Type: coll.DataType(random.IntN(3)),
			Reduce: coll.ReduceOp(random.IntN(2)), Root: random.IntN(2), In: 8, Out: 8}
	}
	return ops
}
