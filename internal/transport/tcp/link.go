package tcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Link is a link to one process. It is lost as a whole: when one of its connections is lost, nobody knows which frames were on the way.
type Link struct {
	node  *Node
	peer  Identity
	at    netip.AddrPort // of the other end
	conns []*conn        // the control connection, then the data connections
	began time.Time

	losing sync.Once
	why    atomic.Pointer[error]
	gone   chan struct{} // closed when nothing of the link runs any more
	works  sync.WaitGroup
}

// now is the time on the link's clock.
func (l *Link) now() int64 { return int64(time.Since(l.began)) }

// Peer returns the identity of the process at the other end.
func (l *Link) Peer() Identity { return l.peer }

// Data returns the number of data connections, which have the indices 1 to Data.
func (l *Link) Data() int { return len(l.conns) - 1 }

// LostError is why a link is lost.
type LostError struct {
	Peer Identity
	At   netip.AddrPort
	Why  error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the connection to the process at %v is lost: %v", e.At, e.Why)
}

func (e *LostError) Unwrap() error { return e.Why }

// Err returns why the link is lost, or nil.
func (l *Link) Err() error {
	if why := l.why.Load(); why != nil {
		return *why
	}
	return nil
}

// start makes the goroutines that read.
func (l *Link) start() {
	for _, c := range l.conns {
		l.works.Go(func() {
			if err := c.run(); err != nil {
				l.lose(err)
			}
		})
	}
}

// lose ends the link. The first reason counts.
func (l *Link) lose(err error) {
	l.losing.Do(func() {
		var why error = &LostError{l.peer, l.at, err}
		l.why.Store(&why)
		go func() {
			for _, c := range l.conns {
				c.shut()
			}
			l.works.Wait()
			if l.node.config.Lost != nil && !errors.Is(err, errNodeClosed) {
				l.node.config.Lost(l, why)
			}
			close(l.gone)
		}()
	})
}

// Send sends a frame on a connection; 0 is the control connection. h.Bytes is set to the length of the payload. It returns when the
// kernel has all of it, so the payload may be overwritten then. It blocks where the connection is full.
func (l *Link) Send(on int, h *Header, payload ...[]byte) error {
	if err := l.Err(); err != nil {
		return err
	}
	h.Bytes = uint32(length(payload))
	if err := h.check(on); err != nil {
		return fmt.Errorf("internal error: %w", err)
	}
	if err := l.conns[on].send(h, payload); err != nil {
		l.lose(err)
		return l.Err()
	}
	return nil
}

// Attend lets the calling thread read the link by Poll, until Leave. Meanwhile no goroutine is woken for what comes.
func (l *Link) Attend() {
	for _, c := range l.conns {
		c.attend()
	}
}

// Leave ends what Attend began.
func (l *Link) Leave() {
	for _, c := range l.conns {
		c.leave()
	}
}

// Poll gives the receiver what has come, and returns the number of frames. It does not wait.
// Requires: Attend. Not within the receiver.
func (l *Link) Poll() (frames int, err error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	for _, c := range l.conns {
		n, err := c.poll()
		frames += n
		if err != nil {
			l.lose(err)
			return frames, l.Err()
		}
	}
	return frames, nil
}

// Quiet returns for how long nothing has come on the control connection, not even a heartbeat. A process that is stopped is quiet, and not
// lost as long as its kernel acknowledges.
func (l *Link) Quiet() time.Duration { return time.Duration(l.now() - l.conns[control].heard.Load()) }

// addressOf returns the address of the other end of a connection.
func addressOf(c net.Conn) netip.AddrPort {
	a := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
