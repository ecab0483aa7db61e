package shadow

import (
	"slices"
	"time"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// How links and processes end.

// Flush returns when GOODBYE was sent for all ranks of this process that have left, or after a time. What they have published before goes out
// before it. It reports whether nothing is left to wait for: a rank whose link has ended sends nothing any more.
func (s *Set) Flush(atMost time.Duration) bool { return s.FlushWithin(atMost, atMost) }

// FlushWithin is Flush where pairs that still wait for a link have a longer time.
func (s *Set) FlushWithin(atMost, unlinked time.Duration) bool {
	s.mu.Lock()
	var wait, linkless []*Pair
	for _, p := range s.pairs {
		if p.awaited() {
			wait = append(wait, p)
		}
	}
	for _, sides := range s.unlinked {
		for _, x := range sides {
			x.mu.Lock()
			awaited := slices.DeleteFunc(slices.Clone(x.pairs), func(p *Pair) bool { return !p.awaited() })
			if x.mu.Unlock(); x.isOwed() {
				linkless = append(linkless, awaited...)
			} else {
				wait = append(wait, awaited...)
			}
		}
	}
	s.tending.ring()
	for _, m := range s.pumps {
		m.bell.ring()
	}
	s.mu.Unlock()
	began := time.Now()
	all := flushed(wait, atMost)
	return flushed(linkless, unlinked-time.Since(began)) && all
}

// flushed waits for pairs.
func flushed(wait []*Pair, atMost time.Duration) bool {
	over := time.NewTimer(atMost)
	defer over.Stop()
	for _, p := range wait {
		select {
		case <-p.flushed:
			continue
		default:
		}
		select {
		case <-p.flushed:
		case <-over.C:
			return false
		}
	}
	return true
}

// AwaitsLinks reports whether a rank of this process that has left waits for a link.
func (s *Set) AwaitsLinks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sides := range s.unlinked {
		if slices.ContainsFunc(sides, (*side).isOwed) {
			return true
		}
	}
	return false
}

// isOwed reports whether the rank has left, and has perhaps published something that waits for a link.
func (x *side) isOwed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.wanted && x.owes && !x.done.Load() && x.left.Load() != 0
}

// Close ends all pairs without telling anybody. When it returns, nothing touches their memory any more.
// Requires: the node is closed.
func (s *Set) Close() {
	s.mu.Lock()
	var links []*tcp.Link
	for l := range s.pumps {
		links = append(links, l)
	}
	s.mu.Unlock()
	for _, l := range links {
		s.end(l)
	}
	s.closeUnlinked()
}

// end stops the pump of a link and returns its pairs. Nothing of them is read any more.
func (s *Set) end(l *tcp.Link) []*Pair {
	s.serving.Lock()
	for g := range s.services {
		if g.link == l {
			delete(s.services, g)
		}
	}
	s.serving.Unlock()
	s.mu.Lock()
	m := s.pumps[l]
	delete(s.pumps, l)
	for number := range s.met {
		s.forgetMet(group{l, number})
	}
	s.mu.Unlock()
	if m == nil {
		return nil
	}
	m.mu.Lock()
	m.ending = true
	m.mu.Unlock()
	m.bell.ring()
	<-m.done
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range m.sides {
		x.mu.Lock()
		x.done.Store(true)
		x.mu.Unlock()
		s.dropSide(x)
	}
	var pairs []*Pair
	for k, p := range s.pairs {
		if k.link == l {
			delete(s.pairs, k)
			p.unread()
			pairs = append(pairs, p)
		}
	}
	return pairs
}

// Needs reports whether a rank of this process still waits for one at the other end of a link: no goodbye of that has come, and neither of both has
// given up.
func (s *Set) Needs(l *tcp.Link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, p := range s.pairs {
		if k.link == l && p.needs() {
			return true
		}
	}
	return false
}

func (p *Pair) needs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over && !p.removed && !p.gaveUp && !p.all(p.byes)
}

// Lost is called when a link is lost and nothing is read any more. Ranks whose peer has not left are told.
func (s *Set) Lost(l *tcp.Link, why error) {
	for _, p := range s.end(l) {
		p.mu.Lock()
		known, over, lost := p.all(p.byes), p.over, p.Config.Lost
		if p.gaveUp && !over { // the pump has ended before it came to that
			p.storeGaveUp()
			over = true
		}
		p.over = true
		if !over {
			p.ownWords(int(runner.HostLane)).Detached(p.To).Store(1) // the last access: the group may give the memory back as soon as it is told
		}
		p.mu.Unlock()
		if !over && !known && lost != nil {
			lost(why) // who makes groups leaves what may panic to a goroutine of its own
		}
	}
}
