package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Link is a link to one process. It is lost as a whole: when one of its connections is lost, nobody knows which frames were on the way.
type Link struct {
	node  *Node
	peer  Identity
	at    netip.AddrPort // of the other end
	sums  bool           // payloads have checksums
	conns []*conn        // the control connection, then the data connections
	began time.Time

	heard     atomic.Bool // a byte has come
	losing    sync.Once
	reason    atomic.Pointer[error]
	cut       sync.Once
	undrained chan struct{} // closed when what is still to come is not read any more
	over      atomic.Bool   // nothing is read any more
	finished  chan struct{} // closed when nothing of the link runs any more
	adding    sync.Mutex    // of goroutines to running, and of over
	running   sync.WaitGroup
}

// now is the time on the link's clock.
func (l *Link) now() int64 { return int64(time.Since(l.began)) }

// Peer returns the identity of the process at the other end.
func (l *Link) Peer() Identity { return l.peer }

// Data returns the number of data connections, which have the indices 1 to Data.
func (l *Link) Data() int { return len(l.conns) - 1 }

// LostError is why a link is lost. It names the process by its address. Who makes groups knows the ranks of that process, and adds them.
type LostError struct {
	Peer Identity
	At   netip.AddrPort
	Why  error
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("the connection to the process at %v is lost: %v", e.At, e.Why)
	if errors.Is(e.Why, io.EOF) || errors.Is(e.Why, unix.ECONNRESET) || errors.Is(e.Why, unix.EPIPE) {
		text += "; the process has ended, was killed, or has ended the connection: its log says why"
	}
	return text
}

func (e *LostError) Unwrap() error { return e.Why }

// Err returns why the link ends, or nil. Nothing can be sent any more then, and what was on the way may still come.
func (l *Link) Err() error {
	if why := l.reason.Load(); why != nil {
		return *why
	}
	return nil
}

// start sends a heartbeat on each connection, so that the other end hears of the link, and makes the goroutines that read. A goroutine that
// reads must never wait in a send: where users of both processes fill the connection, nobody would read.
// Requires: nobody else has the link yet, so its send buffers have room.
func (l *Link) start() {
	for _, c := range l.conns {
		_ = c.send(&Header{Kind: Heartbeat}, nil) // what has come is read in any case
	}
	for _, c := range l.conns {
		if c.out != nil {
			l.running.Go(c.runOutbox)
		}
		l.running.Go(func() {
			err := c.run()
			c.probes.stop()
			l.lose(err)
			c.receiving.Lock()
			c.fail(err)
			c.receiving.Unlock()
		})
	}
}

// lose begins the end of the link. The first reason counts. Unless the reason says that what comes is of no use, or that nothing can come,
// all connections are read to their end first (docs/protocol.md, section 16, The end of a connection).
func (l *Link) lose(err error) {
	l.losing.Do(func() {
		var why error = &LostError{l.peer, l.at, err}
		l.reason.Store(&why)
		l.node.running.Go(func() { l.end(errors.Is(err, errNodeClosed), why) })
	})
	if refused := (*frameError)(nil); errors.As(err, &refused) || errors.Is(err, errUnacknowledged) {
		l.cut.Do(func() { close(l.undrained) })
	}
}

// end ends the link. own: this process closes it, so what it has sent goes out first.
func (l *Link) end(own bool, why error) {
	limit := time.NewTimer(l.node.config.Timing.Ending)
	defer limit.Stop()
	deadline := time.Now().Add(l.node.config.Timing.Ending)
	for _, c := range l.conns {
		if c.out != nil { // what it has counts as sent
			_ = c.tcp.SetWriteDeadline(deadline)
			c.out.close()
			continue
		}
		if !own {
			_ = c.tcp.CloseWrite()
			continue
		}
		_ = c.tcp.SetWriteDeadline(deadline)
		l.spawn(func() {
			c.sending.Lock()
			_ = c.flush()
			c.sending.Unlock()
			_ = c.tcp.CloseWrite()
		})
	}
	l.drain(limit.C)
	l.adding.Lock()
	l.over.Store(true)
	l.adding.Unlock()
	for _, c := range l.conns {
		c.shut()
	}
	l.running.Wait()
	if attempt := l.node.ended(l); l.node.config.Lost != nil && !own && !attempt {
		l.callLost(why)
	}
	close(l.finished)
}

// spawn runs a function as a part of the link, unless the link is over.
func (l *Link) spawn(f func()) {
	l.adding.Lock()
	defer l.adding.Unlock()
	if !l.over.Load() {
		l.running.Go(f)
	}
}

// callLost calls Lost. Nobody is left to get a panic of it as an error.
func (l *Link) callLost(why error) {
	var err error
	defer func() {
		if err != nil {
			fmt.Fprintln(os.Stderr, "sagecomm:", err)
		}
	}()
	defer func() { recovered(&err, recover()) }()
	l.node.config.Lost(l, why)
}

// Break ends the link because of an internal error of this process.
func (l *Link) Break(why error) { l.lose(&frameError{why}) }

// drain waits until all connections were read to their end, and what outboxes hold was written.
func (l *Link) drain(limit <-chan time.Time) {
	for _, c := range l.conns {
		select {
		case <-c.ended:
		case <-l.undrained:
			return
		case <-limit:
			return
		}
	}
	for _, c := range l.conns {
		if c.out == nil {
			continue
		}
		select {
		case <-c.out.done:
		case <-l.undrained:
			return
		case <-limit:
			return
		}
	}
}

// Send sends a frame on a connection; 0 is the control connection. h.Bytes is set to the length of the payload. It returns when the
// kernel has all of it, within TLS when a goroutine of the connection has a copy, so the payload may be overwritten then. It blocks where the
// connection is full.
func (l *Link) Send(on int, h *Header, payload ...[]byte) error {
	if err := l.Err(); err != nil {
		return err
	}
	h.Bytes = uint32(length(payload))
	if err := h.check(on); err != nil {
		return l.own(err)
	}
	if err := l.conns[on].send(h, payload); err != nil {
		l.lose(err)
		return l.Err()
	}
	return nil
}

// own ends the link because this process wanted to send a frame that it may not send, for which the other one would wait.
func (l *Link) own(err error) error {
	l.lose(&frameError{fmt.Errorf("internal error: %w", err)})
	return l.Err()
}

// TrySend is Send that does not wait: it reports false if the connection takes nothing now. Of a frame that it takes, the rest may go out
// with a later call of TrySend, TryFlush, Send, PollData or Calm; the payload may be overwritten. Within TLS a goroutine of the connection sends a
// copy.
func (l *Link) TrySend(on int, h *Header, payload ...[]byte) (taken bool, err error) {
	if err := l.Err(); err != nil {
		return false, err
	}
	h.Bytes = uint32(length(payload))
	if err := h.check(on); err != nil {
		return false, l.own(err)
	}
	if taken, err = l.conns[on].trySend(h, payload); err != nil {
		l.lose(err)
		return false, l.Err()
	}
	return taken, nil
}

// Push is TrySend that leaves the rest of the frame to nobody in particular: it is sent by threads that call PollData, as long as Calm says that there
// are some, or by a goroutine.
func (l *Link) Push(on int, h *Header, payload ...[]byte) (taken bool, err error) {
	if taken, err = l.TrySend(on, h, payload...); taken && l.conns[on].calmers.Load() == 0 {
		l.conns[on].flushRest()
	}
	return taken, err
}

// PollData reads what has come on the data connections. Any thread may call it, and does not wait; where a goroutine reads, as within TLS, it gets
// the processor. It reports whether anything has come.
// Requires: not within the receiver.
func (l *Link) PollData() (came bool) {
	if l.Err() != nil { // goroutines read what is left
		return false
	}
	for _, c := range l.conns[1:] {
		read, busy, err := c.poll()
		came = came || read
		if err == nil && c.sending.TryLock() {
			err = c.tryFlush()
			c.sending.Unlock()
		} else {
			busy = true
		}
		if err != nil {
			l.lose(err)
		}
		switch {
		case came || !busy:
		case c.plain: // the other one may need this processor
			yieldProcessor()
		default: // a goroutine is to read and another one to write
			runtime.Gosched()
		}
	}
	return came
}

// Plain reports whether the link is not encrypted, so that a payload may be read straight to where a user wants it.
func (l *Link) Plain() bool { return l.conns[control].plain }

// Divert changes where the rest of a payload goes that is being read from a connection. It calls where with the header of that frame and the
// number of bytes that are still to come, unless there is none or it is dropped, and leaves the payload alone if where returns nil. When Divert
// returns, nothing is read any more to the place from which a payload was diverted. It waits only while somebody reads what has come.
// Requires: Plain; not within the receiver.
func (l *Link) Divert(on int, where func(h *Header, rest int) [][]byte) {
	r := &l.conns[on].receiving
	r.Lock()
	defer r.Unlock()
	if r.rest == 0 || r.dropped || r.over || r.failed != nil {
		return
	}
	if to := where(&r.header, r.rest); to != nil {
		r.payload = to
	}
}

// Calm says that the calling thread is about to call PollData again and again, or ends that. In between no goroutine is woken for what comes on
// the data connections, unless the thread is so slow that very much is waiting.
func (l *Link) Calm(on bool) {
	for _, c := range l.conns[1:] {
		c.calm(on)
	}
}

// addressOf returns the address of the other end of a connection.
func addressOf(c net.Conn) netip.AddrPort { return unmapped(c.RemoteAddr()) }

func unmapped(of net.Addr) netip.AddrPort {
	a := of.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
