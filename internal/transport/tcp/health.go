package tcp

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Timing is when a link counts as lost. What counts is that the other kernel acknowledges what was sent, which proves that the host
// lives and that the way there and back is open; whether the process does anything is another matter.
type Timing struct {
	Beat     time.Duration // a connection that has sent nothing for so long sends a heartbeat
	Unacked  time.Duration // a connection is lost when it has made no progress for so long
	Ending   time.Duration // a link that ends is read for so long
	Greeting time.Duration // a stranger has so long for the handshake and the introduction
}

// DefaultTiming finds a dead host, or a cut in either direction, on this host too, within 2 s: at most Beat and a look until a heartbeat, the wait
// and a look.
var DefaultTiming = Timing{Beat: 250 * time.Millisecond, Unacked: 1500 * time.Millisecond, Ending: 1500 * time.Millisecond, Greeting: 5 * time.Second}

// looks is how often links are looked at: more often than heartbeats are sent, because twice a look is a part of the time until a loss is found.
func (t Timing) looks() time.Duration { return t.Beat / 2 }

// probing returns how much of the time without progress counts before a probe is without an answer, by the retransmission timeout: as long as it
// takes until there are two, but so much that the answer to the second one may still come.
func (t Timing) probing(rto time.Duration) time.Duration {
	return max(0, min(3*rto+t.looks(), t.Unacked-rto-t.looks()))
}

// mostUnsent is how much a connection may hold before heartbeats are left out: the other process is stopped, and they would pile up.
const mostUnsent = 4 << 10

// stopped is by how much a look may come late before it shows that this process was stopped.
const stopped = time.Second

// errUnacknowledged is the reason of a loss.
var errUnacknowledged = errors.New("its host does not acknowledge what was sent: it is down, or the network between is cut")

// errLongPackets is errUnacknowledged where another connection of the link is acknowledged.
var errLongPackets error = longPackets{}

type longPackets struct{}

func (longPackets) Error() string {
	return "its host does not acknowledge what was sent on one connection, and acknowledges another one: the network between may drop long packets, where it passes shorter ones than " +
		"the interfaces of the hosts say; look at their MTU (ping -M do -s 1472)"
}

func (longPackets) Is(target error) bool { return target == errUnacknowledged }

// errDamagedRecord is the reason of a loss within TLS.
var errDamagedRecord = errors.New("what comes is no record of TLS of the other process: it was damaged or changed on the way")

// watch looks at all links until the node is closed.
func (n *Node) watch() {
	tick := time.NewTicker(n.config.Timing.looks())
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-n.closing:
			return
		case <-tick.C:
		}
		now := time.Now()
		late := now.Sub(last) > n.config.Timing.looks()+stopped
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
		k, err := c.kernel()
		if err != nil {
			return err
		}
		if waited := c.progress.look(k, now, late); waited >= l.node.config.Timing.Unacked {
			why := errUnacknowledged
			if l.answersElsewhere(c) {
				why = errLongPackets
			}
			return fmt.Errorf("%w (%v)", why, waited.Round(100*time.Millisecond))
		}
		if !late && c.standsStill(l.node.config.Timing.Unacked) {
			return &frameError{errDamagedRecord}
		}
		idle := time.Duration(l.now()-c.sent.Load()) >= l.node.config.Timing.Beat
		if err := c.beat(idle && k.queued <= mostUnsent); err != nil {
			return err
		}
	}
	return nil
}

// answersElsewhere reports whether the other kernel has acknowledged something on another connection than one on which it is silent, late enough
// that it was not cut off at the same time. A stall of this process changes nothing of that.
func (l *Link) answersElsewhere(silent *conn) bool {
	for _, c := range l.conns {
		if c != silent && c.progress.answered.Sub(silent.progress.since) > l.node.config.Timing.Unacked/2 {
			return true
		}
	}
	return false
}

// standsStill reports whether the goroutine that reads within TLS has made nothing of what came so long ago, while the other one writes. Of a record that
// is damaged TLS tells the other process, behind what is being written. That one may do the same, and neither reads any more: kernels answer
// each other, and nothing else would end the link.
func (c *conn) standsStill(limit time.Duration) bool {
	if c.out == nil {
		return false
	}
	came := c.below.came.Load()
	return came != 0 && int64(time.Since(epoch))+1-came >= int64(limit) && c.out.isWriting()
}

// beat sends what is left of a frame and, where nothing else waits, a heartbeat if one is due. It does not wait: the watch of all links calls it.
func (c *conn) beat(due bool) (err error) {
	switch {
	case c.out != nil:
		if due && c.out.empty() {
			_, err = c.queue(&Header{Kind: Heartbeat}, nil, false)
		}
	case due:
		_, err = c.trySend(&Header{Kind: Heartbeat}, nil)
	case c.sending.TryLock():
		defer c.sending.Unlock()
		err = c.tryFlush()
	}
	return err
}

// kernelState is what the kernel says of a connection.
type kernelState struct {
	queued  int           // bytes that the other kernel has not acknowledged, sent or not
	acked   uint64        // bytes that it has acknowledged in all
	packets bool          // packets are on the way
	probes  bool          // a probe of a window that is full, or of a way that takes nothing, is without an answer
	probing time.Duration // so long after a packet that did not leave this host the kernel has sent two probes, or that counts at most
}

// progress is since when a connection has made none.
type progress struct {
	acked  uint64
	since  time.Time
	looked time.Time
	asked  bool // at the last look, something was without an answer

	answered time.Time // when a look has found that bytes were acknowledged
}

// look returns for how long there was no progress: the queue was not empty, nothing was acknowledged, and now something is without an answer. A
// queue that waits for a slow process is none, because its kernel answers probes.
func (p *progress) look(k kernelState, now time.Time, late bool) time.Duration {
	asked := k.packets || k.probes
	if k.acked != p.acked {
		p.answered = now
	}
	switch {
	case late || k.queued == 0 || k.acked != p.acked || p.asked && !asked: // an answer to a probe acknowledges no bytes
		p.acked, p.since = k.acked, now
	case !asked && now.Sub(p.since) > k.probing:
		p.since = now.Add(-k.probing) // where nothing has left this host, there are two probes by then
	case k.packets && !p.asked && p.since.Before(p.looked):
		p.since = p.looked // a window has opened behind the last look
	}
	p.looked, p.asked = now, asked
	if !asked {
		return 0
	}
	return now.Sub(p.since)
}

// Of Linux 6.15 and later (TCP_RTO_MAX_MS), which golang.org/x/sys does not name. A second is the least that the kernel takes.
const (
	optionMostBackoff = 44
	mostBackoff       = time.Second
)

// boundBackoff lets the kernel send again each second at the least. Otherwise it doubles the time, and behind a cut it may send nothing for as long as
// that took. An older kernel does so all the same.
func (c *conn) boundBackoff() (err error) {
	failed := c.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, optionMostBackoff, int(mostBackoff.Milliseconds()))
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		err = nil
	}
	return cmp.Or(failed, err)
}

// kernel asks the kernel.
func (c *conn) kernel() (k kernelState, err error) {
	failed := c.raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			return
		}
		// The kernel counts a probe after it was sent. On a link without delay its answer has come by then, so one may be an old one.
		k.acked, k.packets, k.probes = info.Bytes_acked, info.Unacked > 0, info.Probes > 1
		// The first probe comes a retransmission timeout after the packet, and the second one two behind it. The next look sees that.
		// The answer to that may take as long as the timeout.
		rto, timing := time.Duration(info.Rto)*time.Microsecond, c.link.node.config.Timing
		k.probing = timing.probing(rto)
		k.queued, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	})
	if failed != nil {
		return k, failed
	}
	return k, err
}
