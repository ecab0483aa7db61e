package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
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
// A goroutine reads it, which netpoll wakes, and threads that call [Link.PollData] (docs/protocol.md, section 16, Who pumps). Whoever has the lock
// of receiving reads.
type conn struct {
	link  *Link
	index int
	tcp   *net.TCPConn
	raw   syscall.RawConn // of tcp
	plain bool            // without TLS: read by readv, and frames have checksums
	sums  bool            // which cover payloads
	out   *outbox         // with TLS: what is to be sent,
	below *bounded        // and where its records come from
	net.Conn

	sending struct {
		sync.Mutex
		head    [HeaderBytes]byte
		sum     checksum
		bufs    [][]byte
		kept    []byte      // memory for rest
		rest    []byte      // of a frame of which the kernel has taken the beginning; it goes before everything else
		number  uint32      // frames so far, with which the checksum begins
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
		pending  bool     // nobody has said yet where its payload goes
		payload  [][]byte // where the rest of it goes
		rest     int      // bytes of the payload that are still to come
		dropped  bool     // the payload goes nowhere
		sum      checksum // of the frame so far
		told     uint32   // its checksum
		number   uint32   // frames so far
		scratch  []byte   // payloads that go nowhere
		bufs     [][]byte
		failed   error
		over     bool // nothing is read any more

		// Of a poll:
		fd  int
		err error
	}
	look    func(fd uintptr) // reads what has come, for a poll
	ended   chan struct{}    // closed when a read has failed: nothing comes any more
	calming sync.Mutex
	calmers atomic.Int32 // threads that poll: Link.Calm; changed under calming

	progress progress // of the node's watch
	probes   probes
}

func newConn(l *Link, index int, c net.Conn, tcp *net.TCPConn) (*conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	_, plain := c.(*net.TCPConn)
	n := &conn{link: l, index: index, Conn: c, tcp: tcp, raw: raw, plain: plain, sums: plain && l.sums, ended: make(chan struct{})}
	if !plain {
		n.out = newOutbox()
		n.below = c.(*tls.Conn).NetConn().(*bounded)
		n.below.came.Store(0) // since the introduction
	}
	if l.node.config.Timing.Unacked > DefaultTiming.Unacked {
		if err := n.boundBackoff(); err != nil {
			return nil, err
		}
	}
	n.receiving.intake = make([]byte, intakeBytes)
	n.makeLook()
	now := l.now()
	n.sent.Store(now)
	n.heard.Store(now)
	return n, nil
}

// run reads the connection until it ends. It is the goroutine of the connection.
func (c *conn) run() (err error) {
	defer func() { recovered(&err, recover()) }()
	if !c.plain {
		return c.runSecure()
	}
	var failed error
	err = c.raw.Read(func(fd uintptr) bool {
		for {
			failed = c.locked(func(bufs [][]byte) (int, error) { return readv(int(fd), bufs) })
			switch {
			case failed == nil:
			case !errors.Is(failed, errAgain):
				return true
			case !c.looksEagerly():
				return false
			}
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// locked is once for a goroutine.
func (c *conn) locked(read func([][]byte) (int, error)) error {
	c.receiving.Lock()
	defer c.receiving.Unlock()
	return c.once(read)
}

// ErrPanic is the error of a panic. It is wrapped with the value and the stack.
var ErrPanic = errors.New("internal error: panic")

// recovered turns what recover has returned into the error of a function, which ends the link.
func recovered(err *error, p any) {
	if p != nil {
		*err = &frameError{fmt.Errorf("%w: %v\n%s", ErrPanic, p, debug.Stack())}
	}
}

// runSecure is run for TLS, which reads records and so cannot be read by somebody else in between.
func (c *conn) runSecure() error {
	for {
		err := c.locked(func(bufs [][]byte) (int, error) {
			for _, b := range bufs {
				if len(b) > 0 {
					c.below.note() // of what was read before, TLS may have the next record already
					n, err := c.Read(b)
					c.below.came.Store(0)
					return n, err
				}
			}
			return 0, io.ErrNoProgress
		})
		if err != nil {
			return err
		}
	}
}

// poll reads what has come, by one system call. Somebody else who reads is left alone: busy. Within TLS a goroutine always reads.
func (c *conn) poll() (came, busy bool, err error) {
	if !c.plain {
		return false, true, nil
	}
	if !c.receiving.TryLock() {
		return false, true, nil
	}
	defer c.receiving.Unlock()
	r := &c.receiving
	r.err = nil
	if failed := c.raw.Control(c.look); failed != nil {
		return false, false, failed
	}
	if errors.Is(r.err, errAgain) {
		return false, false, nil
	}
	return r.err == nil, false, r.err
}

// makeLook makes what poll calls: once, since threads that poll call it all the time.
func (c *conn) makeLook() {
	r := &c.receiving
	read := func(bufs [][]byte) (int, error) { return readv(r.fd, bufs) }
	c.look = func(fd uintptr) {
		r.fd = int(fd)
		r.err = c.once(read)
	}
}

// calmBytes is how much of what has come may be unread before the goroutine is woken while threads poll.
const calmBytes = 256 << 10

// calm adds a thread that polls, or takes one away. While there is one, the kernel wakes nobody for a few bytes (SO_RCVLOWAT). When the last one
// goes, the kernel looks at once whether something has come.
func (c *conn) calm(on bool) {
	if !c.plain {
		return
	}
	c.calming.Lock()
	defer c.calming.Unlock()
	by, low := int32(-1), 1
	if on {
		by, low = 1, calmBytes
	}
	after := c.calmers.Add(by)
	if !on {
		c.flushRest()
	}
	if after-by != 0 && after != 0 {
		return
	}
	_ = c.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, low)
	})
}

// shut ends the connection. When it returns, nobody reads into a payload's place any more, or will.
// Requires: not within the receiver.
func (c *conn) shut() {
	c.link.node.close(c.tcp)
	c.receiving.Lock()
	c.receiving.over = true
	c.receiving.payload = nil
	c.receiving.Unlock()
}
