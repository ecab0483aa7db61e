package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// DirectGather has every rank send its block to the root.
//
//	root: receive from r+1, r+2, ... | others: send
//
// Steps: P-1 messages of n into the root: a + (P-1) n b, set by the root's link.
// For: long blocks; few ranks.
func DirectGather(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Gather, Direct, 1)
	if at.Rank != at.Root {
		m.send(at.Root, m.blockOf(plan.Input, at.Rank))
		return m.done()
	}
	for d := 1; d < at.Size; d++ {
		from := mod(at.Rank+d, at.Size)
		m.recv(from, m.blockOf(plan.Output, from))
	}
	m.keepOwn()
	return m.done()
}

// BinomialGather collects up a binomial tree.
//
//	receive from the children, the one with fewest descendants first | send all that I have to the parent
//
// Steps: ceil(log2 P) messages into the root, of 1, 2, 4, ... blocks: log2 P a + (P-1) n b (Chan et al., CCPE 2007).
// For: short blocks.
func BinomialGather(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Gather, Binomial, 1)
	t := binomial(at.Rank, at.Size, at.Root)
	for _, child := range t.children {
		m.recv(child, m.collected(child, plan.Output)...)
	}
	if t.parent >= 0 {
		m.send(t.parent, m.collected(at.Rank, plan.Input)...)
	} else {
		m.keepOwn()
	}
	return m.done()
}

// collected returns the blocks of a rank's subtree, counted from the root on, where this rank has them. The root has
// them in its buffer; another rank has its own block in its own buffer and each other block in a cell.
func (m *maker) collected(rank int, buffer plan.Space) (list []plan.Region) {
	v := mod(rank-m.Root, m.Size)
	for w := v; w < v+subtree(v, m.Size); w++ {
		block := mod(w+m.Root, m.Size)
		switch {
		case m.Rank == m.Root || block == m.Rank:
			list = append(list, m.blockOf(buffer, block))
		default:
			list = append(list, m.cell(w-mod(m.Rank-m.Root, m.Size)-1, block))
		}
	}
	return list
}
