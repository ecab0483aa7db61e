package tcp

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFramesComeInOrder(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	l := a.linkTo(t, b)
	back := b.linkOf(t, a)
	require.Equal(t, a.id, back.Peer())
	require.Equal(t, 2, l.Data())
	const each = 500
	var all sync.WaitGroup
	for on := range 3 {
		all.Go(func() {
			for n := range uint64(each) {
				h, body := message(n+1), bytes.Repeat([]byte{byte(n)}, int(n)%40)
				if on == control {
					h = &Header{Kind: Collect, Group: 9, Number: n + 1}
				}
				require.NoError(t, l.Send(on, h, body))
			}
		})
	}
	all.Wait()
	require.NoError(t, back.Send(1, message(1), []byte("back"))) // the link that b got is the one that a has made
	next := [3]uint64{}
	for _, f := range b.await(t, 3*each) {
		next[f.on]++
		require.Equal(t, next[f.on], f.h.Number)
		want := *message(f.h.Number)
		if f.on == control {
			want = Header{Kind: Collect, Group: 9, Number: f.h.Number}
		}
		want.Bytes = uint32(len(f.body))
		require.Equal(t, want, f.h)
		require.Equal(t, string(bytes.Repeat([]byte{byte(f.h.Number - 1)}, int(f.h.Number-1)%40)), f.body)
	}
	require.Equal(t, "back", a.await(t, 1)[0].body)
}

// Long payloads go straight to where the receiver has posted, in pieces of any number and length.
func TestPayloadsGoToTheirPlaces(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	l := a.linkTo(t, b)
	const messages = 100
	in, out := make([]byte, messages*MaxMessage), make([]byte, messages*MaxMessage)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(in)
	at := 0
	b.set(func(_ int, h *Header) (list [][]byte, err error) {
		for rest := out[at : at+int(h.Bytes)]; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(20_000)) // from 4 segments to some hundred
			if h.Number%3 == 0 {
				n = min(len(rest), 200)
			}
			list = append(list, rest[:n:n])
			rest = rest[n:]
		}
		at += int(h.Bytes)
		return append(list, nil), nil // a segment of no bytes is none
	})
	sent := 0
	for n := range uint64(messages) {
		bytes := MaxMessage - int(n%5)*17
		half := bytes / 3
		require.NoError(t, l.Send(1, message(n+1), in[sent:sent+half], nil, in[sent+half:sent+bytes]))
		sent += bytes
	}
	b.await(t, messages)
	require.True(t, bytes.Equal(in[:sent], out[:sent]))
}

// A frame that the receiver has not posted ends the link on both sides. No byte of its payload is taken.
func TestFramesBeyondTheCredit(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	const window = 4
	b.set(func(_ int, h *Header) ([][]byte, error) {
		if h.Number > window {
			return nil, fmt.Errorf("message %d, and room for %d", h.Number, window)
		}
		return nil, nil
	})
	l := a.linkTo(t, b)
	for n := range uint64(window) {
		require.NoError(t, l.Send(1, message(n+1), []byte("x")))
	}
	b.await(t, window)
	_ = l.Send(1, message(window+1), make([]byte, 60_000)) // the other end may be gone before all is sent
	require.ErrorContains(t, b.awaitLoss(t), "message 5, and room for 4")
	require.Error(t, a.awaitLoss(t))
	require.Equal(t, window, b.count())
	require.Error(t, l.Send(1, message(1)))
	_, err := a.dialTo(b)
	require.Error(t, err, "a lost link is not made again")
}

func TestFramesThatNoProcessSends(t *testing.T) {
	noLeaks(t)
	for name, spoil := range map[string]func(h *[HeaderBytes]byte){
		"unknown kind": func(h *[HeaderBytes]byte) { h[0] = 200 },
		"kind 0":       func(h *[HeaderBytes]byte) { h[0] = 0 },
		"too long":     func(h *[HeaderBytes]byte) { h[6] = MaxMessage>>16 + 1 },
		"longest":      func(h *[HeaderBytes]byte) { h[7] = 255 },
		"field":        func(h *[HeaderBytes]byte) { h[56] = 1 },
		"connection":   func(h *[HeaderBytes]byte) { h[0] = byte(Collect) },
	} {
		a, b := newEnd(t, nil), newEnd(t, nil)
		l := a.linkTo(t, b)
		var text [HeaderBytes]byte
		message(1).Encode(&text)
		spoil(&text)
		_, err := l.conns[1].Write(text[:])
		require.NoError(t, err)
		require.ErrorIs(t, b.awaitLoss(t), errHeader, name)
		require.Error(t, a.awaitLoss(t), name)
		require.Zero(t, b.count())
	}
}

func TestOwnFramesAreChecked(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	l := a.linkTo(t, b)
	require.ErrorIs(t, l.Send(control, message(1)), errHeader)
	require.ErrorIs(t, a.awaitLoss(t), errHeader, "the other end would wait for that frame")
	require.Error(t, b.awaitLoss(t))

	a, b = newEnd(t, nil), newEnd(t, nil)
	_, err := a.linkTo(t, b).TrySend(1, message(1), make([]byte, MaxMessage+1))
	require.ErrorIs(t, err, errHeader)
	require.ErrorIs(t, a.awaitLoss(t), errHeader)
}

// Data that the network damages never count as a message.
func TestDamagedFrame(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	r := newRelay(t, b.at[0])
	b.at = []netip.AddrPort{r.address()}
	l := a.linkTo(t, b)
	r.mu.Lock()
	spoiled := 0
	r.spoil = func(sent []byte) {
		if len(sent) >= 2000 && spoiled == 0 { // so that it is a byte of the payload
			sent[len(sent)/2] ^= 1
			spoiled++
		}
	}
	r.mu.Unlock()
	_ = l.Send(1, message(1), make([]byte, 40_000))
	require.ErrorIs(t, b.awaitLoss(t), errSum)
	require.Zero(t, b.count())

	a, b = newEnd(t, nil), newEnd(t, nil)
	l = a.linkTo(t, b)
	var text [HeaderBytes]byte
	message(1).Encode(&text) // with 0 for a checksum
	_, err := l.conns[1].Write(text[:])
	require.NoError(t, err)
	require.ErrorIs(t, b.awaitLoss(t), errSum)
	require.Zero(t, b.count())
}

// A frame that comes again is not taken for another one, nor one whose predecessor has not come, whatever they say.
func TestFramesHaveAPlace(t *testing.T) {
	noLeaks(t)
	for name, numbers := range map[string][]uint32{"again": {1, 2, 2}, "one is missing": {1, 3}, "exchanged": {2, 1}} {
		a, b := newEnd(t, nil), newEnd(t, nil)
		l := a.linkTo(t, b)
		b.linkOf(t, a)
		c := l.conns[1]
		c.sending.Lock()
		first, whole := c.sending.number, 0
		var text []byte // sent at once, since the link ends at the wrong frame
		for i, n := range numbers {
			text = append(text, encodedAs(first+n-1, &Header{Kind: Eager, Group: 9, Number: uint64(n), Hash: 1}, []byte{byte(n)})...)
			if whole == i && int(n) == i+1 {
				whole++
			}
		}
		_, err := c.tcp.Write(text)
		c.sending.Unlock()
		require.NoError(t, err)
		require.ErrorIs(t, b.awaitLoss(t), errSum, name)
		require.Len(t, b.await(t, whole), whole, name)
	}
}

// A frame that nobody waits for is read and forgotten, and what follows is delivered.
func TestDroppedFrames(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	b.set(func(_ int, h *Header) ([][]byte, error) {
		if h.Number%2 == 1 {
			return nil, ErrDrop
		}
		return nil, nil
	})
	l := a.linkTo(t, b)
	for n := range uint64(6) {
		require.NoError(t, l.Send(1, message(n+1), make([]byte, n*12_000)))
	}
	for n, f := range b.await(t, 3) {
		require.EqualValues(t, 2*n+2, f.h.Number)
	}
}

// A panic of the receiver ends the link with its text, and nothing else.
func TestPanicOfTheReceiver(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	b.set(func(int, *Header) ([][]byte, error) { panic("no such place") })
	require.NoError(t, a.linkTo(t, b).Send(1, message(1)))
	require.ErrorContains(t, b.awaitLoss(t), "panic: no such place")
	require.Error(t, a.awaitLoss(t))
}

// Nothing is read behind a panic of the receiver, also by a thread that polls: the connection is in the middle of a frame.
func TestNothingIsReadBehindAPanic(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, nil)
	there, back := a.linkTo(t, b), b.linkOf(t, a)
	calls := 0
	b.set(func(int, *Header) ([][]byte, error) {
		calls++
		panic("no such place")
	})
	back.Calm(true)
	defer back.Calm(false)
	require.NoError(t, there.Send(1, message(1), make([]byte, 100)))
	_ = there.Send(1, message(2), make([]byte, 100)) // the other end may be gone
	require.Eventually(t, func() bool { back.PollData(); return back.Err() != nil }, soon, time.Millisecond)
	for range 3 {
		_, _, _ = back.conns[1].poll()
	}
	require.ErrorContains(t, b.awaitLoss(t), "panic: no such place")
	require.Equal(t, 1, calls)
}

// What comes in the middle of a frame, or instead of the rest of it, is a loss, and the place of the payload is free when Lost is called.
func TestResetInTheMiddleOfAFrame(t *testing.T) {
	noLeaks(t)
	for name, cut := range map[string]func(c *conn){
		"reset":  func(c *conn) { _ = c.tcp.SetLinger(0); _ = c.tcp.Close() },
		"closed": func(c *conn) { _ = c.tcp.Close() },
		"half":   func(c *conn) { _ = c.tcp.CloseWrite() },
	} {
		for _, at := range []int{10, HeaderBytes, HeaderBytes + 9_000, HeaderBytes + 20_000} {
			place := make([]byte, 30_000)
			a, b := newEnd(t, nil), newEnd(t, nil)
			b.set(func(int, *Header) ([][]byte, error) { return [][]byte{place}, nil })
			l := a.linkTo(t, b)
			back := b.linkOf(t, a)
			var text [HeaderBytes]byte
			h := message(1)
			h.Bytes = uint32(len(place))
			h.Encode(&text)
			_, err := l.conns[2].Write(append(text[:], make([]byte, len(place))...)[:at])
			require.NoError(t, err)
			cut(l.conns[2])
			require.Error(t, b.awaitLoss(t), name)
			place[0] = 1 // the race detector sees whether anybody still reads into it
			require.Error(t, a.awaitLoss(t), name)
			require.Error(t, back.Err())
			require.Zero(t, b.count())
		}
	}
}

// Both processes dial at once, many times; each pair has one link, whatever the order.
func TestBothDial(t *testing.T) {
	noLeaks(t)
	for range 30 {
		a, b := newEnd(t, nil), newEnd(t, nil)
		var all sync.WaitGroup
		links := make([]*Link, 6)
		for i := range links {
			all.Go(func() {
				from, to := a, b
				if i%2 == 1 {
					from, to = b, a
				}
				l, err := from.dialTo(to)
				require.NoError(t, err)
				links[i] = l
			})
		}
		all.Wait()
		require.Same(t, links[0], links[2])
		require.Same(t, links[1], links[5])
		require.NoError(t, links[0].Send(1, message(1), []byte("to b")))
		require.NoError(t, links[1].Send(2, message(1), []byte("to a")))
		require.Equal(t, "to b", b.await(t, 1)[0].body)
		require.Equal(t, "to a", a.await(t, 1)[0].body)
		a.Close()
		b.Close()
	}
}

func TestManyProcesses(t *testing.T) {
	noLeaks(t)
	var ends []*end
	for range 6 {
		ends = append(ends, newEnd(t, nil))
	}
	var all sync.WaitGroup
	for _, from := range ends {
		for _, to := range ends {
			if from == to {
				continue
			}
			all.Go(func() {
				l, err := from.dialTo(to)
				require.NoError(t, err)
				require.NoError(t, l.Send(1, message(1), from.id[:]))
			})
		}
	}
	all.Wait()
	for _, e := range ends {
		seen := map[string]bool{}
		for _, f := range e.await(t, len(ends)-1) {
			seen[f.body] = true
		}
		require.Len(t, seen, len(ends)-1)
	}
}

func TestIPv6AndSeveralAddresses(t *testing.T) {
	noLeaks(t)
	six := listenOn(t, "[::1]:0")
	a, b := newEnd(t, nil), newEnd(t, nil, six)
	gone := listenOn(t, "127.0.0.1:0")
	nobody := gone.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, gone.Close())
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	l, err := a.Link(ctx, b.id, append(b.at[:0:0], nobody, b.at[0]), testSpace)
	require.NoError(t, err)
	require.NoError(t, l.Send(1, message(1), []byte("six")))
	require.Equal(t, "six", b.await(t, 1)[0].body)
}

func TestNobodyAnswers(t *testing.T) {
	noLeaks(t)
	a := newEnd(t, func(c *Config) {
		c.Timing = Timing{Beat: time.Second, Unacked: time.Second, Ending: time.Second, Greeting: 100 * time.Millisecond}
	})
	silent := listenOn(t, "127.0.0.1:0")
	defer silent.Close()
	b := newEnd(t, nil)
	b.at = b.at[:0]
	b.at = append(b.at, silent.Addr().(*net.TCPAddr).AddrPort())
	_, err := a.dialTo(b)
	require.ErrorContains(t, err, "has ended, or cannot be reached")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = a.Link(ctx, b.id, b.at, testSpace)
	require.ErrorIs(t, err, context.Canceled)
	a.Close()
	_, err = a.dialTo(b)
	require.ErrorIs(t, err, errNodeClosed)
}

func TestNumbersOfConnectionsDiffer(t *testing.T) {
	noLeaks(t)
	a, b := newEnd(t, nil), newEnd(t, func(c *Config) { c.Data = 1 })
	_, err := a.dialTo(b)
	require.ErrorContains(t, err, "another number of data connections")
	c := newEnd(t, nil)
	nobody := *c
	nobody.id = Identity{1}
	_, err = a.dialTo(&nobody)
	require.ErrorContains(t, err, "another process of the job listens there")
	for _, data := range []int{0, MaxData + 1} {
		_, err := NewNode(Config{Data: data}, nil)
		require.Error(t, err)
	}
}
