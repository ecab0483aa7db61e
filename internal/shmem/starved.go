package shmem

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// advise adds a `ulimit -n` hint to an error that comes from a lack of descriptors.
func advise(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("%w; let processes open more files (ulimit -n)", err)
	}
	return err
}

// poller records whether Go's runtime has made its network poller. The runtime makes it at the first timer, file or socket and
// needs two descriptors for it. Without them it ends the process, which the library must not do to its user.
var poller struct {
	sync.Mutex
	made bool
}

// makePoller makes the runtime's poller, or returns an error if there are too few descriptors. The check does not cover
// descriptors that other threads open at the same time.
func makePoller() error {
	poller.Lock()
	defer poller.Unlock()
	if poller.made {
		return nil
	}
	const needed = 4 // two of them for a pipe
	var taken []int
	defer func() {
		for _, fd := range taken {
			unix.Close(fd)
		}
	}()
	for range needed {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("look whether there are descriptors: %w", err)
		}
		taken = append(taken, fd)
	}
	for _, fd := range taken {
		unix.Close(fd)
	}
	taken = nil
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	poller.made = true
	return errors.Join(r.Close(), w.Close())
}
