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

	mu      sync.Mutex // held while observers start and stop
	count   int        // of groups
	stop    chan struct{}
	running *sync.WaitGroup
	server  *statussock.Server
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
	if err := logTo(env.DebugFile.Get(s), rank); err != nil {
		Warn("%v; warnings go to standard error", err)
	}
	if o.count++; o.count > 1 {
		return
	}
	o.stop, o.running = make(chan struct{}), new(sync.WaitGroup)
	if env.Status.Get(s) {
		server, err := statussock.Serve(o.Status)
		if err == nil {
			o.server = server
		} else if env.Debug.Get(s) >= env.Info {
			Log("INFO", "`python -m sagecomm status` will not find this process: "+err.Error())
		}
	}
	if pattern := env.MetricsFile.Get(s); pattern != "" {
		o.keepMetrics(expand(pattern, rank), env.MetricsEvery.Get(s))
	}
	if pattern := env.TraceFile.Get(s); pattern != "" {
		o.keepTimeline(expand(pattern, rank), rank)
	}
	if number := env.FlightSignal.Get(s); number != 0 {
		o.dumpAtSignal(number)
	}
}

// Remove is called once for each Add, while the group can still be acquired. The last group stops the observers, which look
// at it once more. Where files go may hang, so Remove waits at most exitTimeout.
func (o *Observers) Remove(g Group) {
	o.TakeTimeline(g) // the last of several groups that are destroyed at once closes the file
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count--; o.count > 0 {
		return
	}
	close(o.stop)
	stopped := make(chan struct{})
	go func(running *sync.WaitGroup) {
		running.Wait()
		close(stopped)
	}(o.running)
	if !within(exitTimeout, stopped) {
		Warn("the last metrics, or the end of the timeline, are not written yet: the file system is slow")
	}
	if o.server != nil {
		o.server.Close()
	}
	o.server = nil
}

// Finish is called when the process ends. It waits at most exitTimeout for dumps that are being written.
func (o *Observers) Finish() {
	if !within(exitTimeout, o.dumps.written()) {
		Warn("the process ends while the flight recorder is dumped: the file system is slow")
	}
	FlushLog(lineTimeout)
}

// keepMetrics writes the metrics at once, again and again, and at the end.
func (o *Observers) keepMetrics(path string, every time.Duration) {
	stop := o.stop
	o.running.Go(func() {
		defer recoverFrom("the file of metrics")
		tick := time.NewTicker(every)
		defer tick.Stop()
		for stopped := false; ; {
			if err := replaceFile(path, o.Metrics()); err != nil {
				Warn("%s: %v", env.MetricsFile.Name(), err)
			}
			if stopped {
				return
			}
			select {
			case <-tick.C:
			case <-stop:
				stopped = true
			}
		}
	})
}

// dumpAtSignal dumps the flight recorder whenever the signal comes.
func (o *Observers) dumpAtSignal(number os.Signal) {
	stop, came := o.stop, make(chan os.Signal, 1)
	signal.Notify(came, number)
	o.running.Go(func() {
		defer signal.Stop(came)
		defer recoverFrom("a dump at a signal")
		for {
			select {
			case <-came:
				if err := o.Dump(""); err != nil {
					Warn("no dump at %v: %v", number, err)
				}
			case <-stop:
				return
			}
		}
	})
}
