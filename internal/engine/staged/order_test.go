package staged

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// An operation comes behind each earlier one whose output has a byte of its input, in whatever of their segments, and behind no other one.
func TestInputsThatEarlierOperationsWrite(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s := &streams{in: device.Stream{Number: 1}, out: device.Stream{Number: 2}, role: device.Outputs}
	issued := func(outputs ...piece) *block {
		b, err := e.pool.acquire(c, source{coll.CUDA, "counting"}, 64)
		require.NoError(t, err)
		l := layout{in: side{units: 1}, out: side{moved: true, units: 1, pieces: outputs}}
		s.begin(b, &l, true)
		e.noteOutputs(on, b, &l)
		return b
	}
	behind := func(inputs ...piece) bool {
		c.behind = map[device.Stream][]device.Stream{}
		require.NoError(t, e.comeBehindOutputs(c, on, s, &layout{in: side{pieces: inputs}}))
		if len(c.behind) == 0 {
			return false
		}
		require.Equal(t, map[device.Stream][]device.Stream{s.in: {s.out}}, c.behind)
		return true
	}
	of := func(from uintptr, bytes uint64) piece { return piece{device: from, bytes: bytes} }
	none := of(1<<20, 100)

	first := issued(of(1000, 100), of(3000, 100))
	second := issued(of(5000, 100))
	for _, at := range []uintptr{1000, 3000, 5000} {
		for _, one := range []piece{of(at, 100), of(at+10, 10), of(at-10, 11), of(at+99, 10), of(at-10, 200)} {
			require.True(t, behind(one), "%v", one)
			require.True(t, behind(none, one), "%v is the second segment", one)
		}
		for _, one := range []piece{of(at-10, 10), of(at+100, 10), none} {
			require.False(t, behind(one), "%v", one)
		}
	}
	run(first)
	require.False(t, behind(of(1000, 100), of(3000, 100)), "it has ended")
	require.True(t, behind(of(5000, 100)))
	run(second)
	require.False(t, behind(of(5000, 100)))
}

// disorderly is a device that lets some streams wait for others, and then none.
type disorderly struct {
	*counting
	orders int
}

func (d *disorderly) Order(first, then device.Stream) error {
	if d.orders--; d.orders < 0 {
		return errNoFork
	}
	return d.counting.Order(first, then)
}

// Streams that may be behind others which were full, and hold no operation because of an error, are given to nobody: a stream of a later group
// would wait for those.
func TestStreamsOfAnErrorBehindOthers(t *testing.T) {
	for orders := range 3 {
		d, on := &disorderly{newCounting(), orders}, place{coll.Device{Type: coll.CUDA}, "counting"}
		e := New(nil, nil, 0, 2, NewPool(), nil)
		s, err := e.streamsOn(d, on)
		require.NoError(t, err)
		full := *s
		older, err := e.pool.acquire(d, source{coll.CUDA, "counting"}, 64)
		require.NoError(t, err)
		s.add(part{use: older.used(), commands: [sides]int{mostQueued, mostQueued}})
		next := &streams{in: device.Stream{Number: 11}, out: device.Stream{Number: 12}, role: device.Outputs}
		b, err := e.pool.acquire(d, source{coll.CUDA, "counting"}, 64)
		require.NoError(t, err)
		q := queue{streams: s, order: d, pool: e.pool, on: on, use: b.used(), spare: []*streams{next}}
		s.begin(b, &layout{in: side{units: 1}, out: side{units: 1}}, true)
		err = q.queue(sideIn, func(device.Stream) error { return nil })
		q.close()
		if orders == 2 {
			require.NoError(t, err)
			require.Equal(t, device.Stream{Number: 11}, s.in)
			require.False(t, s.beside, "a later group has them when the operation has ended")
			e.Close()
			require.Nil(t, e.pool.idleStreams(on, device.Outputs))
			run(b)
			require.NotNil(t, e.pool.idleStreams(on, device.Outputs))
			require.NotNil(t, e.pool.idleStreams(on, device.Outputs))
			continue
		}
		require.ErrorIs(t, err, errNoFork)
		require.Equal(t, full.in, s.in)
		run(b)
		require.Nil(t, e.pool.idleStreams(on, device.Outputs))
	}
}

// The stream with which it was tried whether a framework can order streams of a runtime has one user.
func TestTheStreamOfATrialHasOneUser(t *testing.T) {
	var of trial
	made := device.Stream{Number: 7}
	of.stream.Store(&made)
	_, has := of.take(device.Outputs)
	require.False(t, has, "it is for inputs")
	s, has := of.take(device.Inputs)
	require.True(t, has)
	require.Equal(t, made, s)
	_, has = of.take(device.Inputs)
	require.False(t, has)
}

// failsAt is a device whose n-th command fails, from 1, and which notes the streams that have commands and those that the caller waits for.
type failsAt struct {
	*counting
	n      int
	joined map[device.Stream]bool
}

func (f *failsAt) add(s device.Stream) error {
	if f.n--; f.n == 0 {
		return errNoFork
	}
	return f.counting.add(s)
}
func (f *failsAt) CopyIn(s device.Stream, _ device.Copy) error           { return f.add(s) }
func (f *failsAt) CopyOut(s device.Stream, _ device.Copy) error          { return f.add(s) }
func (f *failsAt) WriteValue(s device.Stream, _ *uint32, _ uint32) error { return f.add(s) }
func (f *failsAt) WaitValue(s device.Stream, _ *uint32, _ uint32) error  { return f.add(s) }
func (f *failsAt) Join(s device.Stream) error                            { f.joined[s] = true; return nil }

// After an error in the middle of an operation the caller waits for all that is queued by then, which uses its buffers.
func TestTheCallerWaitsForWhatAnErrorHasLeft(t *testing.T) {
	for n := 1; ; n++ {
		f := &failsAt{newCounting(), n, map[device.Stream]bool{}}
		pool := NewPool()
		b, err := pool.acquire(f, source{coll.CUDA, "counting"}, 128)
		require.NoError(t, err)
		s := &streams{in: device.Stream{Number: 1}, out: device.Stream{Number: 2}, role: device.Outputs}
		one := side{moved: true, units: 1, blocks: 1, pieces: []piece{{device: 1 << 20, bytes: 8}}}
		l := layout{stride: 1, in: one, out: one}
		if err = enqueueAll(f, f, b, &l, &queue{streams: s, pool: pool}); err == nil {
			require.Equal(t, 2+4+1, n, "copy and flag, two waits, copy and flag, and no error")
			return
		}
		require.ErrorIs(t, err, errNoFork)
		for used := range f.queued {
			require.True(t, f.joined[used], "%v has commands when command %d fails", used, n)
		}
	}
}

// byFramework is an access whose streams a framework orders, with as many queues.
type byFramework int

func (byFramework) alone() device.Access { return nil }
func (n byFramework) recvQueues() int    { return int(n) }

// A stream waits for a recv only where the recvs of that sender end in the order of their calls, no peer needs what the caller queues behind them,
// and the commands find room.
func TestRecvsForWhichStreamsWait(t *testing.T) {
	c, at := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 1, 3, NewPool(), nil)
	of := func(sender int) origin { return origin{at, 5, sender} }
	long := func(pieces int) *layout {
		one := side{moved: true, units: 1, blocks: 1, pieces: make([]piece, pieces)}
		return &layout{stride: 1, in: one, out: one}
	}
	waits := func(op coll.Op, pieces int) (*streams, bool) {
		return e.streamsForSender(byFramework(1), op, of(op.Root), long(pieces))
	}
	for _, op := range []coll.Op{{Root: 0, Tag: 1}, {Root: coll.AnySource}, {Root: 1}} {
		_, does := waits(op, 1)
		require.False(t, does, "%+v", op)
	}
	_, does := waits(coll.Op{Root: 0}, mostQueued)
	require.False(t, does, "it is too long")
	none, does := waits(coll.Op{Root: 0}, 1)
	require.True(t, does)
	require.Nil(t, none, "they are to be made")
	s, err := e.pool.makeRecvs(c, at)
	require.NoError(t, err)
	require.Same(t, s, e.keepP2P(of(0), s))
	again, does := waits(coll.Op{Root: 0}, 1)
	require.True(t, does)
	require.Same(t, s, again)
	_, does = waits(coll.Op{Root: 2}, 1)
	require.False(t, does, "there is no queue for another sender")
	b, err := e.pool.acquire(c, source{coll.CUDA, "counting"}, 64)
	require.NoError(t, err)
	s.begin(b, &layout{in: side{units: 1}, out: side{units: 1}}, true)
	s.add(part{use: b.used(), commands: [sides]int{sideOut: mostQueued}})
	_, does = waits(coll.Op{Root: 0}, 1)
	require.False(t, does, "the stream is full")
	run(b)
	_, does = waits(coll.Op{Root: 0}, 1)
	require.True(t, does)
}
