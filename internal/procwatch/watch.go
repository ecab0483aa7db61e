package procwatch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher watches one process.
type Watcher struct {
	file    *os.File // nil if the process was gone when the watch began
	done    chan struct{}
	stopped chan struct{} // closed when the watcher's goroutine has ended
	close   sync.Once
}

// Watch begins to watch the process with that pid and start time (see [StartTime]). If the process has ended, or another process
// has its pid now, Watch succeeds and Done is closed. An error, such as too many open files, says nothing about the process.
func Watch(pid int, startTime uint64) (*Watcher, error) {
	fd, err := open(pid)
	if errors.Is(err, unix.ESRCH) {
		return gone(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}

	// From here on the descriptor refers to one process, and the start time says whether it is the right one. If the process
	// has ended before, either the time differs, or /proc has no entry and the descriptor is readable.
	now, err := StartTime(pid)
	switch {
	case err == nil && now == startTime:
	case err == nil, errors.Is(err, fs.ErrNotExist) && ended(fd):
		unix.Close(fd)
		return gone(), nil
	default:
		unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: cannot tell whether it is the one that started at tick %d: %w", pid, startTime, err)
	}
	w, err := WatchFD(fd)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	return w, nil
}

// WatchFD begins to watch the process of a pidfd, in whatever pid namespace it is. The watcher owns the descriptor, also on an
// error.
func WatchFD(pidfd int) (*Watcher, error) {
	if err := unix.SetNonblock(pidfd, true); err != nil { // the poller requires it
		unix.Close(pidfd)
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	w := &Watcher{file: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{}), stopped: make(chan struct{})}
	conn, err := w.file.SyscallConn()
	if err == nil {
		err = w.file.SetDeadline(time.Time{}) // refused if the poller did not take the descriptor
	}
	if err != nil {
		w.file.Close()
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	go func() {
		defer close(w.stopped)
		// Read parks this goroutine in the poller each time that the function returns false. It fails only when the file is
		// closed.
		if err := conn.Read(func(fd uintptr) bool { return ended(int(fd)) }); err == nil {
			close(w.done)
		}
	}()
	return w, nil
}

// Done returns a channel that is closed when the process has ended, even if it is still a zombie. The channel stays open if
// Close is called first.
func (w *Watcher) Done() <-chan struct{} { return w.done }

// Close ends the watch and closes the descriptor. Done does not change afterwards. Close may be called again.
func (w *Watcher) Close() {
	w.close.Do(func() {
		if w.file != nil {
			w.file.Close()
		}
	})
	<-w.stopped
}

// gone returns the watcher of a process that has ended.
func gone() *Watcher {
	w := &Watcher{done: make(chan struct{}), stopped: make(chan struct{})}
	close(w.done)
	close(w.stopped)
	return w
}

func open(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // EPERM: from a seccomp filter that does not know the call
		err = fmt.Errorf("the system has no pidfd_open (Linux 5.3): %w", err)
	}
	return fd, err
}

// ended polls the pidfd without waiting. The pidfd is readable as soon as the last thread of the process has ended.
func ended(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 1
	}
}
