package staged

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// deferring is a device whose streams cannot wait, and whose caller queues the copies back.
type deferring struct{ *counting }

func (deferring) Name() string                              { return "deferring" }
func (deferring) JoinLater(device.Stream, device.End) error { return nil }
func (deferring) WaitValue()                                {} // no Waiter
func (d deferring) Fork(s device.Stream) error              { return errors.Join(d.counting.Fork(s), d.add(s)) }

// unordered is one whose caller has no function that orders streams.
type unordered struct{ deferring }

func (unordered) Order() {}

// Where streams cannot wait, an operation that finds the stream of inputs full is in another one. The copies back stay in one stream, in their
// order. The stream that was full is left to others when the device has come past the last operation in it.
func TestStreamsThatCannotWaitAreFull(t *testing.T) {
	c := newCounting()
	for _, rt := range []device.Access{deferring{c}, unordered{deferring{c}}} {
		on := place{coll.Device{Type: coll.CUDA}, rt.Name()}
		e := New(nil, nil, 0, 2, NewPool(), nil)
		s, err := e.streamsOn(rt, on)
		require.NoError(t, err)
		out, first := s.out, s.in
		c.queued, c.behind = map[device.Stream]int{}, map[device.Stream][]device.Stream{}
		var list []*block
		issue := func() *block {
			l := oneUnit()
			b, err := e.pool.acquire(rt, source{coll.CUDA, rt.Name()}, 64)
			require.NoError(t, err)
			q := e.queueFor(rt, on, s, b, &l)
			defer e.issuing.Unlock()
			require.NoError(t, enqueue(rt, b, &l, q))
			q.close()
			e.pool.release(b)
			list = append(list, b)
			return b
		}
		for s.in == first {
			require.Less(t, c.queued[first], room)
			issue()
		}
		_, orders := rt.(orderer)
		if orders {
			require.Equal(t, []device.Stream{first}, c.behind[s.in])
		}
		for range room / 2 {
			issue()
		}
		require.Greater(t, len(c.queued), 4)
		for of, n := range c.queued {
			require.LessOrEqual(t, n, mostQueued, "%v", of)
		}
		require.Equal(t, out, s.out)
		require.Nil(t, e.pool.givenStreams(on, device.Inputs), "all of them hold something")
		for _, b := range list { // the device comes past them, and no peer has called
			*b.words.InputReady() = 1
		}
		require.NotNil(t, e.pool.givenStreams(on, device.Inputs))
		now := s.in
		for range room / 3 {
			*issue().words.InputReady() = 1
		}
		require.Equal(t, now, s.in, "operations that wait for peers fill no stream")
		require.False(t, s.forget(), "copies back may come into the stream of outputs")
		for _, b := range list {
			run(b)
		}
		require.True(t, s.forget())
	}
}
