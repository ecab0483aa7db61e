package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/handshake"
)

// soon is long enough for everything that must happen, on a busy machine too.
const soon = 20 * time.Second

var (
	testSpace = handshake.Space{7}
	testKey   = handshake.MAC([]byte("the secret of the job"), "test")
)

// frame is one that has come.
type frame struct {
	on   int
	h    Header
	body string
}

// keeper is a receiver that keeps everything, unless place says where a payload goes, or why not.
type keeper struct {
	mu     sync.Mutex
	frames []frame
	place  func(on int, h *Header) ([][]byte, error)
	bufs   map[int][]byte
}

func newKeeper() *keeper { return &keeper{bufs: map[int][]byte{}} }

func (k *keeper) Place(_ *Link, on int, h *Header) ([][]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.place != nil {
		if list, err := k.place(on, h); err != nil || list != nil {
			return list, err
		}
	}
	k.bufs[on] = make([]byte, h.Bytes)
	return [][]byte{k.bufs[on]}, nil
}

func (k *keeper) Arrived(_ *Link, on int, h *Header) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.frames = append(k.frames, frame{on, *h, string(k.bufs[on])})
	delete(k.bufs, on)
	return nil
}

// set sets place.
func (k *keeper) set(place func(on int, h *Header) ([][]byte, error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.place = place
}

func (k *keeper) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.frames)
}

// await waits until n frames have come and returns them.
func (k *keeper) await(t *testing.T, n int) []frame {
	t.Helper()
	require.Eventually(t, func() bool { return k.count() >= n }, soon, time.Millisecond, "frames")
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.frames
}

// end is one process of a test.
type end struct {
	*Node
	*keeper
	id   Identity
	at   []netip.AddrPort
	key  handshake.Space
	lost chan error
}

func listenOn(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil && strings.Contains(address, "::1") {
		t.Skipf("no IPv6 here: %v", err)
	}
	require.NoError(t, err)
	return l
}

// newEnd makes a process that has the key of the tests. change may be nil.
func newEnd(t *testing.T, change func(*Config), listeners ...net.Listener) *end {
	t.Helper()
	return newEndWith(t, testSpace, testKey, change, listeners...)
}

// newEndWith makes a process that has a key. change may be nil.
func newEndWith(t *testing.T, name handshake.Space, key handshake.Key, change func(*Config), listeners ...net.Listener) *end {
	t.Helper()
	if len(listeners) == 0 {
		listeners = []net.Listener{listenOn(t, "127.0.0.1:0")}
	}
	e := &end{keeper: newKeeper(), key: name, lost: make(chan error, 64)}
	_, _ = rand.Read(e.id[:])
	c := Config{Self: e.id, Data: 2, Receiver: e.keeper, Lost: func(_ *Link, why error) { e.lost <- why }}
	if change != nil {
		change(&c)
	}
	e.id = c.Self
	for _, l := range listeners {
		a := l.Addr().(*net.TCPAddr).AddrPort()
		e.at = append(e.at, a)
	}
	var err error
	e.Node, err = NewNode(c, listeners)
	require.NoError(t, err)
	require.NoError(t, e.AddKey(name, key))
	t.Cleanup(e.Close)
	return e
}

func (e *end) linkTo(t *testing.T, other *end) *Link {
	t.Helper()
	l, err := e.dialTo(other)
	require.NoError(t, err)
	return l
}

func (e *end) dialTo(other *end) (*Link, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return e.Link(ctx, other.id, other.at, e.key)
}

// linkOf returns the link that another process has made, when something has come over it.
func (e *end) linkOf(t *testing.T, other *end) *Link {
	t.Helper()
	l := e.madeFor(t, other.id)
	require.Eventually(t, l.heard.Load, soon, time.Millisecond, "a heartbeat")
	return l
}

// madeFor returns the link that another process has made, over which nothing may have come yet.
func (e *end) madeFor(t *testing.T, other Identity) (l *Link) {
	t.Helper()
	require.Eventually(t, func() bool {
		e.Node.mu.Lock()
		defer e.Node.mu.Unlock()
		if p := e.peers[other]; p != nil {
			l = p.link
		}
		return l != nil
	}, soon, time.Millisecond, "a link")
	return l
}

// quiet returns for how long nothing has come on the control connection, not even a heartbeat.
func (l *Link) quiet() time.Duration { return time.Duration(l.now() - l.conns[control].heard.Load()) }

func (e *end) awaitLoss(t *testing.T) error {
	t.Helper()
	select {
	case why := <-e.lost:
		return why
	case <-time.After(soon):
		require.Fail(t, "the loss was not noticed")
		return nil
	}
}

// noLeaks requires that a test leaves no goroutine and no descriptor behind. Call it first.
func noLeaks(t *testing.T) {
	t.Helper()
	count := func() (goroutines, descriptors int) {
		list, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return runtime.NumGoroutine(), len(list)
	}
	first := listenOn(t, "127.0.0.1:0") // netpoll has descriptors of its own from now on
	require.NoError(t, first.Close())
	goroutines, descriptors := count()
	t.Cleanup(func() {
		g, d := count()
		for deadline := time.Now().Add(soon); (g > goroutines || d > descriptors) && time.Now().Before(deadline); g, d = count() {
			<-time.After(time.Millisecond)
		}
		require.LessOrEqual(t, g, goroutines, "goroutines")
		require.LessOrEqual(t, d, descriptors, "descriptors")
	})
}

// encoded returns the first frame of a connection, as it comes without TLS.
func encoded(h *Header, body []byte) []byte { return encodedAs(0, h, body) }

// sumOf returns the checksum of a frame.
func sumOf(number uint32, header *[HeaderBytes]byte, parts ...[]byte) uint32 {
	var c checksum
	c.begin(number, header)
	for _, p := range parts {
		c.add(p)
	}
	return c.value()
}

// encodedAs returns a frame before which others have come.
func encodedAs(number uint32, h *Header, body []byte) []byte {
	var text [HeaderBytes]byte
	h.Bytes = uint32(len(body))
	h.Encode(&text)
	binary.LittleEndian.PutUint32(text[sumAt:], sumOf(number, &text, body))
	return append(text[:], body...)
}

func message(number uint64) *Header {
	return &Header{Kind: Message, Group: 9, From: 1, To: 2, Channel: 3, Number: number, Hash: 5, Block: 6, Taken: 7}
}

// sendOnAll sends n frames on each of three connections, in turn.
func sendOnAll(t *testing.T, l *Link, n uint64) {
	t.Helper()
	for number := uint64(1); number <= n; number++ {
		for on := 1; on <= 2; on++ {
			require.NoError(t, l.Send(on, message(number), make([]byte, 20_000)))
		}
		require.NoError(t, l.Send(control, &Header{Kind: Collect, Group: 9, Number: number}, make([]byte, maxRecord)))
	}
}
