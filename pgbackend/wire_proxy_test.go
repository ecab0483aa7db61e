package pgbackend

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
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

// wire stands between the links of two ranks, which it finds in the store: each of them is told an address of wire's in the place of the other one's.
// It does to their connections what a fault says (wireFault), once.
type wire struct {
	t    *testing.T
	ends [2]int // the two ranks
	tls  bool

	mu    sync.Mutex
	real  map[int]netip.AddrPort // of all ranks, as they have told
	pipes map[*pipe]bool         // that live
	fault *wireFault             // nil: none, or it has happened
	said  [][]byte               // of each connection, what its dialer has said first
	over  bool

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
	index  int    // of the connection of its link, -1: any
	part   string // "byte", any one; "header" or "payload" of a frame
	skip   int    // bytes of this direction that pass before
	offset int    // in the header or payload
	mask   byte   // of damage
}

// pipe is one connection through wire.
type pipe struct {
	w     *wire
	index int             // 0: the control connection
	conns [2]*net.TCPConn // by the index in ends of the rank there
	holes [2]atomic.Bool  // by who sends: it is read and forgotten
	ended int             // directions; guarded by wire.mu
}

func newWire(t *testing.T, a, b int, tls bool) *wire {
	t.Helper()
	w := &wire{t: t, ends: [2]int{a, b}, tls: tls, real: map[int]netip.AddrPort{}, pipes: map[*pipe]bool{}, struck: make(chan struct{}), done: make(chan struct{})}
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
	w    *wire
	rank int
}

func (s wiredStore) Get(key string, timeout time.Duration) ([]byte, error) {
	value, err := s.MemStore.Get(key, timeout)
	_, of, found := strings.Cut(key, addressRound+"/")
	if err != nil || !found {
		return value, err
	}
	return s.w.rewrite(s.rank, of, value), nil
}

// rewrite returns what a rank is to read of the address of another one, and notes the real one.
func (w *wire) rewrite(rank int, of string, value []byte) []byte {
	var d networkDescription
	if len(value) == 0 || json.Unmarshal(value[1:], &d) != nil || len(d.At) == 0 {
		return value
	}
	to := int(of[0] - '0')
	w.mu.Lock()
	w.real[to] = d.At[0]
	w.mu.Unlock()
	for i, end := range w.ends {
		if end == rank && w.ends[1-i] == to {
			d.At = []netip.AddrPort{w.listeners[i].Addr().(*net.TCPAddr).AddrPort()}
		}
	}
	text, _ := json.Marshal(d)
	return append(value[:1:1], text...)
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
			if other.ended == 0 && other.conns[dialer].LocalAddr().String() == c.LocalAddr().String() {
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
				handshake = 151 // hello, proof and introduction
			}
			w.running.Go(func() { p.run(from, handshake, from == dialer) })
		}
	}
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

// passing is one direction of a pipe.
type passing struct {
	p       *pipe
	from    int
	in, out *net.TCPConn
	said    int // index in wire.said, -1 for who was dialed

	left   int    // bytes of the handshake that are to come
	head   []byte // of the header that comes
	body   int    // bytes of the payload that are to come
	length int    // of the payload
	frame  []byte // the frame so far
	before []byte // the frame before it, nil for a heartbeat

	fragments int // bytes that still go in small pieces
}

// pass passes bytes on, one part after another: a part of the handshake, of a header, or of a payload. It reports false when the direction is over.
func (s *passing) pass(b []byte) bool {
	w := s.p.w
	if s.said >= 0 {
		w.mu.Lock()
		if said := w.said[s.said]; len(said) < 151 {
			w.said[s.said] = append(said, b[:min(len(b), 151-len(said))]...)
		}
		w.mu.Unlock()
	}
	for len(b) > 0 {
		part, n, at := "byte", len(b), 0
		switch {
		case s.left > 0:
			n = min(n, s.left)
			s.left -= n
		case w.tls:
		case s.body > 0:
			part, n, at = "payload", min(n, s.body), s.length-s.body
		default:
			part, n, at = "header", min(n, tcp.HeaderBytes-len(s.head)), len(s.head)
		}
		if !s.strike(part, at, b[:n]) {
			return false
		}
		if part != "byte" {
			s.note(part, b[:n])
		}
		b = b[n:]
	}
	return true
}

// note follows the frames.
func (s *passing) note(part string, b []byte) {
	s.frame = append(s.frame, b...)
	if part == "header" {
		if s.head = append(s.head, b...); len(s.head) < tcp.HeaderBytes {
			return
		}
		s.length = int(binary.LittleEndian.Uint32(s.head[4:]))
		s.body = s.length
	} else {
		s.body -= len(b)
	}
	if s.body == 0 {
		s.before = nil
		if s.head[0] != byte(tcp.Heartbeat) {
			s.before = append([]byte{}, s.frame...)
		}
		s.head, s.frame = s.head[:0], s.frame[:0]
	}
}

// strike passes a part on, with the fault if it happens in it.
func (s *passing) strike(part string, at int, b []byte) bool {
	w := s.p.w
	w.mu.Lock()
	f := w.fault
	where := 0
	if f != nil {
		wanted := f.part == "byte" || f.part == part || w.tls
		switch {
		case f.from >= 0 && f.from != w.ends[s.from] || f.index >= 0 && f.index != s.p.index:
			f = nil
		case f.skip >= len(b):
			f.skip -= len(b)
			f = nil
		case !wanted || f.action == "replay" && !w.tls && (at != 0 || s.before == nil):
			f = nil
		case f.part == "byte" || w.tls:
			where = f.skip
		default:
			where = min(f.offset, len(b)-1)
		}
	}
	if f != nil {
		w.fault, w.at = nil, time.Now()
		close(w.struck)
	}
	w.mu.Unlock()
	if f == nil {
		return s.write(b)
	}
	if !s.write(b[:where]) {
		return false
	}
	switch f.action {
	case "reset":
		abortConn(s.out)
		abortConn(s.in)
		return false
	case "truncate":
		_ = s.out.Close()
		_ = s.in.Close()
		return false
	case "damage":
		b[where] ^= f.mask
	case "replay":
		again := s.before
		if w.tls {
			again = append([]byte{}, b[where:]...)
		}
		if !s.write(again) {
			return false
		}
	case "hole", "holes", "drop", "drops": // of all connections, as where a network is cut
		w.mu.Lock()
		for p := range w.pipes {
			for i := range p.conns {
				switch one := i == s.from; {
				case f.action == "hole" && one, f.action == "holes":
					p.holes[i].Store(true)
				case f.action == "drop" && one, f.action == "drops":
					if err := drop(p.conns[i]); err != nil {
						w.t.Error(err)
					}
				}
			}
		}
		w.mu.Unlock()
	case "stall":
		select {
		case <-time.After(150 * time.Millisecond): // the fault itself
		case <-w.done:
		}
	case "fragments":
		s.fragments = 400
	}
	return s.write(b[where:])
}

// write passes bytes on, unless a hole swallows them.
func (s *passing) write(b []byte) bool {
	for len(b) > 0 && !s.p.holes[s.from].Load() {
		n := len(b)
		if s.fragments > 0 {
			n = min(n, 1+s.fragments%7)
			s.fragments -= n
		}
		if _, err := s.out.Write(b[:n]); err != nil {
			return false
		}
		b = b[n:]
	}
	return true
}
