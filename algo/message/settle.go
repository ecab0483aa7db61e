// Which sends a step must wait for before it writes.

package message

import (
	"slices"

	"sagecomm/internal/coll"
)

// settle fills in [Step.After]: of the earlier sends of bytes that a step writes, the last one on each channel, since
// messages of a channel are taken in order.
func settle(p *Plan) {
	sent := map[place]*sends{}
	for lag := range p.MaxLag() + 1 {
		for i := range p.Steps {
			s := &p.Steps[i]
			if s.Lag != lag || p.ontoItself(*s) {
				continue
			}
			var last []post
			for _, r := range s.To {
				at, first, end := p.place(r)
				if known := sent[at]; known != nil {
					last = known.last(last, first, end, p)
				}
			}
			for _, l := range last {
				s.After = append(s.After, l.step)
			}
			if s.Op != Send {
				continue
			}
			for _, r := range s.From {
				at, first, end := p.place(r)
				if sent[at] == nil {
					sent[at] = &sends{byPiece: map[int][]post{}}
				}
				sent[at].add(post{s.Peer, s.Channel, i, first, end})
			}
		}
	}
}

// place is a block of a buffer or a cell of scratch memory.
type place struct {
	space       Space
	cell, block int
}

// place says where a region lies, under one name for memory that may be shared in place, and with which pieces.
func (p Plan) place(r Region) (at place, first, end int) {
	r = p.canonical(r)
	if r.Space == Scratch && !flat(p.Kind) {
		// Blocks of different lengths have their pieces at different places of a cell.
		return place{space: Scratch, cell: r.Cell}, 0, p.Pieces
	}
	return place{r.Space, r.Cell, r.Block}, r.First, r.First + r.Count
}

// canonical gives memory that may be shared in place the same name: the output's.
func (p Plan) canonical(r Region) Region {
	if r.Space == Input && p.Kind != coll.AllToAll {
		r.Space = Output
	}
	return r
}

// ontoItself says whether a step copies between memory that is the same in place: there it does nothing, and out of
// place nobody reads what it writes.
func (p Plan) ontoItself(s Step) bool {
	return s.Op == Copy && slices.EqualFunc(s.From, s.To, func(a, b Region) bool { return p.canonical(a) == p.canonical(b) })
}

// post is a send of some pieces of a place.
type post struct {
	peer       int
	channel    uint8
	step       int
	first, end int
}

// sends are those of a place. The ones of a single piece, of which a ring has as many as there are ranks, are found by
// it.
type sends struct {
	wide, single []post
	byPiece      map[int][]post
}

func (s *sends) add(p post) {
	if p.end > p.first+1 {
		s.wide = append(s.wide, p)
		return
	}
	s.single = append(s.single, p)
	s.byPiece[p.first] = append(s.byPiece[p.first], p)
}

// last adds to a list with the last send of each channel those of pieces first to end.
func (s *sends) last(list []post, first, end int, p *Plan) []post {
	single := s.single
	if end == first+1 {
		single = s.byPiece[first]
	}
	for _, posts := range [][]post{s.wide, single} {
		for _, sent := range posts {
			if sent.end <= first || end <= sent.first {
				continue
			}
			i := slices.IndexFunc(list, func(l post) bool { return l.peer == sent.peer && l.channel == sent.channel })
			if i < 0 {
				list = append(list, sent)
			} else {
				list[i].step = later(p, list[i].step, sent.step)
			}
		}
	}
	return list
}

// later is which of two steps comes later in the course of a chunk.
func later(p *Plan, a, b int) int {
	if p.Steps[a].Lag > p.Steps[b].Lag || p.Steps[a].Lag == p.Steps[b].Lag && a > b {
		return a
	}
	return b
}
