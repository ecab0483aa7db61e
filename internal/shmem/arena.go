package shmem

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Arena is memory that this process shares with its peers. Any goroutine may call its methods.
type Arena struct {
	fd      int // stays open until Close, for peers that attach later
	mapping *Mapping
	page    int64

	mu     sync.Mutex // guards the fields below; it is not held during long system calls
	desc   Descriptor
	list   *freeList
	server *server // nil until SCM is published
	closed bool
}

// NewArena makes an arena and maps it. size is its logical size, which NewArena rounds up to pages. The header takes one page
// at once. dir is the directory of a Tmpfs arena.
func NewArena(kind Kind, size int64, dir string) (*Arena, error) {
	page := int64(os.Getpagesize())
	if size < 2*page || size > 1<<46 {
		return nil, fmt.Errorf("shmem: an arena cannot have %d bytes: set SAGECOMM_ARENA_SIZE to something like 1G", size)
	}
	if err := makePoller(); err != nil {
		return nil, advise(fmt.Errorf("shmem: create an arena of %s (%s): %w", mib(size), kind, err))
	}
	a := &Arena{fd: -1, page: page, desc: Descriptor{Kind: kind, Size: roundUp(size, page)}}
	rand.Read(a.desc.Nonce[:])
	rand.Read(a.desc.Token[:])
	if err := a.create(dir); err != nil {
		a.Unlink()
		if a.fd >= 0 {
			unix.Close(a.fd)
		}
		return nil, advise(fmt.Errorf("shmem: create an arena of %s (%s): %w", mib(a.desc.Size), kind, err))
	}
	return a, nil
}

func (a *Arena) create(dir string) error {
	d := &a.desc
	err := d.identity()
	if err != nil {
		return err
	}
	// The kernel ends a process that grows a file beyond RLIMIT_FSIZE.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err == nil && uint64(d.Size) > limit.Cur {
		return fmt.Errorf("the limit on file sizes is %s (ulimit -f): raise it or set a smaller SAGECOMM_ARENA_SIZE", mib(int64(limit.Cur)))
	}
	switch d.Kind {
	case Memfd:
		a.fd, err = createMemfd()
	case Tmpfs:
		a.fd, d.Path, err = createFile(dir, d)
	default:
		err = fmt.Errorf("there is no kind %q", d.Kind)
	}
	if err != nil {
		return err
	}
	if d.FD = a.fd; a.fd <= 2 { // a standard stream is closed: printed text must not go into the arena
		if d.FD, err = unix.FcntlInt(uintptr(a.fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return err
		}
		unix.Close(a.fd)
		a.fd = d.FD
	}
	if err := unix.Ftruncate(a.fd, d.Size); err != nil {
		return fmt.Errorf("set the size: %w", err)
	}
	if d.Kind == Memfd {
		if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_ADD_SEALS, wantedSeals|unix.F_SEAL_SEAL); err != nil {
			return fmt.Errorf("seal the size: %w", err)
		}
	}
	header := Range{0, a.page}
	if err := a.reserve(header); err != nil {
		return err
	}
	if a.mapping, err = mapFile(a.fd, d.Size, d.Nonce, ""); err != nil {
		return err
	}
	encodeHeader(a.mapping.Bytes(header), d)
	a.list = newFreeList(Range{a.page, d.Size - a.page}, a.page)
	return nil
}

// Mapping returns the owner's mapping. The arena holds its reference; callers do not release it.
func (a *Arena) Mapping() *Mapping { return a.mapping }

// Bytes returns the memory of a range that Alloc returned.
func (a *Arena) Bytes(r Range) []byte { return a.mapping.Bytes(r) }

// InUse returns the total length of the allocated ranges, in bytes.
func (a *Arena) InUse() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.list.inUse()
}

// Alloc allocates n bytes, rounded up to pages, at a multiple of align (a power of two, at least a page). The pages exist, are
// mapped and hold zeros.
func (a *Arena) Alloc(n, align int64) (Range, error) { return a.alloc(n, align, a.ready) }

// AllocLazily is Alloc for memory of which little may ever be used: a page is taken from the system when it is first written. In
// an arena that is a file all pages are taken at once, because a write into a full tmpfs would end in SIGBUS.
func (a *Arena) AllocLazily(n, align int64) (Range, error) {
	if a.desc.Kind != Memfd {
		return a.Alloc(n, align)
	}
	return a.alloc(n, align, a.punch) // a late write of a peer may have brought pages back
}

func (a *Arena) alloc(n, align int64, ready func(Range) error) (Range, error) {
	if n <= 0 || n > a.desc.Size || align < 0 || align&(align-1) != 0 || align > a.desc.Size {
		return Range{}, fmt.Errorf("shmem: allocate %d bytes at a multiple of %d: bad size or alignment in an arena of %d bytes", n, align, a.desc.Size)
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return Range{}, errClosed
	}
	r, ok := a.list.take(n, align)
	used, largest := a.list.inUse()-r.Len, a.list.largest() // used: by other ranges
	a.mu.Unlock()
	if !ok {
		return Range{}, fmt.Errorf("shmem: %s wanted, but of the arena's %s are %s in use and the longest free range has %s: raise SAGECOMM_ARENA_SIZE, or destroy groups that are not needed",
			mib(n), mib(a.desc.Size), mib(used), mib(largest))
	}
	if err := ready(r); err != nil {
		a.Free(r)
		return Range{}, fmt.Errorf("shmem: reserve %s of shared memory (%s in use): %w", mib(r.Len), mib(used), err)
	}
	return r, nil
}

// ready takes the pages of a range from the system, maps them and clears them.
func (a *Arena) ready(r Range) error {
	// A peer that wrote into a freed range has taken pages again.
	if err := a.punch(r); err != nil {
		return err
	}
	if err := a.reserve(r); err != nil {
		return err
	}
	mem := a.mapping.Bytes(r)
	err := populate(mem)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14; the pages exist, so writing cannot fail
		for off := int64(0); off < r.Len; off += a.page {
			mem[off] = 0
		}
		return nil
	}
	return err
}

// Free frees a whole range and returns its pages to the system. Requires: no peer uses the range.
func (a *Arena) Free(r Range) error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return errClosed
	}
	err := a.list.retire(r)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if err = a.punch(r); err != nil {
		err = fmt.Errorf("shmem: free %s: %w", mib(r.Len), err)
	}
	a.mu.Lock()
	a.list.give(r)
	a.mu.Unlock()
	return err
}

// Publish makes the arena reachable by the given methods and returns its descriptor. For SCM it starts the socket server of the
// arena, once. The descriptor is valid until Close, its Path until Unlink.
func (a *Arena) Publish(methods []Method) (Descriptor, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return Descriptor{}, errClosed
	}
	if slices.Contains(methods, SCM) && a.server == nil {
		s, err := serve(a.fd, a.desc.Token)
		if err != nil {
			return Descriptor{}, advise(fmt.Errorf("shmem: offer the arena over a socket: %w", err))
		}
		a.server, a.desc.Socket = s, s.name
	}
	return a.desc, nil
}

// Withdraw ends the socket server, so that peers that have not attached over it cannot. Publish starts another one.
func (a *Arena) Withdraw() {
	a.mu.Lock()
	s := a.server
	if !a.closed { // else Close stops it
		a.server, a.desc.Socket = nil, ""
	}
	closed := a.closed
	a.mu.Unlock()
	if s != nil && !closed {
		s.stop()
	}
}

// Unlink removes the name of a Tmpfs arena. The owner calls it as soon as all peers have attached or have failed to. From then on
// no file is left in the directory, however the processes end. Unlink may be called again; for other kinds it does nothing.
func (a *Arena) Unlink() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.desc.Path == "" {
		return nil
	}
	path := a.desc.Path
	a.desc.Path = ""
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("shmem: remove %s: %w", path, err)
	}
	return nil
}

// Close removes the name of the arena and closes its server, its descriptor and the owner's reference to the mapping. The memory
// is freed when the last process has unmapped it. Close may be called again. Requires: no other call is under way.
func (a *Arena) Close() error {
	a.mu.Lock()
	closed, s := a.closed, a.server
	a.closed = true
	a.mu.Unlock()
	if closed {
		return nil
	}
	if s != nil {
		s.stop()
	}
	return errors.Join(a.Unlink(), unix.Close(a.fd), a.mapping.Release())
}

var errClosed = errors.New("shmem: the arena is closed")
