package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotReduce has all ranks publish and the root reduce all chunks into its output. The root publishes as well, since
// a reduction takes its operands from slots.
//
//	root:   publish k | reduce k-1 from 0..P-1 -> output
//	others: publish k
//
// Steps: 2 a chunk on the root, 1 elsewhere; one round of flags. With n bytes: n into each slot, and on the root (P-1)
// n out of the slots of others and P n reduced. The root's work bounds the time: L + (P-1) n b + (P-1) n g.
func OneShotReduce(at Place) plan.SlotPlan {
	if at.Rank == at.Root {
		return at.plan(OneShot, coll.Reduce,
			plan.Stage{Action: plan.Publish},
			plan.Stage{Action: plan.ReduceSlots, Lag: 1, Part: plan.Whole, From: plan.Everybody, ToOutput: true},
		)
	}
	return at.plan(OneShot, coll.Reduce, plan.Stage{Action: plan.Publish})
}

// TwoShotReduce is a direct reduce-scatter followed by a direct gather to the root. All ranks reduce, so none of them
// has the work that one-shot leaves to the root.
//
//	root:   publish k | reduce share of k-1 -> output | collect other shares of k-2 -> output
//	others: publish k | reduce share of k-1 -> root's slot
//
// Steps: 3 a chunk on the root, 2 elsewhere; two rounds of flags. Per rank with n bytes (P | n): n into its slot,
// (P-1)/P n out of the slots of others by the reduction, n reduced, and n/P written; the root collects (P-1)/P n from
// its own slot. The time is that of the first half of a two-shot all-reduce and a gather: 2 L + 2 (P-1)/P n b + (P-1)/P
// n g (Thakur, Rabenseifner, Gropp, IJHPCA 2005). Nobody collects the root's share, so the root does not write its
// result back to slots.
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
