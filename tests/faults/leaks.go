package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// moreThreads is how many threads Go's runtime may add to those of the beginning. The runtime keeps the threads that it has
// made, so their number rises with the number of goroutines blocked at the same time, and not with the number of groups.
const moreThreads = 24

// restsKept is how many groups a process keeps for a while that it gave up after it had promised to join
// (docs/protocol.md, section 6).
const restsKept = 8

// leaked returns a text that names the resources that a process holds beyond those of the beginning, or "".
func (p *process) leaked(now level) string {
	rests := 0
	for _, size := range p.rests {
		rests += size - 1
	}
	switch {
	case now.descriptors > p.base.descriptors+rests:
		return fmt.Sprintf("%d descriptors, %d at first", now.descriptors, p.base.descriptors)
	case now.mappings > p.base.mappings+rests:
		return fmt.Sprintf("%d mappings of shared memory, %d at first", now.mappings, p.base.mappings)
	case now.threads > p.base.threads+moreThreads:
		return fmt.Sprintf("%d threads, %d at first", now.threads, p.base.threads)
	case now.storeCalls > 0:
		return fmt.Sprintf("%d calls of a store after its group was made", now.storeCalls)
	}
	return ""
}

// gaveUp notes that the process may keep the rests of a group.
func (p *process) gaveUp(size int) {
	if p.rests = append(p.rests, size); len(p.rests) > restsKept {
		p.rests = p.rests[1:]
	}
}

// filesOf returns the files of shared memory that carry the pid of one of these processes in their names.
func filesOf(list []*process) (left []string) {
	names, _ := filepath.Glob("/dev/shm/sagecomm-*")
	for _, name := range names {
		for _, p := range list {
			if strings.Contains(name, "-"+strconv.Itoa(p.pid)+"-") {
				left = append(left, name)
			}
		}
	}
	return left
}

func filesIn(dir string) []string {
	list, _ := filepath.Glob(filepath.Join(dir, "*"))
	return list
}

// sockets identifies the abstract sockets of the ranks of this tool. names are the sockets that ranks had when they were
// measured; pids are in the names of the sockets that come and go with groups.
type sockets struct {
	mu    sync.Mutex
	names map[string]bool
	pids  map[int]bool
}

// note notes the sockets of a rank.
func (s *sockets) note(pid int) error {
	all, err := abstractSockets()
	if err != nil {
		return err
	}
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names, s.pids = map[string]bool{}, map[int]bool{}
	}
	s.pids[pid] = true
	for _, fd := range descriptors {
		to, err := os.Readlink(fd)
		if name, ok := all[to]; err == nil && ok {
			s.names[name] = true
		}
	}
	return nil
}

// left returns the sockets that still exist. Requires: all ranks have ended.
func (s *sockets) left() (list []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pids) > 0 && len(s.names) == 0 {
		return nil, errors.New("no rank ever had a socket")
	}
	all, err := abstractSockets()
	for _, name := range all {
		pid := -1
		if part := strings.Split(name, "-"); len(part) > 3 && part[1] == "status" {
			pid, _ = strconv.Atoi(part[3])
		}
		if s.names[name] || s.pids[pid] {
			list = append(list, name)
		}
	}
	return list, err
}

// abstractSockets returns the names of all sockets of the library on this machine, by the target of a descriptor's link.
func abstractSockets() (map[string]string, error) {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 8 && strings.HasPrefix(f[7], "@sagecomm-") {
			found["socket:["+f[6]+"]"] = f[7]
		}
	}
	return found, nil
}

// processState returns the letter that /proc gives for a process's state.
func processState(pid int) (byte, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, after, ok := strings.Cut(string(text), ") ")
	if !ok || after == "" {
		return 0, fmt.Errorf("process %d: its state is not readable", pid)
	}
	return after[0], nil
}
