package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotBroadcast has the root publish chunks that all others read straight out of its slots: the flat tree, which
// shared memory makes cheap because one copy serves all readers.
//
//	root:   publish k
//	others: read k from the root -> output
//
// Steps: 1 a chunk, one round of flags. Per rank, n bytes: root n into its slot; others n out of the root's slot. The
// root is ahead of its readers by up to the number of slots, so n b + n b / chunks overall (chain formula
// (P-2 + n/s)(a + s b) with all readers at depth one). No reader contributes anything, so lags are 0 everywhere.
func OneShotBroadcast(at Place) plan.SlotPlan {
	if at.Rank == at.Root {
		return at.plan(OneShot, coll.Broadcast, plan.Stage{Action: plan.Publish})
	}
	return at.plan(OneShot, coll.Broadcast, plan.Stage{Action: plan.Read, From: plan.FromRoot})
}
