package cost

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Prepared holds the parts of a group's plans that playing needs. It depends neither on the length of buffers nor on the
// length of chunks, so one Prepared can be played for many of both.
type Prepared struct {
	size      int
	chunk     int // chunk of the plans
	pieces    int
	met       bool // the plans are of a barrier, which has no length
	turned    bool
	folded    *folding // only its players are here
	skeletons []*skeleton // by rank; all the same one where plans are turned
	first     []int32     // number of the first line of each rank
	steps     int         // of all plans
}

// Prepare builds the plans of a group.
func Prepare(g plan.Group) *Prepared { return prepare(g, false) }

// Play is [Play] with chunks of some length, a multiple of [plan.Unit], and with that many bytes in the flat buffer or
// in each block.
func (g *Prepared) Play(chunk int, bytes uint64, c Costs) (Outcome, error) {
	return g.play(chunk, plan.Lengths{Bytes: bytes}, c)
}

// prepare builds the plans. For blocks that differ in length it keeps them whole and does not turn them.
func prepare(g plan.Group, uneven bool) *Prepared {
	p := &Prepared{size: g.Size, turned: g.Turned && !uneven, skeletons: make([]*skeleton, g.Size),
		first: make([]int32, g.Size+1)}
	for rank := range g.Size {
		if p.turned && rank > 0 {
			p.skeletons[rank] = p.skeletons[0]
		} else {
			plan := g.Build(rank)
			p.chunk, p.pieces, p.met = plan.Chunk, plan.Pieces, plan.Kind == coll.Barrier
			p.skeletons[rank] = strip(plan, uneven, p.turned)
		}
		p.first[rank+1] = p.first[rank] + int32(len(p.skeletons[rank].outlets))
		p.steps += len(p.skeletons[rank].bones)
	}
	p.join()
	return p
}

// prepareUpTo builds the plans of a group, or of the players of its folding, which may be nil. It returns nil if these
// plans have more than that many regions, and in either case the number of regions that it has built.
func prepareUpTo(most int, g plan.Group, f *folding) (*Prepared, int) {
	size, built := g.Size, 0
	if f != nil {
		size = len(f.players)
	}
	p := &Prepared{size: size, folded: f, first: make([]int32, size+1)}
	for i := range size {
		one := g.Build(p.rank(i))
		if built += regions(one); built > most {
			return nil, built
		}
		p.chunk, p.pieces, p.met = one.Chunk, one.Pieces, one.Kind == coll.Barrier
		k := strip(one, false, false)
		p.skeletons, p.steps = append(p.skeletons, k), p.steps+len(k.bones)
		p.first[i+1] = p.first[i] + int32(len(k.outlets))
	}
	p.join()
	return p, built
}

// regions returns the number of regions that the steps of a plan name, where a step without regions counts as one.
func regions(p plan.SendRecvPlan) (n int) {
	for i := range p.Steps {
		n += max(1, len(p.Steps[i].From)+len(p.Steps[i].To))
	}
	return n
}

// rank returns the rank of a player.
func (p *Prepared) rank(player int) int {
	if p.folded != nil {
		return p.folded.players[player]
	}
	return player
}

// join finds the lines from which messages are received. Lines have the numbers that their senders give them.
func (p *Prepared) join() {
	ranks := p.size
	if p.turned {
		ranks = min(ranks, 1)
	}
	for rank, k := range p.skeletons[:ranks] {
		for i := range k.bones {
			b := &k.bones[i]
			if b.op != plan.Recv && b.op != plan.RecvReduce {
				continue
			}
			from, to := b.peer, int32(rank)
			switch {
			case p.folded != nil:
				from, to = p.folded.player[b.peer], int32(p.folded.sentTo(p.rank(rank), int(b.peer)))
				b.peer = from
			case p.turned:
				// The plan of b.peer is that of rank 0, turned. So its message to rank 0 is numbered like the message that rank 0
				// sends to the rank that lies as far away in the other direction.
				from, to = 0, (int32(p.size)-b.peer)%int32(p.size)
			}
			if line, ok := p.skeletons[from].lines.find(outlet{peer: to, channel: b.channel}); ok {
				b.line = line
			}
		}
	}
	for _, k := range p.skeletons[:ranks] {
		k.lines = index[outlet]{} // thousands of them take memory
	}
}
