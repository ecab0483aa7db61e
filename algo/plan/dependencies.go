package plan

import (
	"slices"

	"sagecomm/internal/coll"
)

// AddDependencies fills in [Step.After] of every step: the earlier sends of bytes that the step overwrites. Of several
// such sends on one channel it names only the last one, because a channel delivers messages in order.
func AddDependencies(p *SendRecvPlan) {
	sent := sends{SendRecvPlan: p, posts: make([]post, 0, len(p.Steps)), lists: map[uint64]list{}}
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

// place returns a number that identifies the block or the scratch cell in which a region lies, and the range of the
// region's pieces. An input and an output that are the same memory in place have the same number.
func (p *SendRecvPlan) place(r Region) (at uint64, first, end int) {
	switch r = p.canonical(r); {
	case r.Space != Scratch:
		return uint64(r.Space)<<31 + uint64(r.Block), r.First, r.First + r.Count
	case IsFlat(p.Kind):
		return uint64(r.Space)<<31 + uint64(r.Cell), r.First, r.First + r.Count
	}
	// Blocks of different lengths have the same piece at different offsets of a cell, so such a region stands for the
	// whole cell.
	return uint64(r.Space)<<31 + uint64(r.Cell), 0, p.Pieces
}

// canonical returns the region with Input replaced by Output where the two may be the same memory. An all_to_all is
// never in place.
func (p *SendRecvPlan) canonical(r Region) Region {
	if r.Space == Input && p.Kind != coll.AllToAll {
		r.Space = Output
	}
	return r
}

// ontoItself reports whether a step copies a region to the same region of the other buffer. Such a step needs no
// dependencies: in place it does nothing, and out of place no send reads what it writes.
func (p *SendRecvPlan) ontoItself(s *Step) bool {
	same := func(a, b Region) bool { return p.canonical(a) == p.canonical(b) }
	return s.Op == Copy && slices.EqualFunc(s.From, s.To, same)
}

// post is a send that reads some pieces of one place.
type post struct {
	step       int
	first, end int
	next       [2]int32 // posts of the lists that it is in
}

// list is a linked list of posts in the order of their sends. Posts are numbered from 1; 0 is the end.
type list struct{ first, last int32 }

// sends holds the sends of a plan up to some step, by the place that they read. Sends of a single piece are listed by
// piece as well: a ring has as many of them as ranks, and comparing each step with all of them would take too long.
type sends struct {
	*SendRecvPlan
	posts []post
	lists map[uint64]list
}

// Lists of a place: wide has the posts of several pieces, single has all other posts, and ofPiece + i has the posts of
// piece i alone.
const (
	wide = iota
	single
	ofPiece
)

// listOf returns the key of one of the lists of a place.
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

// append adds the latest post to a list.
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

// last updates steps, which holds the last send on each channel, by the sends that overlap a region.
func (s *sends) last(steps []int, r Region) []int {
	at, first, end := s.place(r)
	steps = s.later(steps, s.lists[listOf(at, wide)], 0, first, end)
	if end == first+1 {
		return s.later(steps, s.lists[listOf(at, ofPiece+first)], 1, first, end)
	}
	return s.later(steps, s.lists[listOf(at, single)], 0, first, end)
}

// later updates steps as last does, by the posts of one list.
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

// later returns the one of two steps that a chunk reaches later.
func later(p *SendRecvPlan, a, b int) int {
	if p.Steps[a].Lag > p.Steps[b].Lag || p.Steps[a].Lag == p.Steps[b].Lag && a > b {
		return a
	}
	return b
}
