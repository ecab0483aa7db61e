package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotReduceScatter has every rank publish its chunks for the others and reduce what all have for it: the first half
// of a two-shot all-reduce, with blocks in the place of shares.
//
//	publish k of the blocks of others | reduce k-1 of the own block from 0..P-1 -> output
//
// Steps: 2 a chunk, one round of flags. Per rank, n bytes a block: (P-1) n into its slot, (P-1) n out of others' slots,
// P n reduced, n to the output. (P-1) n in and out is the least that any reduce-scatter can move (Chan et al. 2007), in
// one round instead of the P-1 of the ring or log2 P of recursive halving. Each block is reduced by one rank, in rank
// order, so the result is the same bits as that block of an all-reduce.
func OneShotReduceScatter(at Place) plan.SlotPlan {
	return at.plan(OneShot, coll.ReduceScatter,
		plan.Stage{Action: plan.Publish},
		plan.Stage{Action: plan.ReduceSlots, Lag: 1, Part: plan.Block, From: plan.Everybody, ToOutput: true},
	)
}
