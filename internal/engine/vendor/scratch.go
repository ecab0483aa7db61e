package vendor

import (
	"runtime"
	"sync"

	"sagecomm/internal/device"
)

// scratch is memory of a device for operations whose buffers have several segments. They run in one stream in their order, so they
// share what is kept.
type scratch struct {
	mu   sync.Mutex
	kept device.Memory // nil: none yet
	room uint64        // of kept
	lent []lent
}

// lent is memory that is given back when an operation is done.
type lent struct {
	memory device.Memory
	until  use
}

const (
	leastScratch = 64 << 10
	mostKept     = 32 << 20 // an operation that needs more has memory of its own
)

// take returns the address of memory with so much room for an operation. See device.Launcher for reachable.
func (s *scratch) take(rt device.Launcher, bytes uint64, reachable bool, by use) (uintptr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes <= s.room {
		return s.kept.Address(), nil
	}
	room := bytes
	if bytes <= mostKept {
		for room = max(s.room, leastScratch); room < bytes; {
			room *= 2
		}
	}
	memory, err := rt.Allocate(room, reachable)
	if err != nil {
		return 0, err
	}
	if bytes > mostKept {
		s.lent = append(s.lent, lent{memory, by})
		return memory.Address(), nil
	}
	if s.kept != nil { // earlier operations may use it
		s.lent = append(s.lent, lent{s.kept, by})
	}
	s.kept, s.room = memory, room
	return memory.Address(), nil
}

// sweep gives back the memory whose operations are done, on goroutines of run. It waits for nothing, because a driver may wait for the
// device.
func (s *scratch) sweep(run func(f func())) {
	for _, m := range s.settled() {
		run(func() {
			runtime.LockOSThread() // an emulator of devices takes what the thread has seen for what comes before its calls
			defer runtime.UnlockOSThread()
			m.until.done()
			m.memory.Release()
		})
	}
}

// settled takes what is to be given back out of the list.
func (s *scratch) settled() (list []lent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []lent
	for _, m := range s.lent {
		if m.until.done() {
			list = append(list, m)
		} else {
			left = append(left, m)
		}
	}
	s.lent = left
	return list
}

// release gives back all. Requires: no kernel uses it.
func (s *scratch) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.lent {
		m.memory.Release()
	}
	if s.kept != nil {
		s.kept.Release()
	}
	s.kept, s.room, s.lent = nil, 0, nil
}
