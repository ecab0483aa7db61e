package staged

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// counting is a device that counts what is queued in each stream and runs nothing. A stream is behind those that it was ordered behind.
type counting struct {
	pinning
	forks
	queued map[device.Stream]int
	behind map[device.Stream][]device.Stream
	next   uint64
}

func newCounting() *counting {
	return &counting{queued: map[device.Stream]int{}, behind: map[device.Stream][]device.Stream{}}
}

func (*counting) Name() string { return "counting" }
func (c *counting) NewStream(device.Role) (device.Stream, error) {
	c.next++
	return device.Stream{Number: c.next}, nil
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
	require.NoError(t, err)
	q := e.queueFor(c, on, s, b, &l)
	require.NoError(t, enqueue(c, b, &l, &q))
	q.close()
	e.pool.release(b)
	return b
}

// run does what the device and the runner do in an operation.
func run(b *block) {
	*b.words.InputReady() = b.inputs.Load()
	b.words.Open()
	*b.words.OutputTaken() = b.outputs.Load()
}

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
			require.Equal(t, made, c.next, "streams that are empty are used again")
		}
		made = c.next
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

// All groups of a process have no more streams of recvs than the device has queues for, at a time.
func TestRecvsHaveQueuesOfTheirOwn(t *testing.T) {
	c, on, pool := newCounting(), place{coll.Device{Type: coll.CUDA}, "counting"}, NewPool()
	var list []*streams
	for range 3 {
		s, claimed := pool.claimRecvs(on, 3)
		require.True(t, claimed)
		require.Nil(t, s)
		s, err := pool.makeRecvs(c, on)
		require.NoError(t, err)
		list = append(list, s)
	}
	_, claimed := pool.claimRecvs(on, 3)
	require.False(t, claimed)
	pool.giveStreams(on, list[1])
	s, claimed := pool.claimRecvs(on, 3)
	require.True(t, claimed)
	require.Same(t, list[1], s)
	_, claimed = pool.claimRecvs(on, 3)
	require.False(t, claimed)
}
