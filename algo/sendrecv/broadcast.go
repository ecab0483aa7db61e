package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// BinomialBroadcast sends the whole buffer down a binomial tree.
//
//	receive from the parent | send to the children, the one with most descendants first
//
// Steps: ceil(log2 P) messages of n on the longest path: log2 P (a + n b) (Chan et al., CCPE 2007).
// For: short messages.
func BinomialBroadcast(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Broadcast, Binomial, 1)
	m.down(binomial(at.Rank, at.Size, at.Root), m.whole(plan.Output))
	return m.done()
}

// ChainBroadcast passes chunks from rank to rank, counted from the root on.
//
//	receive chunk k from r-1 | send it to r+1
//
// Steps: P-1 messages for the first chunk, one more for each that follows: (P-2 + n/s) (a + s b) for chunks of s bytes,
// best with s = sqrt(n a / ((P-2) b)). Each rank sends n at most: for long messages n b, the least possible.
// For: long messages in small groups.
func ChainBroadcast(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Broadcast, Chain, 1)
	m.down(chain(at.Rank, at.Size, at.Root), m.whole(plan.Output))
	return m.done()
}

// ScatterAllGatherBroadcast scatters the buffer down a binomial tree and gathers it around the ring (Barnett et al.
// 1994; Thakur, Rabenseifner, Gropp, IJHPCA 2005; van de Geijn's broadcast).
//
//	receive my subtree's pieces from the parent | send each child its subtree's || ring all-gather of the pieces
//
// Steps: ceil(log2 P) + P-1 messages; (P-1)/P n and (P-1)/P n bytes: (log2 P + P-1) a + 2 (P-1)/P n b.
// For: long messages that are not worth a pipeline, or go to many ranks.
func ScatterAllGatherBroadcast(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Broadcast, ScatterAllGather, at.Size)
	v := mod(at.Rank-at.Root, at.Size) // pieces are numbered from the root on
	t := binomial(at.Rank, at.Size, at.Root)
	if t.parent >= 0 {
		m.recv(t.parent, pieces(plan.Output, v, subtree(v, at.Size))...)
	}
	for i := len(t.children) - 1; i >= 0; i-- {
		w := mod(t.children[i]-at.Root, at.Size)
		m.send(t.children[i], pieces(plan.Output, w, subtree(w, at.Size))...)
	}
	ring := Place{Rank: v, Size: at.Size, Chunk: at.Chunk, inner: true}
	m.embed(RingAllGather(ring), partView(circle(at.Root, at.Size, at.Size), plan.Output, plan.Output, 1))
	return m.done()
}

// DoubleTreeBroadcast sends each half of the buffer down a binary tree of its own over all ranks but the root, chunk by
// chunk (Sanders, Speck, Träff, Parallel Computing 2009).
//
//	root:   half 0 of chunk k to the top of tree 0 | half 1 to the top of tree 1
//	others: receive half 0 from the parent in tree 0, send it to children | half 1: the same in tree 1
//
// Steps: log2 P + 1 messages on the longest path, and 4 halves more for each chunk. Per rank n sent at most, all ranks
// at the same time: n b and the time to fill the pipeline.
// For: long messages in large groups.
func DoubleTreeBroadcast(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Broadcast, DoubleTree, 2)
	for i, t := range doubleUnder(at) {
		m.channel = uint8(i)
		m.down(t, pieces(plan.Output, i, 1))
	}
	return m.done()
}

// doubleUnder returns a rank's place in a double tree of all ranks but the root, which is the parent of both tops.
func doubleUnder(at Place) (trees [2]tree) {
	others := at.Size - 1
	rank := func(v int) int { return mod(at.Root+1+v, at.Size) } // the vth of the others
	if at.Rank == at.Root {
		for i := range trees {
			trees[i] = tree{parent: -1}
			for v := range others {
				if double(v, others)[i].parent < 0 {
					trees[i].children = []int{rank(v)}
				}
			}
		}
		return trees
	}
	trees = double(mod(at.Rank-at.Root-1, at.Size), others)
	for i, t := range trees {
		t.depth++
		if t.parent < 0 {
			t.parent = at.Root
		} else {
			t.parent = rank(t.parent)
		}
		for j, child := range t.children {
			t.children[j] = rank(child)
		}
		trees[i] = t
	}
	return trees
}

// HierarchicalBroadcast sends to one rank of each host, the one in the root's rail, and from there inside hosts.
//
//	broadcast among the ranks of the root's rail | chunk k-1: broadcast from the rail's rank among those of my host
//
// Steps and bytes are those of its parts, two binomial trees: B(H, n) + B(q, n). n bytes enter each host once.
// For: groups of several hosts.
func HierarchicalBroadcast(at Place) plan.SendRecvPlan {
	g := gridOf(at)
	host, local := g.find(at.Root)
	m := newMaker(at, coll.Broadcast, Hierarchical, 1)
	if g.local == local {
		m.embed(BinomialBroadcast(g.inRail(at, host)), flatView(g.rail(), plan.Output, plan.Output, 0, 1))
	}
	// A rank of the rail waits for nothing inside its host: it passes on the chunk that it has.
	m.embed(BinomialBroadcast(g.inHost(at, local)), flatView(g.locals(), plan.Output, plan.Output, 0, 1))
	return m.done()
}
