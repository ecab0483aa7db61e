package bootstrap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/env"
	"sagecomm/internal/handshake"
)

var local = Endpoint{Addresses: Loopback}

// soon bounds what takes milliseconds unless the machine is very busy.
const soon = 30 * time.Second

func newServer(t *testing.T) *Server {
	t.Helper()
	s := NewServer(Descriptors{})
	t.Cleanup(s.Close)
	return s
}

func newIDOf(t *testing.T, s *Server) ID {
	t.Helper()
	id, err := s.NewID(local, nil)
	require.NoError(t, err)
	return id
}

func dialed(t *testing.T, id ID) *TCPStore {
	t.Helper()
	c, err := Dial(t.Context(), id, nil, time.Now().Add(soon), nil, Descriptors{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// connected returns a connection that has not said anything.
func connected(t *testing.T, id ID) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", netip.AddrPortFrom(id.Addresses[0], id.Port).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
	return c
}

// requireClosed checks that the server closes the connection and sends no more than n bytes before.
func requireClosed(t *testing.T, c net.Conn, n int) {
	t.Helper()
	rest, err := io.ReadAll(c)
	require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the server keeps the connection")
	require.LessOrEqual(t, len(rest), n)
}

func (s *Server) counts() (spaces, clients, strangers, listeners int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.spaces), len(s.clients), s.strangers.Len(), len(s.listeners)
}

func TestUniqueIDsAreReadStrictly(t *testing.T) {
	id := newID([]netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::7")}, 4242)
	text := id.Encode()
	again, err := ParseID(text[:])
	require.NoError(t, err)
	require.Equal(t, id, again)
	for i := range text {
		for _, bit := range []byte{1, 0x80} {
			text[i] ^= bit
			_, err := ParseID(text[:])
			require.Error(t, err, "byte %d", i)
			text[i] ^= bit
		}
	}
	for _, n := range []int{0, 1, IDBytes - 1} {
		_, err := ParseID(text[:n])
		require.ErrorIs(t, err, errIDMagic)
	}
	_, err = ParseID(append(text[:], 0))
	require.ErrorIs(t, err, errIDMagic)
	for _, bad := range []string{"0.0.0.0", "224.0.0.1", "fe80::1", "::", "255.255.255.255"} {
		id.Addresses[0] = netip.MustParseAddr(bad)
		text := id.Encode() // with a checksum that is right
		_, err := ParseID(text[:])
		require.ErrorContains(t, err, "at which no server can be", bad)
	}
	for _, wrong := range []ID{newID(nil, 1), newID(Loopback, 0)} {
		text := wrong.Encode()
		_, err := ParseID(text[:])
		require.ErrorIs(t, err, errIDChecksum)
	}
}

// Each of these clients knows less than the id, and gets nothing from the server but its nonce.
func TestStoreIsClosedToStrangers(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	secret, space := id, id
	secret.Secret[0] ^= 1
	space.Space[0] ^= 1
	for name, wrong := range map[string]ID{"secret": secret, "key space": space} {
		_, err := Dial(t.Context(), wrong, nil, time.Now().Add(soon), nil, Descriptors{})
		require.ErrorIs(t, err, errRefused, name)
	}
	_, err := Dial(t.Context(), id, []byte("a secret of a job"), time.Now().Add(soon), nil, Descriptors{})
	require.ErrorIs(t, err, errRefused)
	locked, err := s.NewID(local, []byte("a secret of a job"))
	require.NoError(t, err)
	for _, job := range [][]byte{nil, {}, []byte("another secret")} {
		_, err := Dial(t.Context(), locked, job, time.Now().Add(soon), nil, Descriptors{})
		require.ErrorIs(t, err, errRefused, "%q", job)
	}
	c, err := Dial(t.Context(), locked, []byte("a secret of a job"), time.Now().Add(soon), nil, Descriptors{})
	require.NoError(t, err)
	c.Close()
	for name, text := range map[string][]byte{
		"port scan": nil, "http": []byte("GET / HTTP/1.1\r\n\r\n"), "zeros": make([]byte, 8<<10),
		"cut hello": []byte(storeProtocol.Magic), "magic and garbage": append([]byte(storeProtocol.Magic), make([]byte, 8<<10)...),
	} {
		c := connected(t, id)
		_, _ = c.Write(text)
		_ = c.(*net.TCPConn).CloseWrite()
		requireClosed(t, c, handshake.NonceBytes)
		_ = name
	}
	require.Eventually(t, func() bool { _, clients, strangers, _ := s.counts(); return clients == 0 && strangers == 0 }, soon, time.Millisecond)
	dialed(t, id)
}

// recorder is a connection that keeps what its user has written.
type recorder struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.sent.Write(b)
	return r.Conn.Write(b)
}

func TestReplayedHandshakeIsRefused(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	r := &recorder{Conn: connected(t, id)}
	client, err := greet(r, id.Space, id.key(nil), time.Now().Add(soon))
	require.NoError(t, err)
	frame, err := request{ask: askSet, keys: []string{"k"}, value: []byte("v")}.encode()
	require.NoError(t, err)
	require.NoError(t, client.Send(frame))
	_, err = client.Receive()
	require.NoError(t, err)
	c := connected(t, id)
	_, err = c.Write(r.sent.Bytes())
	require.NoError(t, err)
	requireClosed(t, c, handshake.NonceBytes) // the nonce is another one
	// A frame of this session is not accepted twice either.
	all := r.sent.Bytes()
	_, err = client.Write(all[handshake.HelloBytes+32:])
	require.NoError(t, err)
	requireClosed(t, client.Conn, 0)
}

// A server that does not have the secret is refused by its client.
func TestImpostorIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, c, int64(handshake.HelloBytes))
			_, _ = c.Write(make([]byte, handshake.NonceBytes+32))
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	id := newID(Loopback[:1], l.Addr().(*net.TCPAddr).AddrPort().Port())
	_, err = Dial(t.Context(), id, nil, time.Now().Add(soon), nil, Descriptors{})
	require.ErrorIs(t, err, errRefused)
}

func TestFramesThatAreTooLongOrDamaged(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	for name, spoil := range map[string]func(*session) []byte{
		"too long": func(*session) []byte { return binary.BigEndian.AppendUint32(nil, maxFrame+1) },
		"longest":  func(*session) []byte { return []byte{255, 255, 255, 255} },
		"damaged": func(*session) []byte {
			return append([]byte{0, 0, 0, 5}, "lxxxx and no tag of this session"[:5+handshake.TagBytes]...)
		},
		"malformed": func(c *session) []byte {
			require.NoError(t, c.Send([]byte{'z'}))
			return nil
		},
	} {
		c := connected(t, id)
		client, err := greet(c, id.Space, id.key(nil), time.Now().Add(soon))
		require.NoError(t, err)
		_, err = c.Write(spoil(client))
		require.NoError(t, err)
		requireClosed(t, c, 0)
		_ = name
	}
	store := dialed(t, id)
	require.ErrorContains(t, store.Set("k", make([]byte, maxValue+1)), "at most")
	require.ErrorContains(t, store.Set(strings.Repeat("k", maxKey+1), nil), "at most")
	require.NoError(t, store.Set("k", make([]byte, maxValue)))
	value, err := store.Get("k", 0)
	require.NoError(t, err)
	require.Len(t, value, maxValue)
	for i := 1; ; i++ {
		if err := store.Set(fmt.Sprint(i), make([]byte, maxValue)); err != nil {
			require.ErrorContains(t, err, errSpaceFull.Error())
			require.Less(t, i, maxSpaceBytes/maxValue)
			break
		}
	}
	require.NoError(t, store.Set("k", nil)) // it makes room, and the connection is as good as before
}

func TestSlowClientsAreClosed(t *testing.T) {
	s := NewServer(Descriptors{})
	s.greeting = 20 * time.Millisecond
	t.Cleanup(s.Close)
	id := newIDOf(t, s)
	for _, text := range []string{"", storeProtocol.Magic, storeProtocol.Magic + strings.Repeat("x", handshake.HelloBytes-len(storeProtocol.Magic))} {
		c := connected(t, id)
		_, err := c.Write([]byte(text))
		require.NoError(t, err)
		requireClosed(t, c, handshake.NonceBytes)
	}
}

// Strangers hold a bounded number of connections, and keep no rank out.
func TestManyStrangers(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	const all = maxStrangers + 40
	for range all {
		connected(t, id)
	}
	require.Eventually(t, func() bool { _, _, strangers, _ := s.counts(); return strangers == maxStrangers }, soon, time.Millisecond)
	require.NoError(t, dialed(t, id).Set("k", nil))
	_, _, strangers, _ := s.counts()
	require.LessOrEqual(t, strangers, maxStrangers)
}

func TestWaitEndsWithItsClient(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	c := connected(t, id)
	client, err := greet(c, id.Space, id.key(nil), time.Now().Add(soon))
	require.NoError(t, err)
	frame, err := request{ask: askGet, keys: []string{"never"}, timeout: maxServerWait}.encode()
	require.NoError(t, err)
	require.NoError(t, client.Send(frame))
	require.Eventually(t, func() bool { _, clients, _, _ := s.counts(); return clients == 1 }, soon, time.Millisecond)
	began := time.Now()
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { _, clients, _, _ := s.counts(); return clients == 0 }, maxServerWait/2, time.Millisecond)
	require.Less(t, time.Since(began), maxServerWait/2)
}

func TestServerThatEnds(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	c := dialed(t, id)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Get("never", soon)
		ended <- err
	}()
	require.NoError(t, dialed(t, id).Set("k", nil))
	s.Close()
	require.ErrorIs(t, <-ended, ErrGone)
	require.ErrorIs(t, c.Set("k", nil), ErrGone)
	_, err := Dial(t.Context(), id, nil, time.Now().Add(50*time.Millisecond), nil, Descriptors{})
	require.ErrorIs(t, err, ErrGone)
}

// The key space of a group is dropped when all of its ranks have met, and the server listens no longer than it is
// needed.
func TestServerRestsWhenAllHaveMet(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	var all sync.WaitGroup
	errs := make([]error, 4)
	for rank := range errs {
		all.Go(func() {
			c, err := Dial(t.Context(), id, nil, time.Now().Add(soon), nil, Descriptors{})
			if err == nil {
				_, err = Exchange(c, "p", rank, len(errs), soon, []byte{byte(rank)}, func(int, []byte) error { return nil })
				err = errors.Join(err, c.Leave(len(errs)))
				c.Close()
			}
			errs[rank] = err
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Eventually(t, func() bool { spaces, _, _, listeners := s.counts(); return spaces == 0 && listeners == 0 }, soon, time.Millisecond)
	dialed(t, newIDOf(t, s)) // it listens again
}

func TestIDsThatNobodyUsesAreDropped(t *testing.T) {
	s := newServer(t)
	first := newIDOf(t, s)
	used := newIDOf(t, s)
	dialed(t, used)
	for range maxIdleSpaces {
		newIDOf(t, s)
	}
	spaces, _, _, _ := s.counts()
	require.Equal(t, maxIdleSpaces+1, spaces)
	_, err := Dial(t.Context(), first, nil, time.Now().Add(soon), nil, Descriptors{})
	require.ErrorIs(t, err, errRefused)
	dialed(t, used)
}

// The process that serves a derived id may come to it later than its clients.
func TestDerivedIDs(t *testing.T) {
	s := newServer(t)
	id := newIDOf(t, s)
	d := id.Derive("without 1", id.Addresses, id.Port)
	require.Equal(t, d, id.Derive("without 1", id.Addresses, id.Port))
	require.NotEqual(t, d.Secret, id.Derive("without 2", id.Addresses, id.Port).Secret)
	_, err := Dial(t.Context(), d, nil, time.Now().Add(soon), nil, Descriptors{})
	require.ErrorIs(t, err, errRefused)
	met := make(chan error, 1)
	go func() {
		c, err := Dial(t.Context(), d, nil, time.Now().Add(soon), func() error { return nil }, Descriptors{})
		if err == nil {
			c.Close()
		}
		met <- err
	}()
	s.Serve(d, nil)
	s.Serve(d, nil) // once is enough
	require.NoError(t, <-met)
}

func TestServerOnIPv6(t *testing.T) {
	s := newServer(t)
	id, err := s.NewID(Endpoint{Addresses: Loopback[1:]}, nil)
	if err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	}
	require.True(t, id.Addresses[0].Is6())
	require.NoError(t, dialed(t, id).Set("k", nil))
}

func TestRangeOfPorts(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	port := busy.Addr().(*net.TCPAddr).AddrPort().Port()
	s := newServer(t)
	_, err = s.NewID(Endpoint{Addresses: Loopback[:1], First: port, Last: port}, nil)
	require.ErrorContains(t, err, "SAGECOMM_PORT_RANGE")
	last := min(int(port)+50, 65535)
	id, err := s.NewID(Endpoint{Addresses: Loopback[:1], First: port, Last: uint16(last)}, nil)
	require.NoError(t, err)
	require.Greater(t, id.Port, port)
	require.LessOrEqual(t, int(id.Port), last)
}

func TestAddressTowardsAHost(t *testing.T) {
	a, err := Towards("127.0.0.1")
	require.NoError(t, err)
	require.True(t, a.IsLoopback())
	_, err = Towards("")
	require.Error(t, err)
}

func FuzzParseID(f *testing.F) {
	text := newID(Loopback, 29500).Encode()
	f.Add(text[:])
	f.Add(text[:100])
	f.Fuzz(func(t *testing.T, text []byte) {
		id, err := ParseID(text)
		if err != nil {
			return
		}
		if again := id.Encode(); !bytes.Equal(again[:], text) {
			t.Errorf("%x is read as %x", text, again)
		}
	})
}

func FuzzRequest(f *testing.F) {
	for _, r := range []request{{ask: askSet, keys: []string{"k"}, value: []byte("v")}, {ask: askGet, keys: []string{"a", ""}, timeout: time.Second}, {ask: askLeave, ranks: 3},
		{ask: askClaim, keys: []string{"k"}, value: []byte("v")}} {
		text, err := r.encode()
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseRequest(text)
		if err != nil {
			return
		}
		if again, err := r.encode(); err != nil || !bytes.Equal(again, text) {
			t.Errorf("%x is read as %x, %v", text, again, err)
		}
	})
}

// wire is a connection whose other end has sent all that it ever sends.
type wire struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (w *wire) Read(b []byte) (int, error)       { return w.in.Read(b) }
func (w *wire) Write(b []byte) (int, error)      { return w.out.Write(b) }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// Whatever a stranger sends, it is not admitted, and hears a nonce at most.
func FuzzHandshake(f *testing.F) {
	id := newID(Loopback, 1)
	hello := append([]byte(storeProtocol.Magic), id.Space[:]...)
	f.Add(append(bytes.Clone(hello), make([]byte, handshake.NonceBytes+32)...))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		w := &wire{in: bytes.NewReader(text)}
		_, _, err := storeProtocol.Admit(w, time.Second, func(space [spaceBytes]byte) ([32]byte, bool) { return id.key(nil), space == id.Space })
		if err == nil || w.out.Len() > handshake.NonceBytes || len(text)-w.in.Len() > handshake.HelloBytes+32 {
			t.Errorf("%v; it has read %d bytes and sent %d", err, len(text)-w.in.Len(), w.out.Len())
		}
	})
}

// A server that listens on loopback listens elsewhere, too, when it is to, and stays where it is for older ids.
func TestListeningBeyondLoopback(t *testing.T) {
	all, err := InterfacesOf(env.Interfaces{Not: true})
	require.NoError(t, err)
	if len(all) == 0 {
		t.Skip("this machine has no interface but loopback")
	}
	s := newServer(t)
	older := newIDOf(t, s)
	found := 0
	finds := func(list ...netip.Addr) Endpoint {
		return Endpoint{Beyond: true, Find: func() []netip.Addr { found++; return list }}
	}
	for _, at := range []Endpoint{{Find: finds(all[0].Addresses[0]).Find}, finds(Loopback...)} {
		addresses, port, err := s.Listen(at)
		require.NoError(t, err)
		require.Equal(t, older.Addresses, addresses)
		require.Equal(t, older.Port, port)
	}
	require.Equal(t, 1, found, "the first one is not to be beyond loopback")
	for range 2 {
		newer, err := s.NewID(finds(all[0].Addresses[0]), nil)
		require.NoError(t, err)
		require.Equal(t, all[0].Addresses[:1], newer.Addresses)
		require.NoError(t, dialed(t, newer).Set("k", nil))
	}
	require.Equal(t, 2, found)
	require.NoError(t, dialed(t, older).Set("k", nil))
	_, _, err = newServer(t).Listen(finds(netip.MustParseAddr("198.51.100.1"))) // an address that no host has (RFC 5737)
	require.ErrorContains(t, err, "cannot listen for")
}

// Addresses are looked for only when a server begins to listen.
func TestAddressesAreFoundOnce(t *testing.T) {
	s := NewServer(Descriptors{})
	t.Cleanup(s.Close)
	found := 0
	at := Endpoint{Find: func() []netip.Addr { found++; return Loopback }}
	for range 3 {
		_, _, err := s.Listen(at)
		require.NoError(t, err)
		_, err = s.NewID(at, nil)
		require.NoError(t, err)
	}
	require.Equal(t, 1, found)
}

// A request of a few kilobytes that names one long value many times does not make the server hold it as often.
func TestValuesAreNotCopiedForEachKeyOfAGet(t *testing.T) {
	s := newSpace([32]byte{})
	require.NoError(t, s.set("k", []byte("value")))
	values, _, err := s.look([]string{"k", "k"})
	require.NoError(t, err)
	require.Same(t, &values[0][0], &values[1][0])
}
