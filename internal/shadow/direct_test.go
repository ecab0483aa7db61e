package shadow

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// pattern returns n bytes that differ by place.
func pattern(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	return data
}

// buffer returns memory as users have it: not of Go, so the race detector does not know the words behind which it is read.
func buffer(t *testing.T, n int) []byte {
	t.Helper()
	memory, err := mapPrivate(int64(n))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })
	return memory
}

// awaitMessage waits for a message, and returns its place in the shadow.
func (e *end) awaitMessage(t *testing.T, channel int, number uint64) runner.Place {
	t.Helper()
	place := runner.Short.PlaceOf(e.pair.lanes[0].channels[channel].in, number)
	require.Eventually(t, func() bool { return place.Filled.Load() == number }, soon, time.Millisecond)
	return place
}

// A message goes straight from one buffer to the other, if the receiver expects exactly it; else it lies in its place.
func TestMessagesWithoutACopy(t *testing.T) {
	a, b := pairThatSleeps(t)
	const bytesOfOne, channel = 40_000, 2
	data := pattern(bytesOfOne)
	right := runner.Payload{Channel: channel, Number: 1, Hash: 11, Block: 22, Data: buffer(t, bytesOfOne)}
	for n, change := range []func(*runner.Payload){
		func(*runner.Payload) {},
		func(p *runner.Payload) { p.Hash++ },
		func(p *runner.Payload) { p.Block++ },
		func(p *runner.Payload) { p.Data = p.Data[:len(p.Data)-4] },
		func(p *runner.Payload) { p.Number++ },
	} {
		number := uint64(n) + 1
		clear(right.Data)
		right.Number = number
		expects := right
		change(&expects)
		require.True(t, b.pair.Expect(expects))
		send := runner.Payload{Channel: channel, Number: number, Hash: 11, Block: 22, Data: data}
		require.Eventually(t, func() bool { return a.pair.Send(send) }, soon, time.Microsecond)
		place := b.awaitMessage(t, channel, number)
		require.EqualValues(t, bytesOfOne, *place.Bytes)
		if n == 0 {
			require.Equal(t, number, *place.Delivered)
			require.Equal(t, data, right.Data)
		} else {
			require.NotEqual(t, number, *place.Delivered, n)
			require.Equal(t, data, place.Data[:bytesOfOne], n)
			require.Equal(t, make([]byte, bytesOfOne), right.Data, n)
		}
		b.pair.lanes[0].own.Taken(0, channel).Store(number)
	}
	require.False(t, a.pair.Send(runner.Payload{Channel: channel, Number: 7, Data: data}), "message 6 was not sent")
}

// takeDirectly is reader.take for a piece that lies in a buffer.
func takeDirectly(t *testing.T, r *reader, id uint64) {
	t.Helper()
	f, _ := r.take(t)
	require.Equal(t, runner.FrameData, f.Kind)
	require.EqualValues(t, runner.Delivered, f.Tag)
	require.Equal(t, id, f.ID)
}

// Pieces go straight out of a buffer before their frames are published, also behind a WRAP; other frames follow in order.
func TestPiecesWithoutACopy(t *testing.T) {
	a, b := pairThatSleeps(t)
	w, r := newWriter(a, 0), &reader{e: b}
	const piece = 50_000 // so that a frame does not fit at the end
	for id := uint64(1); id <= 40; id++ {
		data, to := pattern(2*piece), buffer(t, 2*piece)
		if id%3 != 0 {
			require.True(t, b.pair.Expect(runner.Payload{Channel: runner.Piece, Number: id, Data: to}))
		}
		w.put(t, runner.Frame{Kind: runner.FrameGrant, ID: id}, nil)
		a.pair.Push()
		f, _ := r.take(t)
		require.Equal(t, runner.FrameGrant, f.Kind)
		for at := 0; at < len(data); at += piece {
			begin := w.written
			need := runner.FrameBytes(piece)
			if rest := w.fifo.Rest(begin); rest < need {
				w.fifo.PutWrap(begin)
				begin += rest
			}
			send := runner.Payload{Channel: runner.Piece, Number: id, Hash: 2 * piece, Block: begin, Data: data[at : at+piece]}
			wrong := send
			wrong.Block += 64
			require.False(t, a.pair.Send(wrong), "something lies before it that was not sent")
			require.Eventually(t, func() bool { return a.pair.Send(send) }, soon, time.Microsecond, "the pump may have the turn")
			_, err := a.pair.push() // the pump looks before the frame is published
			require.NoError(t, err)
			w.fifo.Put(begin, runner.Frame{Kind: runner.FrameData, Bytes: piece, Total: 2 * piece, ID: id})
			w.written = begin + need
			w.fifo.Written().Store(w.written)
			a.pair.Push()
			if id%3 != 0 {
				takeDirectly(t, r, id)
				require.Equal(t, data[at:at+piece], to[at:at+piece])
			} else {
				f, payload := r.take(t)
				require.Zero(t, f.Tag)
				require.Equal(t, data[at:at+piece], payload)
			}
			b.pair.Push() // CREDIT
		}
		b.pair.mu.Lock()
		require.Empty(t, b.pair.lanes[0].in.expected)
		b.pair.mu.Unlock()
	}
	require.Greater(t, w.written, 5*runner.Short.Fifo, "it has come to the end several times")
}

// What is forgotten in the middle of a payload is written no further, and the frame is whole in the shadow: another operation may want it.
func TestForgetInTheMiddleOfAPayload(t *testing.T) {
	const length = 60_000
	data := pattern(length)
	for name, kind := range map[string]struct {
		expect, send runner.Payload
	}{
		"message": {runner.Payload{Number: 1, Hash: 3, Block: 4}, runner.Payload{Number: 1, Hash: 3, Block: 4}},
		"piece":   {runner.Payload{Channel: runner.Piece, Number: 9}, runner.Payload{Channel: runner.Piece, Number: 9, Hash: length}},
	} {
		a, b, h := pairOverHalfway(t)
		w := newWriter(a, 0)
		w.put(t, runner.Frame{Kind: runner.FrameGrant, ID: 1}, nil)
		a.pair.Push()
		r := &reader{e: b}
		r.take(t)
		on := b.pair.connection(0, 0)
		h.arm()
		kind.expect.Data = buffer(t, length)
		kind.send.Data = data
		kind.send.Block = max(kind.send.Block, w.written)
		if name == "message" {
			kind.send.Block = kind.expect.Block
		}
		require.True(t, b.pair.Expect(kind.expect))
		require.Eventually(t, func() bool { return a.pair.Send(kind.send) }, soon, time.Microsecond)
		came := 0
		require.Eventually(t, func() bool {
			b.pair.Link.Divert(on, func(_ *tcp.Header, rest int) [][]byte {
				came = length - rest
				return nil
			})
			return came > 0
		}, soon, time.Millisecond)
		require.Less(t, came, length, name)
		require.Equal(t, data[:came], kind.expect.Data[:came], name)
		b.pair.Forget(0)
		clear(kind.expect.Data)
		h.goOn()
		if name == "message" {
			place := b.awaitMessage(t, 0, 1)
			require.Zero(t, *place.Delivered)
			require.True(t, bytes.Equal(data, place.Data[:length]), name)
		} else {
			f, payload := r.take(t)
			require.Zero(t, f.Tag)
			require.True(t, bytes.Equal(data, payload), name)
		}
		require.Equal(t, make([]byte, length), kind.expect.Data, name)
	}
}

// A frame that was refused is no payload on the way, whatever its header says.
func TestForgetBehindARefusedFrame(t *testing.T) {
	a, b := pairOfEnds(t)
	h := a.pair.header(tcp.Message)
	h.Channel, h.Number = 200, 1
	require.NoError(t, a.pair.Link.Send(1, &h, make([]byte, 60_000)))
	require.ErrorContains(t, b.loss(t), "channel 200")
	b.pair.Forget(0)
}

// Longer payloads than the geometry of the group has end the link.
func TestPayloadsThatAreTooLong(t *testing.T) {
	for _, kind := range []tcp.Kind{tcp.Message, tcp.Data} {
		a, b := pairOfEnds(t)
		h := a.pair.header(kind)
		h.Number, h.Hash = 1, 1<<20
		require.NoError(t, a.pair.Link.Send(a.pair.connection(0, 0), &h, make([]byte, 64<<10+64)))
		require.ErrorContains(t, b.loss(t), "65600 bytes")
	}
}
