package tcp

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/tests/quick"
)

// hearsNothing lets the kernel drop all that comes on a connection, as if the host had died: it acknowledges nothing, and answers no probe.
func (c *conn) hearsNothing(t *testing.T) {
	t.Helper()
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	require.NoError(t, c.raw.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing}))
	}))
}

// linkedWith is linked with times of its own for both ends.
func linkedWith(t *testing.T, here, there Timing) (a, b *end, out, back *Link) {
	t.Helper()
	settings := newAuthority(t).settings(t)
	with := func(times Timing) func(*Config) { return func(c *Config) { c.TLS, c.Timing = settings, times } }
	a, b = newEnd(t, with(here)), newEnd(t, with(there))
	out = a.linkTo(t, b)
	return a, b, out, b.linkOf(t, a)
}

// stops lets an end read nothing of a connection behind its first frame, as a process that is stopped.
func (e *end) stops(t *testing.T) (goOn func()) {
	t.Helper()
	slow := make(chan struct{})
	goOn = sync.OnceFunc(func() { close(slow) })
	t.Cleanup(goOn)
	e.set(func(int, *Header) ([][]byte, error) { <-slow; return nil, nil })
	return goOn
}

// fill sends on data connection 1 until that fails, and returns when the outbox has no room, or the link is lost.
func (l *Link) fill(t *testing.T) (failed chan error) {
	t.Helper()
	require.NoError(t, l.conns[1].tcp.SetWriteBuffer(256<<10)) // else the kernel makes more room by and by
	failed = make(chan error, 1)
	go func() {
		for n := uint64(1); ; n++ {
			if err := l.Send(1, message(n), make([]byte, MaxMessage)); err != nil {
				failed <- err
				return
			}
		}
	}()
	o := l.conns[1].out
	require.Eventually(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.senders == 1 && o.writing || l.Err() != nil
	}, soon, time.Millisecond)
	return failed
}

// awaitFullWindow returns when the other kernel takes nothing any more of data connection 1, and has acknowledged all that it took.
func (l *Link) awaitFullWindow(t *testing.T) {
	t.Helper()
	c := l.conns[1]
	require.Eventually(t, func() bool {
		k, err := c.kernel()
		require.NoError(t, err)
		return k.queued > mostUnsent && !k.packets && !c.isWritable(t) && c.out.isWriting()
	}, soon, time.Millisecond)
}

func (c *conn) isWritable(t *testing.T) (is bool) {
	t.Helper()
	require.NoError(t, c.raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		is = n > 0 || err != nil
	}))
	return is
}

// dies lets the host at this end of a link hear nothing any more.
func (l *Link) dies(t *testing.T) {
	t.Helper()
	for _, c := range l.conns {
		c.hearsNothing(t)
	}
}

// A host that has died is noticed as without TLS, whatever outboxes hold, and whatever its process did before.
func TestDeadHostWithinTLS(t *testing.T) {
	for name, dies := range map[string]func(t *testing.T, b *end, there, back *Link) (failed chan error){
		"nothing is sent": func(t *testing.T, _ *end, _, back *Link) chan error {
			back.dies(t)
			return nil
		},
		"the outbox fills": func(t *testing.T, _ *end, there, back *Link) chan error {
			back.dies(t)
			return there.fill(t)
		},
		"the outbox is full, and the process was stopped": func(t *testing.T, b *end, there, back *Link) chan error {
			b.stops(t)
			failed := there.fill(t)
			there.awaitFullWindow(t)
			back.dies(t)
			return failed
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "the outbox fills" {
				quick.Skip(t, "each case waits for seconds")
			}
			noLeaks(t)
			var c Config
			short(&c)
			a, b, there, back := linkedWith(t, c.Timing, Timing{Beat: time.Hour, Unacked: time.Second, Ending: time.Second, Greeting: soon}) // the dead one does nothing
			failed := dies(t, b, there, back)
			require.ErrorIs(t, a.awaitLoss(t), errUnacknowledged)
			if failed != nil {
				require.ErrorIs(t, <-failed, errUnacknowledged)
			}
		})
	}
}

// A network that is cut is noticed on both sides, also where one of them sends more than the other one takes.
func TestCutNetworkWithinTLS(t *testing.T) {
	for name, full := range map[string]bool{"nothing is sent": false, "the outbox is full": true} {
		t.Run(name, func(t *testing.T) {
			if full {
				quick.Skip(t, "it waits for seconds, and TestDeadHostWithinTLS has an outbox that fills")
			}
			network := newLoopback(t)
			var c Config
			short(&c)
			a, b, there, _ := linkedWith(t, c.Timing, c.Timing)
			var failed chan error
			if full {
				b.stops(t)
				failed = there.fill(t)
			}
			network.set(t, false)
			require.ErrorIs(t, a.awaitLoss(t), errUnacknowledged)
			if full {
				require.ErrorIs(t, <-failed, errUnacknowledged)
			} else {
				require.ErrorIs(t, b.awaitLoss(t), errUnacknowledged)
			}
		})
	}
}

// A process that is stopped, and has taken all that it can, does not keep a node from closing: what the outbox holds is given up with the link.
func TestCloseWithAFullOutboxAndAStoppedProcess(t *testing.T) {
	noLeaks(t)
	timing := Timing{Beat: time.Hour, Unacked: time.Hour, Ending: 300 * time.Millisecond, Greeting: soon}
	a, b, there, _ := linkedWith(t, timing, timing)
	b.stops(t)
	failed := there.fill(t)
	there.awaitFullWindow(t)
	began := time.Now()
	a.Close()
	require.GreaterOrEqual(t, time.Since(began), timing.Ending)
	require.Less(t, time.Since(began), soon/2)
	require.ErrorIs(t, <-failed, errNodeClosed)
}

// A damaged record ends the link also where the other process takes nothing, so that TLS cannot tell it. Two processes that both read one would
// wait for each other. TLS may have read the record together with a good one.
func TestDamagedRecordWhileTheOtherOneTakesNothing(t *testing.T) {
	for name, first := range map[string]bool{"alone": false, "behind a good one": true} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			timing := Timing{Beat: 50 * time.Millisecond, Unacked: 300 * time.Millisecond, Ending: 300 * time.Millisecond, Greeting: soon}
			a, b, there, back := linkedWith(t, timing, Timing{Beat: time.Hour, Unacked: timing.Unacked, Ending: timing.Unacked, Greeting: soon})
			b.stops(t)
			failed := there.fill(t)
			there.awaitFullWindow(t)
			c := back.conns[1]
			cork := func(on int) {
				require.NoError(t, c.raw.Control(func(fd uintptr) {
					require.NoError(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, on))
				}))
			}
			if first {
				cork(1) // both go out in one segment
				_, err := c.Write(make([]byte, HeaderBytes/2))
				require.NoError(t, err)
			}
			_, err := c.tcp.Write(make([]byte, 100)) // beside TLS
			require.NoError(t, err)
			if first {
				cork(0)
			}
			require.ErrorIs(t, a.awaitLoss(t), errDamagedRecord)
			require.ErrorIs(t, <-failed, errDamagedRecord)
		})
	}
}

// Who has sent something within TLS is told that the kernel has it, and not before, also while others send on and on.
func TestTellsThatAllIsSent(t *testing.T) {
	noLeaks(t)
	timing := Timing{Beat: time.Hour, Unacked: time.Second, Ending: time.Second, Greeting: soon}
	_, b, there, _ := linkedWith(t, timing, timing)
	goOn := b.stops(t)
	failed := there.fill(t)
	there.awaitFullWindow(t)
	told := make(chan struct{})
	there.AfterSent(1, func() { close(told) })
	sent := make(chan struct{})
	there.AfterSent(2, func() { close(sent) }) // nobody uses that connection
	<-sent
	select {
	case <-told:
		require.Fail(t, "the kernel does not have it")
	default:
	}
	goOn()
	<-told
	there.Break(errors.New("for the test"))
	require.ErrorContains(t, <-failed, "for the test")
}
