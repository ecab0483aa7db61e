package shadow

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/handshake"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
	"sagecomm/tests/quick"
)

const soon = 20 * time.Second

// The arena of a test: a page, the shared blocks, a channel, and from fifoAt on the fifos.
const fifoAt = 4 << 20

// end is a process with one rank of a group of two.
type end struct {
	*Set
	node *tcp.Node
	at   netip.AddrPort
	id   tcp.Identity
	lost chan error
	own  runner.Peer
	pair *Pair
	told atomic.Int32 // calls of Config.Lost
	late atomic.Bool  // one of them came before the last access to the memory of the pair

	asks atomic.Int32 // frames that ask for a state

	held atomic.Int32 // the connection whose frames wait for goOn, 1 above its number; 0: none
	free chan struct{}
	goOn func() // lets them go on
}

// Place keeps frames of a connection waiting, if the test wants that.
func (e *end) Place(from *tcp.Link, on int, h *tcp.Header) ([][]byte, error) {
	if e.held.Load() == int32(on)+1 {
		<-e.free
	}
	if h.Kind == tcp.Ask {
		e.asks.Add(1)
	}
	return e.Set.Place(from, on, h)
}

func (e *end) hold(on int32) { e.held.Store(on + 1) }

func newEnd(t testing.TB, rank int) *end {
	t.Helper()
	e := &end{Set: NewSet(), id: tcp.Identity{byte(1 + rank)}, lost: make(chan error, 1), free: make(chan struct{})}
	e.goOn = sync.OnceFunc(func() { close(e.free) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e.at = l.Addr().(*net.TCPAddr).AddrPort()
	e.node, err = tcp.NewNode(tcp.Config{Self: e.id, Data: 2, Receiver: e, Lost: func(l *tcp.Link, why error) {
		e.Lost(l, why)
		e.lost <- why
	}, Opened: runner.CloseInChild, Closing: runner.KeepInChild}, []net.Listener{l})
	require.NoError(t, err)
	require.NoError(t, e.node.AddKey(handshake.Space{}, handshake.Key{1}))
	var free func()
	e.own, free = newOwn(t, rank)
	t.Cleanup(func() {
		e.goOn()
		e.node.Close()
		e.Close()
		if e.pair != nil {
			e.pair.Free()
		}
		free()
	})
	return e
}

// sharedBlocks returns the bytes of the shared blocks of so many lanes.
func sharedBlocks(lanes int) (bytes int64) {
	for n := range lanes {
		bytes += runner.SharedBlockBytes(runner.Lane(n), 2)
	}
	return bytes
}

// newOwn returns the place of the shared blocks of a rank of this process, in an arena of their own.
func newOwn(t testing.TB, rank int) (own runner.Peer, free func()) {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, fifoAt+2*int(fifoOf(runner.Short)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
	require.NoError(t, err)
	own = runner.Peer{Arena: unsafe.Pointer(&memory[0]), Bytes: int64(len(memory)), Bell: 0}
	for n := range own.Shared {
		own.Shared[n] = 2*page + sharedBlocks(n)
		runner.FormatSharedBlock(unsafe.Add(own.Arena, own.Shared[n]), runner.Lane(n), rank, 2, 0)
	}
	return own, func() { require.NoError(t, unix.Munmap(memory)) }
}

// pairOfEnds returns two processes with shadows of each other.
func pairOfEnds(t testing.TB, with ...func(*end)) (a, b *end) {
	t.Helper()
	a, b = strangers(t, with...)
	for rank, e := range []*end{a, b} {
		require.True(t, e.pair.Open())
		require.Eventually(t, []*end{b, a}[rank].pair.hasOpened, soon, time.Millisecond)
		p := e.pair.Peer()
		require.True(t, p.Check(1-rank, 2), "it is no shared block of the remote rank")
	}
	return a, b
}

// hasOpened reports whether OPEN of the remote rank has come.
func (p *Pair) hasOpened() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

// strangers returns two processes whose pair is not made.
func strangers(t testing.TB, with ...func(*end)) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, 0), newEnd(t, 1)
	for _, f := range with {
		f(a)
		f(b)
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for rank, e := range []*end{a, b} {
		other := []*end{b, a}[rank]
		l, err := e.node.Link(ctx, other.id, []netip.AddrPort{other.at}, handshake.Space{})
		require.NoError(t, err)
		e.pair, err = e.Add(Config{Link: l, Group: 5, Rank: rank, To: 1 - rank, Size: 2, Geometry: runner.Short, Own: e.own, Memory: newMemory(t), GaveUp: func() []byte { return []byte("the record") }, Lost: func(error) {
			if runner.WordsOf(unsafe.Add(e.own.Arena, e.own.Shared[runner.HostLane]), 2).Detached(1-rank).Load() == 0 {
				e.late.Store(true)
			}
			e.told.Add(1)
		}})
		require.NoError(t, err)
		_, err = e.Add(e.pair.Config)
		require.Error(t, err, "twice")
	}
	return a, b
}

func (e *end) loss(t *testing.T) error {
	t.Helper()
	select {
	case why := <-e.lost:
		return why
	case <-time.After(soon):
		require.Fail(t, "no loss")
		return nil
	}
}

// Frames that the remote rank does not send end the link. Nothing of them is in the shadow then.
func TestFramesOfNoRank(t *testing.T) {
	for name, spoil := range map[string]func(h *tcp.Header){
		"lane":            func(h *tcp.Header) { h.Lane = 2 },
		"channel":         func(h *tcp.Header) { h.Channel = runner.Channels },
		"number too high": func(h *tcp.Header) { h.Number = 2 },
		"number too low":  func(h *tcp.Header) { h.Number = 0 },
		"taken too high":  func(h *tcp.Header) { h.Taken = 1 },
		"room too high": func(h *tcp.Header) {
			*h = tcp.Header{Kind: tcp.Room, Group: 5, From: 0, To: 1, Taken: 1}
		},
	} {
		a, b := pairOfEnds(t)
		h := a.pair.header(tcp.Message)
		h.Number = 1
		spoil(&h)
		on := a.pair.connection(0, 0)
		payload := [][]byte{make([]byte, 100)}
		if h.Kind != tcp.Message {
			payload = nil
		}
		_ = a.pair.Link.Send(on, &h, payload...)
		require.ErrorIs(t, b.loss(t), errNoFrame, name)
		require.Error(t, a.loss(t), name)
		require.EqualValues(t, 1, a.told.Load(), name)
		require.False(t, a.late.Load() || b.late.Load(), name)
		require.EqualValues(t, 1, b.told.Load(), name)
		for k := range runner.Channels {
			require.Zero(t, runner.SentOf(b.pair.lanes[0].channels[k].in).Load(), name)
		}
	}
}

// A kind that no pair has a use for is refused, and so is CLOSE of a rank that has not said goodbye to one that has not given up.
func TestKindsOfNoUse(t *testing.T) {
	a, b := pairOfEnds(t)
	h := a.pair.header(tcp.Heartbeat)
	_, err := b.pair.accept(1, &h)
	require.ErrorIs(t, err, errNoFrame)
	h = a.pair.header(tcp.Close)
	require.NoError(t, a.pair.Link.Send(1, &h))
	err = b.loss(t)
	require.ErrorIs(t, err, errNoFrame)
	require.ErrorContains(t, err, "without a goodbye on connection 1")
	require.EqualValues(t, 1, b.told.Load())
}

// A message on another connection than that of its channel, and one for which there is no room, end the link as well.
func TestMessagesOutOfOrder(t *testing.T) {
	a, b := pairOfEnds(t)
	h := a.pair.header(tcp.Message)
	h.Number = 1
	require.NoError(t, a.pair.Link.Send(3-a.pair.connection(0, 0), &h))
	require.ErrorIs(t, b.loss(t), errNoFrame)

	a, b = pairOfEnds(t)
	for n := range uint64(runner.ChannelPlaces + 1) {
		h := a.pair.header(tcp.Message)
		h.Number = n + 1
		_ = a.pair.Link.Send(a.pair.connection(0, 0), &h, []byte("x"))
	}
	require.ErrorIs(t, b.loss(t), errNoFrame)
	require.EqualValues(t, runner.ChannelPlaces, runner.SentOf(b.pair.lanes[0].channels[0].in).Load())
}

// A frame of a pair that is not known here is dropped: it was closed here, and its sender has not heard of that. Others of its group go on.
func TestFramesOfAnotherPair(t *testing.T) {
	a, b := pairOfEnds(t)
	on := a.pair.connection(0, 0)
	for _, other := range []func(h *tcp.Header){func(h *tcp.Header) { h.Group++ }, func(h *tcp.Header) { h.From = 1 }, func(h *tcp.Header) { h.To = 7 }} {
		h := a.pair.header(tcp.Message)
		h.Number = 1
		other(&h)
		require.NoError(t, a.pair.Link.Send(on, &h, make([]byte, 1000)))
	}
	h := a.pair.header(tcp.Message)
	h.Number = 1
	require.NoError(t, a.pair.Link.Send(on, &h, []byte("x")))
	require.Eventually(t, func() bool { return runner.SentOf(b.pair.lanes[0].channels[0].in).Load() == 1 }, soon, time.Millisecond)
}

// Behind CLOSE and GOODBYE, memory may have been given back: what comes there ends the link, and is stored nowhere.
func TestFramesBehindTheEnd(t *testing.T) {
	for _, end := range []tcp.Kind{tcp.Close, tcp.Goodbye} {
		a, b := pairOfEnds(t)
		on := a.pair.connection(0, 0)
		h := a.pair.header(end)
		h.Kind, h.Number = tcp.Goodbye, 9
		require.NoError(t, a.pair.Link.Send(on, &h))
		if end == tcp.Close {
			h.Kind, h.Number = end, 0
			require.NoError(t, a.pair.Link.Send(on, &h))
		}
		h = a.pair.header(tcp.Message)
		h.Number = 1
		require.NoError(t, a.pair.Link.Send(on, &h, []byte("x")))
		require.ErrorIs(t, b.loss(t), errNoFrame)
		require.Zero(t, runner.SentOf(b.pair.lanes[0].channels[0].in).Load())
	}
}

// A rank that gives up in the rendezvous detaches from nothing. Both sides give memory back all the same, and the goodbye is stored last.
func TestGiveUp(t *testing.T) {
	a, b := pairOfEnds(t)
	b.pair.lanes[runner.HostLane].own.Left().Store(gaveUp)
	host := &a.pair.lanes[runner.HostLane]
	require.Eventually(t, func() bool { return host.shadow.Left().Load() == gaveUp }, soon, time.Millisecond)
	require.Zero(t, host.own.Detached(1).Load(), "the goodbye is the last access, and detached would give memory back as well")
	require.Equal(t, "the record", string(host.shadow.FailureRecord()[:10]))
	require.Eventually(t, func() bool { return b.pair.lanes[runner.HostLane].own.Detached(0).Load() == 1 }, soon, time.Millisecond)
	for _, e := range []*end{a, b} {
		require.Eventually(t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.pairs) == 0
		}, soon, time.Millisecond)
	}
	require.NoError(t, a.pair.Link.Err())
}

// Both may give up at the same time.
func TestBothGiveUp(t *testing.T) {
	quick.Skip(t, "it waits for a second, as TestGiveUp does")
	a, b := pairOfEnds(t)
	for _, e := range []*end{a, b} {
		e.pair.lanes[runner.HostLane].own.Left().Store(gaveUp)
	}
	for _, e := range []*end{a, b} {
		require.Eventually(t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.pairs) == 0
		}, soon, time.Millisecond)
		host := &e.pair.lanes[runner.HostLane]
		detached, left := host.own.Detached(e.pair.To).Load() != 0, host.shadow.Left().Load() == gaveUp
		require.NotEqual(t, detached, left, "one of the two words is there, and so was the last access")
	}
	require.NoError(t, a.pair.Link.Err())
}

// A process that ends right after it has given up, as it does normally, has given up: the memory of the other one can be given back, and no
// failure is told.
func TestGiveUpBeforeAnExit(t *testing.T) {
	quick.Skip(t, "it waits for seconds")
	a, b := pairOfEnds(t)
	a.mu.Lock()
	m := a.pumps[a.pair.Link]
	a.mu.Unlock()
	a.hold(1)
	b.pair.lanes[runner.HostLane].own.Left().Store(gaveUp)
	require.Eventually(t, func() bool {
		b.pair.mu.Lock()
		defer b.pair.mu.Unlock()
		return b.pair.closed
	}, soon, time.Millisecond)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		b.node.Close()
	}()
	<-m.done // the end of the other connections has come
	a.goOn()
	require.Error(t, a.loss(t))
	<-closed
	host := &a.pair.lanes[runner.HostLane]
	require.EqualValues(t, uint64(gaveUp), host.shadow.Left().Load())
	require.Equal(t, "the record", string(host.shadow.FailureRecord()[:10]))
	require.Zero(t, host.own.Detached(1).Load())
	require.Zero(t, a.told.Load())
}

// A rank has left when its goodbye has come on every connection; a lost link is no failure then.
func TestGoodbyeOnEveryConnection(t *testing.T) {
	a, b := pairOfEnds(t)
	h := a.pair.header(tcp.Goodbye)
	h.Number = 9
	left := b.pair.lanes[runner.HostLane].shadow.Left()
	for on := range 3 {
		require.Zero(t, left.Load())
		require.NoError(t, a.pair.Link.Send(on, &h))
		if on == 2 {
			require.Eventually(t, func() bool { return left.Load() == 9 }, soon, time.Millisecond)
		}
	}
	a.node.Close()
	require.Error(t, b.loss(t))
	require.Zero(t, b.told.Load())
	require.EqualValues(t, 1, b.pair.lanes[runner.HostLane].own.Detached(0).Load(), "the memory can be given back")

	a, b = pairOfEnds(t)
	require.NoError(t, a.pair.Link.Send(1, &h))
	require.NoError(t, a.pair.Link.Send(1, &h))
	require.ErrorIs(t, b.loss(t), errNoFrame, "a goodbye twice on one connection")
}

// The pump sends what lies in a channel, tells room, and says that it has ended with the memory once both ranks have detached.
func TestPump(t *testing.T) {
	a, b := pairOfEnds(t)
	// a writes in the place of a runner: its channel to b lies behind its shared blocks.
	offset := uint64(2*page + sharedBlocks(runner.Lanes))
	out := unsafe.Add(a.own.Arena, offset)
	own := a.pair.lanes[runner.HostLane].own
	own.Channel(1, 2).Store(offset)
	in := b.pair.lanes[runner.HostLane].channels[2].in
	messages := uint64(10)
	if quick.Only() {
		messages = 2 // every other one waits for the pump, for a second
	}
	for n := uint64(1); n <= messages; n++ {
		room := a.pair.lanes[runner.HostLane].shadow.Taken(0, 2)
		require.Eventually(t, func() bool { return n <= room.Load()+runner.ChannelPlaces }, soon, time.Millisecond)
		place := runner.Short.PlaceOf(out, n)
		copy(place.Data, "message")
		place.Data[7] = byte(n)
		*place.Hash, *place.Bytes, *place.Block = 100+n, 8, 200+n
		place.Filled.Store(n)
		if n%2 == 0 {
			a.pair.Wake()
		}
		got := runner.Short.PlaceOf(in, n)
		require.Eventually(t, func() bool { return got.Filled.Load() == n }, soon, time.Millisecond)
		require.Equal(t, "message"+string(byte(n)), string(got.Data[:*got.Bytes]))
		require.Equal(t, 100+n, *got.Hash)
		require.Equal(t, 200+n, *got.Block)
		b.pair.lanes[runner.HostLane].own.Taken(0, 2).Store(n)
	}
	for _, e := range []*end{a, b} {
		e.pair.lanes[runner.HostLane].own.Left().Store(3)
		e.pair.Detach()
	}
	for _, e := range []*end{a, b} {
		done := e.pair.lanes[runner.HostLane].own.Detached(e.pair.To)
		require.Eventually(t, func() bool { return done.Load() == 1 }, soon, time.Millisecond)
		require.EqualValues(t, 3, e.pair.lanes[runner.HostLane].shadow.Left().Load())
	}
}
