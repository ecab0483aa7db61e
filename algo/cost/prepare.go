package cost

import (
	"math"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Prepared holds the parts of a group's plans that playing needs. It depends neither on the length of buffers nor on the
// length of chunks, so one Prepared can be played for many of both.
type Prepared struct {
	size      int // number of plans that are played
	ranks     int // of the group
	chunk     int // chunk of the plans
	pieces    int
	met       bool // the plans are of a barrier, which has no length
	turned    bool
	quotient  *quotient   // only its players are here
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
	p, _ := prepareUpTo(math.MaxInt, g, nil, uneven)
	return p
}

// prepareUpTo builds the plans of a group, or of the players of its quotient, which may be nil. It returns nil if these
// plans have more than that many regions, and in either case the number of regions.
func prepareUpTo(most int, g plan.Group, q *quotient, uneven bool) (*Prepared, int) {
	size, all := g.Size, 0
	if q != nil {
		size = len(q.players)
	}
	p := &Prepared{size: size, ranks: g.Size, turned: g.Turned && !uneven, quotient: q, skeletons: make([]*skeleton, size),
		first: make([]int32, size+1)}
	for i := range size {
		if p.turned && i > 0 {
			p.skeletons[i] = p.skeletons[0]
		} else {
			one := g.Build(p.rank(i))
			if all += regions(one); p.turned {
				all *= size
			}
			if all > most {
				return nil, all
			}
			p.chunk, p.pieces, p.met = one.Chunk, one.Pieces, one.Kind == coll.Barrier
			p.skeletons[i] = strip(one, uneven, p.turned)
		}
		p.first[i+1] = p.first[i] + int32(len(p.skeletons[i].outlets))
		p.steps += len(p.skeletons[i].bones)
	}
	p.join()
	return p, all
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
	if p.quotient != nil {
		return p.quotient.players[player]
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
			case p.turned:
				// The plan of b.peer is that of rank 0, turned. So its message to rank 0 is numbered like the message that rank 0
				// sends to the rank that lies as far away in the other direction.
				from, to = 0, (int32(p.ranks)-b.peer)%int32(p.ranks)
			case p.quotient != nil:
				from, to = p.quotient.player[b.peer], int32(p.quotient.sentTo(p.rank(rank), int(b.peer)))
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
