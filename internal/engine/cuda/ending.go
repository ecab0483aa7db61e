package cuda

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/procwatch"
)

// This file ends communicators. A stream that waits for peers is released by the CPU, which stores a value beyond all that are waited
// for. Peers may still write words that they have queued, and so put an old value in its place: the CPU stores it again and again
// until the stream is through. What the stream does behind the first store may be void, and so may be what peers do with it: the CPU
// has told them before.

const (
	beyond       = 1 << 30 // less than half of the values, because comparisons are cyclic
	releaseEvery = time.Millisecond
	releaseBound = 10 * time.Minute       // of a stream that does not come to its waits, or to its end
	leaveBound   = 5 * time.Second        // of peers that still read slots
	closeBound   = 30 * time.Second       // of peers without graphs that still have this rank's memory open
	longestPause = time.Second            // between two looks at such peers
	askEvery     = 100 * time.Millisecond // the system, whether peers of graphs live

	// Between two looks at tokens that were released: the first while a stream takes them, the second while none does.
	busyTokens = 20 * time.Microsecond
	idleTokens = 10 * time.Millisecond
)

// Release implements vendor.Member.
func (m *member) Release(idle func() bool) {
	m.released.Store(true)
	graphs := m.graphs() // one may be running
	if !graphs && idle() {
		return
	}
	for _, rank := range m.otherRanks() {
		atomic.StoreUint32(m.peers[rank].inbox.void(), uint32(m.rank)+1)
	}
	if graphs {
		m.releaseTokens(m.otherRanks())
	}
	if idle() {
		return
	}
	m.releaseOnce()
	m.releasing.Add(1)
	m.stuck.Store(true) // until the stream is known to have ended
	end := time.Now().Add(releaseBound)
	go m.guard(func() {
		known := false
		defer func() {
			m.releasing.Done()
			if !known { // idle has panicked, and the stream waits all the same. Its memory stays allocated, because stuck stays true
				go m.guard(func() { m.releaseUntil(end, func() bool { return false }) })
			}
		}()
		m.releaseUntil(end, idle)
		m.stuck.Store(!idle())
		known = true
	})
}

// releaseUntil stores what ends all waits until the stream is through, or for a time.
func (m *member) releaseUntil(end time.Time, through func() bool) {
	for ; !through() && time.Now().Before(end); time.Sleep(releaseEvery) {
		m.releaseOnce()
	}
}

// releaseOnce stores what ends all waits.
func (m *member) releaseOnce() {
	for w := range m.newest {
		for rank := range m.peers {
			m.own.store(word(w), rank, m.newest[w][rank].Load()+beyond)
		}
	}
}

// releaseTokens ends all waits for tokens of some peers, from now on as long as there may be graphs, which may be launched. A
// stream clears the token for which it has waited, so the CPU sets it again, to a value that no peer gives: so it finds out that a stream
// goes on.
func (m *member) releaseTokens(ranks []int) {
	for _, rank := range ranks {
		m.captures.released[rank].Store(true)
	}
	m.setTokens()
	if !m.captures.releasing.Swap(true) {
		released.add(m)
	}
}

// released has the members whose tokens are set as long as there may be graphs.
var released = tokenSetter{more: make(chan struct{}, 1)}

// tokenSetter sets the tokens of all members on one goroutine, which is there while there are some. A panic makes the
// group of the member fail for which it was at work, whose tokens are set no more. That group is taken down on the
// goroutine, and another one sets tokens on.
type tokenSetter struct {
	mu      sync.Mutex
	members []*member
	runs    bool
	more    chan struct{} // has a value when a member has come
}

func (s *tokenSetter) add(m *member) {
	s.mu.Lock()
	s.members = append(s.members, m)
	first := !s.runs
	s.runs = true
	s.mu.Unlock()
	if first {
		go s.run()
		return
	}
	select {
	case s.more <- struct{}{}:
	default: // it looks at the list next
	}
}

// remove ends the setting of a member's tokens. Requires: no graph waits for them.
func (s *tokenSetter) remove(m *member) {
	m.captures.setting.Lock()
	m.captures.ended = true
	m.captures.setting.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = slices.DeleteFunc(slices.Clone(s.members), func(each *member) bool { return each == m })
}

func (s *tokenSetter) run() {
	pause := busyTokens
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.more:
			pause = busyTokens
		}
		s.mu.Lock()
		list := s.members // a part of the slice that never changes
		s.runs = len(list) > 0
		s.mu.Unlock()
		if len(list) == 0 {
			return
		}
		pause = min(2*pause, idleTokens)
		for _, m := range list {
			changed, whole := s.set(m)
			if !whole {
				return
			}
			if changed {
				pause = busyTokens
			}
		}
		timer.Reset(pause)
	}
}

// set sets the tokens of a member. After a panic, which it reports, run goes on, on a goroutine of its own.
func (s *tokenSetter) set(m *member) (changed, whole bool) {
	m.guard(func() {
		c := &m.captures
		c.setting.Lock()
		defer func() {
			c.broken = c.broken || !whole
			c.setting.Unlock()
			if !whole {
				go s.run()
			}
		}()
		if !c.broken && !c.ended {
			changed = m.setTokens()
		}
		whole = true
	})
	return changed, whole
}

func (m *member) otherRanks() (list []int) {
	for rank := range m.peers {
		if rank != m.rank {
			list = append(list, rank)
		}
	}
	return list
}

// setTokens sets the tokens of peers that are released, and reports whether a stream had cleared or given one.
func (m *member) setTokens() (changed bool) {
	for rank := range m.peers {
		if !m.captures.released[rank].Load() {
			continue
		}
		for slot := range int64(slotCount) {
			for w := range words {
				if m.own.load(tokenOf(w, slot), rank) != beyond {
					m.own.store(tokenOf(w, slot), rank, beyond)
					changed = true
				}
			}
		}
	}
	return changed
}

// watchPeers releases the tokens of peers that give none any more, so that a graph which is launched goes on without them. A peer may
// also end between its goodbye, after which its death is no failure, and departed. Launches of peers that have waited for their graphs
// keep their outputs: such a peer has given all of their tokens.
func (m *member) watchPeers() {
	if !m.captures.any.Load() {
		return
	}
	ask := time.Since(m.captures.asked) >= askEvery
	if ask {
		m.captures.asked = time.Now()
	}
	for _, rank := range m.otherRanks() {
		if m.captures.released[rank].Load() {
			continue
		}
		if m.own.load(departed, rank) != 0 || ask && m.gone(rank) {
			m.releaseTokens([]int{rank})
		}
	}
}

// Abort implements vendor.Member.
func (m *member) Abort() bool {
	m.releasing.Wait()
	return !m.stuck.Load()
}

// Settled implements vendor.Member. All is queued when Do returns.
func (m *member) Settled() bool { return true }

// Destroy implements vendor.Member. Peers may still read the slots of this rank, whose process may end next.
func (m *member) Destroy() {
	for end := time.Now().Add(leaveBound); !m.allLeft() && time.Now().Before(end); {
		time.Sleep(releaseEvery)
	}
	for _, rank := range m.otherRanks() {
		m.peers[rank].inbox.store(departed, m.rank, 1)
	}
	if m.graphs() {
		m.releaseTokens(m.otherRanks())
	}
}

// allLeft reports whether no peer uses what this rank's slots have.
func (m *member) allLeft() bool {
	for _, rank := range m.otherRanks() {
		for slot := range int64(slotCount) {
			if m.captures.any.Load() && m.own.load(tokenOf(left, slot), rank) == 0 && !m.gone(rank) {
				return false
			}
		}
	}
	for _, slot := range m.lowering.slots {
		for rank, value := range slot {
			if value != 0 && int32(m.own.load(left, rank)-value) < 0 && !m.gone(rank) {
				return false
			}
		}
	}
	return true
}

// gone reports whether the process of a peer is known to have ended.
func (m *member) gone(rank int) bool {
	p := &m.peers[rank].process
	own, err := procwatch.PIDNamespace()
	return err == nil && own == p.PIDNamespace && procwatch.Gone(p.PID, p.StartTime)
}

// Free implements vendor.Member. A rank first closes what it has of its peers, and gives its own memory back when they
// have closed it. Memory that a peer does not close stays allocated until the process ends, and so does all memory if
// graphs of this rank may use it.
func (m *member) Free(behind func(f func())) {
	m.releasing.Wait()
	if m.graphs() {
		return
	}
	released.remove(m)
	behind(m.closePeers)
	if !m.awaitClosed() {
		m.slots.handedOver()
		return
	}
	behind(func() {
		said := m.allSaid()
		if said || m.slots.on == "" {
			m.slots.release()
		}
		if said {
			m.lodging.leave()
		}
	})
}

// awaitClosed returns when no peer has the memory of this rank open. Peers may have captured if this rank has, and close its memory when
// their graphs are gone, at any time; it waits for ever for one that does not, and that is not known to have ended. Without a capture
// it reports false after a bound: one that could not join says nothing.
func (m *member) awaitClosed() bool {
	pause := releaseEvery
	for end := time.Now().Add(closeBound); !m.allClosed(); pause = min(2*pause, longestPause) {
		if !m.captures.any.Load() && time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// closePeers closes what this rank has of its peers, and says so to those whose inbox it has. Requires: no command uses it.
func (m *member) closePeers() {
	m.closeSlots()
	for rank := range m.peers {
		if p := &m.peers[rank]; p.inbox.mapping != nil {
			p.inbox.store(closed, m.rank, 1)
			_ = p.inbox.mapping.Release()
			p.inbox.mapping = nil
		}
	}
}

// allSaid reports whether all peers have said that they use nothing of this rank. What the stream of a dead one has queued may still use
// the inbox and the slots, which no other group gets then.
func (m *member) allSaid() bool {
	for _, rank := range m.otherRanks() {
		if m.own.load(closed, rank) == 0 {
			return false
		}
	}
	return true
}

// allClosed reports whether no peer has the memory of this rank open.
func (m *member) allClosed() bool {
	for rank := range m.peers {
		if rank != m.rank && m.own.load(closed, rank) == 0 && !m.gone(rank) {
			return false
		}
	}
	return true
}
