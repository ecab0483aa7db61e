package shadow

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"sagecomm/internal/runner"
)

// Memory is where the shadows lie that a rank of this process has of remote ranks of its group. Its addresses are reserved at once; pages come when
// they are written. A shadow that was not made is all zeros: that of a rank that has done nothing.
type Memory struct {
	each int64 // bytes of a shadow

	mu    sync.Mutex
	bytes []byte
	users int // its maker, and pairs
}

// NewMemory reserves a number of shadows of a group of that size. Its maker calls Free.
func NewMemory(shadows, size int, g runner.Geometry) (*Memory, error) {
	m := &Memory{each: memoryOf(size, g), users: 1}
	var err error
	m.bytes, err = mapPrivate(int64(shadows) * m.each)
	return m, err
}

func (m *Memory) at(shadow int) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(m.bytes[int64(shadow)*m.each:]))
}

func (m *Memory) use() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users++
}

// Free ends one use. The last one unmaps the memory.
func (m *Memory) Free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users == 0 {
		_ = unix.Munmap(m.bytes)
		m.bytes = nil
	}
}

// mapPrivate maps memory for shadows, which nobody else reads. Its pages come when they are written, and a forked child does not have them.
func mapPrivate(bytes int64) ([]byte, error) {
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("cannot map %d bytes for ranks of other hosts: %w", bytes, err)
	}
	if err := unix.Madvise(memory, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(memory)
		return nil, fmt.Errorf("cannot keep %d bytes from forked children: %w", bytes, err)
	}
	// A huge page would hold channels through which nothing comes. A kernel without huge pages has none to keep away.
	if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		_ = unix.Munmap(memory)
		return nil, fmt.Errorf("cannot keep huge pages out of %d bytes: %w", bytes, err)
	}
	return memory, nil
}
