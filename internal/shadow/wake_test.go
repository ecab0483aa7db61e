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

// In these tests the pumps do not look by themselves, so what is not rung for does not come.
func pairThatSleeps(t *testing.T) (a, b *end) {
	t.Helper()
	return pairOfEnds(t, func(e *end) { e.Set.sleep = time.Hour })
}

// deafen gives the pair a bell that nobody hears, and takes the pair from its pump, which looks at it no more when deafen returns. It returns what
// gives the pair back, and lets the pump look.
func (e *end) deafen(t *testing.T) (hear func()) {
	t.Helper()
	e.Set.mu.Lock()
	m := e.Set.pumps[e.pair.Link]
	e.Set.mu.Unlock()
	m.mu.Lock()
	pairs := m.pairs
	m.pairs = nil
	m.mu.Unlock()
	m.bell.ring()
	// The pump hears when its look has ended, and then reads the empty list.
	require.Eventually(t, func() bool { return len(m.bell) == 0 }, soon, time.Millisecond)
	e.pair.bell = newBell()
	return func() {
		m.mu.Lock()
		m.pairs = pairs
		m.mu.Unlock()
		m.bell.ring()
	}
}

// bells are those of a process: of its engine, and of threads that wait for p2p operations.
func (e *end) bells() (engine, threads uint32) {
	_, bell := e.pair.lanes[runner.HostLane].own.P2PSleeper()
	return (*atomic.Uint32)(unsafe.Add(e.own.Arena, e.own.Bell)).Load(), bell.Load()
}

// Whoever sleeps for p2p operations is woken by one frame, and by one CREDIT: the engine, threads, or both. Who does not sleep is not.
func TestP2PWakes(t *testing.T) {
	for _, waits := range []uint32{0, 1, 3, runner.SleepEngine, runner.SleepEngine | 2} {
		for _, kind := range []tcp.Kind{tcp.Grant, tcp.Credit} {
			a, b := pairThatSleeps(t)
			words := &b.pair.lanes[runner.HostLane]
			word, _ := words.own.P2PSleeper()
			word.Store(waits)
			on := a.pair.connection(0, 0)
			engine, threads := b.bells()
			h := a.pair.header(kind)
			if kind == tcp.Credit {
				words.out.pushed.Store(64)
				h.Taken = 64
			}
			require.NoError(t, a.pair.Link.Send(on, &h))
			a.barrier(t, b, on)
			toEngine, toThreads := b.bells()
			require.Equal(t, waits&runner.SleepEngine != 0, toEngine != engine, "%v, waits_for %x", kind, waits)
			require.Equal(t, waits&^runner.SleepEngine != 0, toThreads != threads, "%v, waits_for %x", kind, waits)
			if kind == tcp.Credit { // the same once more says nothing new
				require.NoError(t, a.pair.Link.Send(on, &h))
				a.barrier(t, b, on)
				again, againThreads := b.bells()
				require.Equal(t, []uint32{toEngine, toThreads}, []uint32{again, againThreads})
			}
		}
	}
}

// A pump that is rung sends what a rank has published: for p2p operations, and for messages of channels.
func TestWakesReachThePump(t *testing.T) {
	a, b := pairThatSleeps(t)
	host := &a.pair.lanes[runner.HostLane]
	offset := uint64(fifoAt)
	fifo := runner.Short.FifoAt(unsafe.Add(a.own.Arena, offset))
	host.own.Fifo(1).Store(offset)
	for n := range uint64(3) {
		fifo.Put(n*64, runner.Frame{Kind: runner.FrameGrant, ID: n})
		fifo.Written().Store((n + 1) * 64)
		a.pair.Wake()
		require.Eventually(t, func() bool { return b.pair.lanes[0].in.fifo.Written().Load() == (n+1)*64 }, soon, time.Millisecond)
	}
	_, threads := host.shadow.P2PSleeper()
	require.Zero(t, threads.Load(), "no thread sleeps in a shadow")

	offset = uint64(2*page + sharedBlocks(runner.Lanes))
	host.own.Channel(1, 0).Store(offset)
	for n := uint64(1); n <= runner.ChannelPlaces; n++ {
		place := runner.Short.PlaceOf(unsafe.Add(a.own.Arena, offset), n)
		*place.Bytes = 8
		place.Filled.Store(n)
		a.pair.Wake()
		require.Eventually(t, func() bool { return runner.SentOf(b.pair.lanes[0].channels[0].in).Load() == n }, soon, time.Millisecond)
	}
}

// Whoever sleeps for messages of a rank, or for room in a channel to it, is woken by one of them. Who sleeps for another rank is not, nor by a
// count that has not risen.
func TestChannelWakes(t *testing.T) {
	for _, awaited := range []int{0, 1} {
		for _, kind := range []tcp.Kind{tcp.Message, tcp.Room} {
			a, b := pairThatSleeps(t)
			host := &b.pair.lanes[runner.HostLane]
			host.own.SleepFor(awaited)
			host.channels[0].sent.Store(1)
			on := a.pair.connection(0, 0)
			before, _ := b.bells()
			h := a.pair.header(kind)
			if kind == tcp.Message {
				h.Number = 1
			} else {
				h.Taken = 1
			}
			require.NoError(t, a.pair.Link.Send(on, &h))
			a.barrier(t, b, on)
			after, _ := b.bells()
			require.Equal(t, awaited == 0, after != before, "%v, of rank 0, for rank %d", kind, awaited)
			h = a.pair.header(tcp.Room)
			h.Taken = host.channels[0].room.Load()
			require.NoError(t, a.pair.Link.Send(on, &h))
			a.barrier(t, b, on)
			again, _ := b.bells()
			require.Equal(t, after, again)
		}
	}
}
