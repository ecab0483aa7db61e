package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotReduce has the others publish and the root reduce all chunks into its output. The root publishes as well, since
// a reduction takes its operands from slots.
//
//	root:   publish k | reduce k-1 from 0..P-1 -> output
//	others: publish k
//
// Steps: 2 a chunk on the root, 1 elsewhere; one round of flags. n bytes: n into each slot, (P-1) n out of others'
// slots and P n reduced by the root alone, which bounds the time: L + (P-1) n b + (P-1) n g.
func OneShotReduce(at Place) plan.SlotPlan {
	if at.Rank == at.Root {
		return at.plan(OneShot, coll.Reduce,
			plan.Stage{Action: plan.Publish},
			plan.Stage{Action: plan.ReduceSlots, Lag: 1, Part: plan.Whole, From: plan.Everybody, ToOutput: true},
		)
	}
	return at.plan(OneShot, coll.Reduce, plan.Stage{Action: plan.Publish})
}

// TwoShotReduce is a direct reduce-scatter followed by a direct gather to the root: all ranks reduce.
//
//	root:   publish k | reduce share of k-1 -> output | collect other shares of k-2 -> output
//	others: publish k | reduce share of k-1 -> root's slot
//
// Steps: 3 a chunk on the root, 2 elsewhere; two rounds of flags. Per rank, n bytes (P | n): n into the slot, (P-1)/P n
// out of others' slots by the reduction, n reduced, n/P written; the root collects (P-1)/P n from its own slot. Time as
// the first half of two-shot all-reduce and a gather: 2 L + 2 (P-1)/P n b + (P-1)/P n g (Thakur, Rabenseifner, Gropp,
// IJHPCA 2005). Nobody collects the root's share, so the root does not write its result back into slots.
func TwoShotReduce(at Place) plan.SlotPlan {
	if at.Rank == at.Root {
		return at.plan(TwoShot, coll.Reduce,
			plan.Stage{Action: plan.Publish},
			plan.Stage{Action: plan.ReduceSlots, Lag: 1, Part: plan.Share, From: plan.Everybody, ToOutput: true},
			plan.Stage{Action: plan.Collect, Lag: 2, From: plan.Others},
		)
	}
	return at.plan(TwoShot, coll.Reduce,
		plan.Stage{Action: plan.Publish},
		plan.Stage{Action: plan.ReduceSlots, Lag: 1, Part: plan.Share, From: plan.Everybody, Back: plan.FromRoot},
	)
}
