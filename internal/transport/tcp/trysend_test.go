package tcp

import (
	"errors"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// toSlowEnd returns an end that reads nothing behind its first frame before goOn, and the link to it, on which no heartbeat takes the rest of a frame
// along. held is closed when that frame has come.
func toSlowEnd(t *testing.T) (b *end, there *Link, held chan struct{}, goOn func()) {
	t.Helper()
	noLeaks(t)
	a := newEnd(t, func(c *Config) { c.Timing = Timing{Beat: time.Hour, Unacked: soon, Ending: soon, Greeting: soon} })
	b = newEnd(t, nil)
	there = a.linkTo(t, b)
	b.linkOf(t, a)
	held = make(chan struct{})
	slow := make(chan struct{})
	goOn = sync.OnceFunc(func() { close(slow) })
	t.Cleanup(goOn)
	b.set(func(_ int, h *Header) ([][]byte, error) {
		if h.Number == 1 {
			close(held)
			<-slow
		}
		return nil, nil
	})
	return b, there, held, goOn
}

// The rest of a frame that was taken in part goes out when no thread polls any more.
func TestRestOfAFrameGoesOut(t *testing.T) {
	b, there, held, goOn := toSlowEnd(t)
	require.NoError(t, there.conns[1].tcp.SetWriteBuffer(MaxMessage/4)) // so that a frame which is tried may not fit
	there.Calm(true)
	rest := func() bool {
		s := &there.conns[1].sending
		s.Lock()
		defer s.Unlock()
		return len(s.rest) > 0
	}
	sent := 0
	for !rest() {
		taken, err := there.Push(1, message(uint64(sent+1)), make([]byte, MaxMessage))
		require.NoError(t, err)
		if taken {
			sent++
		}
	}
	<-held
	goOn()
	there.Calm(false)
	b.await(t, sent)
}

// Who does not poll sends the rest of a frame, and is told when all is sent.
func TestTryFlushSendsTheRestOfAFrame(t *testing.T) {
	b, there, held, goOn := toSlowEnd(t)
	flushed, err := there.TryFlush(1)
	require.NoError(t, err)
	require.True(t, flushed, "nothing was sent")
	require.NoError(t, there.conns[1].tcp.SetWriteBuffer(MaxMessage/4)) // so that a frame which is tried may not fit
	sent := 0
	for flushed {
		taken, err := there.TrySend(1, message(uint64(sent+1)), make([]byte, MaxMessage))
		require.NoError(t, err)
		if taken {
			sent++
		}
		flushed, err = there.TryFlush(1)
		require.NoError(t, err)
	}
	<-held
	goOn()
	require.Eventually(t, func() bool {
		flushed, err := there.TryFlush(1)
		require.NoError(t, err)
		return flushed
	}, 10*time.Second, time.Millisecond)
	b.await(t, sent)
	there.Break(errors.New("for the test"))
	_, err = there.TryFlush(1)
	require.ErrorContains(t, err, "for the test")
}

// A thread that polls gets what comes, unless the goroutine was quicker, and the goroutine gets what comes otherwise.
func TestThreadsAndGoroutinesTakeTurns(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	there, back := a.linkTo(t, b), b.linkOf(t, a)
	const rounds = 100
	done := make(chan struct{})
	go func() { // b answers; in some rounds by polling
		defer close(done)
		for n := range rounds {
			if n%3 == 0 {
				back.Calm(true)
				for b.count() <= n && back.Err() == nil {
					back.PollData()
				}
				back.Calm(false)
			} else {
				b.await(t, n+1)
			}
			require.NoError(t, back.Send(1, message(uint64(n+1)), []byte("pong")))
		}
	}()
	for n := range rounds {
		require.NoError(t, there.Send(1, message(uint64(n+1)), make([]byte, n*30)))
		if n%2 == 0 {
			there.Calm(true)
			for a.count() <= n && there.Err() == nil {
				there.PollData()
			}
			there.Calm(false)
		} else {
			a.await(t, n+1)
		}
	}
	<-done
	require.NoError(t, there.Err())
}

// Who only tries to send learns that the connection was reset, and is not told that it is full.
func TestResetOfAFullConnection(t *testing.T) {
	noLeaks(t)
	unwatched := func(c *Config) {
		c.Timing = Timing{Beat: time.Hour, Unacked: time.Second, Ending: time.Second, Greeting: soon}
	}
	a, b := newEnd(t, unwatched), newEnd(t, unwatched)
	slow := make(chan struct{})
	defer close(slow)
	b.set(func(int, *Header) ([][]byte, error) { <-slow; return nil, nil })
	there, back := a.linkTo(t, b), b.linkOf(t, a)
	c := there.conns[1]
	c.receiving.Lock() // nobody here reads, who would notice the reset
	defer c.receiving.Unlock()
	for n := uint64(1); c.hasRoom(); n++ {
		_, err := there.TrySend(1, message(n), make([]byte, MaxMessage))
		require.NoError(t, err)
	}
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	require.NoError(t, back.conns[1].raw.Control(func(fd uintptr) { // the socket is disconnected: closing it would wait for the reader
		_, _, no := unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
		require.Zero(t, no)
	}))
	require.Eventually(t, c.hasRoom, soon, time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := there.TrySend(1, message(9), make([]byte, MaxMessage))
		return err != nil
	}, soon, time.Millisecond)
}
