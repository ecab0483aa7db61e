package ranks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/bootstrap"
)

// This file has the ways in which a rank makes a resource short for itself, and stores that do not need that resource.

// held returns how much of the system's memory the arena of this process holds.
func held() (int64, error) {
	list, err := filepath.Glob("/proc/self/fd/*")
	for _, name := range list {
		var st unix.Stat_t
		if to, _ := os.Readlink(name); strings.HasPrefix(to, "/memfd:sagecomm") {
			err = unix.Stat(name, &st)
			return st.Blocks * 512, err
		}
	}
	return 0, err
}

// starve lets this process open n more descriptors.
func (r *rankState) starve(n int) error {
	limit := unix.Rlimit{Cur: 64, Max: 64}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	var taken []int
	for {
		fd, err := unix.Dup(2)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	r.spare, taken = taken[:4], taken[4:]
	for _, fd := range taken[len(taken)-n:] {
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	r.kept = taken[:len(taken)-n]
	return nil
}

// feed gives the descriptors back at the end of the process: a test binary that measures coverage writes a file then.
func (r *rankState) feed() {
	for _, fd := range append(r.spare, r.kept...) {
		_ = unix.Close(fd)
	}
}

// sparingStore keeps some descriptors for its own use, so that descriptors are short for the library only.
type sparingStore struct {
	bootstrap.Store
	r *rankState
}

func (s sparingStore) lend() func() {
	n := len(s.r.spare)
	for _, fd := range s.r.spare {
		_ = unix.Close(fd)
	}
	s.r.spare = s.r.spare[:0]
	return func() { // fewer, if something stays open
		for range n {
			if fd, err := unix.Dup(2); err == nil {
				s.r.spare = append(s.r.spare, fd)
			}
		}
	}
}

func (s sparingStore) Set(key string, value []byte) error {
	defer s.lend()()
	return s.Store.Set(key, value)
}

func (s sparingStore) Get(key string, timeout time.Duration) ([]byte, error) {
	defer s.lend()()
	return s.Store.Get(key, timeout)
}

// forgetfulStore is for a rank alone. It opens nothing and waits for nothing.
type forgetfulStore struct{}

func (forgetfulStore) Set(string, []byte) error { return nil }

func (forgetfulStore) Get(string, time.Duration) ([]byte, error) { return nil, bootstrap.ErrTimeout }

// confine limits the address space to what is taken and so many bytes more.
func confine(more int64) error {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var pages int64
	if _, err := fmt.Sscan(string(text), &pages); err != nil {
		return err
	}
	limit := uint64(pages*int64(os.Getpagesize()) + more)
	return unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit})
}
