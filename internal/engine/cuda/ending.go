package cuda

import (
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
	releaseBound = 10 * time.Minute // of a stream that does not come to its waits, or to its end
	leaveBound   = 5 * time.Second  // of peers that still read slots
	closeBound   = 30 * time.Second // of peers that still have this rank's memory open
)

// Release implements vendor.Member.
func (m *member) Release(idle func() bool) {
	m.released.Store(true)
	if idle() {
		return
	}
	for rank := range m.peers {
		if rank != m.rank {
			atomic.StoreUint32(m.peers[rank].inbox.void(), uint32(m.rank)+1)
		}
	}
	m.releaseOnce()
	m.releasing.Add(1)
	go func() {
		defer m.releasing.Done()
		for end := time.Now().Add(releaseBound); !idle() && time.Now().Before(end); time.Sleep(releaseEvery) {
			m.releaseOnce()
		}
		m.stuck.Store(!idle())
	}()
}

// releaseOnce stores what ends all waits.
func (m *member) releaseOnce() {
	for w := range m.newest {
		for rank := range m.peers {
			m.own.store(word(w), rank, m.newest[w][rank].Load()+beyond)
		}
	}
}

// Abort implements vendor.Member.
func (m *member) Abort() bool {
	m.releasing.Wait()
	return !m.stuck.Load()
}

// Destroy implements vendor.Member. Peers may still read the slots of this rank, whose process may end next.
func (m *member) Destroy() {
	for end := time.Now().Add(leaveBound); !m.allLeft() && time.Now().Before(end); {
		time.Sleep(releaseEvery)
	}
}

// allLeft reports whether no peer uses what this rank's slots have.
func (m *member) allLeft() bool {
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

// Free implements vendor.Member. A rank first closes what it has of its peers, and gives its own memory back when they have closed it.
// Memory that a peer does not close stays allocated until the process ends.
func (m *member) Free() {
	m.releasing.Wait()
	for rank := range m.peers {
		p := &m.peers[rank]
		if p.imported != nil {
			p.imported.Release()
		}
		if p.inbox.registered != nil {
			p.inbox.registered.Release()
		}
		if p.inbox.mapping != nil {
			p.inbox.store(closed, m.rank, 1)
			_ = p.inbox.mapping.Release()
		}
	}
	for end := time.Now().Add(closeBound); !m.allClosed(); time.Sleep(10 * releaseEvery) {
		if time.Now().After(end) {
			return
		}
	}
	m.slots.Release()
	m.own.registered.Release()
	_ = m.arena.Close()
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
