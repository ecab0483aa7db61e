package shadow

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

var barriers atomic.Int32

// barrier returns when all frames that e has sent on a connection were handled by the other end. It sends one of a pair of its own.
func (e *end) barrier(t *testing.T, other *end, on int) {
	t.Helper()
	group := uint64(1000 + barriers.Add(1))
	q, err := other.Add(Config{Link: other.pair.Link, Group: group, Rank: other.pair.Rank, To: other.pair.To, Size: 2, Own: other.own})
	require.NoError(t, err)
	h := tcp.Header{Kind: tcp.Goodbye, Group: group, From: uint32(e.pair.Rank), To: uint32(e.pair.To), Number: 1}
	require.NoError(t, e.pair.Link.Send(on, &h))
	require.Eventually(t, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.byes&(1<<on) != 0
	}, soon, time.Millisecond)
	other.Remove(q)
	q.Free()
}

// A pair that was removed sends nothing, and stores nothing of what comes. The link and other pairs go on.
func TestRemove(t *testing.T) {
	a, b := pairOfEnds(t)
	b.Remove(b.pair)
	_, err := b.Add(b.pair.Config)
	require.Error(t, err, "the frames of its number may still be under way")
	for n := range b.pair.lanes { // the memory of its group may hold anything now
		words := b.pair.lanes[n].own
		words.Left().Store(7)
	}
	on := a.pair.connection(0, 0)
	h := a.pair.header(tcp.Message)
	h.Number = 1
	require.NoError(t, a.pair.Link.Send(on, &h, []byte("x")))
	h.Number = 5 // which it would refuse
	require.NoError(t, a.pair.Link.Send(on, &h, []byte("x")))
	for n := range 3 {
		h := a.pair.header(tcp.Goodbye)
		h.Number = gaveUp
		require.NoError(t, a.pair.Link.Send(n, &h))
		h = a.pair.header(tcp.Close)
		require.NoError(t, a.pair.Link.Send(n, &h))
	}
	for n := range 3 {
		a.barrier(t, b, n)
	}
	host := &b.pair.lanes[runner.HostLane]
	require.Zero(t, runner.SentOf(host.channels[0].in).Load())
	require.Zero(t, host.shadow.Left().Load())
	require.Zero(t, host.own.Detached(0).Load())
	b.barrier(t, a, 1)
	require.Zero(t, a.pair.lanes[runner.HostLane].shadow.Left().Load(), "a pair that was removed has said goodbye")

	a.node.Close()
	require.Error(t, b.loss(t))
	require.Zero(t, b.told.Load())
	require.Zero(t, host.own.Detached(0).Load(), "the memory of the group was given back before")
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(t, b.pairs)
}

// A pair is removed, and its shadow freed, while a payload comes into it. The memory is unmapped when the payload is there, or the link has
// ended.
func TestRemoveInTheMiddleOfAPayload(t *testing.T) {
	for _, cut := range []bool{false, true} {
		a, b := pairOfEnds(t)
		on := a.pair.connection(0, 0)
		h := a.pair.header(tcp.Message)
		h.Number, h.Bytes = 1, 40_000
		place, err := b.pair.accept(on, &h) // as the connection does when the header has come
		require.NoError(t, err)
		b.Remove(b.pair)
		b.pair.Free()
		mapped := func() bool {
			b.pair.mu.Lock()
			defer b.pair.mu.Unlock()
			return b.pair.memory != nil
		}
		require.True(t, mapped())
		place[0][39_999] = 1
		if cut {
			a.node.Close()
			require.Error(t, b.loss(t))
		} else {
			require.NoError(t, b.Arrived(b.pair.Link, on, &h))
		}
		require.False(t, mapped())
	}
}

// Removing waits until the pump has ended with the pair, and lets it go on with others.
func TestRemoveWhileThePumpIsBusy(t *testing.T) {
	a, b := pairOfEnds(t)
	b.hold(a.connectionOfChannel())
	offset := uint64(2*page + int64(runner.Lanes)*runner.SharedBlockBytes(2))
	out := unsafe.Add(a.own.Arena, offset)
	a.pair.lanes[runner.HostLane].own.Channel(1, 0).Store(offset)
	for n := uint64(1); n <= runner.ChannelPlaces; n++ {
		place := runner.PlaceOf(out, n)
		*place.Bytes = runner.ChannelMessage
		place.Filled.Store(n)
	}
	a.pair.Peer().Apart.Ring()
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		a.Remove(a.pair)
	}()
	b.goOn()
	select {
	case <-removed:
	case <-time.After(soon):
		require.Fail(t, "it does not end")
	}
	place := runner.PlaceOf(out, 5) // nobody looks any more
	place.Filled.Store(5)
	a.pair.Peer().Apart.Ring()
	a.barrier(t, b, 1)
	require.LessOrEqual(t, runner.SentOf(b.pair.lanes[0].channels[0].in).Load(), uint64(runner.ChannelPlaces))
	require.NoError(t, a.pair.Link.Err())
}

func (e *end) connectionOfChannel() int32 { return int32(e.pair.connection(0, 0)) }

// What a rank has published right before its process exits arrives: the exit flushes its pairs, then closes the node.
func TestFlush(t *testing.T) {
	a, b := pairOfEnds(t)
	require.True(t, a.Flush(soon), "a rank that has not left is not awaited")
	offset := uint64(2*page + int64(runner.Lanes)*runner.SharedBlockBytes(2))
	own := a.pair.lanes[runner.HostLane].own
	own.Channel(1, 0).Store(offset)
	for n := uint64(1); n <= runner.ChannelPlaces; n++ {
		place := runner.PlaceOf(unsafe.Add(a.own.Arena, offset), n)
		*place.Bytes = runner.ChannelMessage
		place.Filled.Store(n)
	}
	own.Left().Store(9)
	require.True(t, a.Flush(soon))
	a.node.Close()
	require.Error(t, b.loss(t))
	host := &b.pair.lanes[runner.HostLane]
	require.EqualValues(t, runner.ChannelPlaces, runner.SentOf(host.channels[0].in).Load())
	require.EqualValues(t, 9, host.shadow.Left().Load())
	require.Zero(t, b.told.Load())
}

// A flush is bounded where the other process reads nothing, and ends when the link does.
func TestFlushIsBounded(t *testing.T) {
	a, b := pairOfEnds(t)
	b.hold(int32(a.pair.connection(0, 0)))
	var blocked [][]byte
	for range 200 { // more than the kernel buffers of loopback take
		blocked = append(blocked, make([]byte, tcp.MaxMessage))
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for _, x := range blocked {
			h := a.pair.header(tcp.Message)
			h.Group = 77 // of no pair
			if a.pair.Link.Send(a.pair.connection(0, 0), &h, x) != nil {
				return
			}
		}
	}()
	refused := 0
	require.Eventually(t, func() bool { // the sender is blocked
		h := a.pair.header(tcp.Message)
		h.Group = 77
		taken, err := a.pair.Link.TrySend(a.pair.connection(0, 0), &h)
		refused++
		if taken || err != nil {
			refused = 0
		}
		return refused == 30
	}, soon, 5*time.Millisecond)
	a.pair.lanes[runner.HostLane].own.Left().Store(9)
	require.False(t, a.Flush(100*time.Millisecond))
	ended := make(chan bool)
	go func() { ended <- a.Flush(soon) }()
	a.pair.Link.Break(errNoFrame)
	select {
	case <-ended:
	case <-time.After(soon / 2):
		require.Fail(t, "the flush does not end with the link")
	}
	b.goOn()
	<-sent
}
