package shadow

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"sagecomm/internal/transport/tcp"
)

// Set is all pairs of a process. It is the receiver of the links of a node; its method Lost is for tcp.Config.
type Set struct {
	// Ended is called when pairs have ended because both ranks have said so: the memory of groups of this process may be given back. It is set
	// before the first call of Add, waits for nothing, and may be nil.
	Ended func()

	mu    sync.Mutex
	pairs map[key]*Pair // a pair that was removed stays until its link ends, or CLOSE was sent and has come
	pumps map[*tcp.Link]*pump
	sides map[group][]*side
	sleep time.Duration // of a pump, at most

	// meeting.go has these.
	unlinked map[remote][]*side
	met      map[uint64]map[*tcp.Link]bool // by group: links that carry it, or have
	departed map[uint64][]farewell         // of ranks that have left, by group
	oldest   []uint64                      // of these groups, the oldest one first
	tending  bell
	closing  chan struct{} // nil before there was a side without a link
	tended   chan struct{}

	serving  sync.Mutex // held while a function of Serve is called; no other lock of the package is taken meanwhile
	services map[group]*service
}

var _ tcp.Receiver = (*Set)(nil)

// key is what frames name a pair by.
type key struct {
	link     *tcp.Link
	group    uint64
	from, to uint32
}

func (c *Config) key() key { return key{c.Link, c.Group, uint32(c.To), uint32(c.Rank)} }

// NewSet returns a set without pairs.
func NewSet() *Set {
	return &Set{pairs: map[key]*Pair{}, pumps: map[*tcp.Link]*pump{}, sides: map[group][]*side{}, services: map[group]*service{}, sleep: LongestSleep,
		unlinked: map[remote][]*side{}, met: map[uint64]map[*tcp.Link]bool{}, departed: map[uint64][]farewell{}, tending: newBell()}
}

// pump sends what the ranks of this process publish for those at the other end of a link. It is a goroutine, and no thread waits for its bell.
type pump struct {
	bell   bell
	state  []byte // of LEFT, which is being read; the lock of the set guards it
	mu     sync.Mutex
	sides  []*side
	pairs  []*Pair // that are made
	ending bool
	done   chan struct{}

	farewells []departure // LEFT of ranks that had left before the link carried their group
}

// departure is a LEFT that is to be sent.
type departure struct {
	header tcp.Header
	state  []byte
}

// bell is that of a pump. Whoever has stored a word for the pump rings it afterwards. The pump takes what was rung before it reads the words, so
// a word that it does not see yet is rung for later (docs/protocol.md, section 16, Who pumps).
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default: // what was rung before was not heard yet
	}
}

// LongestSleep bounds the sleep of a pump whose bell nobody rings. Tests change it.
var LongestSleep = time.Second

// Add adds a pair, whose shadow is kept true from its first need on, until both ranks have detached from each other's shared blocks or the link is
// lost. The remote process must not send for the pair before Add has returned.
func (s *Set) Add(c Config) (*Pair, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m *pump
	if c.Link != nil {
		if err := c.Link.Err(); err != nil {
			return nil, err
		}
		m = s.pumpOf(c.Link)
		if c.Need != nil {
			s.noteMet(group{c.Link, c.Group})
		}
	} else if s.closing == nil {
		s.closing, s.tended = make(chan struct{}), make(chan struct{})
		go s.tend()
	}
	x := s.sideOf(&c, m)
	defer x.mu.Unlock()
	if s.pairs[c.key()] != nil || slices.ContainsFunc(x.pairs, func(p *Pair) bool { return p.To == c.To }) {
		return nil, fmt.Errorf("internal error: two shadows of rank %d for rank %d", c.To, c.Rank)
	}
	p := newPair(c, x)
	if c.Link != nil {
		s.pairs[c.key()] = p
	}
	x.pairs = append(x.pairs, p)
	return p, nil
}

// pumpOf returns the pump of a link.
// Requires: the lock.
func (s *Set) pumpOf(l *tcp.Link) *pump {
	m := s.pumps[l]
	if m == nil {
		m = &pump{bell: newBell(), done: make(chan struct{})}
		s.pumps[l] = m
		go m.run(s, l)
	}
	return m
}

// run is the goroutine of the pump. It ends when the link is lost.
func (m *pump) run(s *Set, l *tcp.Link) {
	defer close(m.done)
	defer func() {
		if p := recover(); p != nil {
			l.Break(fmt.Errorf("internal error: panic: %v\n%s", p, debug.Stack()))
		}
	}()
	look := time.NewTicker(s.sleep)
	defer look.Stop()
	for l.Err() == nil {
		m.mu.Lock()
		sides, ending, farewells := m.sides, m.ending, m.farewells
		m.farewells = nil
		m.mu.Unlock()
		if ending {
			return
		}
		for _, f := range farewells {
			if l.Send(0, &f.header, f.state) != nil {
				return
			}
		}
		for _, x := range sides {
			x.look()
		}
		m.mu.Lock()
		pairs := m.pairs // with all that are made of sides that leave
		m.mu.Unlock()
		moved, over := false, false
		for _, p := range pairs {
			more, err := p.push()
			if err != nil {
				return // the link is lost, and Lost will be called
			}
			moved = moved || more
			over = over || p.isOver()
		}
		for _, x := range sides {
			more, err := x.sayLeft()
			if err != nil {
				return
			}
			moved = moved || more
			over = over || more || x.isIdle()
		}
		if over {
			s.drop(m)
		}
		if !moved {
			select {
			case <-m.bell:
			case <-look.C:
			}
		}
	}
}

// drop takes pairs that are over, and sides of which nothing is left, out of the lists.
func (s *Set) drop(m *pump) {
	if s.Ended != nil {
		defer s.Ended()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.mu.Lock()
	pairs, sides := m.pairs, m.sides
	m.mu.Unlock()
	var over []*Pair
	for _, p := range pairs {
		if p.isOver() {
			over = append(over, p)
			delete(s.pairs, p.key())
			p.side.forget(p)
		}
	}
	var idle []*side
	for _, x := range sides {
		if x.isIdle() {
			idle = append(idle, x)
			s.dropSide(x)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pairs = without(m.pairs, over)
	m.sides = without(m.sides, idle)
}

// without returns a list without some of its entries. The list stays as it is.
func without[T comparable](list, some []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return slices.Contains(some, x) })
}

// dropSide takes a side out of the list of its group.
// Requires: the lock.
func (s *Set) dropSide(x *side) {
	g := group{x.link, x.group}
	if s.sides[g] = slices.DeleteFunc(s.sides[g], func(y *side) bool { return y == x }); len(s.sides[g]) == 0 {
		delete(s.sides, g)
		if s.departed[g.number] == nil { // nobody here has the group, or will say farewell to it
			s.forgetMet(g)
		}
	}
}

// Remove ends a pair without telling the remote rank: its group could not be made, and no process can have it. When it returns, nothing
// touches the memory of the group of this process any more, but a Config.Lost that was called before may still run: it must keep what it
// uses. Frames for the pair are dropped. It cannot be added again before the remote rank has given up too, and no frame of it can come any
// more. Only a remote rank that has given up is answered.
//
// It waits while a frame is sent out of the memory of the group. Where this rank has published nothing, there is none, and Remove waits for
// nothing that the other process does.
// Requires: this rank does not give up by a goodbye, before or afterwards.
func (s *Set) Remove(p *Pair) {
	p.remove()
	if !p.made.Load() { // its frames are dropped as those of a pair that was removed: no process has the group
		s.mu.Lock()
		delete(s.pairs, p.key())
		s.mu.Unlock()
	}
	p.Wake() // the remote rank may have given up before
}

// Place and Arrived take the lock of the set for each frame, for the time of a look into a map. Where one link carries many pairs, a map for
// each link would keep its connections from waiting for those of others.

// find returns the pair of a frame, or nil: frames of a pair that is not known here, or not any more, are dropped, and those of one that is not
// made and cannot be made any more.
func (s *Set) find(l *tcp.Link, h *tcp.Header) *Pair {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{l, h.Group, h.From, h.To}
	if p := s.pairs[k]; p != nil {
		return p
	}
	s.meet(l, h.Group, int(h.From))
	return s.pairs[k]
}

// Place implements tcp.Receiver.
func (s *Set) Place(from *tcp.Link, on int, h *tcp.Header) ([][]byte, error) {
	if isVerdict(h.Kind) {
		return s.placeVerdict(from, h)
	}
	if h.Kind == tcp.Left {
		return s.acceptLeft(from, h)
	}
	p := s.find(from, h)
	if p == nil || !p.Open() {
		return nil, tcp.ErrDrop
	}
	return p.accept(on, h)
}

// Arrived implements tcp.Receiver.
func (s *Set) Arrived(from *tcp.Link, on int, h *tcp.Header) error {
	if isVerdict(h.Kind) {
		return s.takeVerdict(from, h)
	}
	if h.Kind == tcp.Left {
		return s.takeLeft(from, h)
	}
	p := s.find(from, h)
	if p == nil {
		return fmt.Errorf("internal error: the pair of a frame that was accepted is gone: %v from rank %d to rank %d", h.Kind, h.From, h.To)
	}
	rings, err := p.store(on, h)
	if rings {
		s.ring(from)
	}
	return err
}

// ring wakes the pump of a link.
func (s *Set) ring(l *tcp.Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.pumps[l]; m != nil {
		m.bell.ring()
	}
}
