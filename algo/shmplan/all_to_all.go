package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// OneShotAllToAll has every rank publish the chunks for all others, which read theirs: the direct exchange. Ranks know
// only the lengths of their own blocks, so a small slot first carries the lengths, and with them the heads of all
// blocks, which are the whole of a short exchange. A rank with a block longer than its head publishes its first chunk
// together with the heads.
//
//	publish lengths and heads, and chunk 0 | read heads of the others -> blocks; own head -> own block
//	publish k of the blocks of others | read k-1 of the others -> blocks; own chunk k-1 -> own block
//
// Steps: 2, and 2 a chunk of what the longest block has beyond its head. There is one round of flags for the heads and
// the first chunk together if all ranks have blocks longer than a head, else one round for each. Per rank: what it has
// for the others goes into its slots, what they have for it comes out of theirs, and its own block is copied locally.
// That is the lower bound, in one round instead of the P-1 of pairwise exchange or the log2 P of Bruck (Bruck et al.
// 1997), which moves each byte log2 P / 2 times.
func OneShotAllToAll(at Place) plan.SlotPlan {
	chunks := []plan.Stage{{Action: plan.Publish}, {Action: plan.Read, Lag: 1, From: plan.Others}}
	if at.Size == 1 {
		return at.plan(OneShot, coll.AllToAll, chunks...)
	}
	heads := []plan.Stage{{Action: plan.Publish, Head: true}, {Action: plan.Read, From: plan.Others, Head: true}}
	p := at.plan(OneShot, coll.AllToAll, append(heads, chunks...)...)
	p.Head = plan.HeadBytes(at.Size)
	return p
}
