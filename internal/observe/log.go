package observe

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/env"
)

// lines writes the log lines of this process to standard error or to the file of SAGECOMM_DEBUG_FILE. Either may block (a full
// pipe, a file system that hangs), and a line must never delay a failure. So one goroutine writes from a bounded queue. The
// caller waits for its line, so that a process that exits with an error has printed it, but for lineTimeout at most, and not at
// all while an earlier line is stuck. Lines that find the queue full are dropped and counted.
var lines lineWriter

type lineWriter struct {
	mu      sync.Mutex
	to      io.Writer // nil: standard error
	host    string    // prefix of lines in a file, because files of several hosts may be merged
	queue   []logLine
	writing bool   // the goroutine that writes is running
	stuck   bool   // a line was not written within lineTimeout
	dropped uint64 // lines dropped since the last one that was queued
	warned  recent
}

type logLine struct {
	text    string
	written chan struct{} // closed when the line is written
}

const (
	lineTimeout = 20 * time.Millisecond
	mostLines   = 1000 // bounds the queue
)

// logTo opens the file of the first group that names one.
func logTo(pattern string, rank int) error {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	if pattern == "" || lines.to != nil {
		return nil
	}
	f, err := os.OpenFile(expand(pattern, rank), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("sagecomm: %s: %w", env.DebugFile.Name(), err)
	}
	lines.to, lines.host = f, bootstrap.HostName()
	return nil
}

// expand replaces %h in a path by the host, %p by the process and %r by the rank in the job; %% is a percent sign.
func expand(pattern string, rank int) string {
	return strings.NewReplacer("%%", "%", "%h", bootstrap.HostName(), "%p", strconv.Itoa(os.Getpid()), "%r", strconv.Itoa(rank)).Replace(pattern)
}

// Log writes one line.
func Log(level, text string) { lines.log(level, text) }

// Warn writes a warning unless it is equal to one of the last mostRecent warnings.
func Warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	lines.mu.Lock()
	seen := lines.warned.add(text)
	lines.mu.Unlock()
	if !seen {
		Log("WARN", text)
	}
}

// FlushLog returns when all lines are written, or after the bound.
func FlushLog(bound time.Duration) {
	lines.mu.Lock()
	var last chan struct{}
	if n := len(lines.queue); n > 0 {
		last = lines.queue[n-1].written
	}
	lines.mu.Unlock()
	if last != nil {
		within(bound, last)
	}
}

// within waits until done is closed and reports whether that happened within the bound.
func within(bound time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func (w *lineWriter) log(level, text string) {
	w.mu.Lock()
	line := logLine{fmt.Sprintf("sagecomm %s [%d] %s\n", level, os.Getpid(), text), make(chan struct{})}
	if w.to != nil {
		line.text = fmt.Sprintf("%s sagecomm %s [%s:%d] %s\n", time.Now().Format("2006-01-02T15:04:05.000000"), level, w.host, os.Getpid(), text)
	}
	if len(w.queue) >= mostLines {
		w.dropped++
		w.mu.Unlock()
		return
	}
	if w.dropped > 0 {
		line.text = fmt.Sprintf("sagecomm WARN [%d] %d lines before this one were dropped: where they go was blocked\n", os.Getpid(), w.dropped) + line.text
		w.dropped = 0
	}
	w.queue = append(w.queue, line)
	if !w.writing {
		w.writing = true
		go w.write()
	}
	stuck := w.stuck
	w.mu.Unlock()
	if !stuck && !within(lineTimeout, line.written) {
		w.mu.Lock()
		w.stuck = w.writing // false if the line has just been written
		w.mu.Unlock()
	}
}

// write writes all lines of the queue and returns. A line stays in the queue until it is written.
func (w *lineWriter) write() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 {
		line, to := w.queue[0], w.to
		if to == nil {
			to = os.Stderr
		}
		w.mu.Unlock()
		_, _ = io.WriteString(to, line.text) // errors are ignored: a closed standard error must not fail a group
		w.mu.Lock()
		w.queue = w.queue[1:]
		w.stuck = false
		close(line.written)
	}
	w.queue, w.writing = nil, false
}

// mostRecent bounds the warnings that are remembered, because some name a group and a process may make groups for ever.
const mostRecent = 256

// recent holds the last mostRecent texts.
type recent struct {
	seen map[string]bool
	list []string // the oldest first
}

// add adds a text and reports whether it was there already.
func (r *recent) add(text string) bool {
	if r.seen[text] {
		return true
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	if len(r.list) == mostRecent {
		delete(r.seen, r.list[0])
		r.list = r.list[1:]
	}
	r.seen[text] = true
	r.list = append(r.list, text)
	return false
}
