package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// RingAllGather passes each block around the ring.
//
//	step s: send block r-s to r+1 | receive block r-s-1 from r-1
//
// Steps: P-1 messages of n, for blocks of n; (P-1) n sent and received: the least possible. (P-1) (a + n b)
// (Chan et al., CCPE 2007).
// For: long blocks.
func RingAllGather(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllGather, Ring, 1)
	next, before := ringNeighbours(at)
	block := m.blockOf(plan.Input, at.Rank)
	for s := range at.Size - 1 {
		m.send(next, block)
		block = m.blockOf(plan.Output, mod(at.Rank-s-1, at.Size))
		m.recv(before, block)
	}
	m.keepOwn()
	return m.done()
}

// keepOwn copies the rank's own block from the input to the output.
func (m *maker) keepOwn() {
	m.copy([]plan.Region{m.blockOf(plan.Input, m.Rank)}, []plan.Region{m.blockOf(plan.Output, m.Rank)})
}

// gathered returns blocks of an all-gather: the rank's own block in the input, since it need not be in the output yet,
// the others in the output.
func (m *maker) gathered(blocks []int) []plan.Region {
	list := make([]plan.Region, len(blocks))
	for i, b := range blocks {
		if list[i] = m.blockOf(plan.Output, b); b == m.Rank {
			list[i].Space = plan.Input
		}
	}
	return list
}

// blocksOf returns whole blocks of some ranks.
func (m *maker) blocksOf(space plan.Space, blocks []int) []plan.Region {
	list := make([]plan.Region, len(blocks))
	for i, b := range blocks {
		list[i] = m.blockOf(space, b)
	}
	return list
}

// DirectAllGather has every rank send its block to all others at once.
//
//	send my block to r+1, r+2, ... | receive from r-1, r-2, ...
//
// Steps: P-1 messages of n, none of which waits for another: a + (P-1) n b where they leave at the same time.
// For: few ranks that reach each other alike.
func DirectAllGather(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllGather, Direct, 1)
	for d := 1; d < at.Size; d++ {
		m.send(mod(at.Rank+d, at.Size), m.blockOf(plan.Input, at.Rank))
	}
	for d := 1; d < at.Size; d++ {
		from := mod(at.Rank-d, at.Size)
		m.recv(from, m.blockOf(plan.Output, from))
	}
	m.keepOwn()
	return m.done()
}

// RecursiveDoublingAllGather has each rank exchange all blocks that it has with partners at distance 1, 2, 4, ...
//
//	extras: send the block to the next rank | ... | receive all blocks
//	others: with r^1, r^2, r^4, ...: send what I have, receive as much
//
// Steps: log2 p messages for p = 2^k ranks, which double in length; (P-1) n sent: log2 P a + (P-1) n b (Thakur,
// Rabenseifner, Gropp, IJHPCA 2005). Other sizes pair P-p ranks with their neighbours: 2 steps more, and P-1 blocks
// for each of these ranks.
// For: short blocks in groups of a power of two; Bruck is as fast in others.
func RecursiveDoublingAllGather(at Place) plan.SendRecvPlan {
	f := pairing{at.Size, powerOfTwo(at.Size)}
	m := newMaker(at, coll.AllGather, RecursiveDoubling, 1)
	if f.extra(at.Rank) {
		m.send(at.Rank+1, m.blockOf(plan.Input, at.Rank))
		m.recv(at.Rank+1, m.blocksOf(plan.Output, without(at.Size, at.Rank))...)
		m.keepOwn()
		return m.done()
	}
	extra := f.partner(at.Rank)
	if extra >= 0 {
		m.recv(extra, m.blockOf(plan.Output, extra))
	}
	core := f.core(at.Rank)
	for distance := 1; distance < f.p; distance *= 2 {
		first := core &^ (distance - 1)
		m.send(f.rank(core^distance), m.gathered(f.all(first, distance))...)
		m.recv(f.rank(core^distance), m.gathered(f.all(first^distance, distance))...)
	}
	if extra >= 0 {
		m.send(extra, m.gathered(without(at.Size, extra))...)
	}
	m.keepOwn()
	return m.done()
}

// without returns all ranks but one.
func without(size, rank int) []int {
	list := make([]int, 0, size)
	for r := range size {
		if r != rank {
			list = append(list, r)
		}
	}
	return list
}

// all returns the members of count cores from first on.
func (f pairing) all(first, count int) (ranks []int) {
	for core := first; core < first+count; core++ {
		ranks = append(ranks, f.members(core)...)
	}
	return ranks
}

// BruckAllGather has each rank send all blocks that it has to ranks at distance 1, 2, 4, ... below, in any group.
//
//	round k: send blocks r .. r+2^k-1 to r-2^k | receive as many from r+2^k, the last time only those that lack
//
// Steps: ceil(log2 P) messages, (P-1) n sent and received: ceil(log2 P) a + (P-1) n b (Bruck et al., IEEE TPDS 1997).
// The paper gathers in rotated order and rotates the result in the end; here a message consists of the blocks where they
// lie in the output.
// For: short blocks.
func BruckAllGather(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.AllGather, Bruck, 1)
	for distance := 1; distance < at.Size; distance *= 2 {
		count := min(distance, at.Size-distance)
		to, from := mod(at.Rank-distance, at.Size), mod(at.Rank+distance, at.Size)
		m.send(to, m.gathered(circle(at.Rank, count, at.Size))...)
		m.recv(from, m.gathered(circle(from, count, at.Size))...)
	}
	m.keepOwn()
	return m.done()
}

// circle returns count ranks from first on; after the last rank comes rank 0.
func circle(first, count, size int) []int {
	ranks := make([]int, count)
	for i := range ranks {
		ranks[i] = mod(first+i, size)
	}
	return ranks
}

// HierarchicalAllGather gathers between hosts first, on parallel rails, and then the blocks of all rails inside hosts.
//
//	all-gather of my block among the H ranks of my rail | all-gather of H blocks among the q ranks of my host
//
// Steps and bytes are those of its parts: AG(H, n) + AG(q, H n). Each block enters a host once.
// For: groups of several hosts.
func HierarchicalAllGather(at Place) plan.SendRecvPlan {
	g := gridOf(at)
	m := newMaker(at, coll.AllGather, Hierarchical, 1)
	rail := g.rail()
	m.embed(RingAllGather(g.inRail(at, 0)), blockView(rail,
		func(int) []plan.Region { return []plan.Region{m.blockOf(plan.Input, at.Rank)} },
		func(host int) []plan.Region { return []plan.Region{m.blockOf(plan.Output, rail[host])} }))
	if g.width() > 1 {
		railOf := func(local int) []plan.Region {
			var blocks []int
			for _, ranks := range g.hosts {
				blocks = append(blocks, ranks[local])
			}
			return m.blocksOf(plan.Output, blocks)
		}
		m.embed(RingAllGather(g.inHost(at, 0)), blockView(g.locals(), railOf, railOf))
	}
	return m.done()
}
