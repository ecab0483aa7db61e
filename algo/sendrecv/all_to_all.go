package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// PairwiseAllToAll exchanges with one rank after the other.
//
//	step s: send block r+s to r+s | receive block r-s from r-s
//
// Steps: P-1 messages of n, for blocks of n; (P-1) n sent: the least possible. (P-1) (a + n b) (Thakur,
// Rabenseifner, Gropp, IJHPCA 2005). At any time each rank sends to one and receives from one. Blocks may differ in
// length: of each message only its sender and its receiver must know it.
// For: long blocks.
func PairwiseAllToAll(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllToAll, Pairwise, 1)
	for d := 1; d < at.Size; d++ {
		to, from := mod(at.Rank+d, at.Size), mod(at.Rank-d, at.Size)
		m.send(to, m.blockOf(plan.Input, to))
		m.recv(from, m.blockOf(plan.Output, from))
	}
	m.keepOwn()
	return m.done()
}

// DirectAllToAll sends all blocks at once.
//
//	send block r+1 to r+1, block r+2 to r+2, ... | receive from r-1, r-2, ...
//
// Steps: P-1 messages of n, none of which waits for another: a + (P-1) n b where they leave at the same time. Blocks
// may differ in length as for pairwise exchange.
// For: few ranks that reach each other alike; very uneven blocks, where a pair that has much does not hold up the
// others.
func DirectAllToAll(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllToAll, Direct, 1)
	for d := 1; d < at.Size; d++ {
		to := mod(at.Rank+d, at.Size)
		m.send(to, m.blockOf(plan.Input, to))
	}
	for d := 1; d < at.Size; d++ {
		from := mod(at.Rank-d, at.Size)
		m.recv(from, m.blockOf(plan.Output, from))
	}
	m.keepOwn()
	return m.done()
}

// BruckAllToAll moves each block by 2^k ranks in round k if its distance has bit k.
//
//	round k: send the blocks whose distance has bit k to r+2^k | receive as many from r-2^k
//
// Steps: ceil(log2 P) messages of P/2 blocks: log2 P (a + P n/2 b) (Bruck et al., IEEE TPDS 1997). The paper rotates
// blocks before and after; here a message consists of the blocks where they lie. On its way a block of distance d lies
// in one of two cells for d, so blocks must be of equal length.
// For: short blocks.
func BruckAllToAll(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllToAll, Bruck, 1)
	m.Even = true
	for bit := 1; bit < at.Size; bit *= 2 {
		var from, to []plan.Region
		for d := bit; d < at.Size; d++ {
			if d&bit == 0 {
				continue
			}
			// out is the block of distance d that this rank now has: its own until that has moved, then the one that
			// came in its place. The blocks of a round's message arrive while those that leave may still be read, so
			// each distance has two cells, in turn.
			moved := d & (bit - 1)
			out := m.blockOf(plan.Input, mod(at.Rank+d, at.Size))
			if moved != 0 {
				out = m.cell(2*d+turn(moved), 0)
			}
			in := m.cell(2*d+turn(moved|bit), 0)
			if moved|bit == d {
				in = m.blockOf(plan.Output, mod(at.Rank-d, at.Size))
			}
			from, to = append(from, out), append(to, in)
		}
		m.send(mod(at.Rank+bit, at.Size), from...)
		m.recv(mod(at.Rank-bit, at.Size), to...)
	}
	m.keepOwn()
	return m.done()
}

// turn returns in which of two cells a block lies after the rounds of these bits.
func turn(bits int) int {
	t := 0
	for ; bits > 0; bits &= bits - 1 {
		t ^= 1
	}
	return t
}

// HierarchicalAllToAll exchanges inside hosts first, so that one message goes from host to host on each rail.
//
//	give each rank of my host the blocks for its rail | exchange with each host of my rail the blocks of my host's ranks
//
// Steps: pairwise among the q ranks of the host, H blocks a message, then among the H ranks of the rail, q blocks a
// message: q-1 + H-1 messages instead of P-1, of which H-1 instead of P-q go between hosts; (q-1) H n + (H-1) q n
// bytes. Blocks must be of equal length: the rank in between would not know their lengths.
// For: short blocks in groups of several hosts.
func HierarchicalAllToAll(at Place) plan.SendRecvPlan {
	g := gridOf(at)
	m := newMaker(at, coll.AllToAll, Hierarchical, 1)
	m.Even = true
	// cellOf returns cell l*H + h, which holds the block of my host's rank l for the rank of my rail on host h.
	cellOf := func(local, host int) plan.Region { return m.cell(local*g.height()+host, 0) }
	for local := range g.width() {
		for host := range g.height() {
			cellOf(local, host)
		}
	}
	m.embed(PairwiseAllToAll(g.inHost(at, 0)), blockView(g.locals(),
		func(local int) (list []plan.Region) {
			for _, ranks := range g.hosts {
				list = append(list, m.blockOf(plan.Input, ranks[local]))
			}
			return list
		},
		func(local int) (list []plan.Region) {
			for h := range g.hosts {
				list = append(list, cellOf(local, h))
			}
			return list
		}))
	m.embed(PairwiseAllToAll(g.inRail(at, 0)), blockView(g.rail(),
		func(host int) (list []plan.Region) {
			for l := range g.width() {
				list = append(list, cellOf(l, host))
			}
			return list
		},
		func(host int) []plan.Region { return m.blocksOf(plan.Output, g.hosts[host]) }))
	return m.done()
}
