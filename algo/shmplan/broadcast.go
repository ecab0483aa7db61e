package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotBroadcast has the root publish chunks that all others read straight out of its slots. It is the flat tree,
// which shared memory makes cheap because one copy serves all readers.
//
//	root:   publish k
//	others: read k from the root -> output
//
// Steps: 1 a chunk, one round of flags. Per rank, n bytes: n into its slot on the root, n out of the root's slot on the
// others. The root is ahead of its readers by up to the number of slots, so the time is n b + n b / chunks (the chain's
// formula (P-2 + n/s)(a + s b) with all readers at depth one). No reader contributes anything, so all lags are 0.
func OneShotBroadcast(at Place) plan.SlotPlan {
	if at.Rank == at.Root {
		return at.plan(OneShot, coll.Broadcast, plan.Stage{Action: plan.Publish})
	}
	return at.plan(OneShot, coll.Broadcast, plan.Stage{Action: plan.Read, From: plan.FromRoot})
}
