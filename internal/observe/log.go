package observe

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/env"
)

// lines writes the log lines of this process to standard error or to the file of SAGECOMM_DEBUG_FILE. Either may block (a full
// pipe, a file system that hangs), and a line must never delay a failure or the creation of a group. So one goroutine opens the
// file and writes from a bounded queue. The caller waits for its line, so that a process that exits with an error has printed it,
// but for lineTimeout at most, and not at all while an earlier line is stuck. Lines that find the queue full are dropped and
// counted.
var lines lineWriter

type lineWriter struct {
	mu      sync.Mutex
	path    string    // of the file; "": none was named, or it could not be opened
	to      io.Writer // nil: standard error, or the file is not open yet
	host    string    // prefix of lines in a file, because files of several hosts may be merged
	queue   []logLine
	writing bool   // the goroutine that opens the file and writes is running
	stuck   bool   // a line was not written within lineTimeout
	dropped uint64 // lines dropped since the last one that was queued
	warned  recent
}

type logLine struct {
	at          time.Time
	level, text string
	written     chan struct{} // closed when the line is written
}

const (
	lineTimeout = 20 * time.Millisecond
	mostLines   = 1000 // bounds the queue
)

// logTo lets the lines go to the file of the first group that names one.
func logTo(pattern string, rank int) {
	if pattern == "" {
		return
	}
	lines.mu.Lock()
	defer lines.mu.Unlock()
	if lines.path != "" || lines.to != nil {
		return
	}
	lines.path, lines.host = expand(pattern, rank), bootstrap.HostName()
	lines.begin()
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
	if len(w.queue) >= mostLines {
		w.dropped++
		w.mu.Unlock()
		return
	}
	if w.dropped > 0 {
		dropped := fmt.Sprintf("%d lines before this one were dropped: where they go was blocked", w.dropped)
		w.queue = append(w.queue, newLine("WARN", dropped))
		w.dropped = 0
	}
	line := newLine(level, text)
	w.queue = append(w.queue, line)
	w.begin()
	stuck := w.stuck
	w.mu.Unlock()
	if !stuck && !within(lineTimeout, line.written) {
		w.mu.Lock()
		w.stuck = w.writing // false if the line has just been written
		w.mu.Unlock()
	}
}

func newLine(level, text string) logLine {
	return logLine{time.Now(), level, text, make(chan struct{})}
}

// begin starts the goroutine that writes, unless it is running. Requires: w.mu.
func (w *lineWriter) begin() {
	if !w.writing {
		w.writing = true
		go w.write()
	}
}

// write opens the file if it is not open yet, writes all lines of the queue and returns. A line stays in the queue until it is
// written.
func (w *lineWriter) write() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.path != "" && w.to == nil || len(w.queue) > 0 {
		if w.path != "" && w.to == nil {
			w.open()
			continue
		}
		line, text, to := w.queue[0], w.format(w.queue[0]), w.to
		if to == nil {
			to = os.Stderr
		}
		w.mu.Unlock()
		_, _ = io.WriteString(to, text) // errors are ignored: a closed standard error must not fail a group
		w.mu.Lock()
		w.queue = w.queue[1:]
		w.stuck = false
		close(line.written)
	}
	w.queue, w.writing = nil, false
}

// open opens the file. If that fails, a warning comes before the lines that wait, and all go to standard error until another
// group names a file. open gives up the lock while the file system works. Requires: w.mu.
func (w *lineWriter) open() {
	path := w.path
	w.mu.Unlock()
	f, err := openLog(path)
	w.mu.Lock()
	if err == nil {
		w.to = f
		return
	}
	w.path = ""
	text := fmt.Sprintf("%s: %v; log lines go to standard error", env.DebugFile.Name(), cannotWrite(path, err))
	if !w.warned.add(text) {
		w.queue = slices.Insert(w.queue, 0, newLine("WARN", text))
	}
}

// openLog opens the file of log lines. Tests replace it with another function.
var openLog = func(path string) (io.Writer, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

// format returns the text of a line. Requires: w.mu.
func (w *lineWriter) format(l logLine) string {
	if w.to == nil {
		return fmt.Sprintf("sagecomm %s [%d] %s\n", l.level, os.Getpid(), l.text)
	}
	return fmt.Sprintf("%s sagecomm %s [%s:%d] %s\n", l.at.Format("2006-01-02T15:04:05.000000"), l.level, w.host, os.Getpid(), l.text)
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
