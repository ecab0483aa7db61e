package pgbackend

import (
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/runner"
)

// slowMethod is a method whose early calls wait for the device.
type slowMethod struct {
	vendor.Method
	begun, idle chan struct{} // a thread makes the calls; the device is idle, from when it is closed
}

func (slowMethod) Name() string { return "nccl" }

func (m slowMethod) Early(coll.Device) {
	select {
	case m.begun <- struct{}{}:
	case <-m.idle:
	}
	<-m.idle
}

// Early calls that wait for the device keep each caller of a p2p operation from it, and not only the first one: a call
// of the driver would wait where no signal handler runs, and an abort does not end it.
func TestEarlyCallsKeepEachCaller(t *testing.T) {
	m := slowMethod{begun: make(chan struct{}), idle: make(chan struct{})}
	testEngines(t, nil)
	deviceEngines["nccl"] = registeredEngine{
		absent: func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			others := g.stagedEngine(run)
			return g.vendorEngine(m, run, others, others), nil
		},
	}
	useNewPool(t)
	devices := fakeDevices(t, 2, 51, true)
	type issued struct {
		deviceWork
		failure *coll.Failure
	}
	newWorld(t, 2).each(func(g *Group) error {
		d, peer, over := devices[g.rank], 1-g.rank, make(chan issued, 2)
		if g.rank == 1 {
			<-m.idle
		}
		for _, issue := range []func() (deviceWork, *coll.Failure){
			func() (deviceWork, *coll.Failure) { return sendOn(g, d, peer, 0, payload(g.rank, peer, 0, 100)) },
			func() (deviceWork, *coll.Failure) { w, _, f := recvOn(g, d, peer, 0, 100); return w, f },
		} {
			go func() {
				w, f := issue()
				over <- issued{w, f}
			}()
			if g.rank == 1 {
				continue
			}
			select {
			case <-m.begun: // the caller waits for these calls as well
			case i := <-over:
				t.Errorf("a call does not wait for early calls that are under way")
				over <- i
			}
		}
		if g.rank == 0 {
			close(m.idle)
		}
		for range cap(over) {
			i := <-over
			if i.failure == nil {
				i.failure = i.finish()
			}
			if i.failure != nil {
				return i.failure
			}
		}
		return nil
	})
}
