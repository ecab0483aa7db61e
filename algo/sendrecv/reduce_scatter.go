package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// alone returns the reduce-scatter of a group of one rank.
func (m *maker) alone() plan.SendRecvPlan {
	m.keepOwn()
	return m.done()
}

// RingReduceScatter passes each block around the ring, where every rank adds its own to it.
//
//	step s: send block r-s-1 to r+1 | receive block r-s-2 from r-1, reduce into it
//
// Steps: P-1 messages of n, for blocks of n; (P-1) n sent and reduced: the least possible. (P-1) (a + n b + n
// g) (Patarasuk and Yuan, JPDC 2009).
// For: long blocks.
func RingReduceScatter(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.ReduceScatter, Ring, 1)
	if at.Size == 1 {
		return m.alone()
	}
	next, before := ringNeighbours(at)
	block := m.blockOf(plan.Input, before)
	for s := range at.Size - 1 {
		m.send(next, block)
		b := mod(at.Rank-s-2, at.Size)
		own := m.blockOf(plan.Input, b)
		// The channel may still read the block that is passed on while the next one arrives, so two cells take turns.
		block = m.cell(s%2, b)
		if s == at.Size-2 {
			block = m.blockOf(plan.Output, b)
		}
		m.recvReduceFirst(before, []plan.Region{own}, []plan.Region{block})
	}
	return m.done()
}

// DirectReduceScatter has every rank send each block straight to the rank that reduces it.
//
//	send block r+1 to r+1, block r+2 to r+2, ... | receive from r-1, r-2, ..., reduce
//
// Steps: P-1 messages of n, none of which waits for another: a + (P-1) n b + (P-1) n g where they leave at the same
// time.
// For: few ranks that reach each other alike.
func DirectReduceScatter(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.ReduceScatter, Direct, 1)
	if at.Size == 1 {
		return m.alone()
	}
	for d := 1; d < at.Size; d++ {
		to := mod(at.Rank+d, at.Size)
		m.send(to, m.blockOf(plan.Input, to))
	}
	own, out := []plan.Region{m.blockOf(plan.Input, at.Rank)}, []plan.Region{m.blockOf(plan.Output, at.Rank)}
	for d := 1; d < at.Size; d++ {
		m.recvReduce(mod(at.Rank-d, at.Size), own, out)
		own = out
	}
	return m.done()
}

// partial tracks which blocks of a reduce-scatter this rank has reduced with others. Those lie in the cell of their
// block, the other blocks in the input.
type partial struct {
	*maker
	begun map[int]bool
}

// at returns where some blocks lie now.
func (p partial) at(blocks []int) []plan.Region {
	list := make([]plan.Region, len(blocks))
	for i, b := range blocks {
		if list[i] = p.blockOf(plan.Input, b); p.begun[b] {
			list[i] = p.cell(b, b)
		}
	}
	return list
}

// take reduces a message into some blocks. With first the message is the left operand; with all it completes the rank's
// own block, which then goes to the output.
func (p partial) take(peer int, blocks []int, first, all bool) {
	from := p.at(blocks)
	for _, b := range blocks {
		p.begun[b] = true
	}
	to := p.at(blocks)
	for i, b := range blocks {
		if b == p.Rank && all {
			to[i] = p.blockOf(plan.Output, b)
		}
	}
	if first {
		p.recvReduceFirst(peer, from, to)
	} else {
		p.recvReduce(peer, from, to)
	}
}

// RecursiveHalvingReduceScatter sends half of the blocks that it still works on to partners at distance ..., 4, 2, 1
// and reduces the other half.
//
//	extras: send all blocks to the next rank | ... | receive the own block
//	others: with ..., r^4, r^2, r^1: send the blocks of the partner's half, receive and reduce my half's
//
// Steps: log2 p messages for p = 2^k ranks, which halve in length; (P-1) n sent and reduced: log2 P a + (P-1) n (b + g)
// (Thakur, Rabenseifner, Gropp, IJHPCA 2005). Other sizes pair P-p ranks with their neighbours: 2 steps and P
// blocks more.
// For: short blocks in groups of a power of two; Bruck is better in others.
func RecursiveHalvingReduceScatter(at Place) plan.SendRecvPlan {
	f := pairing{at.Size, powerOfTwo(at.Size)}
	m := newMaker(at, coll.ReduceScatter, RecursiveHalving, 1)
	if at.Size == 1 {
		return m.alone()
	}
	everyone := circle(0, at.Size, at.Size)
	if f.extra(at.Rank) {
		m.send(at.Rank+1, m.blocksOf(plan.Input, everyone)...)
		m.recv(at.Rank+1, m.blockOf(plan.Output, at.Rank))
		return m.done()
	}
	p := partial{m, map[int]bool{}}
	extra := f.partner(at.Rank)
	if extra >= 0 {
		p.take(extra, everyone, true, f.p == 1)
	}
	core := f.core(at.Rank)
	for distance := f.p / 2; distance > 0; distance /= 2 {
		peer := f.rank(core ^ distance)
		first := core &^ (distance - 1)
		m.send(peer, p.at(f.all(first^distance, distance))...)
		p.take(peer, f.all(first, distance), core&distance != 0, distance == 1)
	}
	if extra >= 0 {
		m.send(extra, m.cell(extra, extra))
	}
	return m.done()
}

// BruckReduceScatter is Bruck's all-gather backwards: blocks are reduced along the paths on which they would be spread.
//
//	round k = ..., 2, 1, 0: send blocks r+2^k .. to r+2^k | receive blocks r .. from r-2^k, reduce
//
// Steps: ceil(log2 P) messages, (P-1) n sent and reduced: ceil(log2 P) a + (P-1) n (b + g) in any group (Bruck et al.,
// IEEE TPDS 1997; Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024).
// For: short blocks.
func BruckReduceScatter(at Place) plan.SendRecvPlan {
	m := newMaker(at, coll.ReduceScatter, Bruck, 1)
	if at.Size == 1 {
		return m.alone()
	}
	p := partial{m, map[int]bool{}}
	for distance := powerOfTwo(at.Size - 1); distance > 0; distance /= 2 {
		count := min(distance, at.Size-distance)
		to := mod(at.Rank+distance, at.Size)
		m.send(to, p.at(circle(to, count, at.Size))...)
		p.take(mod(at.Rank-distance, at.Size), circle(at.Rank, count, at.Size), false, distance == 1)
	}
	return m.done()
}

// HierarchicalReduceScatter reduces inside hosts first and then between them, on parallel rails.
//
//	reduce-scatter among the q ranks of my host, of the H blocks of each rail |
//	reduce-scatter among the H ranks of my rail
//
// Steps and bytes are those of its parts: RS(q, H n) + RS(H, n). Each block leaves a host once.
// For: groups of several hosts.
func HierarchicalReduceScatter(at Place) plan.SendRecvPlan {
	g := gridOf(at)
	m := newMaker(at, coll.ReduceScatter, Hierarchical, 1)
	railOf := func(space plan.Space) func(int) []plan.Region {
		return func(local int) (list []plan.Region) {
			for h, ranks := range g.hosts {
				r := m.blockOf(plan.Input, ranks[local])
				if space == plan.Scratch {
					r = m.cell(h, ranks[local])
				}
				list = append(list, r)
			}
			return list
		}
	}
	between := railOf(plan.Input)
	if g.width() > 1 {
		inside := railOf(plan.Scratch)
		if g.height() == 1 {
			inside = func(int) []plan.Region { return []plan.Region{m.blockOf(plan.Output, at.Rank)} }
		}
		inside(g.local) // its cells come first
		m.embed(RingReduceScatter(g.inHost(at, 0)), blockView(g.locals(), railOf(plan.Input), inside))
		between = inside
	}
	if g.height() > 1 || g.width() == 1 {
		mine := between(g.local)
		m.embed(RingReduceScatter(g.inRail(at, 0)), blockView(g.rail(),
			func(host int) []plan.Region { return mine[host : host+1] },
			func(int) []plan.Region { return []plan.Region{m.blockOf(plan.Output, at.Rank)} }))
	}
	return m.done()
}
