package cuda

import (
	"os"
	"sync"

	"sagecomm/internal/device"
	"sagecomm/internal/shmem"
)

// This file keeps the memory in which inboxes lie. The driver waits for the device when registered memory is given back, and other threads
// cannot call it meanwhile, so a stream that waits for a peer could wait for ever. Therefore memory is registered once and stays so until
// the process ends: inboxes of later groups lie in what earlier ones have left.

const (
	homeBytes   = 1 << 20 // for some tens of groups
	longestHome = 4 << 20 // of a peer, that this process registers
)

// home is an arena of this process that holds inboxes. Its pages never go back to the system, because the device knows them.
type home struct {
	arena *shmem.Arena
	left  shmem.Range // that no group has had

	publishing sync.Mutex
	joins      int // whose peers map the arena; guarded by publishing
}

// publish makes the arena reachable for the peers of a join.
func (h *home) publish(methods []shmem.Method) (shmem.Descriptor, error) {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	o, err := h.arena.Publish(methods)
	if err == nil {
		h.joins++
	}
	return o, err
}

// joined ends what publish began. When no peer of any join has yet to map the arena, nobody can reach it over a socket.
func (h *home) joined() {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	if h.joins--; h.joins == 0 {
		h.arena.Withdraw()
	}
}

// homes has all of them.
var homes struct {
	mu   sync.Mutex
	list []*home
	free map[int64][]lodging // by length
}

// lodging is the place of an inbox.
type lodging struct {
	home  *home
	place shmem.Range
}

func (l lodging) memory() []byte { return l.home.arena.Bytes(l.place) }

// lodge returns the place of an inbox, whose words are those that an earlier group has left. Its length is a multiple of the page's.
func lodge(bytes int64) (lodging, error) {
	page := int64(os.Getpagesize())
	bytes = (bytes + page - 1) / page * page
	homes.mu.Lock()
	defer homes.mu.Unlock()
	if list := homes.free[bytes]; len(list) > 0 {
		homes.free[bytes] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	for _, h := range homes.list {
		if h.left.Len >= bytes {
			return h.divide(bytes), nil
		}
	}
	all := max(homeBytes, bytes)
	arena, err := shmem.NewArena(shmem.Memfd, all+2*page, "")
	if err != nil {
		return lodging{}, err
	}
	left, err := arena.Alloc(all, page)
	if err != nil {
		_ = arena.Close()
		return lodging{}, err
	}
	h := &home{arena: arena, left: left}
	homes.list = append(homes.list, h)
	return h.divide(bytes), nil
}

// divide takes the place of an inbox from what is left. Requires: homes.mu.
func (h *home) divide(bytes int64) lodging {
	l := lodging{h, shmem.Range{Off: h.left.Off, Len: bytes}}
	h.left.Off += bytes
	h.left.Len -= bytes
	return l
}

// leave gives a place back. Requires: no peer uses it.
func (l lodging) leave() {
	homes.mu.Lock()
	defer homes.mu.Unlock()
	if homes.free == nil {
		homes.free = map[int64][]lodging{}
	}
	homes.free[l.place.Len] = append(homes.free[l.place.Len], l)
}

// registrations has the arenas that are registered with the driver, those of this process and of peers. All devices of the process use
// them.
var registrations device.Once[shmem.Nonce, *shmem.Mapping]

// registered returns the address for the device of a place in an arena, which the first call for the arena registers. It keeps the mapping.
func registered(d driver, m *shmem.Mapping, place shmem.Range) (uintptr, error) {
	page := int64(os.Getpagesize())
	all := func(m *shmem.Mapping) []byte { return m.Bytes(shmem.Range{Off: page, Len: m.Size() - page}) }
	known, err := registrations.Get(m.Nonce(), func() (*shmem.Mapping, error) {
		err := d.Register(all(m))
		if err == nil {
			m.Keep()
		}
		return m, err
	})
	if err != nil {
		return 0, err
	}
	address, err := d.AddressOf(all(known))
	return address + uintptr(place.Off-page), err
}
