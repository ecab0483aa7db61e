package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// RabenseifnerAllReduce halves the vector with each partner until every rank has reduced one piece, then doubles it
// back (Rabenseifner 2004; Thakur, Rabenseifner, Gropp, IJHPCA 2005).
//
//	with r^1, r^2, r^4, ...: send one half of what I have, receive and reduce the other
//	with ..., r^4, r^2, r^1: send what I have, receive as much
//
// Steps: 2 log2 p messages for p = 2^k ranks; other sizes pair P-p ranks with their neighbours. Per rank 2 (p-1)/p n
// sent, (p-1)/p n reduced, n each more with an extra: 2 log2 P a + 2 (P-1)/P n b + (P-1)/P n g. The largest exchanges
// are those with the nearest ranks.
// For: the middle, where both steps and bytes count; powers of two.
func RabenseifnerAllReduce(at Place) plan.SendRecvPlan {
	f := pairing{at.Size, powerOfTwo(at.Size)}
	m := newMaker(at, coll.AllReduce, Rabenseifner, f.p)
	if at.Size == 1 {
		m.copy(m.whole(plan.Input), m.whole(plan.Output))
		return m.done()
	}
	if f.extra(at.Rank) {
		m.send(at.Rank+1, m.whole(plan.Input)...)
		m.recv(at.Rank+1, m.whole(plan.Output)...)
		return m.done()
	}
	from := plan.Space(plan.Input)
	if extra := f.partner(at.Rank); extra >= 0 {
		m.recvReduceFirst(extra, m.whole(plan.Input), m.whole(plan.Output))
		from = plan.Output
	}
	core := f.core(at.Rank)
	first, count := 0, f.p // the pieces that this rank reduces
	for distance := 1; distance < f.p; distance *= 2 {
		peer := f.rank(core ^ distance)
		count /= 2
		if core&distance == 0 {
			m.send(peer, pieces(from, first+count, count)...)
			m.recvReduce(peer, pieces(from, first, count), pieces(plan.Output, first, count))
		} else {
			m.send(peer, pieces(from, first, count)...)
			first += count
			m.recvReduceFirst(peer, pieces(from, first, count), pieces(plan.Output, first, count))
		}
		from = plan.Output
	}
	for distance := f.p / 2; distance > 0; distance /= 2 {
		peer := f.rank(core ^ distance)
		m.send(peer, pieces(plan.Output, first, count)...)
		if core&distance == 0 {
			m.recv(peer, pieces(plan.Output, first+count, count)...)
		} else {
			first -= count
			m.recv(peer, pieces(plan.Output, first, count)...)
		}
		count *= 2
	}
	if extra := f.partner(at.Rank); extra >= 0 {
		m.send(extra, m.whole(plan.Output)...)
	}
	return m.done()
}
