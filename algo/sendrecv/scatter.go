package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// DirectScatter has the root send every rank its block.
//
//	root: send block r+1 to r+1, block r+2 to r+2, ... | others: receive
//
// Steps: P-1 messages of n out of the root: a + (P-1) n b, set by the root's link.
// For: long blocks; few ranks.
func DirectScatter(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Scatter, Direct, 1)
	if at.Rank != at.Root {
		m.recv(at.Root, m.blockOf(plan.Output, at.Rank))
		return m.done()
	}
	for d := 1; d < at.Size; d++ {
		to := mod(at.Rank+d, at.Size)
		m.send(to, m.blockOf(plan.Input, to))
	}
	m.keepOwn()
	return m.done()
}

// BinomialScatter spreads down a binomial tree.
//
//	receive my subtree's blocks from the parent | send each child its subtree's, the one with most descendants first
//
// Steps: ceil(log2 P) messages out of the root, of ..., 4, 2, 1 blocks: log2 P a + (P-1) n b (Chan et al., CCPE 2007).
// For: short blocks.
func BinomialScatter(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Scatter, Binomial, 1)
	t := binomial(at.Rank, at.Size, at.Root)
	if t.parent >= 0 {
		m.recv(t.parent, m.collected(at.Rank, plan.Output)...)
	} else {
		m.keepOwn()
	}
	for i := len(t.children) - 1; i >= 0; i-- {
		m.send(t.children[i], m.collected(t.children[i], plan.Input)...)
	}
	return m.done()
}
