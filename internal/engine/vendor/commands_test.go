package vendor

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/runner"
)

// commands is a device, and a member on it, that note what is queued.
type commands struct {
	device.Launcher
	Member
	gate  use
	fails int // which command fails, from 1
	list  []string
	next  uint64
}

var errCommand = errors.New("refused")

func (c *commands) add(format string, of ...any) error {
	c.list = append(c.list, fmt.Sprintf(format, of...))
	if len(c.list) == c.fails {
		return errCommand
	}
	return nil
}

func (c *commands) Name() string { return "commands" }
func (c *commands) NewStream(device.Role) (device.Stream, error) {
	c.next++
	return device.Stream{Handle: uintptr(c.next)}, nil
}
func (c *commands) Handle(s device.Stream) (uintptr, error) { return s.Handle, nil }
func (c *commands) Fork(s device.Stream) error              { return c.add("fork %d", s.Handle) }
func (c *commands) Join(s device.Stream) error              { return c.add("join %d", s.Handle) }
func (c *commands) Order(first, then device.Stream) error {
	return c.add("%d waits for %d", then.Handle, first.Handle)
}
func (c *commands) WriteValue(s device.Stream, word *uint32, value uint32) error {
	name := map[unsafe.Pointer]string{unsafe.Pointer(c.gate.InputReady()): "input_ready", unsafe.Pointer(c.gate.OutputTaken()): "output_taken"}
	return c.add("%s = %d in %d", name[unsafe.Pointer(word)], value, s.Handle)
}
func (c *commands) Do(_ coll.Op, _ Buffers, stream uintptr) error {
	return c.add("kernels in %d", stream)
}
func (c *commands) State() (bool, error) { return true, nil }

// The stream of a communicator comes behind the caller's and behind what went through the staged engine, then tells that it has reached the
// operation. Whoever waits comes behind the kernels, and then the stream tells that they are done. After an error nothing else is queued.
func TestCommandsOfAnOperation(t *testing.T) {
	on := coll.Device{Type: coll.CUDA}
	issue := func(fails int) (list []string, err error) {
		m := &commands{fails: fails}
		c, gate := communicatorOn(t, NewPool(), m)
		c.engine.method = Calls(nil)
		require.NoError(t, c.engine.ComeBehind(&commands{}, on, c.stream)) // streams 1 and 2
		m.gate = gate
		err = c.engine.enqueue(c, m, m, gate, runner.CallOf(coll.Op{Kind: coll.AllReduce}), coll.Op{Kind: coll.AllReduce, Device: on})
		return m.list, err
	}
	want := []string{"fork 7", "7 waits for 2", "input_ready = 1 in 7", "kernels in 7", "join 7", "output_taken = 1 in 7"}
	list, err := issue(0)
	require.NoError(t, err)
	require.Equal(t, want, list)
	for n := range want {
		list, err := issue(n + 1)
		require.ErrorIs(t, err, errCommand)
		require.Equal(t, want[:n+1], list)
	}
}

// The waits of a stream end also while a call is blocked in the driver, whose stream is full until they do. The call that ends the communicator
// comes behind it.
func TestWaitsEndBesideACallThatIsBlocked(t *testing.T) {
	m := &noted{whole: true}
	c, _ := communicatorOn(t, NewPool(), m)
	c.mu.Lock() // the call
	c.abort()
	require.Equal(t, []string{"release"}, m.called())
	c.mu.Unlock()
	require.True(t, c.awaitWhole())
	require.Equal(t, []string{"release", "abort"}, m.called())
}

// queueing is a member whose library may still queue commands.
type queueing struct{ *noted }

func (queueing) Settled() bool { return false }

// Where the library of an operation that has failed may queue commands at any time, its stream tells nobody that the operation is done, and neither
// the stream nor the buffers go to others. The caller does not wait for long.
func TestAnOperationWhoseLibraryIsNotThrough(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := &noted{whole: true}
			c, last := communicatorOn(t, NewPool(), queueing{m})
			c.engine.group.Fail = func(error) { m.note("down") }
			c.engine.group.Warn = func(err error) { require.ErrorContains(t, err, "Do not free the buffers"); m.note("warning") }
			o := ordering{of: m}
			began, bound, err := time.Now(), settleBound, errCommand
			if interrupted {
				bound, err = interruptedBound, ErrInterrupted
			}
			c.engine.method = joins{}
			c.engine.fail(c, o, o, last, runner.CallOf(coll.Op{}), coll.Op{Kind: coll.AllReduce}, err)
			require.InDelta(t, bound, time.Since(began), float64(bound)/10)
			<-c.ended
			calls := slices.DeleteFunc(m.called(), func(call string) bool { return call == "abort" }) // on another goroutine
			require.Equal(t, []string{"down", "release", "warning", "join"}, calls)
			require.True(t, c.kept.Load())
			c.close()
			synctest.Wait()
			require.Empty(t, c.engine.pool.streams)
		})
	}
}

// elsewhere is an engine that carries out collectives on devices where the ranks do without the method.
type elsewhere struct {
	engine.Engine
	calls []string
}

func (e *elsewhere) Abort() { e.calls = append(e.calls, "abort") }
func (e *elsewhere) Close() { e.calls = append(e.calls, "close") }

// The end of a group is that of its communicators on all devices, and of the engine that carries out operations on others.
func TestTheEndOfAGroupOnSeveralDevices(t *testing.T) {
	for _, aborts := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p, other := NewPool(), &elsewhere{}
			group := alone
			group.Failed = func() bool { return aborts }
			others := staged.New(nil, nil, 0, 2, staged.NewPool(), nil)
			e := New(nil, group, others, other, p, nil)
			var members [3]*noted
			e.known[coll.Device{Index: 9}] = &communicator{engine: e} // the ranks do without the library there
			for i := range members {
				members[i] = &noted{whole: true}
				e.known[coll.Device{Index: i}] = &communicator{engine: e, joined: members[i], ended: make(chan struct{}), stop: make(chan struct{}),
					place: place{device: coll.Device{Index: i}}, current: func(f func() error) error { return f() }}
			}
			e.Abort()
			require.Equal(t, []string{"abort"}, other.calls)
			select {
			case <-e.gone:
			default:
				t.Error("calls that wait for a communicator go on")
			}
			e.Abort() // by another thread
			e.Close()
			require.Equal(t, []string{"abort", "abort", "close"}, other.calls)
			require.Empty(t, e.known)
			synctest.Wait()
			want := []string{"destroy", "free"}
			if aborts {
				want = []string{"release", "abort", "free"}
			}
			for i, m := range members {
				require.Equal(t, want, m.called())
				_, given := p.givenStream(place{device: coll.Device{Index: i}})
				require.True(t, given)
			}
		})
	}
}

// silent is a device whose driver does not tell when graphs end.
type silent struct {
	device.Capturer
	counts graphsOf
	marks  notes
}

func (s *silent) CaptureOf(device.Stream) (uint64, error) { return 1, nil }
func (s *silent) NewGraphCount() device.GraphCount        { return &s.counts }
func (s *silent) NewMark() (device.Mark, error)           { return &s.marks, nil }

// captured is a member that looks whether graphs count while a capture gets its operation.
type captured struct {
	Member
	on   device.Capturer
	look func()
}

func (c captured) Device() device.Capturer { return c.on }
func (c captured) State() (bool, error)    { return true, nil }
func (c captured) Capture(coll.Op, Buffers, device.Stream, uint64) (bool, error) {
	c.look()
	return false, errNotConnected
}

// A graph may have operations from the moment when its capture gets the first one, also where the driver does not tell when graphs end, and none
// if it got nothing.
func TestGraphsCountDuringTheCapture(t *testing.T) {
	c, _ := communicatorOn(t, NewPool(), nil)
	looks := 0
	m := captured{on: &silent{counts: graphsOf{untold: errCommand}}, look: func() {
		looks++
		require.True(t, c.hasGraphs())
	}}
	c.joined = m
	op := coll.Op{Kind: coll.AllReduce}
	begun, err := c.engine.capture(c, m, device.Stream{}, runner.CallOf(op), op)
	require.False(t, begun)
	require.ErrorIs(t, err, errNotConnected)
	require.Equal(t, 1, looks)
	require.False(t, c.hasGraphs())
}

// slowJoin is a method whose join takes until a test lets it go on.
type slowJoin struct {
	joins
	goOn chan struct{}
	made int
}

func (s *slowJoin) Vendor() string                { return "test" }
func (s *slowJoin) Seat(*Seat, coll.Device) error { return nil }
func (s *slowJoin) Join(j Joining) (m Member, why, err error) {
	s.made++
	<-s.goOn
	return s.joins.Join(j)
}

// seated is a device on which a communicator can be made.
type seated struct {
	device.Launcher
	device.Ordering
}

func (seated) Name() string                                 { return "seated" }
func (seated) Vendor() string                               { return "test" }
func (seated) Identity() (string, error)                    { return "it", nil }
func (seated) NewStream(device.Role) (device.Stream, error) { return device.Stream{Handle: 1}, nil }
func (seated) Current(f func() error) error                 { return f() }

// Threads that make the first calls on a device at the same time make one communicator. It is known when they go on.
func TestFirstCallsMakeOneCommunicator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &noted{whole: true}
		method, group := &slowJoin{joins: joins{member: m}, goOn: make(chan struct{})}, alone
		group.Exchange = func(_ string, mine []byte) ([][]byte, error) { return [][]byte{mine}, nil }
		group.Settled = func([]string, bool) error { return nil }
		group.Timeout = func() time.Duration { return time.Minute }
		others := staged.New(nil, nil, 0, 1, staged.NewPool(), nil)
		e := New(method, group, others, others, NewPool(), nil)
		on := coll.Device{Index: 3}
		first := e.makingOn(on, seated{})
		synctest.Wait()
		require.Same(t, first, e.makingOn(on, seated{}))
		require.Nil(t, e.communicatorOf(on))
		close(method.goOn)
		<-first.done
		require.NoError(t, first.err)
		require.Same(t, first.c, e.communicatorOf(on))
		require.Same(t, first, e.makingOn(on, seated{})) // of a call that has looked for the communicator before
		synctest.Wait()
		require.Equal(t, 1, method.made)
		e.Abort()
		e.Close()
	})
}
