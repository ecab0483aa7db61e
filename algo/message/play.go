// Ranks and channels in time.

package message

import (
	"fmt"
	"time"
)

// play is a collective in time.
type play struct {
	size     int
	costs    Costs
	lengths  Lengths
	links    []femtoLink
	reduce   femto
	copy     femto
	full     cut // of every chunk but the last, where all blocks are of one length
	last     cut
	players  []player
	lines    []line
	slots    []slot
	first    []int32 // of the lines of each rank
	ready    []int32
	shared   []femto // per byte of each shared link
	free     []femto // when each shared link is
	waiting  events
	route    []int
	tooLong  bool
	capacity int
}

type femtoLink struct{ latency, byte, step femto }

// line is a channel in time. It has at most the number of slots that it has messages.
type line struct {
	from, to           int32
	sent, there, taken uint32 // messages
	slots              uint32 // the first of its slots; they end where those of the next line begin
	class              uint8
	shared             bool
}

// slot is a message in a channel.
type slot struct {
	at    femto // when its first byte is at the receiver, its last one if it came over shared links; then, when it was taken
	bytes uint64
}

// player is a rank in time.
type player struct {
	*skeleton
	turn     int32 // what is to be added to the skeleton's peers and pieces
	chunks   int
	position int
	step     int
	fresh    bool // it has done nothing at this position
	queued   bool
	done     bool
	awaits   int32 // the line that has to move before it can go on
	now      femto
	out, in  []femto  // when its links are free, by class
	numbers  []uint32 // of ordered messages in their channels, from 1, for the latest chunks in turn; 0: not sent
	messages int
	sent     uint64
}

func newPlay(g Group, l Lengths, c Costs) *play {
	g.Turned = g.Turned && l.Blocks == nil // blocks that differ do not turn
	p := &play{
		size: g.Size, costs: c, lengths: l, reduce: toFemto(c.Reduce), copy: toFemto(c.Copy), capacity: c.Capacity,
		players: make([]player, g.Size), first: make([]int32, g.Size+1), ready: make([]int32, 0, g.Size),
		free: make([]femto, len(c.Shared)),
	}
	for _, l := range c.Links {
		p.links = append(p.links, femtoLink{toFemto(l.Latency), toFemto(l.Byte), toFemto(l.Step)})
	}
	for _, perByte := range c.Shared {
		p.shared = append(p.shared, toFemto(perByte))
	}
	var common *skeleton
	chunks := 0
	for rank := range g.Size {
		who := &p.players[rank]
		if who.skeleton = common; common == nil {
			plan := g.Build(rank)
			chunks = int(plan.Chunks(l))
			who.skeleton = strip(plan, l, g.Turned)
			p.cut(plan, chunks)
			if g.Turned {
				common = who.skeleton
			}
		}
		if g.Turned {
			who.turn = int32(rank)
		}
		who.chunks, who.queued = chunks, true
		p.ready = append(p.ready, int32(rank))
		who.numbers, who.fresh = make([]uint32, who.ordered*who.window()), true
		times := make([]femto, 2*len(p.links))
		who.out, who.in = times[:len(p.links)], times[len(p.links):]
		p.first[rank+1] = p.first[rank] + int32(len(who.outlets))
	}
	p.lay()
	p.join(g)
	return p
}

// cut finds the lengths of chunks, which all ranks cut alike where blocks are of one length.
func (p *play) cut(plan Plan, chunks int) {
	pieces, chunk := uint64(plan.Pieces), uint64(plan.Chunk)
	p.full, p.last = cutOf(min(chunk, p.lengths.Bytes), pieces), cutOf(p.lengths.Bytes-min(uint64(chunks-1)*chunk, p.lengths.Bytes), pieces)
}

// lay makes the lines.
func (p *play) lay() {
	p.lines = make([]line, 0, p.first[p.size]+1)
	slots := uint32(0)
	for rank := range p.players {
		who := &p.players[rank]
		for _, end := range who.outlets {
			to := p.peer(who, end.peer)
			l := line{from: int32(rank), to: to, slots: slots}
			if p.costs.Class != nil {
				l.class = uint8(p.costs.Class(rank, int(to)))
			}
			if p.costs.Route != nil {
				p.route = p.costs.Route(rank, int(to), p.route[:0])
				l.shared = len(p.route) > 0
			}
			slots += uint32(min(p.capacity, end.sends*who.chunks))
			p.lines = append(p.lines, l)
		}
	}
	p.lines = append(p.lines, line{slots: slots})
	p.slots = make([]slot, slots)
}

// peer is the rank that a skeleton means.
func (p *play) peer(who *player, peer int32) int32 {
	if peer += who.turn; peer >= int32(p.size) {
		peer -= int32(p.size)
	}
	return peer
}

// join finds the lines that messages are received from, by the numbers that their senders have for them.
func (p *play) join(g Group) {
	type ends struct {
		from, to int32
		channel  uint8
	}
	known := map[ends]int32{}
	ranks := g.Size
	if g.Turned {
		ranks = min(ranks, 1)
	}
	for rank := range ranks {
		for i, end := range p.players[rank].outlets {
			known[ends{int32(rank), end.peer, end.channel}] = int32(i)
		}
	}
	for rank := range ranks {
		who := &p.players[rank]
		for i := range who.bones {
			b := &who.bones[i]
			if b.op != Recv && b.op != RecvReduce {
				continue
			}
			key := ends{b.peer, int32(rank), b.channel}
			if g.Turned {
				// Rank 0 receives from b.peer what, turned, rank 0 sends to the one as far on the other side.
				key = ends{0, (int32(p.size) - b.peer) % int32(p.size), b.channel}
			}
			if line, ok := known[key]; ok {
				b.line = line
			}
		}
	}
}

// finish plays until all ranks are done and returns when the last one is.
func (p *play) finish() (end femto, err error) {
	for {
		for len(p.ready) > 0 {
			rank := p.ready[len(p.ready)-1]
			p.ready = p.ready[:len(p.ready)-1]
			p.players[rank].queued = false
			p.run(rank)
		}
		if len(p.waiting) == 0 {
			break
		}
		p.pass(p.waiting.pop())
	}
	if p.tooLong {
		return 0, fmt.Errorf("it takes more than %v, which femtoseconds do not count", time.Duration(mostTime/1_000_000))
	}
	for rank := range p.players {
		who := &p.players[rank]
		if !who.done {
			return 0, fmt.Errorf("rank %d never gets beyond step %d of chunk %d: deadlock", rank, who.step, who.position)
		}
		end = max(end, who.now)
		for i := p.first[rank]; i < p.first[rank+1]; i++ {
			l := &p.lines[i]
			if l.taken < l.sent {
				return 0, fmt.Errorf("rank %d never gets beyond its last step: a message to rank %d is not taken: deadlock", rank, l.to)
			}
			if l.sent > 0 {
				end = max(end, p.slot(i, l.sent-1).at)
			}
		}
	}
	return end, nil
}

// slot is where the nth message of a line is.
func (p *play) slot(line int32, n uint32) *slot {
	first := p.lines[line].slots
	return &p.slots[first+n%(p.lines[line+1].slots-first)]
}

// wake has a rank looked at again if it waits for this line.
func (p *play) wake(rank, line int32) {
	if who := &p.players[rank]; who.awaits == line && !who.queued && !who.done {
		who.queued = true
		p.ready = append(p.ready, rank)
	}
}
