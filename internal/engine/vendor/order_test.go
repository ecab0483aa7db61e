package vendor

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/runner"
)

// noted is a member whose calls are noted.
type noted struct {
	Member
	whole bool    // what Abort returns
	void  *uint32 // what Void returns
	mu    sync.Mutex
	calls []string
}

func (n *noted) note(call string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call)
}

func (n *noted) called() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.calls)
}

func (n *noted) Void() *uint32       { return n.void }
func (n *noted) Release(func() bool) { n.note("release") }
func (n *noted) Abort() bool         { n.note("abort"); return n.whole }
func (n *noted) Destroy()            { n.note("destroy") }
func (n *noted) Free(func(func()))   { n.note("free") }

// communicatorOn returns a communicator whose last operation is under way.
func communicatorOn(t *testing.T, p *Pool, m Member) (c *communicator, last use) {
	others := staged.New(nil, nil, 0, 2, staged.NewPool(), nil)
	c = &communicator{engine: New(nil, alone, others, others, p, nil), joined: m, ended: make(chan struct{}), stop: make(chan struct{}),
		stream: device.Stream{Handle: 7}, current: func(f func() error) error { return f() }}
	last, err := p.takeGate(newMemories(t), source{})
	require.NoError(t, err)
	c.last.Store(&last)
	return c, last
}

// A gate is in use until its run has ended, too: who drives the run has yet to read the words.
func TestGatesOfRunsThatNobodyHasSeenEnd(t *testing.T) {
	p, rt := NewPool(), newMemories(t)
	var last use
	for range slabBytes / runner.GateBytes {
		var err error
		last, err = p.takeGate(rt, source{})
		require.NoError(t, err)
		atomic.StoreUint32(last.InputReady(), 1)
		atomic.StoreUint32(last.OutputTaken(), 1)
	}
	_, idle := p.idleGate(source{}, nil)
	require.False(t, idle)
	last.Open()
	again, idle := p.idleGate(source{}, nil)
	require.True(t, idle)
	require.Same(t, last.gate, again.gate)
}

// The time at which an earlier operation would have timed out is not that of a later one with its gate, which has no number yet.
func TestGatesForgetTimeouts(t *testing.T) {
	p, rt := NewPool(), newMemories(t)
	for range slabBytes / runner.GateBytes {
		u, err := p.takeGate(rt, source{})
		require.NoError(t, err)
		p.limit(5, u, time.Now())
		carryOut(u)
	}
	u, err := p.takeGate(rt, source{}) // the words of the gate are 0 again
	require.NoError(t, err)
	_, has := p.firstTimeout(5)
	require.False(t, has)
	p.limit(5, u, time.Now())
	_, has = p.firstTimeout(5)
	require.True(t, has)
}

// Once the end of a communicator has begun, no call is made, and none waits for the end: neither one that was about to begin, nor one that
// waits for another call.
func TestCallsBesideTheEnd(t *testing.T) {
	c, _ := communicatorOn(t, NewPool(), &noted{})
	called := false
	call := func() error { called = true; return nil }
	c.current = func(f func() error) error { c.ending.Store(true); return f() }
	require.ErrorIs(t, c.with(call), errEnding)
	require.False(t, called)

	synctest.Test(t, func(t *testing.T) {
		c, _ := communicatorOn(t, NewPool(), &noted{})
		var over atomic.Bool
		c.mu.Lock() // another call
		go func() {
			require.ErrorIs(t, c.with(call), errEnding)
			over.Store(true)
		}()
		time.Sleep(time.Millisecond)
		require.False(t, over.Load())
		c.ending.Store(true)
		time.Sleep(time.Millisecond)
		require.True(t, over.Load(), "it waits for the end")
		c.mu.Unlock()
		require.False(t, called)
	})
}

// The call that ends a communicator comes behind all others.
func TestTheEndComesBehindCalls(t *testing.T) {
	c, _ := communicatorOn(t, NewPool(), &noted{})
	alone := false
	c.end(func() bool {
		alone = !c.mu.TryLock()
		return true
	})
	require.True(t, c.awaitWhole())
	require.True(t, alone, "another call could begin")
}

// A communicator of a group that is down ends in peace if its stream is through and the group has not failed. Else it is aborted. Of operations that
// are under way the peers are told before.
func TestTheEndOfAGroupThatIsDown(t *testing.T) {
	for _, failed := range []bool{false, true} {
		for _, idle := range []bool{false, true} {
			for _, void := range []*uint32{nil, new(uint32)} {
				m := &noted{whole: true, void: void}
				c, last := communicatorOn(t, NewPool(), m)
				c.engine.group.Failed = func() bool { return failed }
				c.engine.group.Cut = func() { m.note("cut") }
				if idle {
					carryOut(last)
				}
				c.down()
				<-c.ended
				want := []string{"release", "abort"}
				switch {
				case !idle:
					want = []string{"cut", "release", "abort"}
				case idle && !failed:
					want = []string{"destroy"}
				}
				require.Equal(t, want, m.called(), "idle %v, failed %v, a word %v", idle, failed, void != nil)
				c.down() // the end has begun
				require.Equal(t, want, m.called())
			}
		}
	}
}

// The memory of a closed communicator is given back behind the last operation, and stays for good with kernels that cannot be ended.
func TestMemoryOfAClosedCommunicator(t *testing.T) {
	for _, whole := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p, rt, m := NewPool(), newMemories(t), &noted{whole: whole}
			c, last := communicatorOn(t, p, m)
			at, err := c.scratch.take(rt, 100, true, last)
			require.NoError(t, err)
			c.abort()
			<-c.ended
			c.close()
			time.Sleep(time.Minute)
			require.True(t, rt.has(at))
			require.Equal(t, []string{"release", "abort"}, m.called())
			carryOut(last)
			time.Sleep(time.Minute)
			_, given := p.givenStream(place{})
			require.Equal(t, whole, given)
			require.Equal(t, !whole, rt.has(at))
			require.Equal(t, whole, slices.Contains(m.called(), "free"))
		})
	}
}

// What a member has of its peers stays as well where the abort of a join that has failed cannot end it.
func TestAJoinThatCannotBeEnded(t *testing.T) {
	for _, whole := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := &noted{whole: whole}
			c, _ := communicatorOn(t, NewPool(), m)
			c.forsake()
			<-c.ended
			synctest.Wait()
			require.Equal(t, whole, slices.Contains(m.called(), "free"))
			require.Nil(t, c.joined)
		})
	}
}

// What a member has of its peers stays until the graphs are gone that use it.
func TestWhatGraphsUseOfPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &noted{}
		c, last := communicatorOn(t, NewPool(), m)
		carryOut(last)
		r := &roomy{left: map[uintptr]bool{}, graphsOf: graphsOf{number: 1}}
		_, err := c.counting(r, device.Stream{}, 1, func() (bool, error) { return true, nil })
		require.NoError(t, err)
		c.close()
		<-c.ended
		time.Sleep(time.Minute)
		require.NotContains(t, m.called(), "free")
		r.live.Store(0)
		time.Sleep(time.Minute)
		require.Contains(t, m.called(), "free")
	})
}

// ordering is a device that notes what is queued.
type ordering struct {
	device.Launcher
	of *noted
}

func (o ordering) Join(device.Stream) error { o.of.note("join"); return nil }
func (o ordering) Fork(device.Stream) error { o.of.note("fork"); return nil }
func (o ordering) WriteValue(device.Stream, *uint32, uint32) error {
	o.of.note("write")
	return nil
}

func (n *noted) Settled() bool { n.note("settled"); return true }

// An operation that has failed ends behind what the library may queue for it, and whoever waits for it comes behind its end. Its group is down by
// then.
func TestTheEndOfAnOperationThatHasFailed(t *testing.T) {
	m := &noted{whole: true}
	c, last := communicatorOn(t, NewPool(), m)
	c.engine.group.Fail = func(error) { m.note("down") }
	o := ordering{of: m}
	c.engine.fail(c, o, o, last, runner.Call{}, coll.Op{}, ErrInterrupted)
	<-c.ended
	calls := slices.DeleteFunc(m.called(), func(call string) bool { return call == "abort" }) // on another goroutine
	require.Equal(t, []string{"down", "release", "settled", "write", "write", "join"}, calls)
}

// late is a method of a member that joins when the group has just gone down.
type late struct {
	joins
	down func()
}

func (l late) Join(j Joining) (m Member, why, err error) {
	l.down()
	return l.joins.Join(j)
}

func (n *noted) State() (bool, error) { return true, nil }

// A communicator that is made while the group goes down, which does not know it yet, is aborted.
func TestACommunicatorThatTheEndOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, group := &noted{whole: true}, alone
		group.Exchange = func(_ string, mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }
		group.Timeout = func() time.Duration { return time.Minute }
		group.Settled = func([]string, bool) error { return nil }
		var e *Engine
		others := staged.New(nil, nil, 0, 1, staged.NewPool(), nil)
		e = New(late{joins{member: m}, func() { e.goDown() }}, group, others, others, NewPool(), nil)
		c := &communicator{engine: e, ended: make(chan struct{}), stop: make(chan struct{}), current: func(f func() error) error { return f() }}
		e.make(&making{done: make(chan struct{})}, c, coll.Device{}, Seat{}, false)
		synctest.Wait()
		require.Equal(t, []string{"release", "abort"}, m.called())
		close(c.stop)
	})
}

// asking is a communicator that asks whether a graph may have its kernels while it queues them, and fails.
type asking struct {
	Communicator
	of   func() bool
	told bool
}

func (a *asking) Do([]Call, uintptr) error { a.told = a.of(); return errNotConnected }

// A graph may have kernels from the moment when the library may queue the first one, also if it fails in that call.
func TestGraphsCountFromTheFirstKernel(t *testing.T) {
	m, _ := graphMember()
	a := &asking{of: m.graphs}
	m.Communicator = a
	sum := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, In: 8, Out: 8}
	m.connected[connection{AllReduce, -1}] = true
	begun, err := m.Capture(sum, Buffers{}, device.Stream{}, 1)
	require.ErrorIs(t, err, errNotConnected)
	require.True(t, begun)
	require.True(t, a.told)
	require.True(t, m.graphs())
}
