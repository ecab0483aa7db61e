package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/runner"
)

const (
	// mostPending bounds the bytes that wait for the file system. Events beyond it are dropped.
	mostPending = 32 << 20
	// mostTimeline bounds the bytes of a file, because viewers do not open larger ones. Later events are dropped.
	mostTimeline = 512 << 20
	// mergedGap is the longest gap between two stages that are merged into one event.
	mergedGap = time.Microsecond
)

// timelineFile is the text of one timeline. The timeline's lock guards it.
type timelineFile struct {
	rank    int // global rank
	threads map[int]bool
	dropped uint64
	text    bytes.Buffer // not written yet
	written int          // bytes taken for the file so far
}

// TraceEvent is one event in the file. Times are in microseconds.
type TraceEvent struct {
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

func newTimelineFile(rank int) *timelineFile {
	f := &timelineFile{rank: rank, threads: map[int]bool{}}
	f.text.WriteString("[\n")
	f.write(TraceEvent{Name: "process_name", Phase: "M", Process: rank,
		Args: map[string]any{"name": fmt.Sprintf("rank %d (%s, pid %d)", rank, bootstrap.HostName(), os.Getpid())}})
	return f
}

func (f *timelineFile) write(e TraceEvent) {
	if f.text.Len() > mostPending || f.written+f.text.Len() > mostTimeline {
		f.dropped++
		return
	}
	f.append(e)
	f.text.WriteString(",\n")
}

func (f *timelineFile) append(e TraceEvent) {
	text, err := json.Marshal(e)
	if err != nil { // impossible: an event consists of numbers and texts
		panic(err)
	}
	f.text.Write(text)
}

func (f *timelineFile) take() []byte {
	text := bytes.Clone(f.text.Bytes())
	f.text.Reset()
	f.written += len(text)
	return text
}

// end closes the JSON array. The last event gives the number of events that were dropped.
func (f *timelineFile) end() {
	f.append(TraceEvent{Name: "end", Phase: "M", Process: f.rank, Args: map[string]any{"dropped": f.dropped}})
	f.text.WriteString("\n]\n")
}

// stage is a sequence of events that become one. They belong to the same stage of the same operation on one thread and follow
// each other without a gap.
type stage struct {
	runner.Event
	count int
}

// onThread reports whether an event is a stage that a thread carried out.
func onThread(e *runner.Event) bool { return e.Phase != runner.PhaseQueue && e.Phase != runner.PhaseOp }

// thread is the state of merged for one thread. Its fields are indices in the list of stages, or -1 for none.
type thread struct {
	stage, wait int // the last stage, or sleep, and the last wait
}

// merged returns events with adjacent stages merged, in the order in which they begin on each thread. The runner records a
// stage as many short events, one for each chunk, and inside them a wait for each peer, which often takes no time. Waits are
// merged with waits only, because they lie inside other stages. The runner has merged the sleeps of a thread that yields its
// core while it waits, which attempts the same stage after each yield.
func merged(events []runner.Event) []stage {
	list := make([]stage, 0, len(events))
	threads := map[int]*thread{}
	for i := range events {
		e := &events[i]
		if !onThread(e) {
			list = append(list, stage{*e, 1})
			continue
		}
		t := threads[e.Thread]
		if t == nil {
			t = &thread{-1, -1}
			threads[e.Thread] = t
		}
		switch {
		case e.Phase == runner.PhaseWait:
			if t.wait < 0 || !list[t.wait].extend(e) {
				t.wait = len(list)
				list = append(list, stage{*e, 1})
			}
		case t.stage < 0 || !list[t.stage].extend(e):
			t.stage = len(list)
			list = append(list, stage{*e, 1})
		}
	}
	return list
}

// same reports whether e belongs to the same stage of the same operation as s.
func (s *stage) same(e *runner.Event) bool {
	return s.Phase == e.Phase && s.Kind == e.Kind && s.Number == e.Number
}

// extend makes e part of s if e follows without a gap, and reports whether it did.
func (s *stage) extend(e *runner.Event) bool {
	if !s.same(e) || e.Begin.Before(s.Begin) || e.Begin.Sub(s.End) > mergedGap {
		return false
	}
	s.count++
	if e.End.After(s.End) {
		s.End = e.End
	}
	if s.Peer != e.Peer {
		s.Peer = -1
	}
	return true
}

func (f *timelineFile) addAll(group string, events []runner.Event) {
	for _, s := range merged(events) {
		f.add(group, &s)
	}
}

func (f *timelineFile) add(group string, s *stage) {
	us := func(at time.Time) float64 { return float64(at.UnixNano()) / 1e3 }
	e := &s.Event
	one := TraceEvent{Name: e.Phase.String(), Category: group, Begin: us(e.Begin), Process: f.rank, Thread: e.Thread}
	number := strconv.FormatUint(e.Number, 10)
	if onThread(e) {
		f.name(e.Thread)
		duration := max(us(e.End)-one.Begin, 0)
		one.Phase, one.Duration = "X", &duration
		one.Args = map[string]any{"op": e.Kind.String() + " #" + number, "chunk": e.Chunk}
		if s.count > 1 {
			one.Args["count"] = s.count
		}
		if e.Peer >= 0 {
			one.Args["peer"] = e.Peer
		}
		f.write(one)
		return
	}
	name := e.Kind.String()
	one.ID = group + "/" + name + "/" + number
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
}

// name writes the name of a thread when it is called with that thread for the first time.
func (f *timelineFile) name(thread int) {
	if f.threads[thread] {
		return
	}
	f.threads[thread] = true
	name, err := os.ReadFile(filepath.Join("/proc/self/task", strconv.Itoa(thread), "comm"))
	if err != nil { // the thread has ended
		return
	}
	f.write(TraceEvent{Name: "thread_name", Phase: "M", Process: f.rank, Thread: thread,
		Args: map[string]any{"name": fmt.Sprintf("%s (%d)", strings.TrimSpace(string(name)), thread)}})
}
