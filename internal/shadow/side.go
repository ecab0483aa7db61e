package shadow

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// side is a group as a rank of this process has it on a link: its pairs with the ranks at the other end, made and not made (docs/protocol.md,
// section 16, Pairs at first need).
type side struct {
	set      *Set
	pump     *pump
	link     *tcp.Link
	group    uint64
	rank     int
	to       int                        // a rank at the other end
	own      [runner.Lanes]runner.Words // of this rank; nobody reads them once done is set
	left     *atomic.Uint64             // in those
	need     func()                     // asks for a link; nil where all processes of the group have one from the beginning. See meeting.go
	detached atomic.Bool                // this rank touches nothing of the group any more
	done     atomic.Bool                // LEFT was sent, or nothing is sent any more; changed under mu

	mu      sync.Mutex // before that of a pair
	pairs   []*Pair
	wanted  bool // a pair is wanted, and there is no link yet
	owes    bool // by more than a question or a wait, so that something may have been published for it
	gaveUp  bool // pairs have ended because no link could be made; if there is one later, the other end waits for LEFT
	leaving bool // this rank has left: no pair is made any more
	told    bool // LEFT is being sent, or was; for the pump alone
}

// sideOf returns the side of a pair that is to be added, with its lock. A side that is done stays until the pump has dropped it: no pair is added to
// that.
// Requires: the lock of the set.
func (s *Set) sideOf(c *Config, m *pump) *side {
	g, r := group{c.Link, c.Group}, remote{c.Group, c.Peer}
	list := s.sides[g]
	if c.Link == nil {
		list = s.unlinked[r]
	}
	for _, x := range list {
		if x.rank != c.Rank {
			continue
		}
		if x.mu.Lock(); !x.done.Load() {
			return x
		}
		x.mu.Unlock()
	}
	x := &side{set: s, pump: m, link: c.Link, group: c.Group, rank: c.Rank, to: c.To, need: c.Need}
	x.find(c)
	x.mu.Lock()
	if c.Link == nil {
		s.unlinked[r] = append(s.unlinked[r], x)
		return x
	}
	s.sides[g] = append(s.sides[g], x)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sides = append(m.sides, x)
	return x
}

// find finds the words of the rank.
func (x *side) find(c *Config) {
	for n, at := range c.Own.Shared {
		x.own[n] = runner.WordsOf(unsafe.Add(c.Own.Arena, at), c.Size)
	}
	x.left = x.own[runner.HostLane].Left()
}

// open makes a pair unless it is made. It reports whether it is, and else whether it will be when there is a link. owes: something may be published for
// the pair, so the link is made also if this rank leaves.
func (x *side) open(p *Pair, owes bool) (made, wanted bool) {
	if p.made.Load() {
		return true, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case p.made.Load():
		return true, false
	case x.link == nil && p.wanted:
		x.owes = x.owes || owes && x.left.Load() == 0
		return false, true
	case x.leaving || x.done.Load() || p.hasEnded() || !slices.Contains(x.pairs, p):
		return false, false
	case x.link == nil && x.left.Load() != 0: // nobody looks for that at once
		return false, false
	case x.link == nil:
		x.owes = x.owes || owes
		if p.wanted, p.since = true, time.Now(); !x.wanted {
			x.wanted = true
			x.need()
		}
		return false, true
	}
	p.make()
	x.pump.mu.Lock()
	x.pump.pairs = append(x.pump.pairs, p)
	x.pump.mu.Unlock()
	x.pump.bell.ring() // OPEN is to be sent
	return true, false
}

// hasEnded reports whether nothing comes or goes for the pair. One that is not made may have ended: the remote rank has given up. Its OPEN would
// never be sent, so LEFT would never be.
func (p *Pair) hasEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// look takes note that this rank has left. Behind it no pair is made.
func (x *side) look() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.leaving = x.leaving || !x.done.Load() && x.left.Load() != 0
}

// sayLeft sends LEFT, once, when OPEN of all pairs that are made was sent. It reports whether it has.
func (x *side) sayLeft() (moved bool, err error) {
	x.mu.Lock()
	if !x.leaving || x.told || x.done.Load() || slices.ContainsFunc(x.pairs, (*Pair).isUnsaid) {
		x.mu.Unlock()
		return false, nil
	}
	x.told = true
	if len(x.pairs) == 0 && !x.gaveUp { // nobody is left to tell
		x.done.Store(true)
		x.mu.Unlock()
		return true, nil
	}
	h := tcp.Header{Kind: tcp.Left, Group: x.group, From: uint32(x.rank), To: uint32(x.to), Number: x.left.Load()}
	state := x.lastState(h.Number)
	x.mu.Unlock()
	if err := x.link.Send(0, &h, state); err != nil {
		return true, err
	}
	x.finish()
	return true, nil
}

// lastState returns the state that LEFT of a number has: ranks without a pair need the last call on the device lane, as those with one do.
// They have exchanged no blocks with this rank.
func (x *side) lastState(number uint64) []byte {
	if number == gaveUp || x.own[runner.DeviceLane].LastCall() == 0 {
		return nil
	}
	return runner.CopyState(x.own, x.rank)
}

// isUnsaid reports whether the pair is made and OPEN was not sent. The pump asks, which sends it.
func (p *Pair) isUnsaid() bool {
	p.pushing.Lock()
	defer p.pushing.Unlock()
	return p.made.Load() && !p.said && !p.gone
}

// finish ends the pairs that were not made: nothing comes or goes for them any more, and nothing touches the memory of the group for them.
func (x *side) finish() {
	x.set.mu.Lock()
	defer x.set.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if number := x.left.Load(); x.need != nil {
		x.set.depart(x.group, farewell{rank: x.rank, number: number, state: x.lastState(number)})
	}
	x.done.Store(true)
	x.pairs = slices.DeleteFunc(x.pairs, func(p *Pair) bool {
		if p.made.Load() {
			return false
		}
		delete(x.set.pairs, p.key())
		p.mu.Lock()
		defer p.mu.Unlock()
		p.endUnmade()
		return true
	})
}

// forget takes a pair out that is over or was removed.
// Requires: the lock of the set.
func (x *side) forget(p *Pair) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pairs = slices.DeleteFunc(x.pairs, func(q *Pair) bool { return q == p })
}

// isIdle reports whether nothing is left to do for a side.
func (x *side) isIdle() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.done.Load() && len(x.pairs) == 0
}

// Detach implements runner.Pair.
func (p *Pair) Detach() {
	p.side.detached.Store(true)
	p.Wake()
}

// HasLeft reports whether the other process was told that this rank has left, or nothing is told any more. Before, the memory of the group of this
// rank is in use, whatever has come of its pairs.
func (p *Pair) HasLeft() bool { return p.side.done.Load() }

// acceptLeft returns where the state goes that LEFT has. It drops LEFT of a group that is not known on the link.
func (s *Set) acceptLeft(l *tcp.Link, h *tcp.Header) ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meet(l, h.Group, int(h.From))
	m := s.pumps[l]
	switch {
	case len(s.sides[group{l, h.Group}]) == 0 || m == nil:
		return nil, tcp.ErrDrop
	case h.Bytes == 0:
		m.state = nil
		return nil, nil
	case h.Bytes != runner.StateBytes || h.Number == gaveUp:
		return nil, fmt.Errorf("%w: %v from rank %d: number %d with %d bytes, a state has %d", errNoFrame, h.Kind, h.From, h.Number, h.Bytes, runner.StateBytes)
	}
	m.state = make([]byte, h.Bytes)
	return [][]byte{m.state}, nil
}

// takeLeft takes LEFT: of the pairs without OPEN nothing is to come.
func (s *Set) takeLeft(l *tcp.Link, h *tcp.Header) error {
	s.mu.Lock()
	var pairs []*Pair
	var state []byte
	if m := s.pumps[l]; m != nil {
		state, m.state = m.state, nil
	}
	for _, x := range s.sides[group{l, h.Group}] {
		if p := s.pairs[key{l, h.Group, h.From, uint32(x.rank)}]; p != nil && p.side == x {
			pairs = append(pairs, p)
		}
	}
	s.mu.Unlock()
	for _, p := range pairs {
		rings, err := p.storeLeft(h, state)
		if err != nil {
			return err
		}
		if rings {
			p.Wake()
		}
	}
	return nil
}

// storeLeft stores what LEFT says of a pair, the state first. rings: the pump has to do something about it.
func (p *Pair) storeLeft(h *tcp.Header, state []byte) (rings bool, err error) {
	p.side.mu.Lock() // the pair is not made meanwhile
	defer p.side.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over || p.removed:
		return false, nil
	case p.after != 0 || h.Number == 0 || p.bye != 0 && p.bye != h.Number:
		return false, p.wrong(h, "number %d after LEFT of %d and GOODBYE of %d", h.Number, p.after, p.bye)
	}
	p.after = h.Number
	if p.opened { // the goodbye comes behind what was sent
		return false, nil
	}
	if p.heard {
		return false, p.wrong(h, "it comes without OPEN, behind other frames")
	}
	if len(state) > 0 {
		if err := p.putState(h, state); err != nil {
			return false, err
		}
	}
	p.byes, p.closes, p.bye = p.everyConnection(), p.everyConnection(), h.Number
	switch {
	case h.Number != gaveUp:
		p.left.Store(h.Number)
		for n := range p.shadow.Shared {
			p.ownWords(n).WakeAll(p.engine)
		}
		p.end()
	case p.made.Load():
		p.gaveUp = true // the pump does the rest
	default:
		p.gaveUp = true
		p.storeGaveUp()
	}
	return p.made.Load(), nil
}
