package vendor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/staged"
)

// alone is a group of which a test needs nothing but goroutines.
var alone = Group{Guard: func(f func()) { f() }, Failed: func() bool { return false }, Cut: func() {}}

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
func (broken) Free(func(func()))    { panic("free") }

// unreleased is a member whose waits cannot be ended, and which is aborted nevertheless.
type unreleased struct {
	broken
	aborted chan struct{}
}

func (unreleased) Void() *uint32       { return nil }
func (unreleased) Release(func() bool) { panic("release") }
func (u unreleased) Abort() bool       { close(u.aborted); return true }
func (unreleased) Free(func(func()))   {}

// freed is a member that ends, and then panics.
type freed struct{ broken }

func (freed) Abort() bool { return true }
func (freed) Destroy()    {}

type brokenMemory struct{ device.Memory }

func (brokenMemory) Release() { panic("release") }

// A panic on a goroutine of an engine fails the group. It would end the process otherwise. Nobody waits for what has panicked: neither a process
// that ends, nor a goroutine.
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
			if at.ending.Load() {
				require.Equal(t, c.member == freed{}, at.awaitWhole())
			}
		})
	}
}

// A communicator whose waits cannot be ended is aborted all the same, and so are the others of its group.
func TestPanicOfARelease(t *testing.T) {
	group, panics := guarded()
	others := staged.New(nil, nil, 0, 2, staged.NewPool(), nil)
	e := New(nil, group, others, others, NewPool(), nil)
	e.group.Failed = func() bool { return true }
	var members [2]unreleased
	for i := range members {
		members[i].aborted = make(chan struct{})
		e.known[coll.Device{Index: i}] = &communicator{engine: e, joined: members[i], ended: make(chan struct{}), current: func(f func() error) error { return f() }}
	}
	e.Abort()
	for _, m := range members {
		require.Equal(t, "release", <-panics)
		<-m.aborted
	}
}

// joins is a method that joins with a member, or not at all.
type joins struct {
	Method
	member Member
	why    error
}

func (joins) Name() string                              { return "joins" }
func (joins) Compare(seats []Seat) []string             { return make([]string, len(seats)) }
func (j joins) Join(Joining) (m Member, why, err error) { return j.member, j.why, nil }

// A panic in a join leaves no member, and the caller has an error when the group has failed by it.
func TestPanicOfAJoin(t *testing.T) {
	group, panics := guarded()
	group.Exchange = func(_ string, mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }
	group.Timeout = func() time.Duration { return time.Minute }
	member := unreleased{aborted: make(chan struct{})}
	e := New(joins{member: member}, group, nil, nil, NewPool(), nil)
	m := &making{done: make(chan struct{})}
	c := &communicator{engine: e, ended: make(chan struct{}), current: func(f func() error) error { return f() }}
	e.group.Guard(func() { e.make(m, c, coll.Device{}, Seat{}, false) })
	require.Equal(t, "release", <-panics)
	require.Equal(t, "state", <-panics)
	<-member.aborted
	require.Nil(t, c.joined)
	require.Len(t, e.pool.streams[c.place], 1)
}

// A panic of a call makes the group fail. Then the call has an error, which the communicator reports, and no later call waits.
func TestPanicOfAThread(t *testing.T) {
	group, panics := guarded()
	recovered := make(chan struct{})
	guard := group.Guard
	group.Guard = func(f func()) { guard(f); <-recovered }
	thread := NewThread(group, func() error { return nil })
	thread.Begin(func() error { panic("a call") })
	require.Equal(t, "a call", <-panics)
	queued, err := thread.State()
	require.False(t, queued)
	require.NoError(t, err, "the group has not failed yet")
	close(recovered)
	<-thread.Over()
	_, err = thread.State()
	require.ErrorIs(t, err, errPanic)
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
