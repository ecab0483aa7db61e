package pgbackend

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/transport/tcp"
)

// wire stands between the links of two ranks, which it finds in the store: each of them is told an address of wire's in
// the place of the other one's. It does to their connections what a fault says (wireFault), once.
type wire struct {
	t    *testing.T
	ends [2]int // the two ranks
	tls  bool

	mu    sync.Mutex
	real  map[int]netip.AddrPort // of all ranks, as they have told
	ids   map[int]tcp.Identity   // of their processes
	pipes map[*pipe]bool         // that live
	fault *wireFault             // nil: none, or it has happened
	said  [][]byte               // of each connection, what its dialer has said first
	over  bool
	held  [2]chan struct{} // by who sends: nil, or closed when what it sends goes on

	listeners [2]net.Listener // by the index in ends of who dials
	struck    chan struct{}   // closed when the fault has happened
	at        time.Time       // when it has
	done      chan struct{}
	running   sync.WaitGroup
}

// wireFault is what happens, and where.
type wireFault struct {
	action string
	from   int    // the rank that sends the bytes at which it happens, -1: either
	index  int    // of the connection of its link, -1: any; or anyData
	part   string // "byte", any one; "header" or "payload" of a frame
	skip   int    // bytes of this direction that pass before
	offset int    // in the header or payload
	mask   byte   // of damage
}

// anyData is the index of any data connection.
const anyData = -2

// pipe is one connection through wire.
type pipe struct {
	w     *wire
	index int             // 0: the control connection; as it has introduced itself, or as many connections of its attempt came before; guarded by wire.mu
	conns [2]*net.TCPConn // by the index in ends of the rank there
	holes [2]atomic.Bool  // by who sends: it is read and forgotten
	ended int             // directions; guarded by wire.mu
}

func newWire(t *testing.T, a, b int, tls bool) *wire {
	t.Helper()
	w := &wire{t: t, ends: [2]int{a, b}, tls: tls, real: map[int]netip.AddrPort{}, ids: map[int]tcp.Identity{}, pipes: map[*pipe]bool{}, struck: make(chan struct{}), done: make(chan struct{})}
	for i := range w.listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		w.listeners[i] = l
		w.running.Go(func() { w.accept(i) })
	}
	return w
}

func (w *wire) close() {
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return
	}
	w.over = true
	close(w.done)
	for _, l := range w.listeners {
		_ = l.Close()
	}
	for p := range w.pipes {
		p.close()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// stop holds back what a rank sends, until goOn. To it the other end is as a process that is stopped: it answers
// nothing, and its kernel acknowledges what it was sent.
func (w *wire) stop(from int) {
	w.t.Cleanup(w.goOn)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hold(slices.Index(w.ends[:], from))
}

// hold is stop for who has the lock.
func (w *wire) hold(from int) {
	if w.held[from] == nil {
		w.held[from] = make(chan struct{})
	}
}

// goOn ends what stop, or the fault "stop", has begun.
func (w *wire) goOn() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for from, held := range w.held {
		if held != nil {
			close(held)
			w.held[from] = nil
		}
	}
}

// mayPass waits while what an end sends is held back. It reports false when wire is over.
func (w *wire) mayPass(from int) bool {
	w.mu.Lock()
	held := w.held[from]
	w.mu.Unlock()
	if held == nil {
		return true
	}
	select {
	case <-held:
		return true
	case <-w.done:
		return false
	}
}

// arm lets a fault happen from now on.
func (w *wire) arm(f wireFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = &f
}

// relax lets the fault that has not happened yet happen at the next occasion.
func (w *wire) relax() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault != nil {
		w.fault.from, w.fault.index, w.fault.skip = -1, -1, 0
	}
}

// probed returns which process answers where the link through wire is measured, of as many hosts as there are ranks.
func (w *wire) probed(hosts int) tcp.Identity {
	to := w.ends[0]
	if measures(w.ends[0], w.ends[1], hosts) {
		to = w.ends[1]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ids[to]
}

// strikes notes that a fault happens which wire has no part in.
func (w *wire) strikes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = time.Now()
	close(w.struck)
}

// when returns when the fault happened.
func (w *wire) when() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// wiredStore is the store as a rank sees it.
type wiredStore struct {
	*bootstrap.MemStore
	wires []*wire
	rank  int
}

func (s wiredStore) Get(key string, timeout time.Duration) ([]byte, error) {
	value, err := s.MemStore.Get(key, timeout)
	_, of, found := strings.Cut(key, addressRound+"/")
	if err != nil || !found {
		return value, err
	}
	for _, w := range s.wires {
		value = w.rewrite(s.rank, of, value)
	}
	return value, nil
}

// rewrite returns what a rank is to read of the address of another one, and notes the real one.
func (w *wire) rewrite(rank int, of string, value []byte) []byte {
	var d networkDescription
	if len(value) == 0 || json.Unmarshal(value[1:], &d) != nil || len(d.At) == 0 {
		return value
	}
	to := int(of[0] - '0')
	w.mu.Lock()
	w.real[to], w.ids[to] = d.At[0], tcp.Identity(d.ID)
	w.mu.Unlock()
	if at, through := w.address(rank, to); through {
		d.At = []netip.AddrPort{at}
	}
	text, _ := json.Marshal(d)
	return append(value[:1:1], text...)
}

// address returns where a rank is to dial another one, if wire stands between the two.
func (w *wire) address(rank, to int) (at netip.AddrPort, through bool) {
	for i, end := range w.ends {
		if end == rank && w.ends[1-i] == to {
			return w.listeners[i].Addr().(*net.TCPAddr).AddrPort(), true
		}
	}
	return at, false
}

func (w *wire) accept(dialer int) {
	for {
		c, err := w.listeners[dialer].Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		at := w.real[w.ends[1-dialer]]
		w.mu.Unlock()
		to, err := net.Dial("tcp", at.String())
		if err != nil { // as a refused connection
			abortConn(c.(*net.TCPConn))
			continue
		}
		p := &pipe{w: w}
		p.conns[dialer], p.conns[1-dialer] = c.(*net.TCPConn), to.(*net.TCPConn)
		w.mu.Lock()
		for other := range w.pipes {
			if other.ended == 0 && other.conns[dialer].LocalAddr().String() == c.LocalAddr().String() && established(other.conns[dialer]) {
				p.index++
			}
		}
		if w.over {
			w.mu.Unlock()
			p.close()
			return
		}
		w.pipes[p] = true
		w.mu.Unlock()
		for from := range 2 {
			handshake := 85 // of who was dialed: nonce, proof and answer
			if from == dialer {
				handshake = dialerSays
			}
			w.running.Go(func() { p.run(from, handshake, from == dialer) })
		}
	}
}

// established reports whether neither end has closed a connection. An attempt to link that was given up is closed
// before the next one begins.
func established(c *net.TCPConn) (is bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		is = err == nil && info.State == 1 // TCP_ESTABLISHED
	})
	return is && err == nil
}

func (p *pipe) close() {
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// abortConn resets a connection.
func abortConn(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// drop lets the kernel drop whatever comes to a socket, as a network does that is cut: it is not acknowledged.
func drop(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing})
	})
	return errors.Join(err, failed)
}

// What a dialer says before frames: hello, proof, and the introduction, in which the number of the connection lies.
const (
	introductionBytes = 96
	connectionAt      = 41
	dialerSays        = 108 + introductionBytes
)

// run passes on what one end sends.
func (p *pipe) run(from, handshake int, dialer bool) {
	w := p.w
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.ended++; p.ended == 2 {
			p.close()
			delete(w.pipes, p)
		}
	}()
	s := &passing{p: p, from: from, left: handshake, in: p.conns[from], out: p.conns[1-from], said: -1}
	if dialer {
		w.mu.Lock()
		s.said = len(w.said)
		w.said = append(w.said, nil)
		w.mu.Unlock()
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := s.in.Read(buf)
		if n > 0 && !s.pass(buf[:n]) {
			return
		}
		if err == io.EOF {
			_ = s.out.CloseWrite() // the other direction goes on
			return
		}
		if err != nil {
			abortConn(s.out)
			return
		}
	}
}
