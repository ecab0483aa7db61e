package tcp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/handshake"
)

func (e *end) strangerCount() int {
	e.Node.mu.Lock()
	defer e.Node.mu.Unlock()
	return e.strangers.Len()
}

func knock(t *testing.T, e *end) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", e.at[0].String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
	return c
}

func TestWrongSecret(t *testing.T) {
	noLeaks(t)
	a := newEnd(t, nil)
	another, anotherName := testKey, testSpace
	another[0]++
	anotherName[0]++
	for _, b := range []*end{newEndWith(t, testSpace, another, nil), newEndWith(t, anotherName, testKey, nil)} {
		_, err := b.dialTo(a)
		require.ErrorIs(t, err, handshake.ErrRefused)
		_, err = a.dialTo(b)
		require.ErrorIs(t, err, handshake.ErrRefused)
	}
	// A proof for a store of unique ids opens no link, with the same key.
	store := handshake.Protocol{Magic: "sagestr1", Label: "sagecomm store", Limit: 100}
	_, err := store.Greet(knock(t, a), testSpace, testKey, time.Now().Add(soon))
	require.Error(t, err)
	store.Magic = linkProtocol.Magic
	_, err = store.Greet(knock(t, a), testSpace, testKey, time.Now().Add(soon))
	require.ErrorIs(t, err, handshake.ErrRefused)
}

// relay passes connections on and keeps what the dialer has sent.
type relay struct {
	net.Listener
	to   netip.AddrPort
	mu   sync.Mutex
	sent [][]byte
	over []net.Conn
	// spoil changes what the dialer has sent, if it is not nil.
	spoil func([]byte)
}

func newRelay(t *testing.T, to netip.AddrPort) *relay {
	t.Helper()
	r := &relay{Listener: listenOn(t, "127.0.0.1:0"), to: to}
	go func() {
		for {
			c, err := r.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	t.Cleanup(r.end)
	return r
}

func (r *relay) end() {
	_ = r.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.over {
		_ = c.Close()
	}
}

func (r *relay) pass(c net.Conn) {
	d, err := net.Dial("tcp", r.to.String())
	if err != nil {
		_ = c.Close()
		return
	}
	r.mu.Lock()
	r.over = append(r.over, c, d)
	k := len(r.sent)
	r.sent = append(r.sent, nil)
	r.mu.Unlock()
	go func() {
		_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{d}) // no splice: its pipes stay open for a while
		_, _ = c.Close(), d.Close()
	}()
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil {
			_, _ = c.Close(), d.Close()
			return
		}
		r.mu.Lock()
		if r.spoil != nil {
			r.spoil(buf[:n])
		}
		r.sent[k] = append(r.sent[k], buf[:n]...)
		r.mu.Unlock()
		if _, err := d.Write(buf[:n]); err != nil {
			_, _ = c.Close(), d.Close()
			return
		}
	}
}

func (r *relay) address() netip.AddrPort { return r.Addr().(*net.TCPAddr).AddrPort() }

// What was recorded of a link opens none.
func TestReplay(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	r := newRelay(t, b.at[0])
	direct := b.at
	b.at = []netip.AddrPort{r.address()}
	require.NoError(t, a.linkTo(t, b).Send(1, message(1), []byte("x")))
	b.await(t, 1)
	b.at = direct
	a.Close()
	require.Error(t, b.awaitLoss(t))
	r.mu.Lock()
	sent := r.sent
	r.mu.Unlock()
	require.Len(t, sent, 3)
	for _, text := range sent {
		c := knock(t, b)
		_, _ = c.Write(text)
		got, _ := io.ReadAll(c)
		require.LessOrEqual(t, len(got), handshake.NonceBytes)
	}
	require.Eventually(t, func() bool { return b.strangerCount() == 0 }, soon, time.Millisecond)
	require.Equal(t, 1, b.count())
}

// Strangers are closed after their time, the oldest one when there are too many, and links come about meanwhile.
func TestPortScan(t *testing.T) {
	noLeaks(t)
	a := newEnd(t, nil)
	b := newEnd(t, func(c *Config) {
		c.Timing = Timing{Beat: time.Second, Unacked: time.Minute, Ending: time.Minute, Greeting: 300 * time.Millisecond}
	})
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", linkProtocol.Magic, linkProtocol.Magic + string(make([]byte, 8<<10)), "sagestr1"} {
		for range 60 {
			c := knock(t, b)
			_, _ = c.Write([]byte(text))
		}
	}
	var l *Link
	require.Eventually(t, func() (made bool) { // on a busy machine a stranger's time may be too short for a process of the job as well
		var err error
		l, err = a.dialTo(b)
		return err == nil
	}, soon, time.Millisecond)
	require.NoError(t, l.Send(1, message(1), []byte("x")))
	b.await(t, 1)
	require.LessOrEqual(t, b.strangerCount(), DefaultStrangers)
	require.Eventually(t, func() bool { return b.strangerCount() == 0 }, soon, 10*time.Millisecond)
}

// What is not admitted is told with its address and the reason, and so is that nothing can be accepted, after which connections come about again.
func TestRefusedConnectionsAreTold(t *testing.T) {
	noLeaks(t)
	type refusal struct {
		from netip.AddrPort
		why  error
	}
	told := make(chan refusal, 64)
	next := func() refusal {
		select {
		case r := <-told:
			return r
		case <-time.After(soon):
			require.Fail(t, "nothing was told")
			return refusal{}
		}
	}
	telling := func(c *Config) { c.Refused = func(from netip.AddrPort, why error) { told <- refusal{from, why} } }
	starved := &starvedListener{Listener: listenOn(t, "127.0.0.1:0")}
	b := newEnd(t, telling, starved)
	r := next()
	require.False(t, r.from.IsValid())
	require.ErrorIs(t, r.why, unix.EMFILE)
	c := knock(t, b)
	_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	r = next()
	require.Equal(t, c.LocalAddr().String(), r.from.String())
	require.ErrorIs(t, r.why, handshake.ErrStranger)
	another := testKey
	another[0]++
	_, err := newEndWith(t, testSpace, another, nil).dialTo(b)
	require.Error(t, err)
	require.ErrorIs(t, next().why, handshake.ErrStranger)
	ours, others := newAuthority(t), newAuthority(t)
	secured := newEnd(t, func(c *Config) { telling(c); secure(ours.settings(t))(c) })
	_, err = newEnd(t, secure(others.settings(t))).dialTo(secured)
	require.Error(t, err)
	var certificate *CertificateError
	require.ErrorAs(t, next().why, &certificate)
	newEnd(t, nil).linkTo(t, b)
	require.Empty(t, told)
	knock(t, b)
	require.Eventually(t, func() bool { return b.strangerCount() == 1 }, soon, time.Millisecond)
	b.Close()
	require.Empty(t, told, "it is closed")
}

// starvedListener cannot accept at first.
type starvedListener struct {
	net.Listener
	asked bool
}

func (l *starvedListener) Accept() (net.Conn, error) {
	if !l.asked {
		l.asked = true
		return nil, &net.OpError{Op: "accept", Err: unix.EMFILE}
	}
	return l.Listener.Accept()
}

// All processes that a node expects may dial at the same time, as those of a group do with the one that has the highest identity: none of them is
// closed for another one.
func TestManyProcessesDialAtOnce(t *testing.T) {
	noLeaks(t)
	const dialers = DefaultStrangers + 44
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)) // Go has raised it as far as it may
	if need := uint64(2*dialers + 200); limit.Cur < need {         // both ends, and what other tests have
		t.Skipf("it needs %d descriptors, and may have %d", need, limit.Cur)
	}
	b := newEnd(t, func(c *Config) {
		c.Timing = Timing{Beat: time.Hour, Unacked: time.Second, Ending: time.Second, Greeting: time.Hour}
	})
	b.Expect(dialers)
	answers := make([][]byte, dialers)
	errs := make([]error, dialers)
	var all sync.WaitGroup
	b.keys.mu.Lock() // no proof is looked at before all have dialed
	conns := make([]net.Conn, dialers)
	for k := range conns {
		c := knock(t, b)
		conns[k] = c
		all.Go(func() {
			var s *handshake.Session
			if s, errs[k] = linkProtocol.Greet(c, testSpace, testKey, time.Now().Add(time.Hour)); errs[k] != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(soon))
			i := introduction{from: Identity{1, byte(k >> 8), byte(k)}, to: b.id, attempt: 1, data: 2}
			if errs[k] = s.Send(i.encode()); errs[k] == nil {
				answers[k], errs[k] = s.Receive()
			}
		})
	}
	together := func() bool { return b.strangerCount() == dialers }
	for began := time.Now(); !together() && time.Since(began) < soon; {
		<-time.After(time.Millisecond)
	}
	there := b.strangerCount()
	for _, c := range conns { // the time of the proofs begins now, however long the dialing took
		_ = c.SetDeadline(time.Now().Add(soon))
	}
	b.keys.mu.Unlock()
	all.Wait()
	require.Equal(t, dialers, there, "connections at the same time")
	require.NoError(t, errors.Join(errs...))
	for k := range answers {
		require.Equal(t, []byte{admitted}, answers[k])
	}
}

// Connections that prove nothing are bounded by what a node expects: a process dials one at a time, and one more may be there that it has given up.
func TestStrangersOfManyProcesses(t *testing.T) {
	noLeaks(t)
	b := newEnd(t, func(c *Config) {
		c.Timing = Timing{Beat: time.Hour, Unacked: time.Second, Ending: time.Second, Greeting: time.Hour}
		c.Strangers = 5
	})
	bound := func(want int) {
		t.Helper()
		oldest := knock(t, b)
		for range want { // one more than there may be
			knock(t, b)
		}
		_, err := oldest.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "it makes room")
		require.Eventually(t, func() bool { return b.strangerCount() == want }, soon, time.Millisecond)
	}
	bound(5)
	b.Expect(2)
	bound(5)
	b.Expect(8)
	bound(20)
	b.Expect(-7)
	bound(6)
	b.Expect(-3)
	bound(5)
	require.NoError(t, newEnd(t, nil).linkTo(t, b).Err(), "a process of the job takes the place of strangers")
}

// A process that has proved itself and then goes away, or says nothing, leaves no half of a link behind.
func TestHalfALink(t *testing.T) {
	noLeaks(t)
	b := newEnd(t, func(c *Config) {
		c.Timing = Timing{Beat: time.Second, Unacked: time.Minute, Ending: time.Minute, Greeting: 500 * time.Millisecond}
	})
	introduce := func(i introduction) []byte {
		c := knock(t, b)
		s, err := linkProtocol.Greet(c, testSpace, testKey, time.Now().Add(soon))
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
		require.NoError(t, s.Send(i.encode()))
		answer, _ := s.Receive()
		return answer
	}
	i := introduction{from: Identity{1}, to: b.id, attempt: 1, data: 2}
	require.Equal(t, []byte{admitted}, introduce(i))
	require.Equal(t, []byte{notWanted}, introduce(i), "the same connection twice")
	other := i
	other.to = Identity{2}
	require.Equal(t, []byte{otherProcess}, introduce(other))
	other = i
	other.from = b.id
	require.Equal(t, []byte{otherProcess}, introduce(other))
	other = i
	other.data = 3
	require.Equal(t, []byte{otherSetup}, introduce(other))
	other = i
	other.data = 0
	require.Nil(t, introduce(other))
	i.attempt, i.index = 2, 1 // of a new attempt, which takes the place of the old one
	require.Equal(t, []byte{admitted}, introduce(i))
	late := i
	late.attempt, late.index = 1, 2
	require.Equal(t, []byte{notWanted}, introduce(late), "a connection of an older attempt does not end a newer one")
	half := func() bool {
		b.Node.mu.Lock()
		defer b.Node.mu.Unlock()
		return b.peers[i.from] != nil
	}
	require.True(t, half())
	require.Eventually(t, func() bool { return !half() }, soon, time.Millisecond)
}
