package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotAllGather has every rank publish its chunk and read the chunks of all others into their blocks of the output.
// Its own chunk goes straight from the input to its block.
//
//	publish k | read k-1 of the others -> blocks; own chunk k-1 of the input -> own block
//
// Steps: 2 a chunk, one round of flags. Per rank, n bytes of input: n into its slot, (P-1) n out of others' slots, n
// locally (nothing in place): as many bytes as ring or Bruck (Bruck et al. 1997; Chan et al. 2007) and the lower bound,
// in one round instead of P-1 or log2 P.
func OneShotAllGather(at Place) plan.SlotPlan {
	return at.plan(OneShot, coll.AllGather,
		plan.Stage{Action: plan.Publish},
		plan.Stage{Action: plan.Read, Lag: 1, From: plan.Others},
	)
}
