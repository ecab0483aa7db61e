package ascend

import (
	"slices"
	"sync"
)

// mapping is pinned memory that a device reaches by an address of its own.
type mapping struct {
	host, bytes uintptr
	device      uintptr
}

// mappings holds the mappings of each device. They do not overlap.
type mappings struct {
	mu       sync.RWMutex
	byDevice map[int][]mapping // in the order of their addresses
}

var mapped = mappings{byDevice: map[int][]mapping{}}

// after returns the place of the first mapping of a list that begins behind an address.
func after(list []mapping, address uintptr) int {
	at, _ := slices.BinarySearchFunc(list, address, func(m mapping, address uintptr) int {
		if m.host > address {
			return 1
		}
		return -1
	})
	return at
}

func (t *mappings) add(device int, m mapping) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.byDevice[device]
	t.byDevice[device] = slices.Insert(list, after(list, m.host), m)
}

// find returns the device's address for an address of the host.
func (t *mappings) find(device int, host uintptr) (uintptr, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := t.byDevice[device]
	at := after(list, host) - 1
	if at < 0 || host-list[at].host >= list[at].bytes {
		return 0, false
	}
	return list[at].device + (host - list[at].host), true
}
