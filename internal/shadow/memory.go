package shadow

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"sagecomm/internal/runner"
)

// mapPrivate maps memory for shadows, which nobody else reads. Its pages come when they are written, and a forked child does not have them.
func mapPrivate(bytes int64) ([]byte, error) {
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("cannot map %d bytes for a rank of another host: %w", bytes, err)
	}
	if err := unix.Madvise(memory, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(memory)
		return nil, fmt.Errorf("cannot keep %d bytes from forked children: %w", bytes, err)
	}
	return memory, nil
}

// bells are those of pumps. They are never unmapped, because the runner may ring one until it has closed its groups, after the link is lost.
var bells struct {
	mu   sync.Mutex
	left []byte
}

// newBell returns a bell for a pump.
func newBell() (runner.Bell, error) {
	bells.mu.Lock()
	defer bells.mu.Unlock()
	if len(bells.left) == 0 {
		memory, err := mapPrivate(page)
		if err != nil {
			return runner.Bell{}, err
		}
		bells.left = memory
	}
	bell := runner.BellAt(unsafe.Pointer(unsafe.SliceData(bells.left)))
	bells.left = bells.left[runner.BellBytes:]
	return bell, nil
}
