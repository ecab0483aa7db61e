package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Flat is the name of FlatBroadcast.
const Flat = "flat"

// FlatBroadcast has the root send the whole buffer to every other rank.
//
//	root:   send to r+1, r+2, ...
//	others: receive from the root
//
// Steps: P-1 messages of n, all of them the root's: (P-1) (a + n b), where its link is what takes time (Chan et al.,
// CCPE 2007, section 4).
// For: two or three ranks; short messages where latency is long and sending is cheap.
func FlatBroadcast(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.Broadcast, Flat, 1)
	if at.Rank != at.Root {
		m.recv(at.Root, m.whole(plan.Output)...)
		return m.done()
	}
	for distance := 1; distance < at.Size; distance++ {
		m.send(mod(at.Root+distance, at.Size), m.whole(plan.Output)...)
	}
	return m.done()
}
