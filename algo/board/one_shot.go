package board

import "sagecomm/internal/coll"

// OneShotAllReduce has every rank publish its chunk and fold the chunks of all ranks for itself: the direct exchange
// that inference kernels use for small messages, where one round of flags counts for more than the bytes.
//
//	rank 0: publish k | fold k-1 from 0..P-1 -> output
//	rank 1: publish k | fold k-1 from 0..P-1 -> output
//
// Steps: 2 a chunk, one round of flags. Per rank, n bytes: n into its slot, (P-1) n out of other cores' slots, P n
// folded, n to the output. Every rank folds the same operands in the same order, so all get the same bits.
// Time L + (P-1) n b + (P-1) n g: the "one-shot" line of the cost models (L a flag hop, b and g seconds per byte moved
// and folded; Hockney 1994). It loses to two-shot once (P-1)(P-2)/P n b exceeds a flag hop.
func OneShotAllReduce(at Place) Plan {
	return at.plan(OneShotName, coll.AllReduce,
		Stage{Action: Publish},
		Stage{Action: Fold, Lag: 1, Part: Whole, From: Everybody, ToOutput: true},
	)
}
