package shmplan

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/verify"
	"sagecomm/internal/coll"
)

// TestMain lets the heap grow further between garbage collections. Proofs drop nearly all that they allocate, and the
// heap that stays is so small that the collector would run all the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1000)
	m.Run()
}

// build makes the plans of all ranks.
func build(t testing.TB, kind coll.Kind, algorithm string, size, root int, slots plan.Slots, chunk int) []plan.SlotPlan {
	t.Helper()
	plans := make([]plan.SlotPlan, size)
	for rank := range plans {
		p, err := Build(kind, algorithm, Place{rank, size, root, slots, chunk})
		require.NoError(t, err)
		plans[rank] = p
	}
	return plans
}

// slotsFor returns the slots that an algorithm can use.
func slotsFor(f family) []plan.Slots {
	if f.name == TwoShot || f.kind == coll.AllToAll {
		return []plan.Slots{plan.LargeSlots}
	}
	return []plan.Slots{plan.SmallSlots, plan.LargeSlots}
}

// edges returns byte counts around every edge of a plan's arithmetic, up to more chunks than there are slots.
func edges(chunk int, slots plan.Slots) []uint64 {
	c := uint64(chunk)
	return []uint64{0, 1, 63, 64, 65, c - 1, c, c + 1, 2*c + 64, uint64(slots.Count()+2)*c + 17}
}

func TestEveryAlgorithmIsRight(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 33}
	if !testing.Short() {
		sizes = []int{48, 64}
		for size := 1; size <= 33; size++ {
			sizes = append(sizes, size)
		}
	}
	for _, f := range families {
		for _, slots := range slotsFor(f) {
			t.Run(fmt.Sprintf("%v/%s/%v", f.kind, f.name, slots), func(t *testing.T) {
				t.Parallel()
				for _, size := range sizes {
					if slots == plan.SmallSlots && size > 12 && size != 33 {
						continue // the large slots have the same stages and need fewer chunks to be used again
					}
					roots := []int{0}
					if f.kind.Rooted() {
						roots = []int{0, size / 3, size - 1}
						if size <= 6 {
							roots = roots[:0]
							for root := range size {
								roots = append(roots, root)
							}
						}
					}
					for i, root := range roots {
						if i > 0 && root == roots[i-1] {
							continue
						}
						for _, chunk := range []int{64, 192} {
							if chunk == 64 && size > 9 {
								continue // a chunk of 64 bytes is the share of one rank
							}
							plans := build(t, f.kind, f.name, size, root, slots, chunk)
							for _, bytes := range edges(chunk, slots) {
								require.NoError(t, verify.CheckSlots(plans, plan.Lengths{Bytes: bytes}))
								if f.kind == coll.Barrier {
									break
								}
							}
						}
					}
				}
			})
		}
	}
}

func TestSharesOfManyRanksAreRight(t *testing.T) {
	for _, size := range []int{2, 3, 5, 8, 17, 33, 64} {
		for _, kind := range []coll.Kind{coll.AllReduce, coll.Reduce} {
			chunk := 64*size + 128
			require.NoError(t, verify.CheckSlots(build(t, kind, TwoShot, size, size-1, plan.LargeSlots, chunk), plan.Lengths{Bytes: uint64(3*chunk - 63)}))
		}
	}
}

func TestBlocksMayDifferInLength(t *testing.T) {
	const seed = 20260901
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const chunk = 64
	for _, kind := range []coll.Kind{coll.AllGather, coll.ReduceScatter, coll.AllToAll} {
		for size := 1; size <= 9; size++ {
			plans := build(t, kind, OneShot, size, 0, plan.LargeSlots, chunk)
			for round := range 30 {
				blocks := make([]uint64, size)
				if kind == coll.AllToAll {
					blocks = make([]uint64, size*size)
				}
				for i := range blocks {
					longest := []int{0, 10, plans[0].Head + 1, plans[0].Head + chunk*7}[rng.IntN(4)]
					blocks[i] = uint64(rng.IntN(longest + 1))
				}
				if round == 0 {
					clear(blocks)
				}
				require.NoError(t, verify.CheckSlots(plans, plan.Lengths{Blocks: blocks}))
			}
		}
	}
}

func TestARankAloneCopies(t *testing.T) {
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		for _, bytes := range []uint64{0, 1, 1000} {
			if err := verify.CheckSlots(build(t, kind, Local, 1, 0, plan.LargeSlots, 128), plan.Lengths{Bytes: bytes}); err != nil {
				t.Error(err)
			}
		}
	}
}

// Any collective may follow any other one on the same slots, without a barrier between them.
func TestCollectivesFollowOneAnother(t *testing.T) {
	for _, size := range []int{1, 2, 3, 5, 9} {
		for _, first := range families {
			for _, second := range families {
				var calls []verify.SlotCall
				for i, f := range []family{first, second, first, second, second, first} {
					slots := plan.LargeSlots
					if f.name == OneShot && f.kind != coll.AllToAll && i%3 == 0 {
						slots = plan.SmallSlots
					}
					calls = append(calls, verify.SlotCall{
						Plans: build(t, f.kind, f.name, size, i%size, slots, 64), Lengths: plan.Lengths{Bytes: uint64(i*150) % 400}, InPlace: i%2 == 0,
					})
				}
				if err := verify.CheckSlotCalls(calls...); err != nil {
					t.Fatalf("%v %s, %v %s: %v", first.kind, first.name, second.kind, second.name, err)
				}
			}
		}
	}
}
