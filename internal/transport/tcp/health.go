package tcp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Timing is when a link counts as lost. What counts is that the other kernel acknowledges what was sent, which proves that the host
// lives and that the way there and back is open; whether the process does anything is another matter.
type Timing struct {
	Beat     time.Duration // a connection that has sent nothing for so long sends a heartbeat; and how often links are looked at
	Unacked  time.Duration // a connection is lost when nothing was acknowledged for so long while something was to be
	Greeting time.Duration // a stranger has so long for the handshake and the introduction
}

// DefaultTiming finds a dead host, or a cut in either direction, within 2.8 s: a heartbeat, the wait and a look.
var DefaultTiming = Timing{Beat: 400 * time.Millisecond, Unacked: 2 * time.Second, Greeting: 5 * time.Second}

// mostUnsent is how much a connection may hold before heartbeats are left out: the other process is stopped, and they would pile up.
const mostUnsent = 4 << 10

// stopped is by how much a look may come late before it shows that this process was stopped.
const stopped = time.Second

// errUnacknowledged is the reason of a loss.
var errUnacknowledged = errors.New("its host does not acknowledge what was sent: it is down, or the network between is cut")

// watch looks at all links until the node is closed.
func (n *Node) watch() {
	tick := time.NewTicker(n.config.Timing.Beat)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-n.closing:
			return
		case <-tick.C:
		}
		now := time.Now()
		late := now.Sub(last) > n.config.Timing.Beat+stopped
		last = now
		for _, l := range n.list() {
			if err := l.look(now, late); err != nil {
				l.lose(err)
			}
		}
	}
}

// look sends the heartbeats of a link and returns why it is lost, if it is. late: this process was stopped, so times begin anew.
func (l *Link) look(now time.Time, late bool) error {
	for _, c := range l.conns {
		unsent, unacked, acked, err := c.kernel()
		if err != nil {
			return err
		}
		if late || unacked == 0 || acked != c.acked.bytes {
			c.acked.bytes, c.acked.since = acked, now
		} else if waited := now.Sub(c.acked.since); waited >= l.node.config.Timing.Unacked {
			return fmt.Errorf("%w (%v)", errUnacknowledged, waited.Round(100*time.Millisecond))
		}
		if unsent > mostUnsent || time.Duration(l.now()-c.sent.Load()) < l.node.config.Timing.Beat || !c.sending.TryLock() {
			continue
		}
		err = c.write(&Header{Kind: Heartbeat}, nil)
		c.sending.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// kernel returns how many bytes of the connection the other end's kernel has not acknowledged, sent or not; how many packets are on the way;
// and how many bytes it has acknowledged in all.
func (c *conn) kernel() (unsent int, unacked uint32, acked uint64, err error) {
	failed := c.raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			return
		}
		unacked, acked = info.Unacked, info.Bytes_acked
		unsent, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	})
	if failed != nil {
		return 0, 0, 0, failed
	}
	return unsent, unacked, acked, err
}
