package staged

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// counting is a device that counts what is queued in each stream and runs nothing. A stream is behind those that it was ordered behind.
type counting struct {
	device.Runtime
	forks
	queued map[device.Stream]int // guarded by Engine.issuing, as behind
	behind map[device.Stream][]device.Stream
	next   atomic.Uint64
	during func() // what happens while a stream is made
	pins   func() // what happens while memory is pinned
	start  func() // what happens in front of the first command of an operation
}

func newCounting() *counting {
	return &counting{queued: map[device.Stream]int{}, behind: map[device.Stream][]device.Stream{}}
}

func (*counting) Name() string { return "counting" }
func (c *counting) NewStream(device.Role) (device.Stream, error) {
	if c.during != nil {
		c.during()
	}
	return device.Stream{Number: c.next.Add(1)}, nil
}
func (c *counting) Pin(bytes uint64) (device.Pinned, error) {
	if c.pins != nil {
		c.pins()
	}
	return pinnedWords(make([]uint64, bytes/8+32)), nil
}
func (c *counting) Fork(device.Stream) error {
	if c.start != nil {
		c.start()
	}
	return nil
}
func (c *counting) add(s device.Stream) error                             { c.queued[s]++; return nil }
func (c *counting) CopyIn(s device.Stream, _ device.Copy) error           { return c.add(s) }
func (c *counting) CopyOut(s device.Stream, _ device.Copy) error          { return c.add(s) }
func (c *counting) WriteValue(s device.Stream, _ *uint32, _ uint32) error { return c.add(s) }
func (c *counting) WaitValue(s device.Stream, _ *uint32, _ uint32) error  { return c.add(s) }
func (c *counting) Order(first, then device.Stream) error {
	c.behind[then] = append(c.behind[then], first)
	return nil
}

// operation queues an operation of some pieces, and returns its block.
func (c *counting) operation(t *testing.T, e *Engine, on place, s *streams, pieces int, sends bool) *block {
	b, err := c.issue(e, on, s, pieces, sends)
	require.NoError(t, err)
	return b
}

// issue is operation for threads of a test.
func (c *counting) issue(e *Engine, on place, s *streams, pieces int, sends bool) (*block, error) {
	l := layout{stride: 1, in: side{moved: true, units: 1, blocks: 1}, out: side{moved: !sends, units: 1, blocks: 1}, sends: sends}
	for range pieces {
		p := piece{device: 1 << 20, offset: l.bytes, bytes: 8}
		l.bytes += 64
		l.in.pieces = append(l.in.pieces, p)
		if !sends {
			l.out.pieces = append(l.out.pieces, p)
		}
	}
	b, err := e.pool.acquire(c, source{coll.CUDA, "counting"}, l.bytes)
	if err != nil {
		return nil, err
	}
	defer e.pool.release(b)
	q := e.queueFor(c, on, s, b, &l)
	defer e.issuing.Unlock()
	defer q.close()
	return b, enqueue(c, b, &l, q)
}

// oneUnit is the layout of a short operation.
func oneUnit() layout {
	one := side{moved: true, units: 1, blocks: 1}
	return layout{stride: 1, in: one, out: one}
}

// run does what the device and the runner do in an operation.
func run(b *block) {
	*b.words.InputReady() = b.inputs.Load()
	b.words.Open()
	*b.words.OutputTaken() = b.outputs.Load()
}

// room is that of a stream of a GPU. No test goes on when more was queued in one.
const room = 1000

// No stream ever holds more than mostQueued commands of operations that have not ended. Operations go on in others, which are behind
// the first ones, and streams whose operations have ended are used again.
func TestStreamsThatAreFull(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	made := uint64(0)
	for range 2 {
		s, err := e.streamsOn(c, on)
		require.NoError(t, err)
		var list []*block
		for range 500 {
			first := *s
			list = append(list, c.operation(t, e, on, s, 1, false))
			if first.out != s.out {
				require.Equal(t, []device.Stream{first.out}, c.behind[s.out])
				require.Equal(t, []device.Stream{first.in}, c.behind[s.in])
			}
			c.behind = map[device.Stream][]device.Stream{}
		}
		require.Greater(t, len(c.queued), 4)
		for of, n := range c.queued {
			require.LessOrEqual(t, n, mostQueued, "%v", of)
		}
		for _, b := range list {
			run(b)
		}
		if made > 0 {
			require.Equal(t, made, c.next.Load(), "streams that are empty are used again")
		}
		made = c.next.Load()
		c.queued = map[device.Stream]int{}
	}
}

// An operation that has more commands than a stream holds is in several of them.
func TestAnOperationInSeveralStreams(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s, err := e.streamsOn(c, on)
	require.NoError(t, err)
	b := c.operation(t, e, on, s, 3*mostQueued, false)
	total := 0
	for of, n := range c.queued {
		require.LessOrEqual(t, n, mostQueued, "%v", of)
		total += n
	}
	require.Equal(t, 2*3*mostQueued+4, total)
	used := func() (n int) {
		for s := e.pool.idleStreams(on, device.Outputs); s != nil; s = e.pool.idleStreams(on, device.Outputs) {
			n += c.queued[s.in] + c.queued[s.out]
		}
		return n
	}
	require.Zero(t, used(), "idle streams while the operation is under way")
	run(b)
	require.NotZero(t, used())
}

// Nothing of a send waits for its run. Its pinned memory and its streams are used again when the payload was copied and the run has ended.
func TestNoStreamWaitsForASend(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s, err := e.streamsOn(c, on)
	require.NoError(t, err)
	for _, readyFirst := range []bool{true, false} {
		b := c.operation(t, e, on, s, 1, true)
		require.Zero(t, c.queued[s.out])
		require.False(t, e.pool.waits())
		used := b.used()
		require.False(t, used.ended())
		if readyFirst {
			*b.words.InputReady() = 1
		} else {
			b.words.Open()
		}
		require.False(t, used.ended())
		require.NotSame(t, b, c.operation(t, e, on, s, 1, true))
		*b.words.InputReady() = 1
		b.words.Open()
		require.True(t, used.ended())
	}
}

// Sends that wait for their recvs fill no stream: their commands have run when the payload was copied. Their blocks are kept until the runs
// end.
func TestSendsFillNoStream(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s, err := e.streamsOn(c, on)
	require.NoError(t, err)
	blocks := map[*block]bool{}
	for range room {
		b := c.operation(t, e, on, s, 1, true)
		*b.words.InputReady() = 1
		blocks[b] = true
	}
	require.EqualValues(t, 2, c.next.Load(), "streams that were made")
	require.Len(t, blocks, room)
}

// Streams in which a send stands alone are behind the outputs of operations in the full ones. They are left to nobody before these have ended.
func TestSendsInFurtherStreamsStayBehindRecvs(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s, err := e.streamsOn(c, on)
	require.NoError(t, err)
	recv, first := c.operation(t, e, on, s, 1, false), s.out
	var sends []*block
	for s.out == first { // the caller's stream is late
		require.Less(t, c.queued[s.in], room)
		sends = append(sends, c.operation(t, e, on, s, 1, true))
	}
	require.Equal(t, []device.Stream{first}, c.behind[s.out])
	for _, b := range sends {
		run(b)
	}
	e.Close()
	require.Nil(t, e.pool.givenStreams(on, device.Outputs), "they wait for the recv")
	run(recv)
	require.NotNil(t, e.pool.givenStreams(on, device.Outputs))
	require.NotNil(t, e.pool.givenStreams(on, device.Outputs))
}

// The pinned memory of a send that has failed is used again, with streams that know of the use before.
func TestBlockOfAFailedSend(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s, err := e.streamsOn(c, on)
	require.NoError(t, err)
	failed := c.operation(t, e, on, s, 1, true)
	failed.words.Open() // the run has ended with an error; its payload is still copied
	require.NotSame(t, failed, c.operation(t, e, on, s, 1, true))
	*failed.words.InputReady() = 1
	again := c.operation(t, e, on, s, 1, false)
	require.Same(t, failed, again)
	require.False(t, again.unawaited.Load(), "its stream waits for the run")
	*again.words.InputReady() = 1
	again.words.Open()
	require.False(t, again.used().ended())
	*again.words.OutputTaken() = 1
	require.True(t, again.used().ended())
}

// An operation that has failed stays in its streams until a later one has ended.
func TestOperationsInFrontOfOneThatHasEnded(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s, err := e.streamsOn(c, on)
	require.NoError(t, err)
	first := c.operation(t, e, on, s, 1, false)
	last := c.operation(t, e, on, s, 1, false)
	*last.words.InputReady() = 1
	require.False(t, s.forget())
	require.Equal(t, 0, s.commands[sideIn], "of both")
	require.Len(t, s.under, 2)
	run(last)
	require.True(t, s.forget())
	require.Equal(t, [sides]int{}, s.commands)
	require.False(t, first.used().ended())
}

// Threads that issue at the same time do not queue more than one of them may. None takes streams that it does not need.
func TestThreadsThatFillStreams(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s, err := e.streamsOn(c, on)
	require.NoError(t, err)
	for s.commands[sideOut] < mostQueued-100 {
		require.Less(t, c.queued[s.out], room)
		c.operation(t, e, on, s, 1, false)
	}
	full := s.out
	c.during = func() { // another thread finds the streams full, too, and is faster
		c.during = nil
		c.operation(t, e, on, s, 100, false)
		require.NotEqual(t, full, s.out)
	}
	c.operation(t, e, on, s, 100, false)
	require.Equal(t, []device.Stream{full}, c.behind[s.out], "one pair behind the full one")
	require.NotNil(t, e.pool.givenStreams(on, device.Outputs), "the other one is left")
	require.Nil(t, e.pool.givenStreams(on, device.Outputs))

	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if _, err := c.issue(e, on, s, 50, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for of, n := range c.queued {
		require.LessOrEqual(t, n, mostQueued, "%v", of)
	}
}

// A framework copies each output that is not contiguous once more, in the stream of the output.
func TestRoomForRows(t *testing.T) {
	c, on := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}
	e := New(nil, nil, 0, 2, NewPool(), nil)
	s, err := e.streamsOn(c, on)
	require.NoError(t, err)
	for range 100 {
		c.operation(t, e, on, s, 16, false)
		c.queued[s.out] += 16
	}
	c.operation(t, e, on, s, mostQueued-30, false)
	c.queued[s.out] += mostQueued - 30
	for of, n := range c.queued {
		require.LessOrEqual(t, n, mostQueued, "%v", of)
	}
}
