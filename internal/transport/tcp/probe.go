package tcp

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// This file measures what a link costs (docs/protocol.md, section 16, The probe of links), and answers the process that does so.

// Costs is what [Link.Probe] has measured, in seconds. What is 0 was not measured.
type Costs struct {
	RoundTrip float64 // of a frame without payload and its answer
	Frame     float64 // of each further frame in a burst of frames without payload
	Byte      float64 // of each byte in a burst of long payloads
}

const (
	probeConn     = 1                      // the connection on which PROBE and ECHO are sent
	probeBytes    = 64 << 10               // of a long payload
	probeTrips    = 40                     // round trips that are tried
	probeBursts   = 5                      // bursts of frames that are tried,
	burstFrames   = 32                     // and the frames of each
	longestBurst  = time.Millisecond       // no burst of more payloads is tried behind one that takes as long
	eagerFor      = 500 * time.Microsecond // how long a goroutine looks for what comes behind a numbered PROBE before it sleeps,
	eagerAtMost   = 200 * time.Millisecond // and how long in all on one connection, whatever the other process sends
	turnsOnOneCPU = 16                     // of who measures, until the network is looked at: see prober.giveWay
)

// probePayloads are the numbers of long payloads in bursts that are tried. Shorter ones come first, because a slow network takes long for a
// long one.
var probePayloads = [...]int{1, 4, 16, 32}

// probes is what a connection knows of PROBE and ECHO.
type probes struct {
	probing sync.Mutex    // held while this process measures
	asked   atomic.Uint64 // the last number of this process,
	echoed  atomic.Uint64 // and the highest one that was answered

	came  uint64        // the last number of the other process,
	eager time.Duration // and how long this one may have looked eagerly for what came behind it; both under the lock of receiving
	at    atomic.Int64  // when its last numbered PROBE came, on the link's clock; not set any more when eager has reached its bound

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
// polls, and it does not keep the only processor from the network.
func (c *conn) looksEagerly() bool {
	at := c.probes.at.Load()
	if at == 0 || time.Duration(c.link.now()-at) >= eagerFor || c.calmers.Load() > 0 || oneCPU() {
		return false
	}
	giveWay()
	return true
}

// giveWay lets other goroutines and other processes run.
func giveWay() {
	runtime.Gosched()
	yieldProcessor()
}

// oneCPU reports whether Go runs one goroutine at a time.
func oneCPU() bool { return runtime.GOMAXPROCS(0) == 1 }

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
	if !oneCPU() { // there the answer is to end a sleep of prober.giveWay
		l.Calm(true)
		defer l.Calm(false)
	}
	began := time.Now()
	p := prober{c: c, ctx: ctx}
	until := func(part time.Duration) { p.deadline = began.Add(part) }

	until(limit)
	trip, ok := p.burst(0, nil)
	if !ok {
		return found
	}
	until(limit / 8)
	again, ok := p.least(probeTrips-1, 0, nil)
	if ok {
		trip = min(trip, again)
	}
	until(limit / 4)
	took, ok := p.least(probeBursts, burstFrames, nil)
	for ok && took <= trip { // a burst has a round trip in it, so others had the processors in all round trips so far
		if again, ok = p.least(probeTrips, 0, nil); ok {
			trip = min(trip, again)
			took, ok = p.least(probeBursts, burstFrames, nil)
		}
	}
	found.RoundTrip = trip.Seconds()
	if ok {
		found.Frame = (took - trip).Seconds() / burstFrames
	}
	until(limit)
	payload := make([]byte, probeBytes)
	for _, n := range probePayloads {
		took, ok := p.least(2, n, payload)
		if !ok {
			break
		}
		if took > trip {
			found.Byte = (took - trip).Seconds() / float64(n*probeBytes)
		}
		if took >= longestBurst {
			break
		}
	}
	return found
}

// prober sends PROBE on a connection and waits for the answers.
type prober struct {
	c        *conn
	ctx      context.Context
	deadline time.Time
	turns    int // in which nothing had come
}

// least returns the shortest time of some bursts, as many as there is time for. It reports false if that was none.
func (p *prober) least(trials, frames int, payload []byte) (shortest time.Duration, ok bool) {
	for range trials {
		took, answered := p.burst(frames, payload)
		if !answered {
			break
		}
		if !ok || took < shortest {
			shortest, ok = took, true
		}
	}
	return shortest, ok
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

// giveWay lets others run. Where Go has one processor, Gosched leads to other goroutines that can run and never to the network, which nobody would
// look at for 10 ms and more. So every few turns who measures sleeps there, until something has come on any connection, or 1 ms.
func (p *prober) giveWay() {
	if p.turns++; p.turns%turnsOnOneCPU == 0 && oneCPU() {
		time.Sleep(time.Microsecond)
		return
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
