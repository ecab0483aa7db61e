package shadow

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// Of runner.Short: PieceBytes, and Pair.mostUnread.
const (
	pieceBytes = 64 << 10
	mostUnread = 128 << 10
)

// writer writes a fifo in the place of the runner, by the rules of docs/protocol.md, section 8.
type writer struct {
	e       *end
	lane    int
	fifo    runner.Fifo
	written uint64
	eager   uint64
}

// newWriter makes the fifo of a lane behind the shared blocks and the channel of the arena.
func newWriter(e *end, lane int) *writer {
	offset := fifoAt + uint64(lane*int(fifoOf(runner.Short)))
	e.pair.lanes[lane].own.Fifo(e.pair.To).Store(offset)
	return &writer{e: e, lane: lane, fifo: runner.Short.FifoAt(unsafe.Add(e.own.Arena, offset))}
}

func (w *writer) put(t *testing.T, f runner.Frame, payload []byte) {
	t.Helper()
	need := uint64(64 + (len(payload)+63)/64*64)
	begins := w.written
	if rest := runner.Short.Fifo - begins%runner.Short.Fifo; rest < need {
		begins += rest
	}
	words := w.e.pair.lanes[w.lane].shadow
	deadline := time.Now().Add(soon)
	for begins+need-words.Read(w.e.pair.Rank).Load() > runner.Short.Fifo ||
		f.Kind == runner.FrameEager && w.eager+f.Bytes-words.Released(w.e.pair.Rank).Load() > runner.EagerCredit {
		require.True(t, time.Now().Before(deadline), "no room")
		runtime.Gosched()
	}
	if begins != w.written {
		w.fifo.PutWrap(w.written)
	}
	if f.Kind == runner.FrameEager {
		w.eager += f.Bytes
	}
	w.fifo.Put(begins, f)
	copy(w.fifo.Payload(begins, f.Bytes), payload)
	w.written = begins + need
	w.fifo.Written().Store(w.written)
	w.e.pair.Wake()
}

// reader reads the mirror in the place of the runner.
type reader struct {
	e              *end
	lane           int
	read, released uint64
}

func (r *reader) take(t *testing.T) (runner.Frame, []byte) {
	t.Helper()
	fifo := r.e.pair.lanes[r.lane].in.fifo
	own := r.e.pair.lanes[r.lane].own
	for deadline := time.Now().Add(soon); ; runtime.Gosched() {
		written := fifo.Written().Load()
		if written == r.read {
			require.True(t, time.Now().Before(deadline), "no frame")
			continue
		}
		f, size, err := fifo.Frame(r.read, written)
		require.NoError(t, err)
		payload := bytes.Clone(fifo.Payload(r.read, f.Bytes))
		r.read += size
		if f.Kind == runner.FrameWrap {
			continue
		}
		if f.Kind == runner.FrameEager {
			r.released += f.Bytes
		}
		own.Released(r.e.pair.To).Store(r.released)
		own.Read(r.e.pair.To).Store(r.read)
		r.e.pair.Wake()
		return f, payload
	}
}

// randomFrame returns a frame of any kind, which depends on nothing but the numbers that are drawn.
func randomFrame(random *rand.Rand, id uint64) (runner.Frame, []byte) {
	kind := []int{runner.FrameEager, runner.FrameAnnounce, runner.FrameGrant, runner.FrameData}[random.IntN(4)]
	f := runner.Frame{Kind: kind, ID: id}
	most := 0
	switch kind {
	case runner.FrameEager:
		most, f.Type, f.Tag = runner.EagerBytes, uint8(random.IntN(12)), int32(random.Uint32())
	case runner.FrameAnnounce:
		f.Total, f.Type, f.Tag = random.Uint64(), uint8(random.IntN(12)), int32(random.Uint32())
	case runner.FrameData:
		most, f.Total = pieceBytes, random.Uint64()
	}
	n := 0
	if most > 0 {
		n = []int{0, 1, 63, 64, 65, random.IntN(most), most - 1, most}[random.IntN(8)]
	}
	f.Bytes = uint64(n)
	if kind == runner.FrameEager || kind == runner.FrameData && n == 0 {
		f.Total = f.Bytes
	}
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(id) + byte(i)
	}
	return f, payload
}

// Both ranks send frames of every kind in both lanes at once. They come as they were put.
func TestFifos(t *testing.T) {
	a, b := pairOfEnds(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const frames = 700
	var all sync.WaitGroup
	for _, w := range []struct {
		from, to *end
	}{{a, b}, {b, a}} {
		for lane := range runner.Lanes {
			draw := func() *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(2*w.from.pair.Rank+lane))) }
			next := func(random *rand.Rand, id uint64) (runner.Frame, []byte) {
				for {
					f, payload := randomFrame(random, id)
					if lane == int(runner.HostLane) || f.Kind != runner.FrameEager {
						return f, payload
					}
				}
			}
			all.Go(func() {
				out, random := newWriter(w.from, lane), draw()
				for id := range uint64(frames) {
					f, payload := next(random, id)
					out.put(t, f, payload)
				}
			})
			all.Go(func() {
				in, random := reader{e: w.to, lane: lane}, draw()
				for id := range uint64(frames) {
					want, payload := next(random, id)
					got, there := in.take(t)
					if got != want || !bytes.Equal(payload, there) {
						t.Errorf("lane %d, frame %d: %+v with %d bytes, expected %+v", lane, id, got, len(there), want)
						return
					}
				}
			})
		}
	}
	all.Wait()
	require.NoError(t, a.pair.Link.Err())
}

// moveTo lets the fifo from a to b go on at a position, when nothing is on the way.
func moveTo(a, b *end, w *writer, r *reader, at uint64) {
	a.pair.pushing.Lock()
	defer a.pair.pushing.Unlock()
	w.written = at
	w.fifo.Written().Store(at)
	a.pair.lanes[w.lane].out.pushed.Store(at)
	a.pair.lanes[w.lane].shadow.Read(a.pair.Rank).Store(at)
	b.pair.mu.Lock()
	defer b.pair.mu.Unlock()
	in := &b.pair.lanes[w.lane].in
	in.written = at
	in.fifo.Written().Store(at)
	b.pair.lanes[w.lane].own.Read(b.pair.To).Store(at)
	r.read = at
}

// A fifo wraps in the same place on both sides, whatever is left to its end: every length from a frame without bytes to the longest one.
func TestFifoWrapsAnywhere(t *testing.T) {
	a, b := pairOfEnds(t)
	w, r := newWriter(a, 0), &reader{e: b}
	step := uint64(1)
	if testing.Short() {
		step = 37
	}
	const units = 2 + pieceBytes/64 // one more than the longest frame
	id := uint64(0)
	for rest := uint64(1); rest <= units; rest += step {
		moveTo(a, b, w, r, (id+1)*runner.Short.Fifo-64*rest)
		for _, n := range []int{pieceBytes, 100, 0} {
			id++
			payload := bytes.Repeat([]byte{byte(id)}, n)
			f := runner.Frame{Kind: runner.FrameData, ID: id, Total: uint64(n), Bytes: uint64(n)}
			w.put(t, f, payload)
			got, there := r.take(t)
			require.Equal(t, f, got)
			require.Equal(t, payload, there)
		}
		require.Equal(t, w.written, b.pair.lanes[0].in.fifo.Written().Load(), "%d bytes to the end", 64*rest)
	}
	for rest := uint64(1); rest <= units; rest += step { // the frame that wraps is the short one
		moveTo(a, b, w, r, (id+1)*runner.Short.Fifo-64*rest)
		for _, n := range []int{int(rest) * 64, max(0, int(rest)*64-65)} {
			id++
			n = min(n, pieceBytes)
			f := runner.Frame{Kind: runner.FrameData, ID: id, Total: uint64(n), Bytes: uint64(n)}
			w.put(t, f, make([]byte, n))
			got, _ := r.take(t)
			require.Equal(t, f, got)
		}
		require.Equal(t, w.written, b.pair.lanes[0].in.fifo.Written().Load(), "%d bytes to the end", 64*rest)
	}
	require.NoError(t, a.pair.Link.Err())
}

// What no pump sends ends the link, with the reason.
func TestForgedFrames(t *testing.T) {
	header := func(a *end, kind tcp.Kind) tcp.Header { return a.pair.header(kind) }
	eager := func(a *end) tcp.Header { h := header(a, tcp.Eager); h.Hash = 8 << 10; return h }
	data := func(a *end) tcp.Header { h := header(a, tcp.Data); h.Hash = 1 << 30; return h }
	for _, c := range []struct {
		name   string
		bytes  int
		times  int
		frame  func(a *end) tcp.Header
		other  bool // another connection
		reason string
	}{
		{"an eager payload of another length", 100, 1, eager, false, "100 bytes of 8192"},
		{"an eager payload on the device lane", 8 << 10, 1, func(a *end) tcp.Header { h := eager(a); h.Lane = 1; return h }, false, "in lane 1"},
		{"eager payloads beyond the credit", 8 << 10, 17, eager, false, "after 131072 of which 0 were matched"},
		{"no bytes of some", 0, 1, data, false, "no bytes of 1073741824"},
		{"no room", 64 << 10, 8, data, false, "after 459200 have come and 0 were read"},
		{"no room for headers", 0, 8193, func(a *end) tcp.Header { return header(a, tcp.Grant) }, false, "after 524288 have come and 0 were read"},
		{"more read than sent", 0, 1, func(a *end) tcp.Header { h := header(a, tcp.Grant); h.Taken = 64; return h }, false, "64 bytes were read, after 0 were sent"},
		{"more read than sent, in a credit", 0, 1, func(a *end) tcp.Header { h := header(a, tcp.Credit); h.Taken = 1; return h }, false, "1 bytes were read, after 0 were sent"},
		{"more matched than sent", 0, 1, func(a *end) tcp.Header { h := header(a, tcp.Credit); h.Block = 1; return h }, false, "1 eager bytes were matched, after 0 were sent"},
		{"no such lane", 0, 1, func(a *end) tcp.Header { h := header(a, tcp.Grant); h.Lane = 2; return h }, false, "lane 2 on connection"},
		{"another connection", 0, 1, func(a *end) tcp.Header { return header(a, tcp.Announce) }, true, "lane 0 on connection"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pairOfEnds(t)
			for range c.times {
				h := c.frame(a)
				on := a.pair.connection(int(h.Lane), 0)
				if c.other {
					on = 3 - on
				}
				if a.pair.Link.Send(on, &h, make([]byte, c.bytes)) != nil {
					break
				}
			}
			err := b.loss(t)
			require.ErrorIs(t, err, errNoFrame)
			require.ErrorContains(t, err, c.reason)
			require.ErrorContains(t, err, "from rank 0 to rank 1")
			require.Error(t, a.loss(t))
			require.EqualValues(t, 1, b.told.Load())
		})
	}
}

// What no writer writes into its own fifo is not sent: the link ends, and the reason names the rank.
func TestScribbledFifo(t *testing.T) {
	for _, f := range []struct {
		kind                  int
		bytes, total, written uint64
	}{
		{0, 0, 0, 64}, {9, 0, 0, 64}, {runner.FrameData, 64, 64, 64}, {runner.FrameData, 1 << 40, 1 << 40, 64}, {runner.FrameWrap, 0, 0, 64},
		{runner.FrameEager, 8193, 8193, 16 << 10}, {runner.FrameEager, 64, 65, 128}, {runner.FrameAnnounce, 64, 64, 128}, {runner.FrameGrant, 64, 0, 128},
		{runner.FrameData, 64<<10 + 1, 1 << 20, 128 << 10}, {runner.FrameData, 0, 64, 64}, {runner.FrameGrant, 0, 0, runner.Short.Fifo + 64},
		{runner.FrameWrap, runner.Short.Fifo - 64, 0, runner.Short.Fifo},
	} {
		a, b := pairOfEnds(t)
		w := newWriter(a, 0)
		w.fifo.Put(0, runner.Frame{Kind: f.kind, Bytes: f.bytes, Total: f.total})
		w.fifo.Written().Store(f.written)
		a.pair.Wake()
		require.ErrorContains(t, a.loss(t), "the fifo of rank 0 to rank 1", fmt.Sprint(f))
		require.Error(t, b.loss(t))
		require.Zero(t, b.pair.lanes[0].in.fifo.Written().Load())
	}
}

// So it does where a stray store has lowered a count of this rank, and where it has changed the place of a fifo or a channel.
func TestScribbledWords(t *testing.T) {
	for name, scribble := range map[string]func(a *end, w *writer, r *reader){
		"the fifo of rank 0 to rank 1": func(_ *end, w *writer, _ *reader) { w.fifo.Written().Store(w.written - 64) },
		"the channel of rank 0 to rank 1 lies at 1099511627776": func(a *end, _ *writer, _ *reader) {
			a.pair.lanes[0].own.Channel(1, 2).Store(1 << 40)
		},
		"the fifo of rank 0 to rank 1 lies at 8388608": func(a *end, _ *writer, _ *reader) {
			a.pair.lanes[1].own.Fifo(1).Store(8 << 20)
		},
	} {
		a, b := pairOfEnds(t)
		w, r := newWriter(a, 0), &reader{e: b}
		w.put(t, runner.Frame{Kind: runner.FrameGrant}, nil)
		w.put(t, runner.Frame{Kind: runner.FrameGrant}, nil)
		r.take(t)
		r.take(t)
		scribble(a, w, r)
		a.pair.Wake()
		err := a.loss(t)
		require.ErrorContains(t, err, "shared memory corrupted", name)
		require.ErrorContains(t, err, name)
		require.EqualValues(t, 128, b.pair.lanes[0].in.fifo.Written().Load(), "frames that were there before are sent again")
	}
}

// Credit is told when much is untold, and not for each frame.
func TestCreditIsToldSeldom(t *testing.T) {
	a, b := pairOfEnds(t)
	w, r := newWriter(a, 0), &reader{e: b}
	room := a.pair.lanes[0].shadow.Read(0)
	const piece = 1000
	for n := 0; r.read+64+1024 < mostUnread; n++ {
		f := runner.Frame{Kind: runner.FrameData, ID: uint64(n), Total: piece, Bytes: piece}
		w.put(t, f, make([]byte, piece))
		r.take(t)
	}
	b.barrier(t, a, b.pair.connection(0, 0))
	require.Zero(t, room.Load(), "less than %d bytes are untold", mostUnread)
	for r.read < mostUnread {
		w.put(t, runner.Frame{Kind: runner.FrameData, Total: piece, Bytes: piece}, make([]byte, piece))
		r.take(t)
	}
	require.Eventually(t, func() bool { return room.Load() == r.read }, soon, time.Millisecond)
	released := a.pair.lanes[0].shadow.Released(0)
	for range mostUnreleased / runner.EagerBytes {
		require.Zero(t, released.Load())
		w.put(t, runner.Frame{Kind: runner.FrameEager, Total: runner.EagerBytes, Bytes: runner.EagerBytes}, make([]byte, runner.EagerBytes))
		r.take(t)
	}
	require.Eventually(t, func() bool { return released.Load() == mostUnreleased }, soon, time.Millisecond)
}

// Frames that lie in the fifo when a rank leaves are sent before its goodbye, and nothing behind it.
func TestFramesBeforeAGoodbye(t *testing.T) {
	a, b := pairOfEnds(t)
	w, r := newWriter(a, 0), &reader{e: b}
	a.pair.pushing.Lock()
	for id := range uint64(5) {
		w.put(t, runner.Frame{Kind: runner.FrameData, ID: id, Total: 5 << 16, Bytes: 64 << 10}, make([]byte, 64<<10))
	}
	a.pair.lanes[runner.HostLane].own.Left().Store(3)
	a.pair.pushing.Unlock()
	left := b.pair.lanes[runner.HostLane].shadow.Left()
	require.Eventually(t, func() bool { return left.Load() == 3 }, soon, time.Millisecond)
	for id := range uint64(5) {
		f, _ := r.take(t)
		require.Equal(t, id, f.ID)
	}
	w.put(t, runner.Frame{Kind: runner.FrameGrant}, nil)
	moved, err := a.pair.push() // a look of the pump at it
	require.NoError(t, err)
	require.False(t, moved)
	a.barrier(t, b, a.pair.connection(0, 0))
	require.Equal(t, r.read, b.pair.lanes[0].in.fifo.Written().Load())
	require.NoError(t, a.pair.Link.Err())
}
