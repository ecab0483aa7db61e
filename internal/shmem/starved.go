package shmem

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// advise says what to do about a want of descriptors, wherever it showed.
func advise(err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fmt.Errorf("%w; let processes open more files (ulimit -n)", err)
	}
	return err
}

// poller is what the Go runtime makes of two descriptors at the first timer, or when the first file or socket is opened.
// Where it does not get them it ends the process, which is not the library's to end.
var poller struct {
	sync.Mutex
	made bool
}

// makePoller makes it, while there is an error to return instead. What other threads open in between is theirs to lose.
func makePoller() error {
	poller.Lock()
	defer poller.Unlock()
	if poller.made {
		return nil
	}
	const needed = 4 // and the two of a pipe
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
