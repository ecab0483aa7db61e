package shadow

import (
	"slices"
	"time"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// A group in which not all processes have links to each other from the beginning makes a link at first need (docs/protocol.md, section 16, Links at
// first need). Before a link carries a group, the pairs with ranks at its other end are on a list here. It carries the group from its first frame of
// the group on, at either end, or from when it is there and a rank of this process wants it: the two meet. All of this is under the lock of the set.

// remote is a group as far as one process serves it to which there is no link that carries the group.
type remote struct {
	group uint64
	peer  tcp.Identity
}

// farewell is what LEFT says of a rank of this process that has left a group.
type farewell struct {
	rank   int
	number uint64
	state  []byte
}

// mostDeparted bounds the groups whose farewells are kept for processes that have met none of their ranks. The group whose last rank here has left longest
// ago is forgotten first.
const mostDeparted = 1024

// meet lets a link carry a group, if that is known here and the link does not carry it yet. to is a rank at the other end.
// Requires: the lock.
func (s *Set) meet(l *tcp.Link, number uint64, to int) {
	g, r := group{l, number}, remote{number, l.Peer()}
	sides, farewells := s.unlinked[r], s.departed[number]
	met := s.met[number][l]
	if met && len(sides) == 0 || len(sides) == 0 && len(farewells) == 0 || l.Err() != nil {
		return
	}
	if met {
		farewells = nil // they have been said
	}
	s.noteMet(g)
	delete(s.unlinked, r)
	m := s.pumpOf(l)
	said := map[int]bool{}
	for _, x := range sides {
		if x.attach(l, m) {
			s.sides[g] = append(s.sides[g], x)
			said[x.rank] = true
		}
	}
	m.mu.Lock()
	for _, f := range farewells {
		if !said[f.rank] {
			m.farewells = append(m.farewells, departure{tcp.Header{Kind: tcp.Left, Group: number, From: uint32(f.rank), To: uint32(to), Number: f.number}, f.state})
		}
	}
	m.mu.Unlock()
	m.bell.ring()
}

// noteMet takes note that a link carries a group.
// Requires: the lock.
func (s *Set) noteMet(g group) {
	if s.met[g.number] == nil {
		s.met[g.number] = map[*tcp.Link]bool{}
	}
	s.met[g.number][g.link] = true
}

// forgetMet takes note that a link carries a group no more.
// Requires: the lock.
func (s *Set) forgetMet(g group) {
	delete(s.met[g.number], g.link)
	if len(s.met[g.number]) == 0 {
		delete(s.met, g.number)
	}
}

// attach puts the pairs of a side on a link, and makes those that are wanted, also where the rank has left meanwhile: what it has published goes out
// first. It reports false for a side that has ended. One whose pairs have all ended is there for its farewell.
// Requires: the lock of the set.
func (x *side) attach(l *tcp.Link, m *pump) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done.Load() {
		return false
	}
	x.link, x.pump = l, m
	var made []*Pair
	for _, p := range x.pairs {
		p.Link, p.bell = l, m.bell
		x.set.pairs[p.key()] = p
		p.linked.Store(true)
		if p.wanted {
			p.make()
			made = append(made, p)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sides = append(m.sides, x)
	m.pairs = append(m.pairs, made...)
	return true
}

// Meet lets a link carry a group if a rank of this process wants that. to is a rank at the other end.
func (s *Set) Meet(l *tcp.Link, number uint64, to int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.unlinked[remote{number, l.Peer()}], (*side).wants) {
		s.meet(l, number, to)
	}
}

// Wants reports whether a rank of this process wants a link to a process that carries the group, and whether it waits for it. A rank that has left does
// not wait, but what it has published may go out by the attempt that is under way.
func (s *Set) Wants(number uint64, peer tcp.Identity, rank int) (wanted, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.unlinked[remote{number, peer}] {
		if x.rank == rank && x.wants() {
			return true, x.left.Load() == 0
		}
	}
	return false, false
}

// Wanted returns whether the pair waits for a link, and how long it has done so.
func (p *Pair) Wanted() (waited time.Duration, wanted bool) {
	if p.made.Load() {
		return 0, false
	}
	p.side.mu.Lock()
	defer p.side.mu.Unlock()
	if !p.wanted || p.made.Load() {
		return 0, false
	}
	return time.Since(p.since), true
}

func (x *side) wants() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.wanted
}

// Unreachable takes note that no link to a process can be made. Pairs of a rank that are wanted end as behind the loss of a link; others stay.
func (s *Set) Unreachable(number uint64, peer tcp.Identity, rank int, why error) {
	var lost []func(error)
	s.mu.Lock()
	for _, x := range s.unlinked[remote{number, peer}] {
		if x.rank == rank {
			lost = append(lost, x.giveUp()...)
		}
	}
	s.mu.Unlock()
	for _, f := range lost {
		f(why)
	}
	s.tending.ring() // it may have been all that the side has waited for
	if len(lost) > 0 && s.Ended != nil {
		s.Ended()
	}
}

// Forgo takes note that a rank needs no link any more, since its group has failed. Its pairs stay: where the other end makes a link, it is answered.
func (s *Set) Forgo(number uint64, rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.unlinked {
		if r.group == number {
			s.forgo(r, rank)
		}
	}
}

// ForgoOne is Forgo for the link to one process. It costs the same whatever number of processes and groups there is.
func (s *Set) ForgoOne(number uint64, peer tcp.Identity, rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgo(remote{number, peer}, rank)
}

func (s *Set) forgo(r remote, rank int) {
	for _, x := range s.unlinked[r] {
		if x.rank == rank {
			x.forgo()
		}
	}
	s.tending.ring() // it may have been all that a side has waited for
}

func (x *side) forgo() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wanted, x.owes = false, false
	for _, p := range x.pairs {
		p.wanted = false
	}
}

// giveUp ends the pairs that are wanted, and returns what is to be told of the loss.
func (x *side) giveUp() (lost []func(error)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wanted, x.owes = false, false
	x.pairs = slices.DeleteFunc(x.pairs, func(p *Pair) bool {
		if !p.wanted {
			return false
		}
		p.wanted, x.gaveUp = false, true
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.Config.Lost != nil {
			lost = append(lost, p.Config.Lost)
		}
		p.endUnmade()
		return true
	})
	return lost
}

// endUnmade ends a pair that was not made: nothing touches the memory of the group for it.
// Requires: the lock.
func (p *Pair) endUnmade() {
	p.nothingLeft()
	if !p.over {
		p.over = true
		p.ownWords(int(runner.HostLane)).Detached(p.To).Store(1)
	}
}

// tend is a goroutine that looks, as a pump does, for ranks that have left, for the sides without a link.
func (s *Set) tend() {
	defer close(s.tended)
	look := time.NewTicker(s.sleep)
	defer look.Stop()
	for {
		select {
		case <-s.tending:
		case <-look.C:
		case <-s.closing:
			return
		}
		if s.seeOff() && s.Ended != nil {
			s.Ended()
		}
	}
}

// seeOff ends the sides without a link of ranks that have left, unless a link is awaited for what such a rank may have published. It reports whether there
// were some. Whoever meets the process later is told that the rank has left.
func (s *Set) seeOff() (ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, sides := range s.unlinked {
		rest := slices.DeleteFunc(slices.Clone(sides), func(x *side) bool {
			f, over := x.seeOff()
			if f.number != 0 {
				s.depart(x.group, f)
			}
			ended = ended || over
			return over
		})
		if s.unlinked[r] = rest; len(rest) == 0 {
			delete(s.unlinked, r)
		}
	}
	return ended
}

// seeOff ends a side without a link if it can. over: it has ended. The farewell has the number 0 where the rank was removed.
// Requires: the lock of the set.
func (x *side) seeOff() (f farewell, over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done.Load() {
		return f, true
	}
	number := x.left.Load()
	if x.leaving = number != 0; !x.leaving || x.wanted && x.owes {
		return f, false
	}
	f = farewell{rank: x.rank, number: number, state: x.lastState(number)}
	for _, p := range x.pairs {
		p.mu.Lock()
		p.endUnmade()
		p.mu.Unlock()
	}
	x.pairs = nil
	x.done.Store(true)
	return f, true
}

// depart keeps the farewell of a rank.
// Requires: the lock.
func (s *Set) depart(number uint64, f farewell) {
	list, known := s.departed[number]
	if slices.ContainsFunc(list, func(of farewell) bool { return of.rank == f.rank }) {
		return
	}
	s.departed[number] = append(list, f)
	if known {
		return
	}
	if s.oldest = append(s.oldest, number); len(s.oldest) > mostDeparted {
		forgotten := s.oldest[0]
		delete(s.departed, forgotten)
		for l := range s.met[forgotten] {
			if g := (group{l, forgotten}); len(s.sides[g]) == 0 { // else dropSide does
				s.forgetMet(g)
			}
		}
		s.oldest = s.oldest[1:]
	}
}

// closeUnlinked ends the sides without a link.
func (s *Set) closeUnlinked() {
	s.mu.Lock()
	begun := s.closing != nil
	if begun {
		select {
		case <-s.closing:
		default:
			close(s.closing)
		}
	}
	s.mu.Unlock()
	if begun {
		<-s.tended
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sides := range s.unlinked {
		for _, x := range sides {
			x.mu.Lock()
			x.done.Store(true)
			for _, p := range x.pairs {
				p.nothingLeft()
			}
			x.mu.Unlock()
		}
	}
	clear(s.unlinked)
}
