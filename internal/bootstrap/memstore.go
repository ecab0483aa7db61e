package bootstrap

import (
	"bytes"
	"fmt"
	"sync"
	"time"
)

// MemStore is a [Store] for ranks that are goroutines of one process.
type MemStore struct {
	mu      sync.Mutex
	values  map[string][]byte
	changed chan struct{} // closed and replaced by each Set and Claim
}

// NewMemStore returns an empty store.
func NewMemStore() *MemStore {
	return &MemStore{values: make(map[string][]byte), changed: make(chan struct{})}
}

// Set stores a copy of value.
func (s *MemStore) Set(key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, value)
	return nil
}

// put is Set.
// Requires: the lock.
func (s *MemStore) put(key string, value []byte) {
	s.values[key] = bytes.Clone(value)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Get waits for key and returns a copy of its value.
func (s *MemStore) Get(key string, timeout time.Duration) ([]byte, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		s.mu.Lock()
		value, ok := s.values[key]
		changed := s.changed
		s.mu.Unlock()
		if ok {
			return bytes.Clone(value), nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, fmt.Errorf("%s: %w", key, ErrTimeout)
		}
	}
}
