package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file finds out what a process does that gives no answer.

const (
	goThread    = "sagecomm-prog" // a thread of Go's in the library, which Go's handler of signals can run on
	dumpLimit   = 10 * time.Second
	mostOfStack = 256 << 10
)

// environment returns what processes of ranks have: Go's runtime prints all goroutines when it ends a process.
func environment() []string { return append(os.Environ(), "GOTRACEBACK=all") }

// dump keeps what the threads of a process wait for, and ends the process by a signal that has Go print all goroutines, for tail.
func (p *process) dump() {
	p.mu.Lock()
	first := p.threads == ""
	if first {
		p.threads = threadsOf(p.pid)
	}
	p.mu.Unlock()
	if !first || !p.alive() {
		return
	}
	signaled := false
	for _, task := range tasksOf(p.pid) {
		if name, _ := os.ReadFile(filepath.Join(task, "comm")); strings.TrimSpace(string(name)) == goThread {
			tid, _ := strconv.Atoi(filepath.Base(task))
			signaled = unix.Tgkill(p.pid, tid, syscall.SIGSEGV) == nil
		}
	}
	if !signaled {
		return
	}
	select {
	case <-p.ended:
	case <-time.After(dumpLimit): // stopped, or in a system call that no signal interrupts
	}
}

func tasksOf(pid int) []string {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	return list
}

// threadsOf returns a line for each thread of a process, with its system call and where the kernel holds it, and the kernel's stack where that may
// be read.
func threadsOf(pid int) string {
	var text strings.Builder
	for _, task := range tasksOf(pid) {
		read := func(name string) string {
			b, _ := os.ReadFile(filepath.Join(task, name))
			return strings.Join(strings.Fields(string(b)), " ")
		}
		state := "?"
		if _, after, ok := strings.Cut(read("stat"), ") "); ok {
			state = after[:1]
		}
		fmt.Fprintf(&text, "thread %s %s: state %s, in %s, system call %s, %s\n", filepath.Base(task), read("comm"), state, read("wchan"), read("syscall"), read("stack"))
	}
	return text.String()
}

// dumpAll dumps the processes of a cell in which one gave no answer: it may wait for another one.
func dumpAll(ranks []*process) {
	for _, r := range ranks {
		r.dump()
	}
}

// anySilent reports whether a process gave no answer.
func anySilent(ranks []*process) bool {
	for _, r := range ranks {
		r.mu.Lock()
		silent := r.threads != ""
		r.mu.Unlock()
		if silent {
			return true
		}
	}
	return false
}

// firstOf returns the first bytes of a long text.
func firstOf(text string) string {
	if len(text) > mostOfStack {
		return text[:mostOfStack] + "\n..."
	}
	return text
}
