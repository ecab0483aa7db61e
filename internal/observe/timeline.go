package observe

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"time"

	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// timeline is the file of SAGECOMM_TRACE: a Chrome trace (the "JSON Array Format" of the Trace Event Format), which
// chrome://tracing and Perfetto read, also while it is not finished. A rank is a process in it, so that the arrays of several
// ranks can be put together; a thread is a row with the stages that it carried out; an operation is an asynchronous event
// from its issue to its end, because one thread may begin it and another one complete it.
//
// One goroutine writes the file, and holds neither a lock nor a group meanwhile: where files go may hang.
type timeline struct {
	mu    sync.Mutex
	now   *timelineFile // nil: none
	files int           // begun so far
}

// traceEvery is how often events are taken out of the groups, which have room for 16,384 events of collectives and as many
// of p2p operations each.
const traceEvery = 50 * time.Millisecond

// TakeTimeline adds what a group has done since the last call to the timeline. Requires: the group is acquired, or is being
// destroyed and not closed yet.
func (o *Observers) TakeTimeline(g Group) {
	t := &o.timeline
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil || env.TraceFile.Get(g.Settings()) == "" {
		return
	}
	for _, lane := range g.Lanes() {
		events, dropped := lane.Run.TakeTrace()
		t.now.dropped += dropped
		name := g.Header().Group
		if lane.Number == runner.DeviceLane { // its operations have numbers of their own
			name += deviceSuffix
		}
		t.now.addAll(name, events)
	}
}

// keepTimeline writes the file until the observers stop.
func (o *Observers) keepTimeline(path string, rank int) {
	t, w := &o.timeline, o.now
	t.mu.Lock()
	if t.files++; t.files > 1 { // a process that makes groups again keeps what it wrote before
		path = fmt.Sprintf("%s.%d", path, t.files)
	}
	now := newTimelineFile(rank)
	t.now = now
	t.mu.Unlock()
	w.running.Go(func() {
		defer recoverFrom("the timeline")
		file, err := os.Create(path)
		tick := time.NewTicker(traceEvery)
		defer tick.Stop()
		for stopped := false; err == nil && !stopped; {
			select {
			case <-tick.C:
			case <-w.stop:
				stopped = true
			}
			groups := o.groups()
			for _, g := range groups {
				o.TakeTimeline(g)
			}
			releaseAll(groups)
			_, err = file.Write(t.pending(now, stopped))
		}
		if file != nil {
			err = cmp.Or(err, file.Close())
		}
		if err != nil {
			t.pending(now, true)
			Warn("%s: %v", env.TraceFile.Name(), err)
		}
	})
}

// pending returns the text that is to be written next, with the end of the array if it is the last; then the file takes no
// more events.
func (t *timeline) pending(f *timelineFile, last bool) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last {
		if t.now == f {
			t.now = nil
		}
		f.end()
	}
	return f.take()
}
