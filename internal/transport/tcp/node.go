package tcp

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sagecomm/internal/handshake"
)

// Receiver takes what comes. Its functions are called by one thread at a time for a connection, and by several for a link. They must not
// call Send, or wait for anything that comes over a link: two processes that do so would wait for each other.
type Receiver interface {
	// Place returns where the payload of a frame goes: as many bytes as the header says. The header is well-formed; Place compares it
	// with what this process has posted. After ErrDrop the payload is read and Arrived is not called; any other error ends the link. h is
	// valid during the call.
	Place(from *Link, on int, h *Header) ([][]byte, error)
	// Arrived is called when the payload lies where Place has said. An error ends the link.
	Arrived(from *Link, on int, h *Header) error
}

// Config describes a node.
type Config struct {
	Self     Identity
	Data     int         // data connections of each link
	TLS      *tls.Config // nil: not encrypted
	Receiver Receiver
	Lost     func(l *Link, why error) // called once for a link that is lost, when nothing of it is read or written any more; may be nil
	// Refused is called for each connection that was not admitted, and, with an address that is not valid, where none can be accepted. It may be nil.
	Refused func(from netip.AddrPort, why error)
	Timing  Timing // zero: DefaultTiming
	// Checksums is compared with that of the other process, and Machine is the kernel that this process runs on.
	Checksums Checksums
	Machine   Machine
	// Strangers bounds the connections that have proved nothing yet, unless the node expects so many processes that these may have more. The oldest
	// one makes room for a new one. 0: DefaultStrangers.
	Strangers int
	// Opened and Closing are called for each descriptor of the node, after it was made and before it is closed, so that forked children
	// can close it. They may be nil.
	Opened, Closing func(fd uintptr)
}

// DefaultStrangers is how many connections that have proved nothing yet a node keeps where it expects few processes.
const DefaultStrangers = 256

// crossedWait is how long a process whose attempt has crossed that of the other one waits before it tries again.
const crossedWait = 250 * time.Millisecond

// maxBefore bounds what is read of a connection before the first proof, and, with TLS, between the two: certificates are a part of that.
const (
	maxBefore  = 4 << 10
	maxBetween = 16 << 10
	// maxCertificates leaves room for the rest of the handshake.
	maxCertificates = 12 << 10
)

// Node is this process's end of all of its links.
type Node struct {
	config    Config
	listeners []net.Listener
	closing   chan struct{}
	stop      context.CancelFunc // ends what dials
	dials     context.Context
	attempts  atomic.Uint64
	keys      keys
	running   sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	peers     map[Identity]*peer
	strangers *list.List // of net.Conn, the oldest one first
	expected  int        // processes that may be about to make links
}

var (
	errNodeClosed = errors.New("the links of this process were closed")
	errCrossed    = errors.New("the other process is dialing as well")
	errGivenUp    = errors.New("the attempt was given up")
	// errGivenUpThere is the error of a link that the other process has lost, which makes another one.
	errGivenUpThere = errors.New("the other process has lost the link, and makes another one")
)

// NewNode returns a node that admits what comes to the listeners. The node closes them.
func NewNode(c Config, listeners []net.Listener) (*Node, error) {
	if c.Data < 1 || c.Data > MaxData {
		return nil, fmt.Errorf("sagecomm: %d data connections: a link has 1 to %d", c.Data, MaxData)
	}
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming
	}
	if c.Strangers == 0 {
		c.Strangers = DefaultStrangers
	}
	n := &Node{config: c, listeners: listeners, closing: make(chan struct{}), keys: keys{list: map[handshake.Space]*usedKey{}}, peers: map[Identity]*peer{}, strangers: list.New()}
	n.dials, n.stop = context.WithCancel(context.Background())
	for _, l := range listeners {
		n.opened(l)
		n.running.Go(func() { n.accept(l) })
	}
	n.running.Go(n.watch)
	return n, nil
}

// opened calls Opened for a descriptor that was made.
func (n *Node) opened(c any) { handshake.WithDescriptor(c, n.config.Opened) }

// close closes a connection or listener.
func (n *Node) close(c io.Closer) {
	handshake.WithDescriptor(c, n.config.Closing)
	_ = c.Close()
}

// Close ends all links, without a call of Lost for those that it ends. What was sent goes out first, and what the others send is read to its
// end, for Timing.Ending at most. When Close returns nothing of the node runs any more, Lost included.
// Requires: not within the receiver or Lost.
func (n *Node) Close() {
	n.mu.Lock()
	if !n.closed {
		n.closed = true
		close(n.closing)
		n.stop()
	}
	for _, l := range n.listeners {
		n.close(l)
	}
	for e := n.strangers.Front(); e != nil; e = e.Next() {
		n.close(e.Value.(net.Conn))
	}
	var links []*Link
	for _, p := range n.peers {
		n.forget(p)
		if p.link != nil {
			links = append(links, p.link)
		}
		p.signal()
	}
	n.mu.Unlock()
	for _, l := range links {
		l.lose(errNodeClosed)
	}
	for _, l := range links {
		<-l.finished
	}
	n.running.Wait()
}

// StopListening lets no other process make a link any more. Links that are there go on, and this process may dial.
func (n *Node) StopListening() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.listeners {
		n.close(l) // does nothing to one that is closed
	}
}

// Expect takes note that so many more processes, or fewer if it is below 0, may be about to make links. They may all dial at the same time, and
// none of them has to make room for another one.
func (n *Node) Expect(processes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expected += processes
}

// mostStrangers returns how many connections that have proved nothing yet there may be. A process dials one at a time, and this one may not have
// seen yet that the one before was given up.
// Requires: the lock.
func (n *Node) mostStrangers() int { return max(n.config.Strangers, 2*n.expected) }

func (n *Node) list() (links []*Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.peers {
		if p.link != nil && p.link.Err() == nil {
			links = append(links, p.link)
		}
	}
	return links
}

// heard takes note of the first bytes that have come over a link.
func (n *Node) heard(l *Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.heard.Store(true)
	if p := n.peers[l.peer]; p != nil && p.link == l {
		p.signal()
	}
}

// ended takes note of a link that has ended, and reports whether it counts as an attempt: one over which nothing has come does, because the
// other process may have no link. Nobody has been given such a link.
func (n *Node) ended(l *Link) (attempt bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.heard.Load() {
		return false
	}
	if p := n.peers[l.peer]; p != nil && p.link == l {
		p.link = nil
		p.signal()
		n.tidy(l.peer)
	}
	return true
}

// Forget lets a link that is lost be made again, as one that nobody here needs: no frame is missed that was on its way.
func (n *Node) Forget(l *Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.peers[l.peer]; p != nil && p.link == l && l.Err() != nil {
		p.link = nil
		p.signal()
		n.tidy(l.peer)
	}
}

// Link returns the link to a process that listens at one of the addresses, which are tried in their order. It makes the link if there is none. A
// link that is lost is not made again: its reason is returned. A link is returned when something has come over it, so the other process has it.
// key is the name of the key by which the processes prove that they belong together; AddKey was called for it.
func (n *Node) Link(ctx context.Context, id Identity, at []netip.AddrPort, key handshake.Space) (*Link, error) {
	if id == n.config.Self {
		return nil, errors.New("internal error: a link of a process to itself")
	}
	p := n.use(id)
	defer n.leave(id, p)
	for {
		n.mu.Lock()
		if p.incoming != nil && p.incoming.dead() {
			n.forget(p)
		}
		switch {
		case n.closed:
			n.mu.Unlock()
			return nil, errNodeClosed
		case p.link != nil && p.link.heard.Load():
			l := p.link
			n.mu.Unlock()
			return l, l.Err()
		case p.link == nil && !p.dialing && p.incoming == nil:
			p.dialing = true
			n.mu.Unlock()
			err := n.dial(ctx, id, at, key)
			n.mu.Lock()
			p.dialing = false
			p.signal()
			if err != nil && !errors.Is(err, errCrossed) && p.link == nil && p.incoming == nil && !n.closed {
				n.mu.Unlock()
				return nil, err
			}
			if err == nil || !errors.Is(err, errCrossed) || p.link != nil {
				n.mu.Unlock()
				continue
			}
		}
		changed := p.changed
		n.mu.Unlock()
		// The other process is dialing, or another thread of this one, or nothing has come over the link yet.
		timer := time.NewTimer(crossedWait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-n.closing:
		}
		timer.Stop()
	}
}

// Await returns the link to a process that the other one makes, or nil if there is none within a time. Of two processes that need a link, the one
// with the higher identity waits like this before it dials, so that their attempts seldom cross.
func (n *Node) Await(ctx context.Context, id Identity, atMost time.Duration) *Link {
	over := time.NewTimer(atMost)
	defer over.Stop()
	p := n.use(id)
	defer n.leave(id, p)
	for {
		n.mu.Lock()
		l, changed := p.link, p.changed
		n.mu.Unlock()
		if l != nil && l.heard.Load() {
			return l
		}
		select {
		case <-changed:
		case <-over.C:
			return nil
		case <-ctx.Done():
			return nil
		case <-n.closing:
			return nil
		}
	}
}

// up makes the link of complete connections, which are those of an attempt of the other process unless in is nil.
func (n *Node) up(id Identity, conns []net.Conn, raws []*net.TCPConn, sums bool, in *incoming) error {
	l := &Link{node: n, sums: sums, peer: id, at: addressOf(raws[control]), began: time.Now(), undrained: make(chan struct{}), finished: make(chan struct{})}
	for k, c := range conns {
		made, err := newConn(l, k, c, raws[k])
		if err != nil {
			return err
		}
		l.conns = append(l.conns, made)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peer(id)
	defer n.tidy(id)
	if n.closed {
		return errNodeClosed
	}
	if p.link != nil {
		return errors.New("internal error: two links to one process")
	}
	if in != nil && p.incoming != in {
		return errGivenUp // the timer, or a later attempt, came first
	}
	if p.incoming != in {
		n.forget(p)
	}
	p.incoming = nil
	p.link = l
	p.signal()
	l.start()
	return nil
}
