package bootstrap

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Claimer is a store that lasts: it decides between the ranks of a group as long as the group lives. A [Store] serves
// the rendezvous only.
type Claimer interface {
	// Claim stores value under key unless the key has one, and returns the value that the key has then. It may take any
	// time, for instance where the store's server is stopped. An error does not mean that value was not stored. Any
	// goroutine may call it.
	Claim(key string, value []byte) ([]byte, error)
	// Release gives the store back: later claims fail. A Claim that is under way goes on. It waits for what giving back
	// takes, since that should be done before a process ends, but for releaseLimit at most.
	Release()
}

// releaseLimit bounds a Release. A file store waits for a lock in it, which a process that is stopped may hold.
const releaseLimit = 500 * time.Millisecond

// Lasting is what makes a [Claimer]. Last is called while a group is made; what it returns has the keys of the store in
// which the ranks meet.
type Lasting interface{ Last() (Claimer, error) }

// errReleased is the error of a Claim after Release.
var errReleased = errors.New("the store was given back")

// counted counts the calls that use a store.
type counted struct {
	claim   func(key string, value []byte) ([]byte, error)
	release func()

	mu       sync.Mutex
	users    int // calls of Claim under way, and 1 until Release
	released bool
}

// Counted returns a [Claimer] that calls two functions: release once, after [Claimer.Release] and when no claim is
// under way any more.
func Counted(claim func(key string, value []byte) ([]byte, error), release func()) Claimer {
	return &counted{claim: claim, release: release, users: 1}
}

func (c *counted) Claim(key string, value []byte) ([]byte, error) {
	c.mu.Lock()
	released := c.released
	if !released {
		c.users++
	}
	c.mu.Unlock()
	if released {
		return nil, errReleased
	}
	defer c.leave()
	return c.claim(key, value)
}

func (c *counted) Release() {
	c.mu.Lock()
	again := c.released
	c.released = true
	c.mu.Unlock()
	if again {
		return
	}
	given := make(chan struct{})
	go func() {
		defer close(given)
		c.leave()
	}()
	select {
	case <-given:
	case <-time.After(releaseLimit):
	}
}

func (c *counted) leave() {
	c.mu.Lock()
	c.users--
	last := c.users == 0
	c.mu.Unlock()
	if last {
		c.release()
	}
}

// Last implements [Lasting].
func (s *MemStore) Last() (Claimer, error) { return Counted(s.claim, func() {}), nil }

func (s *MemStore) claim(key string, value []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.values[key]
	if !ok {
		s.put(key, value)
		known = value
	}
	return bytes.Clone(known), nil
}

// link makes a second name of a file. Tests replace it: some file systems have no such names.
var link = os.Link

// Last implements [Lasting].
func (s *FileStore) Last() (Claimer, error) { return Counted(s.claim, func() {}), nil }

// claim links a whole file to the name of the key, which fails if the name exists.
func (s *FileStore) claim(key string, value []byte) ([]byte, error) {
	name, err := s.write(value)
	if err != nil {
		return nil, err
	}
	defer os.Remove(name)
	switch err := link(name, s.path(key)); {
	case err == nil:
		return bytes.Clone(value), nil
	case !errors.Is(err, fs.ErrExist):
		return nil, err
	}
	return os.ReadFile(s.path(key))
}
