package observe

import (
	"io"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/procwatch"
	"sagecomm/internal/runner"
)

// What tests of this package with groups of pgbackend need, which are in a package of their own.

const (
	P2PNumbers = p2pNumbers
	MostTexts  = mostTexts
	MostRecent = mostRecent
)

var (
	Expand     = expand
	Label      = label
	DumpPrefix = dumpPrefix
	Newest     = newest
	Merged     = merged
	Silent     = silent
)

// Snapshot is a recorder at one moment.
type Snapshot = snapshot

func (s snapshot) Total() uint64   { return s.log.Total }
func (s snapshot) Operations() int { return len(s.log.Flights) }

// OnDevices returns the same recorder as one of the device lane.
func (s snapshot) OnDevices() Snapshot {
	s.lane = runner.DeviceLane
	return s
}

// TraceGroup returns the name of the group's lane in dumps.
func (s snapshot) TraceGroup() string { return s.traceGroup() }

// FramesOf are those of the first operation, in torch's terms.
func FramesOf(g Group, log runner.FlightLog) any {
	return snapshot{Header: g.Header(), log: log}.inTorchTerms().Entries[0].Get("frames")
}

// ListedBy is what another process lists.
func ListedBy(process procwatch.ID, groups []Group) []Snapshot { return listedBy(process, groups) }

// Words are those of a list.
func Words(arena []byte, front int64) []atomic.Uint64 {
	return listAt(unsafe.Pointer(&arena[front]))
}

// Groups are acquired.
func (o *Observers) Groups() []Group { return o.groups() }

// TimelineFiles is how many files were begun so far.
func (o *Observers) TimelineFiles() int { return o.timeline.files }

// SetExitTimeout changes it and returns what sets it back.
func SetExitTimeout(d time.Duration) func() {
	old := exitTimeout
	exitTimeout = d
	return func() { exitTimeout = old }
}

// SetReplaceFile puts another function in the place of what writes dumps and metrics.
func SetReplaceFile(f func(path string, data []byte) error) func() {
	old := replaceFile
	replaceFile = f
	return func() { replaceFile = old }
}

// SetOpenLog replaces the function that opens the file of log lines and returns a function that sets it back.
func SetOpenLog(f func(path string) (io.Writer, error)) func() {
	old := openLog
	openLog = f
	return func() { openLog = old }
}

// SetOutput sends lines elsewhere; nil: to standard error.
func SetOutput(to io.Writer) {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	lines.to, lines.path = to, ""
}

// Written is closed when no dump is to be written any more.
func (o *Observers) Written() <-chan struct{} { return o.dumps.written() }

// RememberedWarnings is how many.
func RememberedWarnings() int {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	return len(lines.warned.seen)
}

// Count is how many events became this one.
func (s stage) Count() int { return s.count }
