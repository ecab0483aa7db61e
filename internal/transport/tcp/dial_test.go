package tcp

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/handshake"
	"sagecomm/tests/quick"
)

// proved returns a connection to b that has proved the secret and was admitted.
func proved(t *testing.T, b *end, i introduction) net.Conn {
	t.Helper()
	c := knock(t, b)
	s, err := linkProtocol.Greet(c, testSpace, testKey, time.Now().Add(soon))
	require.NoError(t, err)
	require.NoError(t, s.Send(i.encode()))
	answer, err := s.Receive()
	require.NoError(t, err)
	require.Equal(t, []byte{admitted}, answer)
	return c
}

// An attempt of another process whose connections have ended does not keep this one from dialing, for as long as strangers have time.
func TestAttemptThatHasEnded(t *testing.T) {
	noLeaks(t)
	slow := func(c *Config) {
		c.Timing = Timing{Beat: time.Second, Unacked: time.Second, Ending: time.Second, Greeting: time.Hour}
	}
	a, b := newEnd(t, slow), newEnd(t, slow)
	require.NoError(t, proved(t, b, introduction{from: a.id, to: b.id, attempt: 1, data: 2}).Close())
	b.linkTo(t, a)
}

// An attempt that a timer gives up while its last connection comes makes no link of closed connections.
func TestTimerAndLastConnection(t *testing.T) {
	noLeaks(t)
	b := newEnd(t, nil)
	i := introduction{from: Identity{1}, to: b.id, attempt: 1, data: 2}
	for k := range uint8(2) {
		i.index = k
		proved(t, b, i)
	}
	var in *incoming
	require.Eventually(t, func() bool {
		b.Node.mu.Lock()
		defer b.Node.mu.Unlock()
		p := b.peers[i.from]
		if p == nil {
			return false
		}
		in = p.incoming
		return in.ready == 2
	}, soon, time.Millisecond, "two connections")
	b.Node.mu.Lock()
	conns, raws := in.conns, in.tcp
	b.Node.mu.Unlock()
	b.giveUp(i.from, in)
	require.ErrorIs(t, b.up(i.from, conns[:1], raws[:1], in.sums, in), errGivenUp)
	b.Node.mu.Lock()
	defer b.Node.mu.Unlock()
	require.Nil(t, b.peers[i.from])
}

// A link over which nothing has come counts as an attempt: the other process may never have had it. Nobody is told of its end, and the other
// process can dial before this one has seen that end.
func TestLinkOfWhichNothingCame(t *testing.T) {
	noLeaks(t)
	for _, all := range []bool{true, false} { // connections that the other process closes; else this one reads the others to its limit
		a, b := newEnd(t, nil), newEnd(t, func(c *Config) {
			c.Timing = Timing{Beat: time.Hour, Unacked: 100 * time.Millisecond, Ending: 100 * time.Millisecond, Greeting: time.Minute}
		})
		i := introduction{from: a.id, to: b.id, attempt: 0, data: 2}
		var conns []net.Conn
		for k := range uint8(3) {
			i.index = k
			conns = append(conns, proved(t, b, i))
		}
		first := b.madeFor(t, a.id)
		for k, c := range conns {
			if all || k == 2 {
				require.NoError(t, c.Close())
			}
		}
		require.NoError(t, a.linkTo(t, b).Send(1, message(1), []byte("again")))
		require.Equal(t, "again", b.await(t, 1)[0].body)
		require.NotSame(t, first, b.linkOf(t, a))
		require.Empty(t, b.lost)
		require.Empty(t, a.lost)
	}
}

// A link is handed out when something has come over it, not before.
func TestLinkIsHandedOutWhenTheOtherProcessHasIt(t *testing.T) {
	noLeaks(t)
	b := newEnd(t, nil)
	i := introduction{from: Identity{1}, to: b.id, attempt: 1, data: 2}
	var conns []net.Conn
	for k := range uint8(3) {
		i.index = k
		conns = append(conns, proved(t, b, i))
	}
	made := b.madeFor(t, i.from)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := b.Link(ctx, i.from, nil, testSpace)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = conns[1].Write(encoded(&Header{Kind: Heartbeat}, nil))
	require.NoError(t, err)
	l, err := b.Link(context.Background(), i.from, nil, testSpace)
	require.NoError(t, err)
	require.Same(t, made, l)
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

// Closing a node ends what it dials at once.
func TestCloseWhileDialing(t *testing.T) {
	noLeaks(t)
	a := newEnd(t, func(c *Config) {
		c.Timing = Timing{Beat: time.Second, Unacked: time.Second, Ending: time.Second, Greeting: time.Hour}
	})
	silent := listenOn(t, "127.0.0.1:0")
	defer silent.Close()
	b := newEnd(t, nil)
	b.at = b.at[:0]
	b.at = append(b.at, silent.Addr().(*net.TCPAddr).AddrPort())
	done := make(chan error)
	go func() {
		_, err := a.Link(context.Background(), b.id, b.at, testSpace)
		done <- err
	}()
	c, err := silent.Accept()
	require.NoError(t, err)
	defer c.Close()
	a.Close()
	require.ErrorIs(t, <-done, errNodeClosed)
}

// Every descriptor is told when it was made and before it is closed, and none is left.
func TestDescriptorsAreTold(t *testing.T) {
	noLeaks(t)
	var mu sync.Mutex
	open, most := map[uintptr]bool{}, 0
	told := func(c *Config) {
		c.Opened = func(fd uintptr) {
			mu.Lock()
			defer mu.Unlock()
			open[fd] = true
			most = max(most, len(open))
		}
		c.Closing = func(fd uintptr) {
			mu.Lock()
			defer mu.Unlock()
			delete(open, fd)
		}
	}
	a, b := newEnd(t, told), newEnd(t, told)
	require.NoError(t, a.linkTo(t, b).Send(1, message(1)))
	b.await(t, 1)
	a.Close()
	require.Error(t, b.awaitLoss(t))
	b.Close()
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 2+2*3, most, "2 listeners, and 3 connections with 2 ends")
	require.Empty(t, open)
}

// So are those of an attempt that ends within TLS, because its time is over or because it is given up.
func TestDescriptorsOfAnAttemptWithinTLSAreTold(t *testing.T) {
	noLeaks(t)
	settings := newAuthority(t).settings(t)
	for n := range 10 {
		silent := listenOn(t, "127.0.0.1:0")
		within := make(chan net.Conn, 1)
		go func() {
			defer close(within)
			c, err := silent.Accept()
			if err != nil {
				return
			}
			_, _, _ = linkProtocol.Admit(c, soon, func(handshake.Space) (handshake.Key, bool) { return testKey, true })
			within <- c // it says nothing more
		}()
		var opened, closing atomic.Int32
		a := newEnd(t, func(c *Config) {
			c.TLS = settings
			c.Timing = Timing{Beat: time.Hour, Unacked: time.Second, Ending: time.Second, Greeting: soon}
			c.Opened = func(uintptr) { opened.Add(1) }
			c.Closing = func(uintptr) { closing.Add(1) }
			if n%2 == 0 {
				c.Timing.Greeting = 50 * time.Millisecond // on a busy machine it may be over before TLS begins
			}
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := a.Link(ctx, Identity{1}, []netip.AddrPort{silent.Addr().(*net.TCPAddr).AddrPort()}, testSpace)
			done <- err
		}()
		var c net.Conn
		if n%2 == 1 {
			c = <-within
			cancel()
		}
		require.Error(t, <-done)
		cancel()
		connections := opened.Load() - 1 // without the listener
		require.GreaterOrEqual(t, closing.Load(), connections)
		if n%2 == 1 {
			require.EqualValues(t, 1, connections)
		}
		a.Close()
		require.NoError(t, silent.Close())
		if late := <-within; c == nil {
			c = late
		}
		if c != nil {
			require.NoError(t, c.Close())
		}
	}
}

// Who awaits a link gets the one that the other process makes, and nothing where none comes.
func TestAwait(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	require.Nil(t, a.Await(t.Context(), b.id, time.Millisecond))
	made := make(chan *Link)
	go func() { made <- a.Await(t.Context(), b.id, soon) }()
	b.linkTo(t, a)
	require.Equal(t, b.id, (<-made).Peer())
	ctx, cancel := context.WithCancel(t.Context())
	go func() { made <- a.Await(ctx, Identity{1}, soon) }()
	cancel()
	require.Nil(t, <-made)
	go func() { made <- a.Await(t.Context(), Identity{1}, soon) }()
	a.Close()
	require.Nil(t, <-made)
}

// A process that has lost a link, and needs it no longer, makes it anew also where the other one has not noticed the loss.
func TestDialBeforeTheOtherOneHasNoticedTheLoss(t *testing.T) {
	quick.Skip(t, "it waits for seconds")
	noLeaks(t)
	silent := func(greeting time.Duration) func(c *Config) {
		return func(c *Config) {
			c.Timing = Timing{Beat: time.Hour, Unacked: time.Hour, Ending: time.Hour, Greeting: greeting}
		}
	}
	b := newEnd(t, silent(time.Second))
	old := newEnd(t, silent(soon))
	old.linkTo(t, b)
	link := b.linkOf(t, old)
	again := newEnd(t, func(c *Config) { silent(soon)(c); c.Self = old.id }) // knows of no link
	_, err := b.dialTo(again)
	require.NoError(t, err, "b has its link")
	var made *Link
	require.Eventually(t, func() bool {
		if link.Err() != nil {
			b.Forget(link)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		made, err = again.Link(ctx, b.id, b.at, b.key)
		return err == nil
	}, soon, time.Millisecond)
	require.ErrorContains(t, link.Err(), "the other process has lost the link, and makes another one")
	require.NotSame(t, link, b.linkOf(t, again))
	require.NoError(t, made.Err())
}

// An attempt that is older than a link does not end it.
func TestAttemptThatIsOlderThanTheLink(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	a.linkTo(t, b)
	link := b.linkOf(t, a)
	c := knock(t, b)
	s, err := linkProtocol.Greet(c, testSpace, testKey, time.Now().Add(soon))
	require.NoError(t, err)
	require.NoError(t, s.Send(introduction{from: a.id, to: b.id, attempt: 99, data: 2}.encode()))
	answer, err := s.Receive()
	require.NoError(t, err)
	require.Equal(t, []byte{crossed}, answer)
	require.NoError(t, link.Err())
}

// A node keeps nothing of processes that came and went, or never came.
func TestProcessesThatAreGoneAreForgotten(t *testing.T) {
	quick.Skip(t, "it waits for seconds")
	noLeaks(t)
	known := func(e *end) int {
		e.Node.mu.Lock()
		defer e.Node.mu.Unlock()
		return len(e.peers)
	}
	b := newEnd(t, nil)
	for range 3 {
		a := newEnd(t, nil)
		a.linkTo(t, b)
		link := b.linkOf(t, a)
		waits, ctx := make(chan *Link), context.WithoutCancel(t.Context())
		go func() { waits <- b.Await(ctx, a.id, soon) }()
		require.Same(t, link, <-waits)
		require.Equal(t, 1, known(b))
		a.Close()
		require.Error(t, b.awaitLoss(t))
		require.Equal(t, 1, known(b), "a lost link is not made again")
		b.Forget(link)
		require.Zero(t, known(b))
		_, err := b.dialTo(a)
		require.Error(t, err)
		require.Nil(t, b.Await(t.Context(), a.id, time.Nanosecond))
		require.Zero(t, known(b))
		again := newEnd(t, func(c *Config) { c.Self = a.id })
		again.linkTo(t, b)
		b.Forget(b.linkOf(t, again))
		require.Equal(t, 1, known(b), "a link that is not lost stays")
		again.Close()
		require.Error(t, b.awaitLoss(t))
		b.Forget(b.linkOf(t, again))
	}
	hasty := newEnd(t, func(c *Config) {
		c.Timing = Timing{Beat: time.Hour, Unacked: time.Second, Ending: time.Second, Greeting: 2 * time.Second}
	})
	i := introduction{from: Identity{1}, to: hasty.id, attempt: 1, data: 2}
	proved(t, hasty, i) // the first connection of a link that is never complete
	require.Equal(t, 1, known(hasty))
	require.Eventually(t, func() bool { return known(hasty) == 0 }, soon, time.Millisecond)
}

// A process without descriptors says so, and how it gets more: no firewall is in the way.
func TestNoDescriptorForALink(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max})) // standard input, output and error
	_, err := a.dialTo(b)
	require.ErrorIs(t, err, unix.EMFILE)
	require.ErrorContains(t, err, "too many open files; let this process open more files (ulimit -n)")
	require.NotContains(t, err.Error(), "firewalls")
}
