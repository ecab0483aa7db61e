package tcp

import (
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// A process that ends its links in order loses nothing that it has sent, on whatever connection, also while the other one still sends.
func TestNothingIsLostAtExit(t *testing.T) {
	noLeaks(t)
	const each = 40
	for range 10 {
		a, b := newEnd(t, nil), newEnd(t, nil)
		l, back := a.linkTo(t, b), b.linkOf(t, a)
		a.set(func(int, *Header) ([][]byte, error) { return nil, ErrDrop })
		var sending sync.WaitGroup
		sending.Go(func() {
			for n := uint64(1); back.Send(2, message(n), make([]byte, 1000)) == nil; n++ {
			}
		})
		sendOnAll(t, l, each)
		a.Close()
		require.ErrorIs(t, b.awaitLoss(t), io.EOF)
		require.Equal(t, 3*each, b.count())
		sending.Wait()
	}
}

// Closing a node waits for a process that does nothing for as long as a link that ends is read, and no longer.
func TestCloseWithAStoppedProcess(t *testing.T) {
	noLeaks(t)
	timing := Timing{Beat: time.Hour, Unacked: time.Hour, Ending: 200 * time.Millisecond, Greeting: soon}
	b := newEnd(t, func(c *Config) { c.Timing = timing })
	i := introduction{from: Identity{1}, to: b.id, attempt: 1, data: 2}
	for k := range uint8(3) {
		i.index = k
		proved(t, b, i) // it does nothing more
	}
	b.madeFor(t, i.from)
	began := time.Now()
	b.Close()
	require.GreaterOrEqual(t, time.Since(began), timing.Ending)
	require.Less(t, time.Since(began), soon/2)
}

// Users of both processes may send as soon as they have the link, more than the connections hold.
func TestBothSendAtOnce(t *testing.T) {
	noLeaks(t)
	const messages = 160 // 10 MB
	rounds := 2
	if quick.Only() {
		rounds = 1
	}
	for range rounds {
		a, b := newEnd(t, nil), newEnd(t, nil)
		drop := func(_ int, h *Header) ([][]byte, error) {
			if h.Number < messages {
				return nil, ErrDrop
			}
			return nil, nil
		}
		a.set(drop)
		b.set(drop)
		var all sync.WaitGroup
		for _, way := range [][2]*end{{a, b}, {b, a}} {
			all.Go(func() {
				l, err := way[0].dialTo(way[1])
				if err != nil {
					t.Error(err)
					return
				}
				for on := range 3 {
					all.Go(func() {
						for n := range uint64(messages) {
							h, body := message(n+1), make([]byte, MaxMessage)
							if on == control {
								h, body = &Header{Kind: Exchange, Group: 9, Number: n + 1}, body[:maxEntry]
							}
							if err := l.Send(on, h, body); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			})
		}
		a.await(t, 3)
		b.await(t, 3)
		all.Wait()
		a.Close()
		b.Close()
	}
}

// Who reads a connection does not wait for a thread that sends on it, from the first moment on.
func TestReadingDoesNotWaitForSending(t *testing.T) {
	noLeaks(t)
	b, listener := newEnd(t, nil), listenOn(t, "127.0.0.1:0")
	defer listener.Close()
	var others, conns []net.Conn
	var raws []*net.TCPConn
	for range 3 {
		other, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		defer other.Close()
		c, err := listener.Accept()
		require.NoError(t, err)
		b.opened(c)
		others, conns, raws = append(others, other), append(conns, c), append(raws, c.(*net.TCPConn))
	}
	id := Identity{1}
	processors := runtime.GOMAXPROCS(1) // so that the goroutines of the link begin when the locks are held
	err := b.up(id, conns, raws, true, nil)
	l := b.peers[id].link
	for _, c := range l.conns {
		c.sending.Lock() // as in a send that waits
		defer c.sending.Unlock()
	}
	runtime.GOMAXPROCS(processors)
	require.NoError(t, err)
	for on, other := range others {
		h := message(1)
		if on == control {
			h = &Header{Kind: Exchange, Group: 9, Number: 1}
		}
		_, err := other.Write(encoded(h, []byte("x")))
		require.NoError(t, err)
	}
	b.await(t, 3)
}

// What was not sent whole has nothing sent behind it: the other process would take that for the rest of it.
func TestNothingIsSentBehindABrokenFrame(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	slow := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(slow) })
	defer goOn()
	b.set(func(int, *Header) ([][]byte, error) {
		<-slow
		return nil, nil
	})
	c := a.linkTo(t, b).conns[1]
	for taken := true; taken; { // until the connection is full, with a part of a frame kept
		var err error
		h := message(1)
		h.Bytes = MaxMessage
		taken, err = c.trySend(h, [][]byte{make([]byte, MaxMessage)})
		require.NoError(t, err)
	}
	require.NoError(t, c.tcp.SetWriteDeadline(time.Now()))
	err := c.send(message(2), nil)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.tcp.SetWriteDeadline(time.Time{}))
	goOn()
	require.ErrorIs(t, c.send(message(2), nil), os.ErrDeadlineExceeded)
	_, err = c.trySend(message(2), nil)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}
