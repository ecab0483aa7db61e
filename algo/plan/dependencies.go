// Which sends a step must wait for before it writes.

package plan

import (
	"slices"

	"sagecomm/internal/coll"
)

// settle fills in [Step.After]: of the earlier sends of bytes that a step writes, the last one on each channel, since
// messages of a channel are taken in order.
func AddDependencies(p *SendRecvPlan) {
	sent := sends{SendRecvPlan: p, posts: make([]post, 0, len(p.Steps)), lists: make(map[uint64]list, len(p.Steps))}
	var last []int
	for lag := range p.MaxLag() + 1 {
		for i := range p.Steps {
			s := &p.Steps[i]
			if s.Lag != lag || p.ontoItself(s) {
				continue
			}
			last = last[:0]
			for _, r := range s.To {
				last = sent.last(last, r)
			}
			if len(last) > 0 {
				s.After = slices.Clone(last)
			}
			if s.Op == Send {
				for _, r := range s.From {
					sent.add(i, r)
				}
			}
		}
	}
}

// place numbers the blocks of a buffer and the cells of scratch memory, under one number for memory that may be shared
// in place, and says which pieces of it a region is.
func (p *SendRecvPlan) place(r Region) (at uint64, first, end int) {
	switch r = p.canonical(r); {
	case r.Space != Scratch:
		return uint64(r.Space)<<31 + uint64(r.Block), r.First, r.First + r.Count
	case IsFlat(p.Kind):
		return uint64(r.Space)<<31 + uint64(r.Cell), r.First, r.First + r.Count
	}
	// Blocks of different lengths have their pieces at different places of a cell.
	return uint64(r.Space)<<31 + uint64(r.Cell), 0, p.Pieces
}

// canonical gives memory that may be shared in place the same name: the output's.
func (p *SendRecvPlan) canonical(r Region) Region {
	if r.Space == Input && p.Kind != coll.AllToAll {
		r.Space = Output
	}
	return r
}

// ontoItself says whether a step copies between memory that is the same in place: there it does nothing, and out of
// place nobody reads what it writes.
func (p *SendRecvPlan) ontoItself(s *Step) bool {
	same := func(a, b Region) bool { return p.canonical(a) == p.canonical(b) }
	return s.Op == Copy && slices.EqualFunc(s.From, s.To, same)
}

// post is a send of some pieces of a place.
type post struct {
	step       int
	first, end int
	next       [2]int32 // posts of the lists that it is in
}

// list is posts in order, by number from 1.
type list struct{ first, last int32 }

// sends are those of a plan up to a step. The ones of a single piece, of which a ring has as many as there are ranks,
// are found by it.
type sends struct {
	*SendRecvPlan
	posts []post
	lists map[uint64]list
}

// Lists of a place: of its posts of several pieces, of all others, and of those of each piece.
const (
	wide = iota
	single
	ofPiece
)

func listOf(place uint64, which int) uint64 { return place<<31 + uint64(which) }

func (s *sends) add(step int, r Region) {
	at, first, end := s.place(r)
	s.posts = append(s.posts, post{step: step, first: first, end: end})
	if end > first+1 {
		s.append(listOf(at, wide), 0)
		return
	}
	s.append(listOf(at, single), 0)
	s.append(listOf(at, ofPiece+first), 1)
}

// append puts the latest post into a list.
func (s *sends) append(key uint64, link int) {
	latest := int32(len(s.posts))
	l := s.lists[key]
	if l.last > 0 {
		s.posts[l.last-1].next[link] = latest
	} else {
		l.first = latest
	}
	l.last = latest
	s.lists[key] = l
}

// last adds to a list with the last send of each channel those of a region.
func (s *sends) last(steps []int, r Region) []int {
	at, first, end := s.place(r)
	steps = s.later(steps, s.lists[listOf(at, wide)], 0, first, end)
	if end == first+1 {
		return s.later(steps, s.lists[listOf(at, ofPiece+first)], 1, first, end)
	}
	return s.later(steps, s.lists[listOf(at, single)], 0, first, end)
}

// later does so for the posts of one list.
func (s *sends) later(steps []int, l list, link, first, end int) []int {
	for i := l.first; i > 0; i = s.posts[i-1].next[link] {
		sent := &s.posts[i-1]
		if sent.end <= first || end <= sent.first {
			continue
		}
		step := &s.Steps[sent.step]
		known := slices.IndexFunc(steps, func(j int) bool {
			return s.Steps[j].Peer == step.Peer && s.Steps[j].Channel == step.Channel
		})
		if known < 0 {
			steps = append(steps, sent.step)
		} else {
			steps[known] = later(s.SendRecvPlan, steps[known], sent.step)
		}
	}
	return steps
}

// later is which of two steps comes later in the course of a chunk.
func later(p *SendRecvPlan, a, b int) int {
	if p.Steps[a].Lag > p.Steps[b].Lag || p.Steps[a].Lag == p.Steps[b].Lag && a > b {
		return a
	}
	return b
}
