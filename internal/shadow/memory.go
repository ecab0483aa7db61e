package shadow

import (
	"fmt"

	"golang.org/x/sys/unix"
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
