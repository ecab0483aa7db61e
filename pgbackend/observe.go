package pgbackend

import (
	"os"
	"os/signal"
	"sync"
	"time"

	"sagecomm/internal/env"
	"sagecomm/internal/status"
)

// observers show what the process's groups are doing to whoever wants to see it: the answer to `python -m sagecomm status`,
// the file of metrics, dumps at a signal. They are there while there is a group; the settings of the one that found none
// count.
type observers struct {
	mu     sync.Mutex
	groups int
	stop   chan struct{}
	ended  *sync.WaitGroup // those that are at work
	server *status.Server
}

// observe begins, unless it has for another group.
func (p *Process) observe(g *Group) {
	o := &p.observers
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := logTo(env.DebugFile.Get(g.settings), g.globalRank(g.rank)); err != nil {
		p.warn("%v; warnings go to standard error", err)
	}
	if o.groups++; o.groups > 1 {
		return
	}
	o.stop, o.ended = make(chan struct{}), new(sync.WaitGroup)
	if env.Status.Get(g.settings) {
		server, err := status.Serve(p.Status)
		if err != nil {
			g.info("`python -m sagecomm status` will not find this process: %v", err)
		} else {
			o.server = server
		}
	}
	if pattern := env.MetricsFile.Get(g.settings); pattern != "" {
		p.everyNow(expand(pattern, g.globalRank(g.rank)), env.MetricsEvery.Get(g.settings), o.ended, o.stop)
	}
	if pattern := env.TraceFile.Get(g.settings); pattern != "" {
		rank := g.globalRank(g.rank)
		p.keepTimeline(expand(pattern, rank), rank, o.ended, o.stop)
	}
	if number := env.FlightSignal.Get(g.settings); number != 0 {
		p.dumpAt(number, o.ended, o.stop)
	}
}

// unobserve is called once for each observe, when a group is about to go. With the last one it ends, and that group is still
// there for a last look. Where files go may hang, so it does not wait for ever.
func (p *Process) unobserve() {
	o := &p.observers
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.groups--; o.groups > 0 {
		return
	}
	close(o.stop)
	ended := make(chan struct{})
	go func(all *sync.WaitGroup) {
		all.Wait()
		close(ended)
	}(o.ended)
	select {
	case <-ended:
	case <-time.After(exitTimeout):
		p.warn("the last metrics, or the end of the timeline, are not written yet: the file system is slow")
	}
	if o.server != nil {
		o.server.Close()
	}
	o.server = nil
}

// everyNow writes the metrics at once, again and again, and at the end.
func (p *Process) everyNow(path string, every time.Duration, all *sync.WaitGroup, stop <-chan struct{}) {
	all.Go(func() {
		defer recoverFrom("the file of metrics")
		tick := time.NewTicker(every)
		defer tick.Stop()
		for stopped := false; ; {
			if err := replaceFile(path, p.Metrics()); err != nil {
				p.warn("%s: %v", env.MetricsFile.Name(), err)
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

// dumpAt dumps the flight recorder whenever the signal comes.
func (p *Process) dumpAt(number os.Signal, all *sync.WaitGroup, stop <-chan struct{}) {
	came := make(chan os.Signal, 1)
	signal.Notify(came, number)
	all.Go(func() {
		defer signal.Stop(came)
		defer recoverFrom("a dump at a signal")
		for {
			select {
			case <-came:
				if err := p.Dump(""); err != nil {
					p.warn("no dump at %v: %v", number, err)
				}
			case <-stop:
				return
			}
		}
	})
}
