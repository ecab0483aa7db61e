package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// intakeBytes is how much of a connection is read without knowing yet where it goes: headers, and payloads that are short enough to be
// copied. The rest of a payload is read straight to its place.
const intakeBytes = 8<<10 + 2*HeaderBytes

// mostSegments is how many segments of a payload one system call reads; the system's own limit is 1024.
const mostSegments = 64

// conn is one connection of a link.
//
// Either a goroutine reads it, which netpoll wakes, or threads do that have called [Link.Attend]. Who of the two follows from `threads`
// and `word` (docs/protocol.md, section 16, Who pumps): a thread adds itself, then reads; it subtracts itself, then changes the word.
// The goroutine reads the word, then the number of threads; where that is not 0 it sleeps until the word changes.
type conn struct {
	link  *Link
	index int
	tcp   *net.TCPConn
	raw   syscall.RawConn // of tcp
	plain bool            // without TLS: read by readv
	net.Conn

	sending struct {
		sync.Mutex
		head [HeaderBytes]byte
		bufs [][]byte
	}
	sent  atomic.Int64 // when a frame was sent last, on the link's clock
	heard atomic.Int64 // when bytes came last

	receiving struct {
		sync.Mutex
		intake   []byte
		from, to int      // what lies in intake
		header   Header   // of the frame whose payload is being read
		payload  [][]byte // where the rest of it goes
		rest     int      // bytes of the payload that are still to come
		bufs     [][]byte
		failed   error
		over     bool // nothing is read any more
	}
	threads atomic.Int32
	parking sync.Mutex
	changed *sync.Cond
	word    uint64 // under parking
	ended   bool   // under parking: the goroutine is to end

	acked struct { // of the node's watch
		bytes uint64
		since time.Time
	}
}

func newConn(l *Link, index int, c net.Conn, tcp *net.TCPConn) (*conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	_, plain := c.(*net.TCPConn)
	n := &conn{link: l, index: index, Conn: c, tcp: tcp, raw: raw, plain: plain}
	n.receiving.intake = make([]byte, intakeBytes)
	n.changed = sync.NewCond(&n.parking)
	now := l.now()
	n.sent.Store(now)
	n.heard.Store(now)
	return n, nil
}

// ---- sending ----

// send writes a frame. It returns when the kernel has all of it.
func (c *conn) send(h *Header, payload [][]byte) error {
	s := &c.sending
	s.Lock()
	defer s.Unlock()
	return c.write(h, payload)
}

// write is send for who has the lock.
func (c *conn) write(h *Header, payload [][]byte) error {
	s := &c.sending
	h.Encode(&s.head)
	s.bufs = append(append(s.bufs[:0], s.head[:]), payload...)
	out := net.Buffers(s.bufs)
	var err error
	if c.plain {
		_, err = out.WriteTo(c.tcp)
	} else {
		_, err = out.WriteTo(c.Conn)
	}
	clear(s.bufs)
	c.sent.Store(c.link.now())
	return err
}

// ---- receiving ----

// errAgain is what a read returns that finds nothing.
var errAgain = errors.New("nothing has come")

// once reads what one system call gives, and handles it. It returns errAgain if there was nothing.
// Requires: the lock of receiving.
func (c *conn) once(read func([][]byte) (int, error)) (frames int, err error) {
	r := &c.receiving
	switch {
	case r.failed != nil:
		return 0, r.failed
	case r.over:
		return 0, net.ErrClosed
	}
	if r.from == r.to {
		r.from, r.to = 0, 0
	} else if r.to == len(r.intake) {
		r.to = copy(r.intake, r.intake[r.from:r.to])
		r.from = 0
	}
	r.bufs = append(r.bufs[:0], r.payload[:min(len(r.payload), mostSegments)]...)
	if len(r.payload) <= mostSegments {
		r.bufs = append(r.bufs, r.intake[r.to:])
	}
	n, err := read(r.bufs)
	clear(r.bufs)
	if err != nil {
		if !errors.Is(err, errAgain) {
			r.failed = err
		}
		return 0, err
	}
	c.heard.Store(c.link.now())
	frames, err = c.handle(n)
	if err != nil {
		r.failed = err
	}
	return frames, err
}

// handle handles n bytes that were read: first those of a payload, then those in intake.
func (c *conn) handle(n int) (frames int, err error) {
	r := &c.receiving
	if r.rest > 0 {
		direct := min(n, r.rest)
		r.payload = skip(r.payload, direct)
		r.rest -= direct
		n -= direct
		if r.rest > 0 {
			return 0, nil
		}
		if err := c.arrived(); err != nil {
			return 0, err
		}
		frames++
	}
	for r.to += n; r.to-r.from >= HeaderBytes; {
		if err := r.header.parse((*[HeaderBytes]byte)(r.intake[r.from:]), c.index); err != nil {
			return frames, err
		}
		r.from += HeaderBytes
		if r.header.Kind == Heartbeat {
			continue
		}
		if r.payload, err = c.link.node.config.Receiver.Place(c.link, c.index, &r.header); err != nil {
			return frames, err
		}
		if r.rest = int(r.header.Bytes); length(r.payload) != r.rest {
			return frames, fmt.Errorf("internal error: %v of %d bytes was given a place of %d", r.header.Kind, r.rest, length(r.payload))
		}
		for r.rest > 0 && r.from < r.to {
			there := copy(r.payload[0], r.intake[r.from:r.to])
			r.from += there
			r.rest -= there
			r.payload = skip(r.payload, there)
		}
		if r.rest > 0 {
			return frames, nil
		}
		if err := c.arrived(); err != nil {
			return frames, err
		}
		frames++
	}
	return frames, nil
}

func (c *conn) arrived() error {
	c.receiving.payload = nil
	return c.link.node.config.Receiver.Arrived(c.link, c.index, &c.receiving.header)
}

// skip returns the list without its first n bytes and without empty slices at its beginning.
func skip(list [][]byte, n int) [][]byte {
	for len(list) > 0 && n >= len(list[0]) {
		n -= len(list[0])
		list = list[1:]
	}
	if n > 0 {
		list[0] = list[0][n:]
	}
	return list
}

func length(list [][]byte) (n int) {
	for _, b := range list {
		n += len(b)
	}
	return n
}

// readv reads from a descriptor, which does not block.
func readv(fd int, bufs [][]byte) (int, error) {
	for {
		n, err := unix.Readv(fd, bufs)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, errAgain
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// run reads the connection until it is lost. It is the goroutine of the connection.
func (c *conn) run() error {
	if !c.plain {
		return c.runSecure()
	}
	for {
		c.parking.Lock()
		word, ended := c.word, c.ended
		c.parking.Unlock()
		if ended {
			return net.ErrClosed
		}
		if c.threads.Load() != 0 {
			c.park(word)
			continue
		}
		var failed error
		attended := false
		err := c.raw.Read(func(fd uintptr) bool {
			for {
				if c.threads.Load() != 0 {
					attended = true
					return true
				}
				c.receiving.Lock()
				_, err := c.once(func(bufs [][]byte) (int, error) { return readv(int(fd), bufs) })
				c.receiving.Unlock()
				if errors.Is(err, errAgain) {
					return false
				}
				if err != nil {
					failed = err
					return true
				}
			}
		})
		switch {
		case failed != nil:
			return failed
		case err != nil:
			return err
		case attended: // look at the word first, then again at the threads
		}
	}
}

// park sleeps until the word is another one.
func (c *conn) park(word uint64) {
	c.parking.Lock()
	defer c.parking.Unlock()
	for c.word == word && !c.ended {
		c.changed.Wait()
	}
}

// runSecure is run for TLS, which reads records and so cannot be read by somebody else in between.
func (c *conn) runSecure() error {
	for {
		c.receiving.Lock()
		_, err := c.once(func(bufs [][]byte) (int, error) {
			for _, b := range bufs {
				if len(b) > 0 {
					return c.Read(b)
				}
			}
			return 0, io.ErrNoProgress
		})
		c.receiving.Unlock()
		if err != nil {
			return err
		}
	}
}

// attend lets the calling thread read the connection, and the goroutine leave it alone.
func (c *conn) attend() { c.threads.Add(1) }

// leave ends what attend began.
func (c *conn) leave() {
	c.threads.Add(-1)
	c.parking.Lock()
	c.word++
	c.parking.Unlock()
	c.changed.Signal()
}

// poll reads what has come, by one system call. Somebody else who reads is left alone.
func (c *conn) poll() (frames int, err error) {
	if !c.plain || !c.receiving.TryLock() {
		return 0, nil
	}
	defer c.receiving.Unlock()
	failed := c.raw.Control(func(fd uintptr) {
		frames, err = c.once(func(bufs [][]byte) (int, error) { return readv(int(fd), bufs) })
	})
	if failed != nil {
		return 0, failed
	}
	if errors.Is(err, errAgain) {
		return 0, nil
	}
	return frames, err
}

// shut ends the connection. When it returns, nobody reads into a payload's place any more, or will.
// Requires: not within the receiver.
func (c *conn) shut() {
	_ = c.tcp.Close()
	c.parking.Lock()
	c.ended = true
	c.parking.Unlock()
	c.changed.Broadcast()
	c.receiving.Lock()
	c.receiving.over = true
	c.receiving.payload = nil
	c.receiving.Unlock()
}
