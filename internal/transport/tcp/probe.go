package tcp

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// This file measures what a link costs (docs/protocol.md, section 16, The probe of links), and answers the process that does so.

const (
	probeConn      = 1                      // the connection on which PROBE and ECHO are sent
	eagerFor       = 500 * time.Microsecond // how long a goroutine looks for what comes behind a numbered PROBE before it sleeps,
	eagerAtMost    = 200 * time.Millisecond // and how long in all on one connection, whatever the other process sends
	turnsIfCrowded = 16                     // of who measures, until the network is looked at: see prober.giveWay
)

// busyWaiters are the goroutines of this process that wait without sleeping: those that measure a link, and those that read eagerly. Where they have
// all processors of Go, no other goroutine learns for 10 ms and more that something has come for it: giveWay leads to goroutines that can run, and
// nobody asks the network which others can.
var busyWaiters atomic.Int32

// probes is what a connection knows of PROBE and ECHO.
type probes struct {
	probing sync.Mutex    // held while this process measures
	asked   atomic.Uint64 // the last number of this process,
	echoed  atomic.Uint64 // and the highest one that was answered

	came       uint64        // the last number of the other process,
	eager      time.Duration // and how long this one may have looked eagerly for what came behind it; both under the lock of receiving
	at         atomic.Int64  // when its last numbered PROBE came, on the link's clock; not set any more when eager has reached its bound
	looks      atomic.Bool   // who reads is one of busyWaiters,
	processors int32         // and Go had so many when it began to be one

	owed      atomic.Uint64 // the number that the next ECHO has
	answered  atomic.Uint64 // the number of the last ECHO; set by who has set answering
	answering atomic.Bool   // somebody sends ECHO
}

// mustAnswer reports whether the caller is to send ECHO. It sets answering then.
func (p *probes) mustAnswer() bool {
	for p.owed.Load() > p.answered.Load() {
		if !p.answering.CompareAndSwap(false, true) {
			return false // who answers looks at what is owed once more
		}
		// Between the two looks somebody else may have answered. A number must not be answered twice.
		if p.owed.Load() > p.answered.Load() {
			return true
		}
		p.answering.Store(false)
	}
	return false
}

// hasAnswered notes that ECHO was sent.
// Requires: mustAnswer has returned true.
func (p *probes) hasAnswered(number uint64) {
	p.answered.Store(number)
	p.answering.Store(false)
}

// ofLink reports whether frames of a kind are of the link itself, and not for its receiver.
func (k Kind) ofLink() bool { return k == Probe || k == Echo }

// acceptProbe compares PROBE or ECHO with what may come.
// Requires: the lock of receiving.
func (c *conn) acceptProbe(h *Header) error {
	p := &c.probes
	switch {
	case h.Kind == Echo && (h.Number <= p.echoed.Load() || h.Number > p.asked.Load()):
		return fmt.Errorf("%w: %v of number %d, after %d were asked and %d were answered", errHeader, h.Kind, h.Number, p.asked.Load(), p.echoed.Load())
	case h.Kind == Echo:
		return nil
	case h.Number == 0:
		return ErrDrop
	case h.Number != p.came+1 || h.Bytes > 0:
		return fmt.Errorf("%w: %v of number %d with %d bytes, after number %d", errHeader, h.Kind, h.Number, h.Bytes, p.came)
	}
	return nil
}

// takeProbe does what PROBE or ECHO wants, whose checksum is right.
// Requires: the lock of receiving.
func (c *conn) takeProbe(h *Header) {
	p := &c.probes
	if h.Kind == Echo {
		p.echoed.Store(h.Number)
		return
	}
	p.came = h.Number
	if now := c.link.now(); p.eager < eagerAtMost {
		p.eager += min(eagerFor, time.Duration(now-p.at.Load()))
		p.at.Store(now)
	}
	p.owed.Store(h.Number)
	if !p.mustAnswer() {
		return
	}
	taken, err := c.link.TrySend(c.index, &Header{Kind: Echo, Number: h.Number})
	if taken {
		c.flushRest()
	}
	if taken || err != nil {
		p.hasAnswered(h.Number)
		return
	}
	c.link.spawn(c.answer) // the connection takes nothing now, and who reads must not wait
}

// answer sends ECHO for what is owed. It may wait.
// Requires: mustAnswer has returned true.
func (c *conn) answer() {
	for c.answerOnce() && c.probes.mustAnswer() {
	}
}

// answerOnce sends one ECHO. It reports whether the link takes more.
// Requires: mustAnswer has returned true.
func (c *conn) answerOnce() bool {
	number := c.probes.owed.Load()
	err := c.link.Send(c.index, &Header{Kind: Echo, Number: number})
	c.probes.hasAnswered(number)
	return err == nil
}

// looksEagerly gives way, and reports whether the goroutine that reads is to look again instead of sleeping: because it is being probed, no thread
// polls, and it leaves a processor to others.
func (c *conn) looksEagerly() bool {
	p := &c.probes
	at := p.at.Load()
	if at == 0 || time.Duration(c.link.now()-at) >= eagerFor || c.calmers.Load() > 0 || !p.looks.Load() && !p.begin() || busyWaiters.Load() >= p.processors {
		p.stop()
		return false
	}
	giveWay()
	return true
}

// begin lets who reads look eagerly, where that leaves a processor to others, and reports whether it does.
func (p *probes) begin() bool {
	p.processors = int32(runtime.GOMAXPROCS(0)) // not in each turn: it takes a lock of the scheduler
	if busyWaiters.Add(1) >= p.processors {
		busyWaiters.Add(-1)
		return false
	}
	p.looks.Store(true)
	return true
}

// stop ends what begin has begun, if anything.
func (p *probes) stop() {
	if p.looks.CompareAndSwap(true, false) {
		busyWaiters.Add(-1)
	}
}

// giveWay lets other goroutines and other processes run.
func giveWay() {
	runtime.Gosched()
	yieldProcessor()
}

// yieldProcessor lets other processes run.
func yieldProcessor() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Probe measures what the link costs, for a time at most. It polls as a thread does that waits in an operation, and waits for nothing else. It ends
// early when the link is lost or the context is done.
func (l *Link) Probe(ctx context.Context, limit time.Duration) (found Costs) {
	c := l.conns[probeConn]
	if !c.probes.probing.TryLock() {
		return found
	}
	defer c.probes.probing.Unlock()
	p := newProber(ctx, c)
	defer p.end()
	began, payload := time.Now(), make([]byte, probeBytes)
	found = measureCosts(limit, func(until time.Duration, frames int, long bool) (time.Duration, bool) {
		p.deadline = began.Add(until)
		if long {
			return p.burst(frames, payload)
		}
		return p.burst(frames, nil)
	})
	found.Network = c.networkTrip().Seconds()
	return found
}

// networkTrip returns the shortest round trip that the kernel has seen of late, 0 if it does not know.
func (c *conn) networkTrip() (shortest time.Duration) {
	_ = c.raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.Min_rtt != math.MaxUint32 {
			shortest = time.Duration(info.Min_rtt) * time.Microsecond
		}
	})
	return shortest
}

// prober sends PROBE on a connection and waits for the answers. It is one of busyWaiters.
type prober struct {
	c          *conn
	ctx        context.Context
	deadline   time.Time
	processors int32 // of Go
	calm       bool  // nobody is woken for the answers
	turns      int   // in which nothing had come
}

// newProber returns a prober, which ends by end.
func newProber(ctx context.Context, c *conn) *prober {
	p := &prober{c: c, ctx: ctx, processors: int32(runtime.GOMAXPROCS(0))}
	busyWaiters.Add(1)
	p.calmed(!p.crowded())
	return p
}

func (p *prober) end() {
	p.calmed(false)
	busyWaiters.Add(-1)
}

// crowded reports whether who waits busily has all processors.
func (p *prober) crowded() bool { return busyWaiters.Load() >= p.processors }

// calmed says whether this thread polls so often that nobody is to be woken for the answers.
func (p *prober) calmed(on bool) {
	if p.calm != on {
		p.calm = on
		p.c.link.Calm(on)
	}
}

// burst returns the time that some frames take, with one behind them that is answered.
func (p *prober) burst(frames int, payload []byte) (took time.Duration, answered bool) {
	var segments [][]byte
	if payload != nil {
		segments = [][]byte{payload}
	}
	began := time.Now()
	for range frames {
		if !p.send(0, segments) {
			return 0, false
		}
	}
	number := p.c.probes.asked.Load() + 1
	p.c.probes.asked.Store(number) // before its answer can come
	if !p.send(number, nil) {
		p.c.probes.asked.Store(number - 1)
		return 0, false
	}
	for p.c.probes.echoed.Load() < number {
		if !p.goesOn() {
			return 0, false
		}
	}
	return time.Since(began), true
}

// send sends PROBE when the connection takes it.
func (p *prober) send(number uint64, payload [][]byte) bool {
	for {
		taken, err := p.c.link.TrySend(p.c.index, &Header{Kind: Probe, Number: number}, payload...)
		if taken || err != nil {
			return err == nil
		}
		if !p.goesOn() {
			return false
		}
	}
}

// giveWay lets others run. Where busyWaiters have all processors, who measures sleeps every few turns, so that somebody looks at the network, until
// something has come on any connection, or 1 ms. Its answers wake somebody then.
func (p *prober) giveWay() {
	if p.turns++; p.turns%turnsIfCrowded == 0 {
		crowded := p.crowded()
		p.calmed(!crowded)
		if crowded {
			time.Sleep(time.Microsecond)
			return
		}
	}
	giveWay()
}

// goesOn reads what has come and sends what is left of a frame, gives way where nothing has come, and reports whether there is time for more.
func (p *prober) goesOn() bool {
	if !p.c.link.PollData() {
		p.giveWay()
	}
	return p.c.link.Err() == nil && p.ctx.Err() == nil && time.Now().Before(p.deadline)
}
