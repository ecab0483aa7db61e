package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// RingAllReduce passes each piece once around the ring to be reduced and once more to be spread.
//
//	step s < P-1:  send piece r-s to r+1 | receive piece r-s-1 from r-1, reduce into it
//	step s after:  send piece r+1-s      | receive piece r-s
//
// Steps: 2 (P-1) messages of n/P a chunk. Per rank, n bytes: 2 (P-1)/P n sent and received, (P-1)/P n reduced: the
// least that any all-reduce can move (Patarasuk and Yuan, JPDC 2009). 2 (P-1) a + 2 (P-1)/P n b + (P-1)/P n g.
// For: long messages in groups of which each pair of neighbours has a link to itself; steps grow with P.
func RingAllReduce(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllReduce, Ring, at.Size)
	if at.Size == 1 {
		m.copy(m.whole(plan.Input), m.whole(plan.Output))
		return m.done()
	}
	next, before := ringNeighbours(at)
	piece := func(space plan.Space, i int) []plan.Region { return pieces(space, mod(i, at.Size), 1) }
	from := plan.Space(plan.Input) // the first message holds this rank's contribution alone
	for s := range at.Size - 1 {
		m.send(next, piece(from, at.Rank-s)...)
		m.recvReduceFirst(before, piece(plan.Input, at.Rank-s-1), piece(plan.Output, at.Rank-s-1))
		from = plan.Output
	}
	for s := range at.Size - 1 {
		m.send(next, piece(plan.Output, at.Rank+1-s)...)
		m.recv(before, piece(plan.Output, at.Rank-s)...)
	}
	return m.done()
}

// ringNeighbours returns the next rank on the ring and the one before.
func ringNeighbours(at Place) (next, before int) {
	return mod(at.Rank+1, at.Size), mod(at.Rank-1, at.Size)
}

// mod returns the remainder of i by n that is not negative.
func mod(i, n int) int { return ((i % n) + n) % n }
