package tcp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/tests/quick"
)

// loopback is a network namespace with a loopback device, which a test can cut. The calling goroutine stays in it.
type loopback struct{ fd int }

// newLoopback puts the calling thread into a network namespace of its own, and skips the test where that is not permitted.
func newLoopback(t *testing.T) *loopback {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine of the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("network namespaces are not permitted here: %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	l := &loopback{fd}
	l.set(t, true)
	return l
}

func (l *loopback) set(t *testing.T, up bool) {
	t.Helper()
	r, err := unix.NewIfreq("lo")
	require.NoError(t, err)
	if up {
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	} else {
		r.SetUint16(0)
	}
	_, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(r)))
	require.Zero(t, no)
}

// short finds a loss soon, and counts no stop of this process as one: stops from `stopped` on are late looks. TestBoundOfALoss has the bound of
// the default.
func short(c *Config) {
	c.Timing = Timing{Beat: 50 * time.Millisecond, Unacked: stopped + 200*time.Millisecond, Ending: stopped + 200*time.Millisecond, Greeting: 5 * time.Second}
}

// A network that carries nothing any more is noticed on both sides, although neither of them sends anything: heartbeats do.
func TestCutNetwork(t *testing.T) {
	network := newLoopback(t)
	a, b := newEnd(t, short), newEnd(t, short)
	l := a.linkTo(t, b)
	b.linkOf(t, a)
	require.NoError(t, l.Send(1, message(1), []byte("x")))
	b.await(t, 1)
	network.set(t, false)
	began := time.Now()
	why := a.awaitLoss(t)
	require.NotErrorIs(t, why, errLongPackets)
	require.ErrorIs(t, why, errUnacknowledged)
	require.ErrorIs(t, b.awaitLoss(t), errUnacknowledged)
	t.Logf("noticed after %v: %v", time.Since(began), why)
	var lost *LostError
	require.True(t, errors.As(why, &lost))
	require.Equal(t, b.id, lost.Peer)
}

// Where one connection is not acknowledged and others are, the host lives, and the network may drop long packets.
func TestNetworkThatDropsSomePackets(t *testing.T) {
	quick.Skip(t, "it waits for seconds")
	noLeaks(t)
	a := newEnd(t, short)
	b := newEnd(t, func(c *Config) { // it does not notice by itself
		c.Timing = Timing{Beat: time.Hour, Unacked: time.Hour, Ending: time.Second, Greeting: soon}
	})
	l := a.linkTo(t, b)
	b.linkOf(t, a).conns[1].hearsNothing(t)
	require.NoError(t, l.Send(1, message(1), make([]byte, 9000)))
	why := a.awaitLoss(t)
	require.ErrorIs(t, why, errUnacknowledged)
	require.ErrorIs(t, why, errLongPackets)
	require.ErrorContains(t, why, "look at their MTU (ping -M do -s 1472)")
}

// Where a link is to bear a longer cut than by default, the kernel sends again soon behind it.
func TestBackoffIsBounded(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_rto_max_ms")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this kernel is older than Linux 6.15")
	}
	require.NoError(t, err)
	ofKernel, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	for more, want := range map[time.Duration]int{0: ofKernel, time.Second: int(mostBackoff.Milliseconds())} {
		configure := func(c *Config) {
			c.Timing = DefaultTiming
			c.Timing.Unacked += more
		}
		a, b := newEnd(t, configure), newEnd(t, configure)
		links := []*Link{a.linkTo(t, b), b.linkOf(t, a)}
		for _, l := range links {
			for _, each := range l.conns {
				var got int
				var err error
				require.NoError(t, each.raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, optionMostBackoff) }))
				require.NoError(t, err)
				require.Equal(t, want, got, "%v more", more)
			}
		}
	}
}

// address gives the device an address, in the place of the one that it had.
func (l *loopback) address(t *testing.T, address string) {
	t.Helper()
	r, err := unix.NewIfreq("lo")
	require.NoError(t, err)
	require.NoError(t, r.SetInet4Addr(net.ParseIP(address).To4()))
	_, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(r)))
	require.Zero(t, no)
}

// A host that can send nothing any more, so that its kernel counts no packet as on the way, is noticed as well.
func TestBlackHoleOnThisHost(t *testing.T) {
	quick.Skip(t, "it waits for seconds, as TestCutNetwork does")
	network := newLoopback(t)
	network.address(t, "10.77.0.1")
	network.set(t, true)
	a := newEnd(t, short, listenOn(t, "10.77.0.1:0"))
	b := newEnd(t, short, listenOn(t, "10.77.0.1:0"))
	l := a.linkTo(t, b)
	b.linkOf(t, a)
	require.NoError(t, l.Send(1, message(1), []byte("x")))
	b.await(t, 1)
	network.address(t, "172.16.0.1") // no route leads to the old address
	began := time.Now()
	require.ErrorIs(t, a.awaitLoss(t), errUnacknowledged)
	require.ErrorIs(t, b.awaitLoss(t), errUnacknowledged)
	t.Logf("noticed after %v", time.Since(began))
}

// fast beats often, and is long enough for a busy machine to acknowledge. It counts no stop as a loss: see short.
var fast = Timing{Beat: 20 * time.Millisecond, Unacked: stopped + 500*time.Millisecond, Ending: stopped + 500*time.Millisecond, Greeting: 5 * time.Second}

// A process that does nothing while its kernel acknowledges is quiet, and not lost: it may be stopped. So is one behind a proxy that passes
// nothing on. It goes on as if nothing had been.
func TestQuietProcess(t *testing.T) {
	noLeaks(t)
	quick := func(c *Config) { c.Timing = fast }
	a, b := newEnd(t, quick), newEnd(t, quick)
	direct := b.at
	r := newRelay(t, direct[0])
	b.at = []netip.AddrPort{r.address()}
	l := a.linkTo(t, b)
	b.linkOf(t, a)
	r.mu.Lock() // the relay stops passing on what the dialer sends, and hears it all
	require.Eventually(t, func() bool { return b.linkOf(t, a).quiet() > fast.Unacked+5*fast.Beat }, soon, 10*time.Millisecond)
	require.NoError(t, l.Err())
	r.mu.Unlock()
	require.Eventually(t, func() bool { return b.linkOf(t, a).quiet() < fast.Unacked }, soon, time.Millisecond)
	require.NoError(t, l.Send(1, message(1), []byte("x")))
	require.Equal(t, "x", b.await(t, 1)[0].body)
}

// A receiver that is slow, with a full window, is no loss either; heartbeats do not pile up.
func TestSlowReceiver(t *testing.T) {
	noLeaks(t)
	quick := func(c *Config) { c.Timing = fast }
	a, b := newEnd(t, quick), newEnd(t, quick)
	held := make(chan struct{})
	slow := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(slow) })
	defer goOn() // also when the test fails: the receiver must not stay
	b.set(func(int, *Header) ([][]byte, error) {
		select {
		case <-held:
		default:
			close(held)
			<-slow
		}
		return nil, nil
	})
	l := a.linkTo(t, b)
	const messages = 200
	sent := make(chan error, 1)
	go func() {
		for n := range uint64(messages) {
			if err := l.Send(1, message(n+1), make([]byte, MaxMessage)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	<-held
	began := time.Now()
	require.Eventually(t, func() bool { return time.Since(began) > fast.Unacked+5*fast.Beat }, soon, 10*time.Millisecond)
	require.NoError(t, l.Err())
	require.NoError(t, b.linkOf(t, a).Err())
	goOn()
	require.NoError(t, <-sent)
	b.await(t, messages)
}

// After a stop of this process, what was not acknowledged meanwhile is not held against others.
func TestOwnStop(t *testing.T) {
	noLeaks(t)
	unwatched := func(c *Config) {
		c.Timing = Timing{Beat: time.Hour, Unacked: time.Second, Ending: time.Second, Greeting: soon}
	}
	a, b := newEnd(t, unwatched), newEnd(t, unwatched)
	l := a.linkTo(t, b)
	c := l.conns[1]
	c.progress.since = time.Now().Add(-time.Hour)
	require.NoError(t, l.look(time.Now(), true))
	require.Less(t, time.Since(c.progress.since), soon)
}

// What the kernel says decides since when a connection makes no progress.
func TestProgress(t *testing.T) {
	const (
		second  = time.Second
		probing = 850 * time.Millisecond
	)
	state := func(queued int, acked uint64, packets, probes bool) kernelState {
		return kernelState{queued, acked, packets, probes, probing}
	}
	idle, sent, full, probed := state(0, 9, false, false), state(5, 9, true, false), state(5, 9, false, false), state(5, 9, false, true)
	began := time.Now()
	for name, c := range map[string]struct {
		states []kernelState // one a second
		late   bool          // the last look
		want   time.Duration // after the last one
	}{
		"idle":                                {[]kernelState{idle, idle}, false, 0},
		"acknowledged":                        {[]kernelState{sent, state(5, 14, true, false)}, false, 0},
		"a cut on the way":                    {[]kernelState{sent, sent, state(70, 9, true, false)}, false, 2 * second},
		"a black hole on this host":           {[]kernelState{idle, probed, state(9, 9, false, true)}, false, 2 * second},
		"a window that is full":               {[]kernelState{full, full, full, full}, false, 0},
		"a window that is full, a lost probe": {[]kernelState{full, full, full, full, probed}, false, second + probing},
		"a probe that is answered":            {[]kernelState{full, full, probed, full, full, probed}, false, second + probing},
		"a window that has opened":            {[]kernelState{full, full, full, sent}, false, second},
		"own stop":                            {[]kernelState{sent, sent, sent, sent}, true, 0},
	} {
		var p progress
		var waited time.Duration
		for n, k := range c.states {
			waited = p.look(k, began.Add(time.Duration(n)*second), n == 0 || c.late && n == len(c.states)-1)
		}
		require.Equal(t, c.want, waited, name)
	}
}

// From a cut on, a loss is found within the timeout of links and 0.5 s, wherever the cut lies between two looks, and also where no packet leaves this
// host. A timer may be late or early by little.
func TestBoundOfALoss(t *testing.T) {
	for _, unacked := range []time.Duration{DefaultTiming.Unacked, 10 * time.Second} {
		timing := DefaultTiming
		timing.Unacked = unacked
		boundOfALoss(t, timing)
	}
}

func boundOfALoss(t *testing.T, timing Timing) {
	const rto = 204 * time.Millisecond // the least one of a network without delay, and a tick of the kernel
	for name, hole := range map[string]bool{"a cut on the way": false, "a black hole on this host": true} {
		for _, every := range []time.Duration{timing.looks() - time.Millisecond, timing.looks()} {
			for phase := time.Duration(0); phase < every; phase += 5 * time.Millisecond {
				cut := time.Now() // the last frame was sent, and acknowledged, in this moment
				var p progress
				var beat, found time.Duration
				p.look(kernelState{acked: 9}, cut.Add(phase-every), true)
				for at := phase; found == 0; at += every {
					k := kernelState{acked: 9, probing: timing.probing(rto)}
					if beat != 0 {
						k.queued, k.packets, k.probes = HeaderBytes, !hole, hole && at-beat >= 3*rto
					}
					if p.look(k, cut.Add(at), false) >= timing.Unacked {
						found = at
					}
					if beat == 0 && at >= timing.Beat {
						beat = at
					}
					require.Less(t, at, soon, name)
				}
				require.LessOrEqual(t, found, timing.Unacked+500*time.Millisecond, "%s, first look after %v", name, phase)
				require.GreaterOrEqual(t, found, timing.Unacked, name)
			}
		}
	}
}

// One probe that is lost is no loss of a link whose window was full for long: the answer to the next one counts.
func TestLostProbeOfAFullWindow(t *testing.T) {
	for rto := 200 * time.Millisecond; rto < DefaultTiming.Unacked-DefaultTiming.looks(); rto += 25 * time.Millisecond {
		full, every := kernelState{queued: 5, acked: 9, probing: DefaultTiming.probing(rto)}, DefaultTiming.looks()
		probed := full
		probed.probes = true
		now := time.Now()
		var p progress
		for range 50 {
			require.Zero(t, p.look(full, now, false))
			now = now.Add(every)
		}
		for first := now; now.Sub(first) < rto; now = now.Add(every) { // that one is on its way
			require.Less(t, p.look(probed, now, false), DefaultTiming.Unacked, "%v of %v", now.Sub(first), rto)
		}
		require.Zero(t, p.look(full, now, false))
	}
}

// Every connection that is idle sends heartbeats.
func TestHeartbeats(t *testing.T) {
	noLeaks(t)
	quick := func(c *Config) { c.Timing = fast }
	a, b := newEnd(t, quick), newEnd(t, quick)
	a.linkTo(t, b)
	l := b.linkOf(t, a)
	for _, c := range l.conns {
		first := c.heard.Load()
		require.Eventually(t, func() bool { return c.heard.Load() > first+int64(2*fast.Beat) }, soon, time.Millisecond)
	}
	require.Zero(t, b.count())
}

// A heartbeat for a connection that another thread has filled meanwhile is left out. It would hold up the watch of all links. The other kernel hears
// of nothing that is sent here, so no room comes about by itself.
func TestHeartbeatDoesNotWait(t *testing.T) {
	noLeaks(t)
	alone := func(c *Config) { // the watch does nothing
		c.Timing = Timing{Beat: time.Hour, Unacked: 100 * time.Millisecond, Ending: 100 * time.Millisecond, Greeting: soon}
	}
	a, b := newEnd(t, alone), newEnd(t, alone)
	c, there := a.linkTo(t, b).conns[1], b.linkOf(t, a).conns[1]
	require.Eventually(t, func() bool {
		k, err := c.kernel()
		require.NoError(t, err)
		return k.queued == 0
	}, soon, time.Millisecond, "what was sent is acknowledged")
	there.hearsNothing(t)
	c.sending.Lock()
	for n := 1; n > 0; { // bytes of no frame, so that no rest of one waits
		var err error
		n, err = c.writeSome([][]byte{make([]byte, MaxMessage)})
		require.NoError(t, err)
	}
	sent := c.sending.number
	c.sending.Unlock()
	ended := make(chan error)
	go func() { ended <- c.beat(true) }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(soon):
		require.Fail(t, "the heartbeat waits")
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	require.Equal(t, sent, c.sending.number)
	require.Empty(t, c.sending.rest)
}

// A process that ends is noticed at once, by its kernel.
func TestProcessEnds(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	l := a.linkTo(t, b)
	b.linkOf(t, a)
	for _, c := range l.conns {
		_ = c.tcp.SetLinger(0) // as the kernel does for a process that is killed with data unread
	}
	a.Close()
	why := b.awaitLoss(t)
	require.NotErrorIs(t, why, errUnacknowledged)
	require.ErrorContains(t, why, "its log says why")
	select {
	case again := <-b.lost:
		require.Fail(t, "lost twice", again)
	case again := <-a.lost:
		require.Fail(t, "a node that is closed calls nobody", again)
	default:
	}
}
