package vendor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
)

// alone is a group of which a test needs nothing but goroutines.
var alone = Group{Guard: func(f func()) { f() }, Failed: func() bool { return false }}

// guarded is a group that notes what its goroutines panic with.
func guarded() (Group, <-chan any) {
	list := make(chan any, 10)
	return Group{Guard: func(f func()) {
		defer func() {
			if r := recover(); r != nil {
				list <- r
			}
		}()
		f()
	}}, list
}

// broken is a member all of whose methods panic.
type broken struct{ Member }

func (broken) State() (bool, error) { panic("state") }
func (broken) Release(func() bool)  {}
func (broken) Abort() bool          { panic("abort") }
func (broken) Destroy()             { panic("destroy") }
func (broken) Free()                { panic("free") }

// freed is a member that ends, and then panics.
type freed struct{ broken }

func (freed) Abort() bool { return true }
func (freed) Destroy()    {}

type brokenMemory struct{ device.Memory }

func (brokenMemory) Release() { panic("release") }

// A panic on a goroutine of an engine fails the group. It would end the process otherwise. Nobody waits for what has panicked.
func TestPanicsOfGoroutines(t *testing.T) {
	for name, c := range map[string]struct {
		member Member
		begin  func(c *communicator)
		want   any
	}{
		"the watch":               {broken{}, func(c *communicator) { c.engine.group.Go(c.watch) }, "state"},
		"an abort":                {broken{}, (*communicator).abort, "abort"},
		"an end in peace":         {broken{}, func(c *communicator) { c.end(c.destroy) }, "destroy"},
		"the end of a group":      {broken{}, (*communicator).close, "destroy"},
		"what is freed then":      {freed{}, (*communicator).close, "free"},
		"a join that failed":      {freed{}, (*communicator).forsake, "free"},
		"memory that is not used": {freed{}, func(c *communicator) { c.scratch.sweep(c.engine.group.Go) }, "release"},
	} {
		t.Run(name, func(t *testing.T) {
			group, panics := guarded()
			p := NewPool()
			at := &communicator{engine: New(nil, group, nil, nil, p, nil), joined: c.member, ended: make(chan struct{}), stop: make(chan struct{}),
				current: func(f func() error) error { return f() }}
			done, err := p.takeGate(newMemories(t), source{})
			require.NoError(t, err)
			carryOut(done)
			at.scratch.lent = []lent{{brokenMemory{}, done}}
			if name == "what is freed then" {
				at.scratch.lent = nil
			}
			c.begin(at)
			require.Equal(t, c.want, <-panics)
			p.Wait()
			require.Zero(t, p.ending.Load())
		})
	}
}

// A panic of a call is the error of the call, which the communicator reports, and no later call waits.
func TestPanicOfAThread(t *testing.T) {
	group, panics := guarded()
	thread := NewThread(group.Go, func() error { return nil })
	thread.Begin(func() error { panic("a call") })
	require.Equal(t, "a call", <-panics)
	<-thread.Over()
	_, err := thread.State()
	require.ErrorContains(t, err, "internal error: a call")
	for range 5 {
		thread.Begin(func() error { t.Error("a call after a panic"); return nil })
	}
	thread.Stop(nil)
}

// The abort of a communicator with graphs has a goroutine of its own.
func TestPanicOfAnAbortWithGraphs(t *testing.T) {
	group, panics := guarded()
	m, g := graphMember()
	m.group = group
	m.any.Store(true)
	close(g.aborted) // so that to close it again panics
	began := time.Now()
	require.False(t, m.Abort())
	require.GreaterOrEqual(t, time.Since(began), graphsBound)
	require.ErrorContains(t, (<-panics).(error), "close of closed channel")
}
