package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotScatter has the root publish the chunks for all others, which read theirs. The root copies its own chunk
// straight to its output.
//
//	root:   publish k of the blocks of others | own chunk k -> output
//	others: read k from the root -> output
//
// Steps: 1 a chunk, 2 on the root; one round of flags. With blocks of n bytes: (P-1) n into the root's slots, and n out
// of them by each other rank. That is the lower bound.
func OneShotScatter(at Place) plan.SlotPlan {
	if at.Rank == at.Root {
		return at.plan(OneShot, coll.Scatter, plan.Stage{Action: plan.Publish}, plan.Stage{Action: plan.Local})
	}
	return at.plan(OneShot, coll.Scatter, plan.Stage{Action: plan.Read, From: plan.FromRoot})
}
