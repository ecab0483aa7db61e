package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotGather has the others publish and the root copy all chunks to their blocks of the output. The root's own chunk
// goes straight from the input to its block.
//
//	root:   read k of the others -> blocks; own chunk k of the input -> own block
//	others: publish k
//
// Steps: 1 a chunk, one round of flags. With n bytes on each rank: n into each slot but the root's, and (P-1) n out of
// them by the root. That is the lower bound, set by the root's memory. The root contributes nothing that others wait
// for, so its lag is 0.
func OneShotGather(at Place) plan.SlotPlan {
	if at.Rank == at.Root {
		return at.plan(OneShot, coll.Gather, plan.Stage{Action: plan.Read, From: plan.Others})
	}
	return at.plan(OneShot, coll.Gather, plan.Stage{Action: plan.Publish})
}
