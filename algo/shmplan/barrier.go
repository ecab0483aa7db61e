package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotBarrier has every rank mark a slot as filled, without data, and wait until the slots of all others are filled.
//
//	publish nothing | await 0..P-1
//
// Steps: 2, one round of flags. Each rank reads P-1 flags, in L + (P-1) f, where f is the time to look at a flag that
// is set. Dissemination (Hensgen, Finkel, Manber 1988) takes L ceil(log2 P): it sends fewer flags but waits for them
// one after the other. There is one chunk, so no lag is needed.
func OneShotBarrier(at Place) plan.SlotPlan {
	return at.plan(OneShot, coll.Barrier,
		plan.Stage{Action: plan.Publish},
		plan.Stage{Action: plan.Await, From: plan.Others},
	)
}
