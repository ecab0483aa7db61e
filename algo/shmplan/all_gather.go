package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotAllGather has every rank publish its chunk and copy the chunks of all others from their slots to their blocks
// of the output. A rank's own chunk goes straight from the input to its block.
//
//	publish k | read k-1 of the others -> blocks; own chunk k-1 of the input -> own block
//
// Steps: 2 a chunk, one round of flags. Per rank with n bytes of input: n into its slot, (P-1) n out of the slots of
// others, and n locally (nothing in place). That is the lower bound, which ring and Bruck also reach (Bruck et al.
// 1997; Chan et al. 2007), but in one round instead of P-1 or log2 P.
func OneShotAllGather(at Place) plan.SlotPlan {
	return at.plan(OneShot, coll.AllGather,
		plan.Stage{Action: plan.Publish},
		plan.Stage{Action: plan.Read, Lag: 1, From: plan.Others},
	)
}
