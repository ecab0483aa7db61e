package bootstrap

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"sync"
	"time"
)

// Limits of one key space.
const (
	maxSpaceBytes = 64 << 20
	maxSpaceKeys  = 1 << 16
)

// space holds the keys of one id. Its lock is held briefly, and no other lock is taken while it is held.
type space struct {
	key [sha256.Size]byte // of the handshake

	mu      sync.Mutex
	values  map[string][]byte
	claimed map[string]bool // keys whose values are claimed: they stay when the ranks have left
	bytes   int
	guests  map[*guest]struct{}
	changed chan struct{} // closed and replaced by each set, when all ranks have met, and when the last guest goes
	left    int           // ranks that have met, and need the space for claims only
	met     bool          // all ranks have: only claims are answered

	// The server's lock guards these.
	clients int    // connections
	idle    uint64 // number of the event at which it last had none
}

func newSpace(key [sha256.Size]byte) *space {
	return &space{key: key, values: map[string][]byte{}, claimed: map[string]bool{}, guests: map[*guest]struct{}{},
		changed: make(chan struct{})}
}

// guest is a connection over which a rank meets the others: it has asked for something else than a claim. A rank has
// one from its first request to the last.
type guest struct {
	ended chan struct{} // closed once why is set
	why   []byte        // the failure with which Meeting.End has ended the meeting
}

func newGuest() *guest { return &guest{ended: make(chan struct{})} }

// hasEnded reports whether the meeting was ended for the guest.
func (g *guest) hasEnded() bool {
	select {
	case <-g.ended:
		return true
	default:
		return false
	}
}

// addGuest notes that a rank meets the others over a connection.
func (s *space) addGuest(g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guests[g] = struct{}{}
}

// removeGuest notes that no rank meets the others over a connection any more.
func (s *space) removeGuest(g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.guests[g]; !known {
		return
	}
	delete(s.guests, g)
	if len(s.guests) == 0 {
		s.wake()
	}
}

// wake wakes all that wait for a change.
// Requires: the lock.
func (s *space) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Why a request is refused.
var (
	errComplete = errors.New("the group of the unique id is complete: all of its ranks have met")
	errClaimed  = errors.New("the value of the key was claimed, and stays")
)

var errSpaceFull = errors.New("the store is full: it holds 64 MiB and 65536 keys of one group")

// set stores value, which the caller gives away.
func (s *space) set(key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.met:
		return errComplete
	case s.claimed[key]:
		return errClaimed
	}
	return s.put(key, value)
}

// put is set. Requires: the lock.
func (s *space) put(key string, value []byte) error {
	old, known := s.values[key]
	grown := s.bytes + len(value) - len(old)
	if !known {
		grown += len(key)
	}
	if grown > maxSpaceBytes || !known && len(s.values) >= maxSpaceKeys {
		return errSpaceFull
	}
	s.values[key], s.bytes = value, grown
	s.wake()
	return nil
}

// get waits until all keys exist and returns their values. It returns ErrTimeout if they do not exist in time, if gone
// is closed, or if the meeting is ended for the guest.
func (s *space) get(keys []string, timeout time.Duration, of *guest, gone <-chan struct{}) ([][]byte, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		values, changed, err := s.look(keys)
		if changed == nil {
			return values, err
		}
		select {
		case <-changed:
		case <-gone:
			return nil, ErrTimeout
		case <-of.ended:
			return nil, ErrTimeout
		case <-timer.C:
			return nil, ErrTimeout
		}
	}
}

// look returns the values of the keys, which nobody changes, or a channel that the next change closes if one of them
// does not exist.
func (s *space) look(keys []string) (values [][]byte, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.met {
		return nil, nil, errComplete
	}
	for _, k := range keys {
		v, ok := s.values[k]
		if !ok {
			return nil, s.changed, nil
		}
		values = append(values, v) // not a copy: a get may name one key many times
	}
	return values, nil, nil
}

// claim stores value, which the caller gives away, unless the key has one, and returns the value that the key has then.
func (s *space) claim(key string, value []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first, known := s.values[key]; known {
		return bytes.Clone(first), nil
	}
	if err := s.put(key, value); err != nil {
		return nil, err
	}
	s.claimed[key] = true
	return bytes.Clone(value), nil
}

// leave notes that a rank has met the others, and reports whether that was the last one of n. Then nobody reads any more
// what they have told each other, and only claims stay.
func (s *space) leave(n int) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left++; s.left < n {
		return false
	}
	s.met = true
	s.wake() // who waits now is no rank of the group
	for key, value := range s.values {
		if !s.claimed[key] {
			delete(s.values, key)
			s.bytes -= len(key) + len(value)
		}
	}
	return true
}

// isComplete reports whether all ranks have met.
func (s *space) isComplete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.met
}
