package algo

import "sagecomm/internal/coll"

// TwoShotAllReduce is a direct reduce-scatter followed by a direct all-gather, pipelined over chunks: each rank folds
// its share of a chunk from all slots, leaves the result in its own slot, and collects the other shares.
//
//	publish k | fold share of k-1 from 0..P-1 -> output and slot | collect other shares of k-2 -> output
//
// Steps: 3 a chunk, two rounds of flags. Per rank, n bytes (P | n): n into its slot, (P-1)/P n out of others' slots by
// the fold and as much by the collect, n folded, n/P back into the slot, n to the output. That is 2 (P-1)/P n between
// cores, the least that any all-reduce can move (Patarasuk and Yuan, JPDC 2009), and each element is folded by one rank
// only, so all ranks get the same bits.
// Time 2 L + 2 (P-1)/P n b + (P-1)/P n g (Thakur, Rabenseifner, Gropp, IJHPCA 2005, with direct exchange: the rounds do
// not grow with P because a reader of shared memory looks at all slots itself).
func TwoShotAllReduce(at Place) Plan {
	return at.plan(TwoShotName, coll.AllReduce,
		Stage{Action: Publish},
		Stage{Action: Fold, Lag: 1, Part: Share, From: Everybody, ToOutput: true, ToSlot: true},
		Stage{Action: Collect, Lag: 2, From: Others},
	)
}
