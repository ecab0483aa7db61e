package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotReduceScatter has every rank publish its chunks for the others and reduce what all ranks have for it. It is
// the first half of a two-shot all-reduce, with blocks instead of shares.
//
//	publish k of the blocks of others | reduce k-1 of the own block from 0..P-1 -> output
//
// Steps: 2 a chunk, one round of flags. Per rank with blocks of n bytes: (P-1) n into its slot, (P-1) n out of the
// slots of others, P n reduced, and n to the output. No reduce-scatter can move less than (P-1) n in and out (Chan et
// al. 2007), and this one takes one round instead of the P-1 of the ring or the log2 P of recursive halving. One rank
// reduces each block, in rank order, so the result has the same bits as that block of an all-reduce.
func OneShotReduceScatter(at Place) plan.SlotPlan {
	return at.plan(OneShot, coll.ReduceScatter,
		plan.Stage{Action: plan.Publish},
		plan.Stage{Action: plan.ReduceSlots, Lag: 1, Part: plan.Block, From: plan.Everybody, ToOutput: true},
	)
}
