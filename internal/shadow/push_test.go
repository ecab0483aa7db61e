package shadow

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// A thread that publishes sends at once, without the pump; while the other process reads nothing it does not wait, and the pump sends the rest in
// its order. Nothing comes twice.
func TestPushSendsWithoutThePumpAndDoesNotWait(t *testing.T) {
	a, b := pairThatSleeps(t)
	host := &a.pair.lanes[runner.HostLane]
	const frames = 4
	fifo := runner.Short.FifoAt(unsafe.Add(a.own.Arena, fifoAt))
	host.own.Fifo(1).Store(fifoAt)
	put := func(at uint64, id uint64) uint64 {
		data := fifo.Payload(at, pieceBytes)
		for i := range data {
			data[i] = byte(id)
		}
		fifo.Put(at, runner.Frame{Kind: runner.FrameData, Bytes: pieceBytes, Total: pieceBytes, ID: id})
		fifo.Written().Store(at + runner.FrameBytes(pieceBytes))
		return at + runner.FrameBytes(pieceBytes)
	}
	hear := a.deafen(t)
	at := put(0, 1)
	a.pair.Push()
	require.Empty(t, a.pair.bell, "the pump was not rung")
	require.Equal(t, at, host.out.pushed.Load())
	in := &b.pair.lanes[runner.HostLane].in
	require.Eventually(t, func() bool { b.pair.Poll(); return in.fifo.Written().Load() == at }, soon, time.Millisecond)

	on := a.pair.connection(0, 0)
	b.hold(int32(on)) // its goroutine waits at the next frame
	for id := uint64(2); id <= frames; id++ {
		at = put(at, id)
		a.pair.Push()
	}
	a.pair.turn.Lock() // somebody else sends
	last := at
	at = put(at, frames+1)
	a.pair.Push()
	require.Len(t, a.pair.bell, 1, "the pump has to look again")
	hear()
	require.LessOrEqual(t, host.out.pushed.Load(), last)
	a.pair.turn.Unlock()
	b.goOn()
	require.Eventually(t, func() bool { return in.fifo.Written().Load() == at }, soon, time.Millisecond)
	for n, id := uint64(0), uint64(1); n < at; id++ {
		f, size, err := in.fifo.Frame(n, at)
		require.NoError(t, err)
		require.Equal(t, id, f.ID)
		data := in.fifo.Payload(n, f.Bytes)
		require.Equal(t, []byte{byte(id), byte(id)}, []byte{data[0], data[len(data)-1]})
		n += size
	}
}

// Behind the goodbye of this rank a thread sends nothing: the pump has it.
func TestPushBehindAGoodbye(t *testing.T) {
	a, _ := pairThatSleeps(t)
	a.pair.turn.Lock()
	a.pair.leaving = true
	a.pair.turn.Unlock()
	a.deafen(t)
	a.pair.Push()
	require.Len(t, a.pair.bell, 1)
}

// What does not fit counts as not sent: the counts that the remote rank may speak of are as before.
func TestPushTakesBackWhatIsNotSent(t *testing.T) {
	a, b := pairThatSleeps(t)
	on := a.pair.connection(0, 0)
	b.hold(int32(on))
	// Frames that are dropped fill the connection.
	h := a.pair.header(tcp.Data)
	h.Group++
	full := 0
	const piece = 8 << 10               // a longer one is not tried where the kernel has little room
	require.Eventually(t, func() bool { // the rest of a frame goes out meanwhile, if there is room
		h.Number, h.Hash = 1, piece
		taken, err := a.pair.Link.Push(on, &h, make([]byte, piece))
		require.NoError(t, err)
		full++
		if taken {
			full = 0
		}
		return full == 3
	}, soon, time.Millisecond)
	hear := a.deafen(t)
	host := &a.pair.lanes[runner.HostLane]
	offset := uint64(2*page + sharedBlocks(runner.Lanes))
	host.own.Channel(1, 0).Store(offset)
	place := runner.Short.PlaceOf(unsafe.Add(a.own.Arena, offset), 1)
	*place.Bytes = 8
	place.Filled.Store(1)
	require.False(t, a.pair.tryPush())
	require.Zero(t, host.channels[0].sent.Load())
	require.Empty(t, a.pair.bell)
	a.pair.Push()
	hear()
	b.goOn()
	require.Eventually(t, func() bool { return runner.SentOf(b.pair.lanes[0].channels[0].in).Load() == 1 }, soon, time.Millisecond)
	require.Equal(t, uint64(1), host.channels[0].sent.Load())
}

// What a thread could not send is sent by a thread that polls, without the pump, and by the one that stops polling.
func TestWhoPollsSendsWhatWasNotSent(t *testing.T) {
	for _, stops := range []bool{false, true} {
		a, b := pairThatSleeps(t)
		a.deafen(t)
		host := &a.pair.lanes[runner.HostLane]
		offset := uint64(2*page + sharedBlocks(runner.Lanes))
		host.own.Channel(1, 0).Store(offset)
		place := runner.Short.PlaceOf(unsafe.Add(a.own.Arena, offset), 1)
		*place.Bytes = 8
		place.Filled.Store(1)
		a.pair.Attend(true)
		a.pair.turn.Lock()
		a.pair.Push()
		a.pair.turn.Unlock()
		require.Zero(t, host.channels[0].sent.Load())
		if stops {
			a.pair.Attend(false)
		} else {
			a.pair.Poll()
		}
		require.Equal(t, uint64(1), host.channels[0].sent.Load())
		require.Empty(t, a.pair.bell, "the pump was not rung")
		require.Eventually(t, func() bool { return runner.SentOf(b.pair.lanes[0].channels[0].in).Load() == 1 }, soon, time.Millisecond)
		if !stops {
			a.pair.Attend(false)
		}
	}
}
