package tcp

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// While a thread polls, the goroutine is not woken for a frame. It is when much is waiting, and for what came before when the thread ends.
func TestCalmWakesNobodyForAFewBytes(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	there, back := a.linkTo(t, b), b.linkOf(t, a)
	require.NoError(t, there.Send(1, message(1)))
	b.await(t, 1)
	asleep(t)
	back.Calm(true)
	require.NoError(t, there.Send(1, message(2), make([]byte, 1000)))
	require.Never(t, func() bool { return b.count() > 1 }, 100*time.Millisecond, time.Millisecond)
	require.Eventually(t, func() bool { return back.PollData() }, soon, time.Millisecond)
	require.Equal(t, 2, b.count())

	require.NoError(t, there.Send(1, message(3)))
	back.Calm(true) // a second thread
	back.Calm(false)
	require.Never(t, func() bool { return b.count() > 2 }, 100*time.Millisecond, time.Millisecond)
	back.Calm(false)
	b.await(t, 3)

	back.Calm(true)
	const many = 2 * calmBytes / MaxMessage
	for n := range uint64(many) {
		require.NoError(t, there.Send(1, message(4+n), make([]byte, MaxMessage)))
	}
	b.await(t, 4)
	back.Calm(false)
	b.await(t, 3+many)
}

// asleep returns when no goroutine that reads a connection runs: each waits for the network.
func asleep(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	require.Eventually(t, func() bool {
		for _, one := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(one, "(*conn).run(") && !strings.Contains(one, "[IO wait") {
				return false
			}
		}
		return true
	}, soon, time.Millisecond)
}

// ofSocket returns an option of the first data connection.
func ofSocket(t *testing.T, l *Link, option int) (value int) {
	raw, err := l.conns[1].tcp.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		value, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, option)
	}))
	require.NoError(t, err)
	return value
}

// The mark is below what the buffer of the socket holds, so a sender that needs room is not held up by threads that do not poll for a while.
func TestCalmWithASmallBuffer(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	there, back := a.linkTo(t, b), b.linkOf(t, a)
	require.NoError(t, back.conns[1].tcp.SetReadBuffer(calmBytes/8))
	back.Calm(true)
	buffer, mark := ofSocket(t, back, unix.SO_RCVBUF), ofSocket(t, back, unix.SO_RCVLOWAT)
	require.Greater(t, mark, 1)
	require.LessOrEqual(t, mark, buffer/2, "the kernel bounds the mark by its buffer")
	const many = 200
	sent := make(chan error, 1)
	go func() {
		for n := range uint64(many) {
			if err := there.Send(1, message(1+n), make([]byte, MaxMessage)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	select {
	case err := <-sent:
		require.NoError(t, err)
	case <-time.After(soon):
		require.Fail(t, "the sender is held up")
	}
	back.Calm(false)
	b.await(t, many)
}

// The end of a link is noticed while a thread polls, also by who does not poll.
func TestCalmEnds(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	a.linkTo(t, b)
	back := b.linkOf(t, a)
	back.Calm(true)
	a.Close()
	require.Eventually(t, func() bool { return back.Err() != nil }, soon, time.Millisecond)
	back.Calm(false)
}

// Two threads that push and poll have more to send than connections hold. The rest of the last frame goes out when they end.
func TestPushAndPoll(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	there, back := a.linkTo(t, b), b.linkOf(t, a)
	const messages = 300
	done := make(chan error, 2)
	talk := func(e *end, l *Link) error {
		l.Calm(true)
		defer l.Calm(false)
		for sent := 0; sent < messages; l.PollData() {
			body := bytes.Repeat([]byte{byte(sent)}, MaxMessage)
			taken, err := l.Push(1, message(uint64(sent+1)), body[:100], body[100:])
			if err != nil {
				return err
			}
			if taken {
				sent++
			}
		}
		return nil
	}
	go func() { done <- talk(a, there) }()
	go func() { done <- talk(b, back) }()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	for _, e := range []*end{a, b} {
		for n, f := range e.await(t, messages) {
			require.EqualValues(t, n+1, f.h.Number)
			require.Equal(t, MaxMessage, len(f.body))
			require.Equal(t, byte(n), f.body[MaxMessage-1])
		}
	}
}
