package shmem

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is this process's mapping of an arena, its own or a peer's. A process has one mapping of each arena, however often it
// attaches.
type Mapping struct {
	mem   []byte
	nonce Nonce
	way   Method // by which it was mapped; "" for an arena of this process
	refs  int    // guarded by mappings.mu
}

// mappings holds all arenas that this process has mapped.
var mappings = struct {
	mu  sync.Mutex
	all map[Nonce]*Mapping
}{all: make(map[Nonce]*Mapping)}

// Bytes returns the memory of a range. It is valid until the last Release.
func (m *Mapping) Bytes(r Range) []byte { return m.mem[r.Off:r.End():r.End()] }

// Base returns the address of offset 0, a multiple of the page size. It is valid until the last Release.
func (m *Mapping) Base() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m.mem)) }

// Size returns the logical size in bytes.
func (m *Mapping) Size() int64 { return int64(len(m.mem)) }

// Way returns the method by which the arena was mapped, or "own" for an arena of this process.
func (m *Mapping) Way() string {
	if m.way == "" {
		return "own"
	}
	return string(m.way)
}

// Nonce returns the nonce of the arena.
func (m *Mapping) Nonce() Nonce { return m.nonce }

// Keep takes one more reference. Requires: the caller holds one.
func (m *Mapping) Keep() {
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	m.refs++
}

// Release drops one reference; the last one unmaps the arena. Requires: the caller holds a reference.
func (m *Mapping) Release() error {
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	if m.refs <= 0 {
		panic("shmem: Release of a mapping that has no reference left")
	}
	m.refs--
	if m.refs > 0 {
		return nil
	}
	delete(mappings.all, m.nonce)
	mem := m.mem
	m.mem = nil
	return unix.Munmap(mem)
}

// mapped returns the existing mapping of an arena with one more reference, or nil.
func mapped(nonce Nonce) *Mapping {
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	m := mappings.all[nonce]
	if m != nil {
		m.refs++
	}
	return m
}

// mapFile maps size bytes of an open file and registers the mapping under its nonce. If another goroutine has registered one
// meanwhile, mapFile returns that one. The file can be closed afterwards.
func mapFile(fd int, size int64, nonce Nonce, way Method) (*Mapping, error) {
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		hint := ""
		if errors.Is(err, unix.ENOMEM) {
			hint = ": is there a limit on address space (ulimit -v)? A smaller SAGECOMM_ARENA_SIZE needs less"
		}
		return nil, fmt.Errorf("map %s of address space: %w%s", mib(size), err, hint)
	}
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	if m := mappings.all[nonce]; m != nil {
		unix.Munmap(mem)
		m.refs++
		return m, nil
	}
	m := &Mapping{mem: mem, nonce: nonce, way: way, refs: 1}
	mappings.all[nonce] = m
	return m, nil
}

// populate maps the pages of mem for writing. It returns EINVAL if the kernel cannot. Tests replace it to stand for an old kernel.
var populate = func(mem []byte) error {
	for {
		err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}
