package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotAllReduce has every rank publish its chunk and reduce the chunks of all ranks for itself. Inference kernels
// use this direct exchange for small messages, where a round of flags costs more than the bytes.
//
//	rank 0: publish k | reduce k-1 from 0..P-1 -> output
//	rank 1: publish k | reduce k-1 from 0..P-1 -> output
//
// Steps: 2 a chunk, one round of flags. Per rank with n bytes: n into its slot, (P-1) n out of the slots of other
// cores, P n reduced, and n to the output. Every rank reduces the same operands in the same order, so all get the same
// bits. The time is L + (P-1) n b + (P-1) n g, the "one-shot" line of the cost models (L is a flag hop, b and g are
// seconds per byte moved and reduced; Hockney 1994). Two-shot is faster once (P-1)(P-2)/P n b exceeds a flag hop.
func OneShotAllReduce(at Place) plan.SlotPlan {
	return at.plan(OneShot, coll.AllReduce,
		plan.Stage{Action: plan.Publish},
		plan.Stage{Action: plan.ReduceSlots, Lag: 1, Part: plan.Whole, From: plan.Everybody, ToOutput: true},
	)
}

// TwoShotAllReduce is a direct reduce-scatter followed by a direct all-gather, pipelined over chunks. Each rank reduces
// its share of a chunk from all slots, writes the result back to the same places of the slots, and collects the other
// shares from its own slot.
//
//	publish k | reduce share of k-1 from 0..P-1 -> output and slots of the others | collect other shares of k-2 -> output
//
// Steps: 3 a chunk, two rounds of flags. Per rank with n bytes (P | n): n into its slot, (P-1)/P n out of the slots of
// others by the reduction and back into them, n reduced, (P-1)/P n out of its own slot by the collect, and n to the
// output. So a line of a slot goes from its owner's core to the core that reduces it and returns: 2 (P-1)/P n between
// cores, the least that any all-reduce can move (Patarasuk and Yuan, JPDC 2009). If a rank left its result in its own
// slot instead, as little data would move, but every store to a slot would have to claim a line that other cores have
// read: that took 1.4 times as long from 256 KiB on (docs/measured.md). Only one rank reduces each element, so all
// ranks get the same bits. The time is 2 L + 2 (P-1)/P n b + (P-1)/P n g (Thakur, Rabenseifner, Gropp, IJHPCA 2005,
// with direct exchange: the rounds do not grow with P, because a reader of shared memory looks at all slots itself).
func TwoShotAllReduce(at Place) plan.SlotPlan {
	return at.plan(TwoShot, coll.AllReduce,
		plan.Stage{Action: plan.Publish},
		plan.Stage{Action: plan.ReduceSlots, Lag: 1, Part: plan.Share, From: plan.Everybody, ToOutput: true, Back: plan.Others},
		plan.Stage{Action: plan.Collect, Lag: 2, From: plan.Others},
	)
}
