package tcp

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Two threads that attend, and have more to send than connections hold, do not wait for each other. With Send they would.
func TestThreadsThatAttendSendWithoutWaiting(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	there, back := a.linkTo(t, b), b.linkOf(t, a)
	const messages = 300
	var both sync.WaitGroup
	talk := func(e *end, l *Link) {
		l.Attend()
		defer l.Leave()
		for sent := 0; sent < messages || e.count() < messages; {
			if sent < messages {
				body := bytes.Repeat([]byte{byte(sent)}, MaxMessage)
				taken, err := l.TrySend(1, message(uint64(sent+1)), body[:100], body[100:])
				require.NoError(t, err)
				if taken {
					sent++
				}
			}
			_, err := l.Poll()
			require.NoError(t, err)
		}
	}
	both.Go(func() { talk(a, there) })
	both.Go(func() { talk(b, back) })
	both.Wait()
	for _, e := range []*end{a, b} {
		for n, f := range e.await(t, messages) {
			require.EqualValues(t, n+1, f.h.Number)
			require.Equal(t, MaxMessage, len(f.body))
			require.Equal(t, byte(n), f.body[MaxMessage-1])
		}
	}
}

// toSlowEnd returns an end that reads nothing behind its first frame before goOn, and the link to it. held is closed when that frame has come.
func toSlowEnd(t *testing.T) (b *end, there *Link, held chan struct{}, goOn func()) {
	t.Helper()
	noLeaks(t)
	a := newEnd(t, nil)
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

// The rest of a frame that was taken in part goes out when the thread leaves.
func TestRestOfAFrameGoesOut(t *testing.T) {
	b, there, held, goOn := toSlowEnd(t)
	there.Attend()
	sent := 0
	for {
		taken, err := there.TrySend(1, message(uint64(sent+1)), make([]byte, MaxMessage))
		require.NoError(t, err)
		if !taken && sent > 0 {
			break
		}
		if taken {
			sent++
		}
	}
	<-held
	goOn()
	there.Leave()
	b.await(t, sent)
}

// Who does not attend sends the rest of a frame, and is told when all is sent.
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

// A thread that polls gets everything that comes while it attends, and the goroutines what comes otherwise.
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
				back.Attend()
				for b.count() <= n {
					_, err := back.Poll()
					require.NoError(t, err)
				}
				back.Leave()
			} else {
				b.await(t, n+1)
			}
			require.NoError(t, back.Send(1, message(uint64(n+1)), []byte("pong")))
		}
	}()
	for n := range rounds {
		require.NoError(t, there.Send(1, message(uint64(n+1)), make([]byte, n*30)))
		if n%2 == 0 {
			there.Attend()
			for a.count() <= n {
				_, err := there.Poll()
				require.NoError(t, err)
			}
			there.Leave()
		} else {
			a.await(t, n+1)
		}
	}
	<-done
}

// A thread that attends notices the loss as well.
func TestLossWhileAThreadPolls(t *testing.T) {
	noLeaks(t)
	quick := func(c *Config) { c.Timing = Timing{Beat: time.Hour, Unacked: 200 * time.Millisecond, Greeting: soon} }
	a, b := newEnd(t, quick), newEnd(t, quick)
	l := a.linkTo(t, b)
	l.Attend()
	b.Close()
	require.Eventually(t, func() bool { _, err := l.Poll(); return err != nil }, soon, time.Millisecond)
	require.Error(t, a.awaitLoss(t))
	l.Leave()
}

// Who only tries to send learns that the connection was reset, and is not told that it is full.
func TestResetOfAFullConnection(t *testing.T) {
	noLeaks(t)
	unwatched := func(c *Config) { c.Timing = Timing{Beat: time.Hour, Unacked: time.Second, Greeting: soon} }
	a, b := newEnd(t, unwatched), newEnd(t, unwatched)
	slow := make(chan struct{})
	defer close(slow)
	b.set(func(int, *Header) ([][]byte, error) { <-slow; return nil, nil })
	there, back := a.linkTo(t, b), b.linkOf(t, a)
	there.Attend() // nobody here reads, who would notice the reset
	defer there.Leave()
	c := there.conns[1]
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
