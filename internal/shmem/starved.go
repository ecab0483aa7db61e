package shmem

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// advise adds the remedy to an error that was caused by a lack of descriptors.
func advise(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("%w; let processes open more files (ulimit -n)", err)
	}
	return err
}

// The Go runtime makes its poller, of two descriptors, at the first timer or when the first file or socket is opened. If it gets no
// descriptors, it ends the process, which a library must not do.
var poller struct {
	sync.Mutex
	made bool
}

// makePoller makes the runtime create its poller while there are descriptors, and returns an error if there are too few. Threads
// that open files between the check and the creation can still defeat it.
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
