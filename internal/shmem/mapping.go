package shmem

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is an arena as this process sees it, its own or a peer's. There is one per arena and process, however often
// it is attached.
type Mapping struct {
	mem   []byte
	nonce Nonce
	way   Method // that it was mapped by, "" for this process's own
	refs  int    // guarded by mappings.mu
}

// mappings are all arenas that this process has mapped: address space is something a process has once.
var mappings = struct {
	mu  sync.Mutex
	all map[Nonce]*Mapping
}{all: make(map[Nonce]*Mapping)}

// Bytes is the memory of a range. It is valid until the last Release.
func (m *Mapping) Bytes(r Range) []byte { return m.mem[r.Off:r.End():r.End()] }

// Base is the address of offset 0. It is page-aligned and the same until the last Release.
func (m *Mapping) Base() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m.mem)) }

// Size is the logical size in bytes.
func (m *Mapping) Size() int64 { return int64(len(m.mem)) }

// Way is the method that it was mapped by, "own" for an arena of this process.
func (m *Mapping) Way() string {
	if m.way == "" {
		return "own"
	}
	return string(m.way)
}

// Nonce names the arena.
func (m *Mapping) Nonce() Nonce { return m.nonce }

// Release gives one reference back; the last one unmaps. More releases than references are a fault of the caller.
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

// mapped gives the existing mapping of an arena with one more reference, or nil.
func mapped(nonce Nonce) *Mapping {
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	m := mappings.all[nonce]
	if m != nil {
		m.refs++
	}
	return m
}

// mapFile maps size bytes of an open file, which can be closed afterwards, and enters the mapping under its nonce; if
// somebody was faster, theirs is taken.
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

// populate maps the pages of mem, for writing, as if they had been written to. EINVAL: the kernel cannot. A variable,
// so that tests can be an old kernel.
var populate = func(mem []byte) error {
	for {
		err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}
