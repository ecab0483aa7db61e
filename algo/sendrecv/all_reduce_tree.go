package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// BinomialAllReduce reduces to rank 0 up a binomial tree and broadcasts the result down the same tree.
//
//	receive and reduce from r+1, r+2, ... | send to the parent || receive from the parent | send to ..., r+2, r+1
//
// Steps: 2 ceil(log2 P) messages of n along the longest path: 2 log2 P (a + n b) + log2 P n g (Chan et al., CCPE 2007).
// A rank with c children sends c+1 and reduces c vectors.
// For: few bytes in groups whose size is no power of two, where recursive doubling has to pair ranks.
func BinomialAllReduce(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllReduce, Binomial, 1)
	if at.Size == 1 {
		m.copy(m.whole(plan.Input), m.whole(plan.Output))
		return m.done()
	}
	t := binomial(at.Rank, at.Size, 0)
	m.up(t, m.whole(plan.Input), m.whole(plan.Output))
	m.down(t, m.whole(plan.Output))
	return m.done()
}

// DoubleTreeAllReduce sends each half of the vector up and down a binary tree of its own, chunk by chunk, so that all
// ranks send and receive at the same time (Sanders, Speck, Träff, Parallel Computing 2009; NCCL 2.4).
//
//	half 0 of chunk k: receive and reduce from children of tree 0, send up | half 1: the same in tree 1
//	half 0 of chunk k-D-d: receive from the parent in tree 0, send to children | half 1: the same in tree 1
//
// A chunk is back at a rank at depth d after 2 d messages, which is no more than its lag D + d, where D is the height
// of the trees: no rank waits for a chunk that has not had the time to arrive. Lags of 2 d would be long enough as
// well, but then the lags of parent and child differ by two, and two ranks each of which is the other's parent in one
// of the trees come to a deadlock over channels that hold one message.
// Steps: 2 log2 P messages on the longest path of the first chunk, and 4 for each chunk after it. Per rank at most 2 n
// sent and n reduced, in a pipeline: 2 n b + n g and the time to fill it. That is twice a tree's bandwidth with its
// number of steps.
// For: long messages in large groups, where a ring's 2 (P-1) steps cost more than its bytes.
func DoubleTreeAllReduce(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllReduce, DoubleTree, 2)
	if at.Size == 1 {
		m.copy(m.whole(plan.Input), m.whole(plan.Output))
		return m.done()
	}
	trees := double(at.Rank, at.Size)
	for i, t := range trees {
		m.channel = uint8(i)
		m.up(t, pieces(plan.Input, i, 1), pieces(plan.Output, i, 1))
	}
	for i, t := range trees {
		m.channel, m.lag = uint8(i), height(at.Size)+t.depth
		m.down(t, pieces(plan.Output, i, 1))
	}
	return m.done()
}
