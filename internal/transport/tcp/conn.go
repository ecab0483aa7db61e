package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

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
		head    [HeaderBytes]byte
		bufs    [][]byte
		rest    []byte      // of a frame of which the kernel has taken the beginning; it goes before everything else
		broken  error       // a write has failed, so a part of a frame may be out: nothing is sent behind it
		flusher atomic.Bool // a goroutine of flushRest waits for the lock
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
		dropped  bool     // the payload goes nowhere
		sum      uint32   // of the frame so far
		told     uint32   // its checksum
		scratch  []byte   // payloads that go nowhere
		bufs     [][]byte
		failed   error
		over     bool // nothing is read any more
	}
	ended   chan struct{} // closed when a read has failed: nothing comes any more
	threads atomic.Int32
	parking sync.Mutex
	changed *sync.Cond
	word    uint64 // under parking
	over    bool   // under parking: the goroutine is to end

	progress progress // of the node's watch
}

func newConn(l *Link, index int, c net.Conn, tcp *net.TCPConn) (*conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	_, plain := c.(*net.TCPConn)
	n := &conn{link: l, index: index, Conn: c, tcp: tcp, raw: raw, plain: plain, ended: make(chan struct{})}
	n.receiving.intake = make([]byte, intakeBytes)
	n.changed = sync.NewCond(&n.parking)
	now := l.now()
	n.sent.Store(now)
	n.heard.Store(now)
	return n, nil
}

// errAgain is what a read returns that finds nothing.
var errAgain = errors.New("nothing has come")

// once reads what one system call gives, and handles it. It returns errAgain if there was nothing.
// Requires: the lock of receiving.
func (c *conn) once(read func([][]byte) (int, error)) (frames int, err error) {
	defer func() {
		recovered(&err, recover())
		if err != nil && !errors.Is(err, errAgain) {
			c.fail(err) // before somebody else gets the lock
		}
	}()
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
		return 0, err
	}
	c.heard.Store(c.link.now())
	if !c.link.heard.Load() {
		c.link.node.heard(c.link)
	}
	if frames, err = c.handle(n); err != nil {
		err = &frameError{err}
	}
	return frames, err
}

// fail ends reading.
// Requires: the lock of receiving.
func (c *conn) fail(err error) {
	if c.receiving.failed == nil {
		c.receiving.failed = err
		close(c.ended)
	}
}

// frameError is why a frame was not accepted, in contrast to the end of a connection.
type frameError struct{ error }

func (e *frameError) Unwrap() error { return e.error }

// ErrDrop is what a receiver returns for a frame that is read and forgotten.
var ErrDrop = errors.New("nobody here waits for it any more")

// errSum is the error of a frame that the network, or a host, has damaged.
var errSum = errors.New("the checksum of a frame is wrong: the network or a host damages data")

// handle handles n bytes that were read: first those of a payload, then those in intake.
func (c *conn) handle(n int) (frames int, err error) {
	r := &c.receiving
	if r.rest > 0 {
		direct := min(n, r.rest)
		c.filled(direct)
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
		text := (*[HeaderBytes]byte)(r.intake[r.from:])
		if err := r.header.parse(text, c.index); err != nil {
			return frames, err
		}
		r.told, r.sum = binary.LittleEndian.Uint32(text[sumAt:]), 0
		if c.plain {
			r.sum = crc32.Checksum(text[:sumAt], castagnoli)
		}
		r.from += HeaderBytes
		if r.header.Kind == Heartbeat {
			if r.sum != r.told {
				return frames, errSum
			}
			continue
		}
		if err := c.place(); err != nil {
			return frames, err
		}
		for r.rest > 0 && r.from < r.to {
			there := copy(r.payload[0], r.intake[r.from:r.to])
			r.from += there
			c.filled(there)
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

// place asks where the payload of a frame goes.
func (c *conn) place() (err error) {
	r := &c.receiving
	r.payload, err = c.link.node.config.Receiver.Place(c.link, c.index, &r.header)
	r.rest = int(r.header.Bytes)
	if r.dropped = errors.Is(err, ErrDrop); r.dropped {
		if r.scratch == nil && r.rest > 0 {
			r.scratch = make([]byte, MaxMessage)
		}
		r.payload, err = [][]byte{r.scratch[:r.rest]}, nil
	}
	if err == nil && length(r.payload) != r.rest {
		err = fmt.Errorf("internal error: %v of %d bytes was given a place of %d", r.header.Kind, r.rest, length(r.payload))
	}
	if err == nil {
		r.payload = skip(r.payload, 0)
	}
	return err
}

// filled takes note of n bytes that lie at the beginning of the payload's place.
func (c *conn) filled(n int) {
	r := &c.receiving
	r.rest -= n
	if c.plain {
		for left, k := n, 0; left > 0; k++ {
			part := r.payload[k][:min(left, len(r.payload[k]))]
			r.sum = crc32.Update(r.sum, castagnoli, part)
			left -= len(part)
		}
	}
	r.payload = skip(r.payload, n)
}

func (c *conn) arrived() error {
	r := &c.receiving
	r.payload = nil
	if r.sum != r.told {
		return errSum
	}
	if r.dropped {
		return nil
	}
	return c.link.node.config.Receiver.Arrived(c.link, c.index, &r.header)
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

// run reads the connection until it ends. It is the goroutine of the connection.
func (c *conn) run() (err error) {
	defer func() { recovered(&err, recover()) }()
	if !c.plain {
		return c.runSecure()
	}
	for {
		c.parking.Lock()
		word, over := c.word, c.over
		c.parking.Unlock()
		if over {
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
				err := c.locked(func(bufs [][]byte) (int, error) { return readv(int(fd), bufs) })
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

// locked is once for a goroutine.
func (c *conn) locked(read func([][]byte) (int, error)) error {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	_, err := c.once(read)
	return err
}

// recovered turns what recover has returned into the error of a function, which ends the link.
func recovered(err *error, p any) {
	if p != nil {
		*err = &frameError{fmt.Errorf("internal error: panic: %v\n%s", p, debug.Stack())}
	}
}

// park sleeps until the word is another one.
func (c *conn) park(word uint64) {
	c.parking.Lock()
	defer c.parking.Unlock()
	for c.word == word && !c.over {
		c.changed.Wait()
	}
}

// runSecure is run for TLS, which reads records and so cannot be read by somebody else in between.
func (c *conn) runSecure() error {
	for {
		err := c.locked(func(bufs [][]byte) (int, error) {
			for _, b := range bufs {
				if len(b) > 0 {
					return c.Read(b)
				}
			}
			return 0, io.ErrNoProgress
		})
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
	c.link.node.close(c.tcp)
	c.parking.Lock()
	c.over = true
	c.parking.Unlock()
	c.changed.Broadcast()
	c.receiving.Lock()
	c.receiving.over = true
	c.receiving.payload = nil
	c.receiving.Unlock()
}
