package tcp

import (
	"bytes"
	"container/list"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"sagecomm/internal/handshake"
)

// accept runs until the listener is closed.
func (n *Node) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptors, or a connection that was reset
			n.refused(netip.AddrPort{}, err)
			select {
			case <-n.closing:
				return
			case <-time.After(20 * time.Millisecond):
			}
		default:
			raw := c.(*net.TCPConn)
			_ = raw.SetKeepAlive(false) // heartbeats do that
			n.opened(raw)
			n.mu.Lock()
			if n.closed {
				n.mu.Unlock()
				n.close(raw)
				return
			}
			for most := n.mostStrangers(); n.strangers.Len() >= most; {
				oldest := n.strangers.Front()
				n.strangers.Remove(oldest)
				n.close(oldest.Value.(net.Conn))
			}
			e := n.strangers.PushBack(c)
			n.running.Go(func() { n.serve(raw, e) })
			n.mu.Unlock()
		}
	}
}

// bounded is a connection of which only so much is read before the other end has proved something. Within TLS it notes afterwards when bytes have
// come.
type bounded struct {
	net.Conn
	left int          // below 0: no bound
	came atomic.Int64 // 1 + when bytes came that TLS has not made anything of yet, in ns since `epoch`; 0: none
}

// epoch is when the clock of bounded begins.
var epoch = time.Now()

// note takes note that TLS may have bytes now of which it makes something.
func (b *bounded) note() { b.came.Store(1 + int64(time.Since(epoch))) }

func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		b.came.Store(0)
		n, err := b.Conn.Read(p)
		b.note()
		return n, err
	}
	if b.left == 0 {
		return 0, handshake.ErrStranger
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// serve makes the handshake with a stranger and takes the connection.
func (n *Node) serve(raw *net.TCPConn, e *list.Element) {
	c, i, s, err := n.admit(raw)
	n.mu.Lock()
	n.strangers.Remove(e) // does nothing if the stranger has made room for another one
	n.mu.Unlock()
	if err != nil {
		n.refused(addressOf(raw), err)
		n.close(raw)
		return
	}
	in, answer := n.reserve(i, raw)
	sent := s.Send([]byte{answer})
	if in == nil {
		n.close(raw)
		return
	}
	if sent != nil || c.SetDeadline(time.Time{}) != nil {
		n.giveUp(i.from, in)
		return
	}
	n.take(i, in, c)
}

// errRoom is why a connection was not admitted that this process has closed.
var errRoom = errors.New("it made room for another connection that has proved nothing yet")

// refused tells of a connection that was not admitted, unless the node is closed.
func (n *Node) refused(from netip.AddrPort, why error) {
	select {
	case <-n.closing:
		return
	default:
	}
	if errors.Is(why, net.ErrClosed) {
		why = errRoom
	}
	if n.config.Refused != nil {
		n.config.Refused(from, why)
	}
}

// admit makes the handshake. A panic in it, of what a stranger has sent, ends the connection and nothing else.
func (n *Node) admit(raw *net.TCPConn) (c net.Conn, i introduction, s *handshake.Session, err error) {
	defer func() { recovered(&err, recover()) }()
	deadline := time.Now().Add(n.config.Timing.Greeting)
	if err = raw.SetDeadline(deadline); err != nil {
		return nil, i, nil, err
	}
	keyOf := n.keys.of
	limit := &bounded{Conn: raw, left: maxBefore}
	c = limit
	if n.config.TLS != nil {
		_, name, err := linkProtocol.Admit(c, time.Until(deadline), keyOf)
		if err != nil {
			return nil, i, nil, err
		}
		if err = raw.SetDeadline(deadline); err != nil {
			return nil, i, nil, err
		}
		limit.left = maxBetween
		secure := tls.Server(limit, n.config.TLS)
		if err = secure.Handshake(); err != nil {
			_ = raw.CloseWrite() // what the other one has sent is read first, else it might lose the alert, which says why
			_, _ = io.Copy(io.Discard, limit)
			return nil, i, nil, asCertificateError(err)
		}
		key, known := n.keys.of(name)
		if key, err = bound(key, secure); err != nil {
			return nil, i, nil, err
		}
		keyOf = func(again handshake.Space) (handshake.Key, bool) { return key, known && again == name }
		c = secure
	}
	s, _, err = linkProtocol.Admit(c, time.Until(deadline), keyOf)
	if err != nil {
		return nil, i, nil, err
	}
	limit.left = -1
	if err = c.SetDeadline(deadline); err != nil {
		return nil, i, nil, err
	}
	body, err := s.Receive()
	if err != nil {
		return nil, i, nil, err
	}
	if n.config.TLS == nil {
		c = raw
	}
	i, err = parseIntroduction(body)
	return c, i, s, err
}

// reserve decides about a connection that has introduced itself, and keeps its place.
func (n *Node) reserve(i introduction, raw *net.TCPConn) (*incoming, byte) {
	var stale *Link
	defer func() {
		if stale != nil {
			stale.lose(errGivenUpThere)
		}
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	if i.to != n.config.Self || i.from == n.config.Self {
		return nil, otherProcess
	}
	if n.closed {
		return nil, notWanted
	}
	if int(i.data) != n.config.Data {
		return nil, otherSetup
	}
	p := n.peer(i.from)
	switch {
	case p.link != nil && !p.link.heard.Load(): // the other process has given that link up, which this one will see
		return nil, crossed
	case p.link != nil && p.link.Err() == nil: // so it has here, unless the attempt is older than the link there
		if time.Since(p.link.began) > 2*n.config.Timing.Greeting {
			stale = p.link
		}
		return nil, crossed
	case p.link != nil:
		return nil, lostBefore
	case p.dialing && bytes.Compare(n.config.Self[:], i.from[:]) < 0:
		return nil, crossed
	}
	if i.attempt < p.newest {
		return nil, notWanted // it was under way for longer than a later attempt
	}
	p.newest = i.attempt
	if p.incoming != nil && p.incoming.attempt != i.attempt { // that attempt was given up
		n.forget(p)
	}
	if p.incoming == nil {
		in := &incoming{attempt: i.attempt, sums: n.config.covers(&i, raw), conns: make([]net.Conn, i.data+1), tcp: make([]*net.TCPConn, i.data+1)}
		in.timer = time.AfterFunc(n.config.Timing.Greeting, func() { n.giveUp(i.from, in) })
		p.incoming = in
	}
	in := p.incoming
	if in.tcp[i.index] != nil {
		return nil, notWanted
	}
	in.tcp[i.index] = raw
	if !in.sums {
		return in, admittedBare
	}
	return in, admitted
}

// giveUp drops an attempt of another process.
func (n *Node) giveUp(from Identity, in *incoming) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.peers[from]; p != nil && p.incoming == in {
		n.forget(p)
		p.signal()
		n.tidy(from)
	}
}

// take adds a connection that was answered to its attempt, which may be complete now.
func (n *Node) take(i introduction, in *incoming, c net.Conn) {
	n.mu.Lock()
	if p := n.peers[i.from]; p == nil || p.incoming != in {
		n.mu.Unlock()
		return // it was closed with the attempt
	}
	in.conns[i.index] = c
	in.ready++
	complete := in.ready == len(in.conns)
	n.mu.Unlock()
	if !complete {
		return
	}
	in.timer.Stop()
	if err := n.up(i.from, in.conns, in.tcp, in.sums, in); err != nil {
		n.giveUp(i.from, in)
	}
}
