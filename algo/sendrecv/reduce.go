package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// newReduce starts the plan of a reduce. It also returns the region for the rank's partial result, which lies in the output
// of the root and in the scratch memory of other ranks.
func newReduce(at Place, name string, pieces int) (m *maker, acc plan.Region) {
	m = newMaker(at, coll.Reduce, name, pieces)
	if at.Rank == at.Root {
		return m, m.blockOf(plan.Output, 0)
	}
	return m, m.cell(0, 0)
}

// part returns some pieces of a region.
func part(r plan.Region, first, count int) []plan.Region {
	r.First, r.Count = first, count
	return []plan.Region{r}
}

// BinomialReduce reduces up a binomial tree.
//
//	receive from the children and reduce, the one with fewest descendants first | send to the parent
//
// Steps: ceil(log2 P) messages of n on the longest path: log2 P (a + n b + n g) (Chan et al., CCPE 2007).
// For: short messages.
func BinomialReduce(at Place) plan.SendRecvPlan { return treeReduce(at, Binomial, binomial) }

// ChainReduce passes chunks from rank to rank towards the root.
//
//	receive chunk k from r+1, reduce | send it to r-1
//
// Steps: P-1 messages for the first chunk, one more for each that follows: (P-2 + n/s) (a + s b + s g) for chunks of s
// bytes. Each rank sends and reduces n: for long messages n (b + g), the least possible.
// For: long messages in small groups.
func ChainReduce(at Place) plan.SendRecvPlan { return treeReduce(at, Chain, chain) }

// treeReduce reduces up a tree of some shape.
func treeReduce(at Place, name string, shape func(rank, size, root int) tree) plan.SendRecvPlan {
	m, acc := newReduce(at, name, 1)
	if at.Size == 1 {
		m.copy(m.whole(plan.Input), m.whole(plan.Output))
		return m.done()
	}
	m.up(shape(at.Rank, at.Size, at.Root), m.whole(plan.Input), []plan.Region{acc})
	return m.done()
}

// ScatterGatherReduce reduces and scatters around the ring and gathers up a binomial tree: the broadcast by scatter and
// all-gather backwards (Thakur, Rabenseifner, Gropp, IJHPCA 2005, with a ring).
//
//	ring reduce-scatter of the pieces || receive the children's subtrees' pieces | send my subtree's to the parent
//
// Steps: P-1 + ceil(log2 P) messages; (P-1)/P n sent and reduced, and up to n/2 sent for the gather, (P-1)/P n received
// by the root: (P-1 + log2 P) a + 2 (P-1)/P n b + (P-1)/P n g.
// For: long messages that are not worth a pipeline, or come from many ranks.
func ScatterGatherReduce(at Place) plan.SendRecvPlan {
	m, acc := newReduce(at, ScatterGather, at.Size)
	if at.Size == 1 {
		m.copy(m.whole(plan.Input), m.whole(plan.Output))
		return m.done()
	}
	v := mod(at.Rank-at.Root, at.Size) // pieces are numbered from the root on
	view := partView(circle(at.Root, at.Size, at.Size), plan.Input, plan.Output, 1)
	view.output = func(piece, _, _ int) []plan.Region { return part(acc, piece, 1) }
	m.embed(RingReduceScatter(Place{Rank: v, Size: at.Size, Chunk: at.Chunk, inner: true}), view)
	t := binomial(at.Rank, at.Size, at.Root)
	for _, child := range t.children {
		w := mod(child-at.Root, at.Size)
		m.recv(child, part(acc, w, subtree(w, at.Size))...)
	}
	if t.parent >= 0 {
		m.send(t.parent, part(acc, v, subtree(v, at.Size))...)
	}
	return m.done()
}

// DoubleTreeReduce reduces each half of the buffer up a binary tree of its own over all ranks but the root, chunk by
// chunk: the double tree broadcast backwards (Sanders, Speck, Träff, Parallel Computing 2009).
//
//	others: receive half 0 from children in tree 0 and reduce, send to the parent | half 1: the same in tree 1
//	root:   receive half 0 from the top of tree 0, half 1 from that of tree 1, reduce
//
// Steps: log2 P + 1 messages on the longest path, and 4 halves more for each chunk. Per rank n sent and reduced at most,
// all ranks at the same time: n (b + g) and the time to fill the pipeline.
// For: long messages in large groups.
func DoubleTreeReduce(at Place) plan.SendRecvPlan {
	m, acc := newReduce(at, DoubleTree, 2)
	if at.Size == 1 {
		m.copy(m.whole(plan.Input), m.whole(plan.Output))
		return m.done()
	}
	for i, t := range doubleUnder(at) {
		m.channel = uint8(i)
		m.up(t, pieces(plan.Input, i, 1), part(acc, i, 1))
	}
	return m.done()
}

// HierarchicalReduce reduces inside hosts first, to the ranks of the root's rail, and then among these.
//
//	reduce among the ranks of my host | chunk k-1: reduce among the ranks of the root's rail
//
// Steps and bytes are those of its parts, two binomial trees: R(q, n) + R(H, n). n bytes leave each host once.
// For: groups of several hosts.
func HierarchicalReduce(at Place) plan.SendRecvPlan {
	g := gridOf(at)
	host, local := g.find(at.Root)
	m, acc := newReduce(at, Hierarchical, 1)
	inside := flatView(g.locals(), plan.Input, plan.Output, 0, 1)
	inside.output = func(_, first, count int) []plan.Region { return part(acc, first, count) }
	m.embed(BinomialReduce(g.inHost(at, local)), inside)
	if g.local != local || g.height() == 1 {
		return m.done()
	}
	m.lag++
	between := flatView(g.rail(), plan.Input, plan.Output, 0, 1)
	between.input, between.output = inside.output, inside.output
	m.embed(BinomialReduce(g.inRail(at, host)), between)
	return m.done()
}
