package shmplan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// The counts agree with the closed formulas of the literature for n bytes and P ranks whose shares are equally long:
//
//	one-shot         out of others' slots (P-1) n, reduced P n                     (vLLM, DeepSpeed: the direct exchange)
//	two-shot         2 (P-1)/P n between cores, (P-1)/P n of operands added = n reduced with the own ones, results
//	                 stored to all P ranks, the own output first
//	                 (Thakur, Rabenseifner, Gropp 2005; the bound of Patarasuk and Yuan 2009)
//	broadcast        n into the root's slots, n out of them on each other rank    (Chan et al. 2007, flat tree)
//	all_gather       (P-1) n out of others' slots                                 (lower bound; Bruck et al. 1997)
//	barrier          P-1 flags, no bytes
//	reduce_scatter   (P-1) n out of others' slots, reduced P n, for blocks of n    (lower bound; Chan et al. 2007)
//	all_to_all       (P-1) n out of others' slots; all in the heads here          (lower bound)
//	gather, scatter  (P-1) n out of others' slots on the root, n on the others    (lower bound)
func TestStepsAndBytesAreThoseOfTheFormulas(t *testing.T) {
	const chunks = 5
	counted := map[string]bool{}
	for size := 1; size <= 33; size++ {
		chunk := uint64(64 * size)
		n, P := chunks*chunk, uint64(size)
		exchanges := chunks // of an all_to_all: one for the heads, then one for each chunk
		if size > 1 {
			exchanges = 1 + int((n-min(n, uint64(plan.HeadBytes(size)))+chunk-1)/chunk)
		}
		for _, root := range []int{0, size - 1} {
			for rank := range size {
				isRoot := rank == root
				either := func(a, b cost.SlotTraffic) cost.SlotTraffic {
					if isRoot {
						return a
					}
					return b
				}
				flags := chunks * (size - 1)
				for _, c := range []struct {
					kind      coll.Kind
					algorithm string
					want      cost.SlotTraffic
				}{
					{coll.AllReduce, OneShot, cost.SlotTraffic{Steps: 2 * chunks, Flags: flags, Near: n, Claims: n, Far: (P - 1) * n, Reduced: P * n}},
					{coll.AllReduce, TwoShot, cost.SlotTraffic{Steps: 3 * chunks, Flags: 2 * flags, Near: n, Far: 2 * (P - 1) * n / P, Reduced: n, Stored: (P - 1) * n / P}},
					{coll.Broadcast, OneShot, either(
						cost.SlotTraffic{Steps: chunks, Near: n, Claims: n},
						cost.SlotTraffic{Steps: chunks, Flags: chunks, Far: n})},
					{coll.AllGather, OneShot, cost.SlotTraffic{Steps: 2 * chunks, Flags: flags, Near: 2 * n, Claims: n, Far: (P - 1) * n}},
					{coll.Reduce, OneShot, either(
						cost.SlotTraffic{Steps: 2 * chunks, Flags: flags, Near: n, Claims: n, Far: (P - 1) * n, Reduced: P * n},
						cost.SlotTraffic{Steps: chunks, Near: n, Claims: n})},
					{coll.Reduce, TwoShot, either(
						cost.SlotTraffic{Steps: 3 * chunks, Flags: 2 * flags, Near: n, Far: 2 * (P - 1) * n / P, Reduced: n},
						cost.SlotTraffic{Steps: 2 * chunks, Flags: flags, Near: n, Claims: n, Far: (P - 1) * n / P, Reduced: n})},
					{coll.Barrier, OneShot, cost.SlotTraffic{Steps: 2, Flags: size - 1}},
					{coll.ReduceScatter, OneShot, cost.SlotTraffic{Steps: 2 * chunks, Flags: flags, Near: (P - 1) * n, Claims: (P - 1) * n, Far: (P - 1) * n, Reduced: P * n}},
					{coll.AllToAll, OneShot, cost.SlotTraffic{Steps: 2 * exchanges, Flags: exchanges * (size - 1), Near: P * n, Claims: (P - 1) * n, Far: (P - 1) * n}},
					{coll.Gather, OneShot, either(
						cost.SlotTraffic{Steps: chunks, Flags: flags, Near: n, Far: (P - 1) * n},
						cost.SlotTraffic{Steps: chunks, Near: n, Claims: n})},
					{coll.Scatter, OneShot, either(
						cost.SlotTraffic{Steps: 2 * chunks, Near: P * n, Claims: (P - 1) * n},
						cost.SlotTraffic{Steps: chunks, Flags: chunks, Far: n})},
				} {
					counted[c.kind.String()+" "+c.algorithm] = true
					p, err := Build(c.kind, c.algorithm, Place{rank, size, root, plan.LargeSlots, int(chunk)})
					require.NoError(t, err)
					if got := cost.CountSlots(p, n); got != c.want {
						t.Errorf("%v %s, rank %d of %d, root %d: %+v, want %+v", c.kind, c.algorithm, rank, size, root, got, c.want)
					}
				}
			}
		}
	}
	for _, f := range families {
		if !counted[f.kind.String()+" "+f.name] {
			t.Errorf("%v %s has no formula here", f.kind, f.name)
		}
	}
	p, _ := Build(coll.AllReduce, Local, Place{Size: 1, Slots: plan.LargeSlots, Chunk: 128})
	if got := cost.CountSlots(p, 300); got != (cost.SlotTraffic{Steps: 3, Near: 300}) {
		t.Errorf("a rank alone: %+v", got)
	}
}
