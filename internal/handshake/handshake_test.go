package handshake

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const soon = 5 * time.Second

var (
	one   = Protocol{Magic: "sagetest", Label: "test", Limit: 100}
	space = Space{1, 2, 3}
	key   = MAC([]byte("secret"), "test")
)

func keyOf(Space) (Key, bool) { return key, true }

// meet connects a client and a server.
func meet(t *testing.T, client, server Protocol, clientKey Key, known bool) (a, b *Session, errA, errB error) {
	t.Helper()
	x, y := net.Pipe()
	t.Cleanup(func() { _, _ = x.Close(), y.Close() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		b, _, errB = server.Admit(y, soon, func(Space) (Key, bool) { return key, known })
		if errB != nil {
			_ = y.Close()
		}
	}()
	a, errA = client.Greet(x, space, clientKey, time.Now().Add(soon))
	if errA != nil {
		_ = x.Close()
	}
	<-done
	return a, b, errA, errB
}

func TestBothEndsProveTheKey(t *testing.T) {
	a, b, errA, errB := meet(t, one, one, key, true)
	require.NoError(t, errA)
	require.NoError(t, errB)
	for range 3 {
		go func() { _ = a.Send([]byte("hello")) }()
		body, err := b.Receive()
		require.NoError(t, err)
		require.Equal(t, "hello", string(body))
	}
	require.Error(t, a.Send(make([]byte, one.Limit+1)))
}

func TestWhoHasNoKeyIsRefused(t *testing.T) {
	_, _, errA, errB := meet(t, one, one, Key{}, true)
	require.ErrorIs(t, errA, ErrRefused)
	require.ErrorIs(t, errB, ErrStranger)
	_, _, errA, errB = meet(t, one, one, key, false)
	require.ErrorIs(t, errA, ErrRefused)
	require.ErrorIs(t, errB, ErrStranger)
	// A proof of one protocol is none in another, whatever the key.
	other := one
	other.Label = "another test"
	_, _, errA, errB = meet(t, one, other, key, true)
	require.ErrorIs(t, errA, ErrRefused)
	require.ErrorIs(t, errB, ErrStranger)
	other = one
	other.Magic = "sageelse"
	_, _, errA, errB = meet(t, one, other, key, true)
	require.Error(t, errA)
	require.ErrorIs(t, errB, ErrStranger)
}

// The end of the connection where the proof of the server should come is a refusal, and a reset or a part of a proof is none.
func TestWhatIsARefusal(t *testing.T) {
	for name, c := range map[string]struct {
		last    error
		proof   int
		refused bool
	}{
		"closed":           {io.EOF, 0, true},
		"a wrong proof":    {io.EOF, ProofBytes, true},
		"a part of one":    {io.EOF, ProofBytes - 1, false},
		"reset":            {&net.OpError{Op: "read", Err: unix.ECONNRESET}, 0, false},
		"reset in a proof": {&net.OpError{Op: "read", Err: unix.ECONNRESET}, 1, false},
	} {
		w := &wire{in: io.MultiReader(bytes.NewReader(make([]byte, NonceBytes+c.proof)), iotest.ErrReader(c.last))}
		_, err := one.Greet(w, space, key, time.Now().Add(time.Second))
		require.Error(t, err, name)
		require.Equal(t, c.refused, errors.Is(err, ErrRefused), "%s: %v", name, err)
		if !c.refused && c.last != io.EOF {
			require.ErrorIs(t, err, c.last, name)
		}
	}
}

// A frame that comes back, or comes twice, is not taken for one of the other end.
func TestFramesHaveADirectionAndANumber(t *testing.T) {
	a, b, errA, errB := meet(t, one, one, key, true)
	require.NoError(t, errA)
	require.NoError(t, errB)
	var sent wire
	raw := a.Conn
	a.Conn = &sent
	require.NoError(t, a.Send([]byte("hello")))
	frame := sent.out.Bytes()
	a.Conn = raw
	go func() { _, _ = b.Write(frame) }()
	_, err := a.Receive()
	require.ErrorIs(t, err, ErrFrame)
	go func() { _, _ = raw.Write(append(bytes.Clone(frame), frame...)) }()
	_, err = b.Receive()
	require.NoError(t, err)
	_, err = b.Receive()
	require.ErrorIs(t, err, ErrFrame)
}

// wire is a connection that reads a text and keeps what is written.
type wire struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (w *wire) Read(p []byte) (int, error)       { return w.in.Read(p) }
func (w *wire) Write(p []byte) (int, error)      { return w.out.Write(p) }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// Whatever the other end of a session sends without its key, no frame is accepted.
func FuzzFrame(f *testing.F) {
	frame := append([]byte{0, 0, 0, 1, 'x'}, make([]byte, TagBytes)...)
	f.Add(frame)
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, server := range []bool{true, false} {
			s := one.newSession(&wire{in: bytes.NewReader(text)}, key, []byte("talk"), server)
			if body, err := s.Receive(); err == nil {
				t.Errorf("%x was accepted, server: %t", body, server)
			}
		}
	})
}

// Whatever a client without the key sends, it gets a nonce at most, and no more is read than a handshake has.
func FuzzAdmit(f *testing.F) {
	f.Add([]byte{})
	f.Add(append([]byte(one.Magic), make([]byte, SpaceBytes+NonceBytes+ProofBytes)...))
	f.Fuzz(func(t *testing.T, text []byte) {
		in := bytes.NewReader(text)
		w := &wire{in: in}
		_, _, err := one.Admit(w, time.Second, keyOf)
		if err == nil || w.out.Len() > NonceBytes || len(text)-in.Len() > HelloBytes+ProofBytes {
			t.Errorf("%v; it has read %d bytes and sent %d", err, len(text)-in.Len(), w.out.Len())
		}
	})
}

// Whatever a server without the key sends, the client refuses it, and reads and tells no more than a handshake has.
func FuzzGreet(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, NonceBytes+ProofBytes))
	f.Fuzz(func(t *testing.T, text []byte) {
		in := bytes.NewReader(text)
		w := &wire{in: in}
		_, err := one.Greet(w, space, key, time.Now().Add(time.Second))
		if err == nil || w.out.Len() > HelloBytes+ProofBytes || len(text)-in.Len() > NonceBytes+ProofBytes {
			t.Errorf("%v; it has read %d bytes and sent %d", err, len(text)-in.Len(), w.out.Len())
		}
	})
}

// keyed answers a server as a client that has the key, and then sends a text, tagged or not.
type keyed struct {
	wire
	talk []byte
	rest func(talk []byte) []byte
}

func (k *keyed) Write(p []byte) (int, error) {
	if k.talk == nil { // the nonce
		hello := append(append([]byte(one.Magic), space[:]...), make([]byte, NonceBytes)...)
		k.talk = transcript(hello, p)
		proof := one.clientProof(key, k.talk)
		k.in = io.MultiReader(bytes.NewReader(proof[:]), bytes.NewReader(k.rest(k.talk)))
	}
	return len(p), nil
}

// Whoever has the key sends what it likes in a frame, of which nothing is read beyond the limit, and no frame is accepted that has another tag.
func FuzzFrameBehindTheProof(f *testing.F) {
	f.Add([]byte("body"), uint32(4), true)
	f.Add([]byte{}, uint32(0), true)
	f.Add(make([]byte, one.Limit+1), uint32(one.Limit+1), true)
	f.Add([]byte("body"), uint32(1<<31), false)
	f.Fuzz(func(t *testing.T, body []byte, length uint32, tagged bool) {
		k := &keyed{rest: func(talk []byte) []byte {
			frame := append(binary.BigEndian.AppendUint32(nil, length), body...)
			if tagged {
				client := one.newSession(nil, key, talk, false)
				frame = append(frame, one.tag(client.out, 0, frame)...)
			}
			return frame
		}}
		k.in = bytes.NewReader(append(append([]byte(one.Magic), space[:]...), make([]byte, NonceBytes)...))
		s, _, err := one.Admit(k, time.Second, keyOf)
		require.NoError(t, err)
		got, err := s.Receive()
		if fits := tagged && int(length) == len(body) && len(body) <= one.Limit; fits != (err == nil) {
			t.Errorf("%d bytes told as %d, tagged %t: %x, %v", len(body), length, tagged, got, err)
		} else if fits && !bytes.Equal(got, body) {
			t.Errorf("%x was read as %x", body, got)
		}
	})
}
