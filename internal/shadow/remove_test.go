package shadow

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

var barriers atomic.Int32

// barrier returns when all frames that e has sent on a connection were handled by the other end. It sends one of a pair of its own.
func (e *end) barrier(t *testing.T, other *end, on int) {
	t.Helper()
	group := uint64(1000 + barriers.Add(1))
	own, free := newOwn(t, other.pair.Rank)
	t.Cleanup(free)
	q, err := other.Add(Config{Link: other.pair.Link, Group: group, Rank: other.pair.Rank, To: other.pair.To, Size: 2, Geometry: runner.Short, Memory: newMemory(t), Own: own})
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

// A pair that was removed stores nothing of what comes, and sends nothing but the CLOSE that a rank which has given up waits for. The link and
// other pairs go on.
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
		a.barrier(t, b, n)
		a.pair.mu.Lock()
		require.Zero(t, a.pair.closes|a.pair.byes)
		a.pair.mu.Unlock()
	}
	a.pair.lanes[runner.HostLane].own.Left().Store(gaveUp)
	a.pair.Wake()
	for n := range 3 {
		a.barrier(t, b, n)
	}
	require.Eventually(t, func() bool {
		a.pair.mu.Lock()
		defer a.pair.mu.Unlock()
		return a.pair.all(a.pair.closes)
	}, soon, time.Millisecond, "the rank that has given up is not answered")
	host := &b.pair.lanes[runner.HostLane]
	require.Zero(t, runner.SentOf(host.channels[0].in).Load())
	require.Zero(t, host.shadow.Left().Load())
	require.Zero(t, host.own.Detached(0).Load())
	b.barrier(t, a, 1)
	require.Zero(t, a.pair.lanes[runner.HostLane].shadow.Left().Load(), "a pair that was removed has said goodbye")
	require.Eventually(t, func() bool { return a.pair.lanes[runner.HostLane].own.Detached(1).Load() == 1 }, soon, time.Millisecond)
	for _, e := range []*end{a, b} {
		require.Eventually(t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.pairs[e.pair.key()] == nil
		}, soon, time.Millisecond, "nothing of the pair comes any more")
	}
	require.NoError(t, a.pair.Link.Err())
}

// The loss of the link of a pair that was removed concerns nobody.
func TestLossBehindARemove(t *testing.T) {
	a, b := pairOfEnds(t)
	b.Remove(b.pair)
	require.Nil(t, b.pair.Config.Lost, "it keeps the group in memory")
	a.node.Close()
	require.Error(t, b.loss(t))
	require.Zero(t, b.told.Load())
	require.Zero(t, b.pair.lanes[runner.HostLane].own.Detached(0).Load(), "the memory of the group was given back before")
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

// fill sends on a connection until the kernels take nothing more, because the other end reads none of it. The connection is free again behind
// b.goOn().
func fill(t *testing.T, a, b *end, on int) {
	t.Helper()
	kind, payload, frames := tcp.Message, make([]byte, tcp.MaxMessage), 200 // more than the kernel buffers of loopback take
	if on == 0 {
		kind, payload, frames = tcp.Exchange, make([]byte, 4000), 4000
	}
	b.hold(int32(on))
	sent := make(chan struct{})
	t.Cleanup(func() {
		b.goOn()
		<-sent
	})
	go func() {
		defer close(sent)
		for range frames {
			h := a.pair.header(kind)
			h.Group = 77 // of no pair
			if a.pair.Link.Send(on, &h, payload) != nil {
				return
			}
		}
	}()
	refused := 0
	require.Eventually(t, func() bool { // the sender is blocked
		h := a.pair.header(kind)
		h.Group = 77
		taken, err := a.pair.Link.TrySend(on, &h)
		refused++
		if taken || err != nil {
			refused = 0
		}
		return refused == 30
	}, soon, 5*time.Millisecond)
}

// publish writes the first messages of channel 0 as the runner does.
func (e *end) publish(messages uint64) {
	offset := uint64(2*page + sharedBlocks(runner.Lanes))
	for n := uint64(1); n <= messages; n++ {
		place := runner.Short.PlaceOf(unsafe.Add(e.own.Arena, offset), n)
		*place.Bytes = runner.Short.Message
		place.Filled.Store(n)
	}
	e.pair.ownWords(int(runner.HostLane)).Channel(e.pair.To, 0).Store(offset)
	e.pair.Wake()
}

// Removing waits until the pump has ended with the memory of the group, which it may be sending. It looks at it no more then.
func TestRemoveWhileThePumpIsBusy(t *testing.T) {
	a, b := pairOfEnds(t)
	fill(t, a, b, a.pair.connection(0, 0))
	a.publish(1)
	sent := &a.pair.lanes[runner.HostLane].channels[0].sent
	require.Eventually(t, func() bool { return sent.Load() == 1 }, soon, time.Millisecond) // the pump is in the middle of it
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		a.Remove(a.pair)
	}()
	select {
	case <-removed:
		require.Fail(t, "the pump sends the memory of a group that was given back")
	case <-time.After(100 * time.Millisecond):
	}
	b.goOn()
	select {
	case <-removed:
	case <-time.After(soon):
		require.Fail(t, "it does not end")
	}
	a.publish(2)
	moved, err := a.pair.push()
	require.NoError(t, err)
	require.False(t, moved)
	require.EqualValues(t, 1, sent.Load(), "somebody looks at the memory that was given back")
	a.barrier(t, b, a.pair.connection(0, 0))
	require.LessOrEqual(t, runner.SentOf(b.pair.lanes[0].channels[0].in).Load(), uint64(1))
	require.NoError(t, a.pair.Link.Err())
}

// A frame that has nothing of the group's memory does not keep a pair from being removed, however long it takes: here CLOSE, which answers a
// rank that has given up, to a process that is stopped. The rest of it is sent all the same.
func TestRemoveDoesNotWaitForAStoppedProcess(t *testing.T) {
	a, b := pairOfEnds(t)
	fill(t, a, b, a.pair.connection(0, 0))
	b.pair.lanes[runner.HostLane].own.Left().Store(gaveUp)
	b.pair.Wake()
	require.Eventually(t, func() bool { // CLOSE is being sent
		b.pair.mu.Lock()
		defer b.pair.mu.Unlock()
		return b.pair.closes&1 != 0
	}, soon, time.Millisecond)
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		a.Remove(a.pair)
	}()
	select {
	case <-removed:
	case <-time.After(soon / 2):
		require.Fail(t, "it waits for the other process")
	}
	b.goOn()
	require.Eventually(t, func() bool { return b.pair.lanes[runner.HostLane].own.Detached(0).Load() == 1 }, soon, time.Millisecond)
	require.Zero(t, a.pair.lanes[runner.HostLane].shadow.Left().Load(), "it was removed")
	require.NoError(t, a.pair.Link.Err())
}

// A pair is removed while the pump sends a frame that has nothing of the memory of the group. The memory is given back then, and the pump, when
// it goes on, reads none of it.
func TestNothingIsReadBehindARemove(t *testing.T) {
	const taken = runner.ChannelPlaces / 2
	for name, frame := range map[string]struct {
		on   func(*Pair) int
		due  func(a, b *Pair)
		sent func(*Pair) bool // with pushing and mu held: the frame is being sent
	}{
		"ROOM": {func(p *Pair) int { return p.connection(0, 0) }, func(a, b *Pair) {
			b.lanes[0].channels[0].sent.Store(taken)
			a.lanes[0].own.Taken(1, 0).Store(taken)
		}, func(p *Pair) bool { return p.lanes[0].channels[0].told == taken }},
		"CREDIT": {func(p *Pair) int { return p.connection(0, 0) }, func(a, b *Pair) {
			b.lanes[0].out.pushed.Store(mostUnread)
			a.lanes[0].in.read.Store(mostUnread)
		}, func(p *Pair) bool { return p.lanes[0].out.read == mostUnread }},
		"ASK": {func(*Pair) int { return 0 }, func(a, _ *Pair) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.asking, a.asked = askSoon, true // STATE would be next
		}, func(p *Pair) bool { return p.asking == askSent }},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pairOfEnds(t)
			fill(t, a, b, frame.on(a.pair))
			frame.due(a.pair, b.pair)
			a.pair.Wake()
			require.Eventually(t, func() bool {
				a.pair.pushing.Lock() // which is free while the frame is sent
				defer a.pair.pushing.Unlock()
				a.pair.mu.Lock()
				defer a.pair.mu.Unlock()
				return frame.sent(a.pair)
			}, soon, time.Millisecond)
			a.Remove(a.pair)
			require.NoError(t, unix.Mprotect(unsafe.Slice((*byte)(a.own.Arena), a.own.Bytes), unix.PROT_NONE))
			own, free := newOwn(t, 0)
			t.Cleanup(free)
			next, err := a.Add(Config{Link: a.pair.Link, Group: 6, Rank: 0, To: 1, Size: 2, Geometry: runner.Short, Memory: newMemory(t), Own: own})
			require.NoError(t, err)
			t.Cleanup(func() {
				a.Remove(next)
				next.Free()
			})
			next.side.left.Store(1)
			b.goOn()
			require.True(t, a.Flush(soon), "the pump did not come to the next pair")
			require.NoError(t, a.pair.Link.Err())
		})
	}
}

// What a rank has published right before its process exits arrives: the exit flushes its pairs, then closes the node.
func TestFlush(t *testing.T) {
	a, b := pairOfEnds(t)
	require.True(t, a.Flush(soon), "a rank that has not left is not awaited")
	a.publish(runner.ChannelPlaces)
	a.pair.lanes[runner.HostLane].own.Left().Store(9)
	require.True(t, a.Flush(soon))
	a.node.Close()
	require.Error(t, b.loss(t))
	host := &b.pair.lanes[runner.HostLane]
	require.EqualValues(t, runner.ChannelPlaces, runner.SentOf(host.channels[0].in).Load())
	require.EqualValues(t, 9, host.shadow.Left().Load())
	require.Zero(t, b.told.Load())
}

// A flush is bounded where the other process reads nothing, and ends when the link does: nothing is left to wait for then.
func TestFlushIsBounded(t *testing.T) {
	a, b := pairOfEnds(t)
	fill(t, a, b, a.pair.connection(0, 0))
	a.pair.lanes[runner.HostLane].own.Left().Store(9)
	require.False(t, a.Flush(100*time.Millisecond))
	ended := make(chan bool)
	go func() { ended <- a.Flush(soon) }()
	a.pair.Link.Break(errNoFrame)
	select {
	case done := <-ended:
		require.True(t, done)
	case <-time.After(soon / 2):
		require.Fail(t, "the flush does not end with the link")
	}
}
