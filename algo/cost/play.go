package cost

import (
	"fmt"
	"time"

	"sagecomm/algo/plan"
)

// play is the state of a collective that is played in time.
type play struct {
	*Prepared
	costs    Costs
	lengths  plan.Lengths
	links    []femtoLink
	reduce   Femto
	copy     Femto
	full     cut // of every chunk but the last, where all blocks are of one length
	last     cut
	players  []player
	lines    []line
	places   []place
	ready    []int32
	shared   []Femto // per byte of each shared link
	free     []Femto // when each shared link is free
	waiting  events
	route    []int
	tooLong  bool
	capacity int
}

// femtoLink is Link in femtoseconds.
type femtoLink struct{ latency, byte, step Femto }

// line is the state of a channel in a play. It has no more places than it has messages.
type line struct {
	from, to           int32
	sent, there, taken uint32 // messages
	places             uint32 // the first of its places; they end where those of the next line begin
	class              uint8
	shared             bool
}

// place is a message in a channel.
type place struct {
	// at is the time at which the first byte is at the receiver, or the last byte if the message came over shared links. Once
	// the message is taken, at is the time of that.
	at    Femto
	bytes uint64
}

// player is the state of a rank in a play.
type player struct {
	*skeleton
	turn     int32 // number to add to the skeleton's peers and pieces
	chunks   int
	position int
	step     int
	fresh    bool // the rank has done nothing at this position
	queued   bool
	done     bool
	awaits   int32 // the line that has to move before the rank can go on
	now      Femto
	out, in  []Femto  // when the rank's links are free, by class
	numbers  []uint32 // numbers, from 1, of ordered messages in their channels, for the latest chunks in turn; 0: not sent
	messages int
	sent     uint64
}

// newPlay returns a play in which no rank has begun.
// Requires: plans prepared for blocks that differ, if the lengths have such blocks.
func newPlay(g *Prepared, chunk int, l plan.Lengths, c Costs) *play {
	if g.met {
		l = plan.Lengths{}
	}
	p := &play{
		Prepared: g, costs: c, lengths: l, reduce: toFemto(c.Reduce), copy: toFemto(c.Copy), capacity: c.Capacity,
		players: make([]player, g.size), ready: make([]int32, 0, g.size), free: make([]Femto, len(c.Shared)),
	}
	for _, l := range c.Links {
		p.links = append(p.links, femtoLink{toFemto(l.Latency), toFemto(l.Byte), toFemto(l.Step)})
	}
	for _, perByte := range c.Shared {
		p.shared = append(p.shared, toFemto(perByte))
	}
	chunks := plan.ChunksOf(l.Bytes, chunk)
	p.cut(uint64(chunk), chunks)
	classes, numbers := len(p.links), 0
	times := make([]Femto, 2*classes*g.size)
	for rank := range p.players {
		who := &p.players[rank]
		who.skeleton, who.chunks, who.queued, who.fresh = g.skeletons[rank], int(chunks), true, true
		if who.uneven != nil {
			who.chunks = int(who.uneven.Chunks(l))
		}
		if g.turned {
			who.turn = int32(g.rank(rank))
		}
		p.ready = append(p.ready, int32(rank))
		numbers += who.ordered * who.window()
		who.out, who.in, times = times[:classes], times[classes:2*classes], times[2*classes:]
	}
	all := make([]uint32, numbers)
	for rank := range p.players {
		who := &p.players[rank]
		n := who.ordered * who.window()
		who.numbers, all = all[:n:n], all[n:]
	}
	p.lay()
	return p
}

// cut sets the cuts of chunks, which are the same on all ranks where blocks are of one length.
func (p *play) cut(chunk, chunks uint64) {
	pieces, bytes := uint64(p.pieces), p.lengths.Bytes
	p.full, p.last = cutOf(min(chunk, bytes), pieces), cutOf(bytes-min((chunks-1)*chunk, bytes), pieces)
}

// lay makes the lines.
func (p *play) lay() {
	p.lines = make([]line, 0, p.first[p.size]+1)
	places := uint32(0)
	for rank := range p.players {
		who := &p.players[rank]
		for _, end := range who.outlets {
			peer := p.turn(who, end.peer)
			to := p.player(peer)
			l := line{from: int32(rank), to: to, places: places}
			if p.costs.Class != nil {
				l.class = uint8(p.costs.Class(p.rank(rank), int(peer)))
			}
			if p.costs.Route != nil {
				p.route = p.costs.Route(rank, int(to), p.route[:0])
				l.shared = len(p.route) > 0
			}
			places += uint32(min(p.capacity, end.sends*who.chunks))
			p.lines = append(p.lines, l)
		}
	}
	p.lines = append(p.lines, line{places: places})
	p.places = make([]place, places)
}

// turn returns the rank that a skeleton's peer stands for.
func (p *play) turn(who *player, peer int32) int32 {
	if peer += who.turn; peer >= int32(p.ranks) {
		peer -= int32(p.ranks)
	}
	return peer
}

// player returns the number of a rank's player.
func (p *play) player(rank int32) int32 {
	if p.quotient != nil {
		return p.quotient.player[rank]
	}
	return rank
}

// finish plays until all ranks are done and returns when the last one is.
func (p *play) finish() (end Femto, err error) {
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
		return 0, fmt.Errorf("it takes more than %v, the longest time that can be predicted", time.Duration(mostTime/1_000_000))
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
				return 0, fmt.Errorf("rank %d never gets beyond its last step: a message to rank %d is not taken: deadlock",
					rank, l.to)
			}
			if l.sent > 0 {
				end = max(end, p.place(i, l.sent-1).at)
			}
		}
	}
	return end, nil
}

// place returns the place of the nth message of a line.
func (p *play) place(line int32, n uint32) *place {
	first := p.lines[line].places
	return &p.places[first+n%(p.lines[line+1].places-first)]
}

// wake queues a rank if it waits for this line.
func (p *play) wake(rank, line int32) {
	if who := &p.players[rank]; who.awaits == line && !who.queued && !who.done {
		who.queued = true
		p.ready = append(p.ready, rank)
	}
}
