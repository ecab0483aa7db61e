package tcp

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// This file has what a node knows of other processes, and of links to them that are being made.

// peer is what the node knows of one process. It is forgotten when there is no link, and nobody makes one or waits for it.
type peer struct {
	users    int   // threads in Link and Await
	link     *Link // stays when it is lost, so that it is not made again, unless nothing has come over it or Forget is called
	dialing  bool
	newest   uint64 // the highest attempt of the other process
	incoming *incoming
	changed  chan struct{} // closed, and replaced, when something of this has changed
}

// incoming are connections of one attempt of the other process, which are not complete yet.
type incoming struct {
	attempt uint64
	sums    bool // payloads have checksums
	conns   []net.Conn
	tcp     []*net.TCPConn
	ready   int
	timer   *time.Timer
}

// peer returns what is known of a process.
// Requires: the lock.
func (n *Node) peer(id Identity) *peer {
	p := n.peers[id]
	if p == nil {
		p = &peer{changed: make(chan struct{})}
		n.peers[id] = p
	}
	return p
}

// has reports whether there is a link to a process.
func (n *Node) has(id Identity) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[id]
	return p != nil && p.link != nil
}

// use returns what is known of a process, for a thread that waits for a link, until leave.
func (n *Node) use(id Identity) *peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peer(id)
	p.users++
	return p
}

func (n *Node) leave(id Identity, p *peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.users--
	n.tidy(id)
}

// tidy forgets a process of which nothing is left. The number of its newest attempt serves nobody: connections of older ones are closed there.
// Requires: the lock.
func (n *Node) tidy(id Identity) {
	if p := n.peers[id]; p != nil && p.users == 0 && p.link == nil && p.incoming == nil {
		delete(n.peers, id)
	}
}

func (p *peer) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// forget drops connections of an attempt that is not complete.
// Requires: the lock.
func (n *Node) forget(p *peer) {
	if p.incoming == nil {
		return
	}
	p.incoming.timer.Stop()
	for _, c := range p.incoming.tcp {
		if c != nil {
			n.close(c)
		}
	}
	p.incoming = nil
}

// dead reports whether a connection of the attempt has ended. Nobody reads them yet.
// Requires: the lock.
func (in *incoming) dead() (ended bool) {
	for _, c := range in.tcp {
		if c == nil {
			continue
		}
		raw, err := c.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
				ended = ended || err == nil && n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR
			})
		}
		ended = ended || err != nil
	}
	return ended
}
