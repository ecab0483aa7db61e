package shadow

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"sagecomm/internal/runner"
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
	return &Set{pairs: map[key]*Pair{}, pumps: map[*tcp.Link]*pump{}, sides: map[group][]*side{}, services: map[group]*service{}, sleep: LongestSleep}
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
	if err := c.Link.Err(); err != nil {
		return nil, err
	}
	if s.pairs[c.key()] != nil {
		return nil, fmt.Errorf("internal error: two shadows of rank %d for rank %d", c.To, c.Rank)
	}
	m := s.pumps[c.Link]
	if m == nil {
		m = &pump{bell: newBell(), done: make(chan struct{})}
		s.pumps[c.Link] = m
		go m.run(s, c.Link)
	}
	x := s.sideOf(&c, m)
	defer x.mu.Unlock()
	p := newPair(c, x)
	s.pairs[c.key()] = p
	x.pairs = append(x.pairs, p)
	return p, nil
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
		sides, ending := m.sides, m.ending
		m.mu.Unlock()
		if ending {
			return
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
	s.ring(p.Link) // the remote rank may have given up before
}

// Flush returns when GOODBYE was sent for all ranks of this process that have left, or after a time. What they have published before goes out
// before it. It reports whether nothing is left to wait for: a rank whose link has ended sends nothing any more.
func (s *Set) Flush(atMost time.Duration) bool {
	s.mu.Lock()
	var wait []*Pair
	for _, p := range s.pairs {
		if p.awaited() {
			wait = append(wait, p)
		}
	}
	for _, m := range s.pumps {
		m.bell.ring()
	}
	s.mu.Unlock()
	over := time.NewTimer(atMost)
	defer over.Stop()
	for _, p := range wait {
		select {
		case <-p.flushed:
		case <-over.C:
			return false
		}
	}
	return true
}

// Place and Arrived take the lock of the set for each frame, for the time of a look into a map. Where one link carries many pairs, a map for
// each link would keep its connections from waiting for those of others.

// find returns the pair of a frame, or nil: frames of a pair that is not known here, or not any more, are dropped, and those of one that is not
// made and cannot be made any more.
func (s *Set) find(l *tcp.Link, h *tcp.Header) *Pair {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pairs[key{l, h.Group, h.From, h.To}]
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
