package observe

import (
	"os"
	"os/signal"
	"sync"
	"time"

	"sagecomm/internal/env"
	"sagecomm/internal/statussock"
)

// Observers show what the groups of one process are doing: they answer `python -m sagecomm status`, write the file of metrics
// and the timeline, and dump the flight recorder at a signal and when groups fail. Those that run all the time are there
// while there is a group; the settings of the first group count.
type Observers struct {
	groups   func() []Group
	dumps    dumper
	timeline timeline

	mu     sync.Mutex // held while observers start and stop
	count  int        // of groups
	now    *watch     // nil: there is no group
	server *statussock.Server
}

// watch is the time from the first group to the last, with the goroutines that run meanwhile.
type watch struct {
	metrics string        // path of the file; "": none
	stop    chan struct{} // closed when the last group is destroyed
	last    []byte        // the last metrics; they do not change once stop is closed
	running sync.WaitGroup
}

// New makes the observers of a process. groups returns its groups in the order of their creation, each acquired; whoever
// calls it releases them.
func New(groups func() []Group) *Observers { return &Observers{groups: groups} }

// exitTimeout bounds how long the end of the last group, or of the process, waits for files. Tests make it shorter.
var exitTimeout = 5 * time.Second

// Add is called once for each group, before the process shows the group to others. The first group starts the observers.
func (o *Observers) Add(g Group) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h, s := g.Header(), g.Settings()
	rank := h.GlobalRank(h.Rank)
	logTo(env.DebugFile.Get(s), rank)
	if o.count++; o.count > 1 {
		return
	}
	o.now = &watch{stop: make(chan struct{})}
	if env.Status.Get(s) {
		server, err := statussock.Serve(o.Status)
		if err == nil {
			o.server = server
		} else if env.Debug.Get(s) >= env.Info {
			Log("INFO", "`python -m sagecomm status` will not find this process: "+err.Error())
		}
	}
	if pattern := env.MetricsFile.Get(s); pattern != "" {
		o.now.metrics = expand(pattern, rank)
		o.keepMetrics(env.MetricsEvery.Get(s))
	}
	if pattern := env.TraceFile.Get(s); pattern != "" {
		o.keepTimeline(expand(pattern, rank), rank)
	}
	if number := env.FlightSignal.Get(s); number != 0 {
		o.dumpAtSignal(number)
	}
}

// Remove is called once for each Add, while the group can still be acquired. With the last group the observers stop: they look
// at it once more and write their files to the end. Remove waits for no file; the function that it returns does, for exitTimeout
// at most, because where files go may hang.
func (o *Observers) Remove(g Group) (wait func()) {
	o.TakeTimeline(g) // the last of several groups that are destroyed at once closes the file
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count--; o.count > 0 {
		return func() {}
	}
	w := o.now
	o.now = nil
	if w.metrics != "" {
		w.last = o.Metrics()
	}
	close(w.stop)
	if o.server != nil {
		o.server.Close()
	}
	o.server = nil
	return w.wait
}

// wait returns when the files are written, or after exitTimeout.
func (w *watch) wait() {
	stopped := make(chan struct{})
	go func() {
		w.running.Wait()
		close(stopped)
	}()
	if !within(exitTimeout, stopped) {
		Warn("the last metrics, or the end of the timeline, are not written yet: the file system is slow")
	}
}

// Finish is called when the process ends. It waits at most exitTimeout for dumps that are being written.
func (o *Observers) Finish() {
	if !within(exitTimeout, o.dumps.written()) {
		Warn("the process ends while the flight recorder is dumped: the file system is slow")
	}
	FlushLog(lineTimeout)
}

// keepMetrics writes the metrics at once, again and again, and at the end.
func (o *Observers) keepMetrics(every time.Duration) {
	w := o.now
	w.running.Go(func() {
		defer recoverFrom("the file of metrics")
		tick := time.NewTicker(every)
		defer tick.Stop()
		write := func(text []byte) {
			if err := replaceFile(w.metrics, text); err != nil {
				Warn("%s: %v", env.MetricsFile.Name(), err)
			}
		}
		for {
			write(o.Metrics())
			select {
			case <-tick.C:
			case <-w.stop:
				write(w.last)
				return
			}
		}
	})
}

// dumpAtSignal dumps the flight recorder whenever the signal comes.
func (o *Observers) dumpAtSignal(number os.Signal) {
	w, came := o.now, make(chan os.Signal, 1)
	signal.Notify(came, number)
	w.running.Go(func() {
		defer signal.Stop(came)
		defer recoverFrom("a dump at a signal")
		for {
			select {
			case <-came:
				if err := o.Dump(""); err != nil {
					Warn("no dump at %v: %v", number, err)
				}
			case <-w.stop:
				return
			}
		}
	})
}
