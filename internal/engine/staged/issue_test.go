package staged

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/runner"
)

var errDown = errors.New("the group is down")

// An operation is numbered behind the last of its commands and while no other thread can queue any: the streams have operations in the order of
// their numbers. Its outputs are those of an earlier operation from then on, and not if it was refused, when its gate is open.
func TestOperationsAreNumberedBehindTheirCommands(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	one := side{moved: true, units: 1, blocks: 1, pieces: []piece{{device: 1 << 20, bytes: 8}}}
	var words *runner.GateWords
	issue := func(refused error) error {
		c.behind = map[device.Stream][]device.Stream{}
		l := layout{stride: 1, in: one, out: one, bytes: 64}
		return e.issueCollective(c, coll.Op{Device: on.device}, &l, func(gate runner.Gate) error {
			require.False(t, e.issuing.TryLock(), "another thread could queue commands")
			s := e.streams[on]
			require.Equal(t, 2, c.queued[s.in], "copy and flag")
			require.Equal(t, 4, c.queued[s.out], "two waits, copy and flag")
			clear(c.queued)
			words = gate.Words
			require.False(t, words.Opened())
			return refused
		})
	}
	require.ErrorIs(t, issue(errDown), errDown)
	require.True(t, words.Opened())
	require.Empty(t, c.behind)
	require.NoError(t, issue(nil))
	require.Empty(t, c.behind, "the refused operation writes nothing")
	require.False(t, words.Opened())
	require.NoError(t, issue(nil))
	s := e.streams[on]
	require.Equal(t, map[device.Stream][]device.Stream{s.in: {s.out}}, c.behind)
	require.True(t, e.issuing.TryLock())
	e.issuing.Unlock()
}

// So is a p2p operation.
func TestP2PIsPostedBehindItsCommands(t *testing.T) {
	c := framed{newCounting()}
	on := place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	for _, op := range []coll.Op{{Kind: coll.Recv, Device: on.device, Root: 1}, {Kind: coll.Recv, Device: on.device, Root: 1, Tag: 1}, {Kind: coll.Send, Device: on.device, Root: 1}} {
		l, posted := oneUnit(), false
		clear(c.queued)
		require.NoError(t, e.issueInRoom(c, op, &l, func(runner.Gate) error {
			posted = true
			require.False(t, e.issuing.TryLock(), "another thread could queue commands")
			n := 0
			for _, queued := range c.queued {
				n += queued
			}
			require.NotZero(t, n)
			return nil
		}))
		require.True(t, posted)
	}
}

// While an operation is issued, no operation of another group gets its pinned memory, whose words are 0 until its first command is noted.
func TestMemoryOfAnOperationThatIsIssued(t *testing.T) {
	c := framed{newCounting()}
	on := coll.Device{Type: coll.CUDA}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	inRoom := func(op coll.Op, l *layout, post func(runner.Gate) error) error { return e.issueInRoom(c, op, l, post) }
	for _, one := range []struct {
		name, runtime string
		op            coll.Op
		issue         func(op coll.Op, l *layout, post func(runner.Gate) error) error
	}{
		{"a collective", "counting", coll.Op{Kind: coll.AllReduce}, func(op coll.Op, l *layout, post func(runner.Gate) error) error {
			return e.issueCollective(c, op, l, post)
		}},
		{"a send", "counting", coll.Op{Kind: coll.Send, Root: 1}, inRoom},
		{"a recv", "counting", coll.Op{Kind: coll.Recv, Root: 1}, inRoom},
		{"a recv with a tag", "deferring", coll.Op{Kind: coll.Recv, Root: 1, Tag: 1}, inRoom},
	} {
		l, others := oneUnit(), []*block(nil)
		one.op.Device, l.bytes = on, 64
		c.start = func() { // another thread issues an operation of its group
			other, err := e.pool.acquire(c, source{on.Type, one.runtime}, l.bytes)
			require.NoError(t, err)
			others = append(others, other)
		}
		require.NoError(t, one.issue(one.op, &l, func(gate runner.Gate) error {
			require.Len(t, others, 1, one.name)
			require.False(t, gate.Words == others[0].words, one.name) // NotSame would print the memory
			return nil
		}))
	}
}

// An output belongs to its operation until the run has ended and the device has written it, in whatever order that comes.
func TestOutputsUntilTheyAreWritten(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s := &streams{in: device.Stream{Number: 1}, out: device.Stream{Number: 2}, role: device.Outputs}
	one := side{moved: true, units: 1, blocks: 1, pieces: []piece{{device: 1 << 20, bytes: 8}}}
	read := func(b *block) { *b.words.InputReady() = b.inputs.Load() }
	opened := func(b *block) { b.words.Open() }
	taken := func(b *block) { *b.words.OutputTaken() = b.outputs.Load() }
	for _, steps := range [][]func(*block){{read, opened, taken}, {opened, read, taken}, {opened, taken, read}} {
		b, err := e.pool.acquire(c, source{coll.CUDA, "counting"}, 64)
		require.NoError(t, err)
		l := layout{stride: 1, in: one, out: one}
		s.begin(b, &l, true)
		e.noteOutputs(on, b, &l)
		for i, step := range steps {
			c.behind = map[device.Stream][]device.Stream{}
			require.NoError(t, e.comeBehindOutputs(c, on, s, &l))
			require.NotEmpty(t, c.behind, "behind %d of %d steps", i, len(steps))
			step(b)
		}
		c.behind = map[device.Stream][]device.Stream{}
		require.NoError(t, e.comeBehindOutputs(c, on, s, &l))
		require.Empty(t, c.behind)
		e.pool.release(b)
	}
}

// launching is a device that notes in which order streams are.
type launching struct {
	device.Launcher
	next   uint64
	orders [][2]device.Stream
}

func (*launching) Name() string { return "launching" }
func (l *launching) NewStream(device.Role) (device.Stream, error) {
	l.next++
	return device.Stream{Number: l.next}, nil
}

func (l *launching) Order(first, then device.Stream) error {
	l.orders = append(l.orders, [2]device.Stream{first, then})
	return nil
}

// Collectives of another engine of the lane come behind the outputs of this one's, on the same device, and inputs of this one's behind the others.
func TestOrdersWithAnotherEngine(t *testing.T) {
	first, second := coll.Device{Type: coll.CUDA}, coll.Device{Type: coll.CUDA, Index: 1}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	rt, other := &launching{}, device.Stream{Number: 100}
	require.NoError(t, e.GoBefore(rt, first, other))
	require.Empty(t, rt.orders, "this engine has no stream yet")
	for range 2 {
		for _, on := range []coll.Device{first, second} {
			require.NoError(t, e.ComeBehind(rt, on, other))
			s := e.streams[place{on, "launching"}]
			require.Equal(t, [][2]device.Stream{{other, s.in}}, rt.orders)
			rt.orders = nil
			require.NoError(t, e.GoBefore(rt, on, other))
			require.Equal(t, [][2]device.Stream{{s.out, other}}, rt.orders)
			rt.orders = nil
		}
	}
	require.NotEqual(t, e.streams[place{first, "launching"}], e.streams[place{second, "launching"}])
}

// Streams of one device, pinned memory of one source, are nobody's on another one.
func TestDevicesDoNotShare(t *testing.T) {
	pool, rt := NewPool(), &pinning{}
	s, _, err := pool.takeStreams(rt, place{coll.Device{Type: coll.CUDA}, "test"}, device.Outputs)
	require.NoError(t, err)
	pool.giveStreams(place{coll.Device{Type: coll.CUDA}, "test"}, s)
	for _, other := range []place{{coll.Device{Type: coll.CUDA, Index: 1}, "test"}, {coll.Device{Type: coll.PrivateUse1}, "test"}, {coll.Device{Type: coll.CUDA}, "other"}} {
		require.Nil(t, pool.givenStreams(other, device.Outputs), "%v", other)
	}
	require.Same(t, s, pool.givenStreams(place{coll.Device{Type: coll.CUDA}, "test"}, device.Outputs))

	b, err := pool.acquire(rt, source{coll.CUDA, "test"}, 100)
	require.NoError(t, err)
	pool.release(b) // without commands it is idle
	for _, other := range []source{{coll.CUDA, "other"}, {coll.PrivateUse1, "test"}} {
		own, err := pool.acquire(rt, other, 100)
		require.NoError(t, err)
		require.False(t, own == b, "%v", other)
	}
	again, err := pool.acquire(rt, source{coll.CUDA, "test"}, 100)
	require.NoError(t, err)
	require.True(t, again == b)
}

// refusesStreams is a device that is short of streams.
type refusesStreams struct{ pinning }

func (*refusesStreams) NewStream(device.Role) (device.Stream, error) {
	return device.Stream{}, errNoFork
}

// A recv whose streams could not be made leaves its queue of the hardware to others.
func TestRecvsWithoutStreamsLeaveTheirQueue(t *testing.T) {
	pool, on := NewPool(), place{coll.Device{Type: coll.CUDA}, "counting"}
	for range 3 {
		s, claimed := pool.claimRecvs(on, 1)
		require.True(t, claimed)
		require.Nil(t, s)
		_, err := pool.makeRecvs(&refusesStreams{}, on)
		require.ErrorIs(t, err, errNoFork)
	}
}
