package pgbackend

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// timeline is the file of SAGECOMM_TRACE: a Chrome trace (the "JSON Array Format" of the Trace Event Format), which
// chrome://tracing and Perfetto read, also while it is not finished. A rank is a process in it, so that the arrays of several
// ranks can be put together; a thread is a lane with what it did, stage by stage; an operation is an asynchronous event from
// its issue to its end, because it may be carried on by one thread after another.
//
// One goroutine writes it, holding nothing meanwhile: where files go may hang.
type timeline struct {
	mu    sync.Mutex
	now   *timelineFile // nil: none
	files int           // begun so far
}

// timelineFile is one file. The timeline's lock guards it.
type timelineFile struct {
	rank    int // in the job
	threads map[int]bool
	dropped uint64
	pending bytes.Buffer // what has not been written
}

// mostPending is how much waits for the file system before events are dropped.
const mostPending = 32 << 20

// traceEvery is how often events are taken out of the groups, which have room for 16,384 of collectives and of messages each.
const traceEvery = 50 * time.Millisecond

// traceEvent is one event in the file. Times are us.
type traceEvent struct {
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	Phase    string         `json:"ph"`
	ID       string         `json:"id,omitempty"`
	Begin    float64        `json:"ts"`
	Duration *float64       `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Args     map[string]any `json:"args,omitempty"`
}

// write adds an event.
func (f *timelineFile) write(e traceEvent) {
	if f.pending.Len() > mostPending {
		f.dropped++
		return
	}
	text, err := json.Marshal(e)
	if err != nil { // numbers and texts only
		panic(err)
	}
	f.pending.Write(text)
	f.pending.WriteString(",\n")
}

// take notes what a group has done since the last call. The caller holds the group.
func (t *timeline) take(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil || !g.timeline {
		return
	}
	events, dropped := g.run.TakeTrace()
	t.now.dropped += dropped
	for i := range events {
		t.now.add(g, &events[i])
	}
}

func (f *timelineFile) add(g *Group, e *runner.Event) {
	us := func(at time.Time) float64 { return float64(at.UnixNano()) / 1e3 }
	one := traceEvent{Name: e.Phase.String(), Category: g.name, Begin: us(e.Begin), Process: f.rank, Thread: e.Thread}
	number := strconv.FormatUint(e.Number, 10)
	switch e.Phase {
	case runner.PhaseQueue, runner.PhaseOp:
		name := e.Kind.String()
		one.ID = g.name + "/" + name + "/" + number
		one.Args = map[string]any{"dtype": e.Type.String(), "bytes": e.Bytes, "number": e.Number}
		if e.Algorithm != "" {
			one.Args["algorithm"] = e.Algorithm
		}
		if e.Peer >= 0 {
			one.Args["peer"] = e.Peer
		}
		if e.Phase == runner.PhaseOp {
			one.Name = name
		}
		one.Phase = "b"
		end := one
		end.Phase, end.Begin, end.Args = "e", us(e.End), nil
		f.write(one)
		f.write(end)
	default:
		f.name(e.Thread)
		duration := max(us(e.End)-one.Begin, 0)
		one.Phase, one.Duration = "X", &duration
		one.Args = map[string]any{"op": e.Kind.String() + " #" + number, "chunk": e.Chunk}
		if e.Peer >= 0 {
			one.Args["peer"] = e.Peer
		}
		f.write(one)
	}
}

// name says what a thread is called, the first time that it is seen.
func (f *timelineFile) name(thread int) {
	if f.threads[thread] {
		return
	}
	f.threads[thread] = true
	name, err := os.ReadFile(filepath.Join("/proc/self/task", strconv.Itoa(thread), "comm"))
	if err != nil { // it has ended
		return
	}
	f.write(traceEvent{Name: "thread_name", Phase: "M", Process: f.rank, Thread: thread,
		Args: map[string]any{"name": fmt.Sprintf("%s (%d)", strings.TrimSpace(string(name)), thread)}})
}

// begin makes the file's beginning.
func (t *timeline) begin(rank int) *timelineFile {
	f := &timelineFile{rank: rank, threads: map[int]bool{}}
	f.pending.WriteString("[\n")
	f.write(traceEvent{Name: "process_name", Phase: "M", Process: rank,
		Args: map[string]any{"name": fmt.Sprintf("rank %d (%s, pid %d)", rank, bootstrap.HostName(), os.Getpid())}})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = f
	return f
}

// written takes what is to be written, with the end of the array if it is the last; then no more events come.
func (t *timeline) written(f *timelineFile, last bool) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last {
		if t.now == f {
			t.now = nil
		}
		text, err := json.Marshal(traceEvent{Name: "end", Phase: "M", Process: f.rank, Args: map[string]any{"dropped": f.dropped}})
		if err != nil {
			panic(err)
		}
		f.pending.Write(text)
		f.pending.WriteString("\n]\n")
	}
	text := bytes.Clone(f.pending.Bytes())
	f.pending.Reset()
	return text
}

// keepTimeline writes the file until it is stopped.
func (p *Process) keepTimeline(path string, rank int, all *sync.WaitGroup, stop <-chan struct{}) {
	t := &p.timeline
	if t.files++; t.files > 1 { // a process that makes groups again keeps what it wrote before
		path = fmt.Sprintf("%s.%d", path, t.files)
	}
	events := t.begin(rank)
	all.Go(func() {
		defer recoverFrom("the timeline")
		file, err := os.Create(path)
		tick := time.NewTicker(traceEvery)
		defer tick.Stop()
		for stopped := false; err == nil && !stopped; {
			select {
			case <-tick.C:
			case <-stop:
				stopped = true
			}
			groups := p.held()
			for _, g := range groups {
				t.take(g)
			}
			release(groups)
			_, err = file.Write(t.written(events, stopped))
		}
		if file != nil {
			err = cmp.Or(err, file.Close())
		}
		if err != nil {
			t.written(events, true)
			p.warn("%s: %v", env.TraceFile.Name(), err)
		}
	})
}
