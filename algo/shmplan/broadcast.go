package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotBroadcast has the root publish chunks, which all others read straight out of its slots. It is the flat tree,
// and cheap here because one copy into shared memory serves all readers.
//
//	root:   publish k
//	others: read k from the root -> output
//
// Steps: 1 a chunk, one round of flags. With n bytes: n into the root's slots, and n out of them by each other rank.
// The root may be ahead of its readers by as many chunks as it has slots, so the time is n b + n b / chunks (the
// chain's formula (P-2 + n/s)(a + s b) with all readers at depth one). Readers contribute nothing, so all lags are 0.
func OneShotBroadcast(at Place) plan.SlotPlan {
	if at.Rank == at.Root {
		return at.plan(OneShot, coll.Broadcast, plan.Stage{Action: plan.Publish})
	}
	return at.plan(OneShot, coll.Broadcast, plan.Stage{Action: plan.Read, From: plan.FromRoot})
}
