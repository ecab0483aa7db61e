package board

import "sagecomm/internal/coll"

// OneShotGather has the others publish and the root read all chunks into their blocks of the output; its own goes
// straight from the input.
//
//	root:   read k of the others -> blocks; own chunk k of the input -> own block
//	others: publish k
//
// Steps: 1 a chunk, one round of flags. n bytes: n into each slot but the root's, (P-1) n out of them by the root: the
// lower bound, which the root's memory sets. The root contributes nothing that others wait for, so its lag is 0.
func OneShotGather(at Place) Plan {
	if at.Rank == at.Root {
		return at.plan(OneShotName, coll.Gather, Stage{Action: Read, From: Others})
	}
	return at.plan(OneShotName, coll.Gather, Stage{Action: Publish})
}

// OneShotScatter has the root publish the chunks for all others, which read theirs; its own goes straight to its
// output, while they do.
//
//	root:   publish k of the blocks of others | own chunk k -> output
//	others: read k from the root -> output
//
// Steps: 1 a chunk, 2 on the root; one round of flags. n bytes a block: (P-1) n into the root's slots, n out of them on
// each other rank: the lower bound.
func OneShotScatter(at Place) Plan {
	if at.Rank == at.Root {
		return at.plan(OneShotName, coll.Scatter, Stage{Action: Publish}, Stage{Action: Local})
	}
	return at.plan(OneShotName, coll.Scatter, Stage{Action: Read, From: FromRoot})
}
