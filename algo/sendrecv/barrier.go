package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// DisseminationBarrier has each rank signal ranks at distance 1, 2, 4, ..., each time after it has heard from as many.
//
//	round k: send nothing to r+2^k | receive from r-2^k
//
// Steps: ceil(log2 P) messages of no bytes, the least possible: log2 P a (Hensgen, Finkel, Manber, IJPP 1988).
func DisseminationBarrier(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Barrier, Dissemination, 1)
	for distance := 1; distance < at.Size; distance *= 2 {
		m.send(mod(at.Rank+distance, at.Size))
		m.recv(mod(at.Rank-distance, at.Size))
	}
	return m.done()
}

// TreeBarrier collects up a binomial tree and releases down it.
//
//	receive from the children | send to the parent | receive from the parent | send to the children
//
// Steps: 2 ceil(log2 P) messages on the longest path, 2 (P-1) in all, against the P log2 P of dissemination: 2 log2 P a.
// For: groups so large that the messages of all ranks are in each other's way.
func TreeBarrier(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Barrier, Binomial, 1)
	t := binomial(at.Rank, at.Size, 0)
	for _, child := range t.children {
		m.recv(child)
	}
	if t.parent >= 0 {
		m.send(t.parent)
	}
	m.down(t, nil)
	return m.done()
}
