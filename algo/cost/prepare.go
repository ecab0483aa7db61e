// Plans made ready for being played.

package cost

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// Prepared is the plans of a group as far as playing needs them. That depends neither on lengths nor on how long chunks
// are, so that the same ones can be played for many of both.
type Prepared struct {
	size      int
	chunk     int // of the plans
	pieces    int
	met       bool // they are of a barrier, which has no length
	turned    bool
	skeletons []*skeleton // of each rank: the same one, where plans are turned
	first     []int32     // of the lines of each rank
}

// Prepare builds the plans of a group.
func Prepare(g plan.Group) *Prepared { return prepare(g, false) }

// Play is [Play] of chunks of so many bytes, a multiple of [Unit], and of that many bytes of a flat buffer or of each
// block.
func (g *Prepared) Play(chunk int, bytes uint64, c Costs) (Outcome, error) {
	return g.play(chunk, plan.Lengths{Bytes: bytes}, c)
}

// prepare builds plans, which are kept as they are for blocks that differ: such blocks do not turn, either.
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
	}
	p.join()
	return p
}

// join finds the lines that messages are received from, by the numbers that their senders have for them.
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
			if p.turned {
				// Rank 0 receives from b.peer what, turned, rank 0 sends to the one as far on the other side.
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
