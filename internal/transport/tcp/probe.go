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
	probed       = 1                      // the connection
	probeBytes   = 64 << 10               // of a long payload
	roundTrips   = 40                     // that are tried
	frameBursts  = 5                      // that are tried,
	burstFrames  = 32                     // and the frames of each
	longEnough   = time.Millisecond       // for a burst of payloads
	probeEagerly = 500 * time.Microsecond // how long a goroutine looks for what comes behind a PROBE before it sleeps
)

// payloads are the numbers of long payloads in bursts that are tried. Shorter ones come first, because a slow network takes long for a long one.
var payloads = [...]int{1, 4, 16, 32}

// probes is what a connection knows of PROBE and ECHO.
type probes struct {
	probing sync.Mutex    // held while this process measures
	asked   atomic.Uint64 // the last number of this process,
	echoed  atomic.Uint64 // and the highest one that was answered

	came      uint64       // the last number of the other process; under the lock of receiving
	at        atomic.Int64 // when its last PROBE came, on the link's clock
	owed      atomic.Uint64
	answering atomic.Bool // somebody sends ECHO
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
		p.at.Store(c.link.now())
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
	p.at.Store(c.link.now())
	p.owed.Store(h.Number)
	if !p.answering.CompareAndSwap(false, true) {
		return // who answers looks at what is owed once more
	}
	taken, err := c.link.TrySend(c.index, &Header{Kind: Echo, Number: h.Number})
	if taken {
		c.flushRest()
	}
	if taken || err != nil {
		p.answering.Store(false)
		return
	}
	c.link.spawn(c.answer) // the connection takes nothing now, and who reads must not wait
}

// answer sends ECHO for what is owed. It may wait.
// Requires: answering was false and was set.
func (c *conn) answer() {
	p := &c.probes
	for {
		number := p.owed.Load()
		err := c.link.Send(c.index, &Header{Kind: Echo, Number: number})
		p.answering.Store(false)
		if err != nil || p.owed.Load() == number || !p.answering.CompareAndSwap(false, true) {
			return
		}
	}
}

// looksEagerly reports whether the goroutine that reads is to look again instead of sleeping, because it is being probed. It gives the processor away.
func (c *conn) looksEagerly() bool {
	at := c.probes.at.Load()
	if at == 0 || time.Duration(c.link.now()-at) >= probeEagerly {
		return false
	}
	giveWay()
	return true
}

// giveWay lets other goroutines and other processes run.
func giveWay() {
	runtime.Gosched()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// Probe measures what the link costs, for a time at most. It polls as a thread does that waits in an operation, and waits for nothing else. It ends
// early when the link is lost or the context is done.
func (l *Link) Probe(ctx context.Context, limit time.Duration) (found Costs) {
	c := l.conns[probed]
	if !c.probes.probing.TryLock() {
		return found
	}
	defer c.probes.probing.Unlock()
	l.Calm(true)
	defer l.Calm(false)
	began := time.Now()
	p := prober{c: c, ctx: ctx}
	until := func(part time.Duration) { p.deadline = began.Add(part) }

	until(limit)
	trip, ok := p.burst(0, nil)
	if !ok {
		return found
	}
	until(limit / 8)
	if again, ok := p.least(roundTrips-1, 0, nil); ok {
		trip = min(trip, again)
	}
	found.RoundTrip = trip.Seconds()
	until(limit / 4)
	if took, ok := p.least(frameBursts, burstFrames, nil); ok {
		found.Frame = max(took-trip, time.Nanosecond).Seconds() / burstFrames
	}
	until(limit)
	payload := make([]byte, probeBytes)
	for _, n := range payloads {
		took, ok := p.least(2, n, payload)
		if !ok {
			break
		}
		found.Byte = max(took-trip, time.Nanosecond).Seconds() / float64(n*probeBytes)
		if took >= longEnough {
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
		giveWay()
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
		giveWay()
	}
}

// goesOn reads what has come and sends what is left of a frame, and reports whether there is time for more.
func (p *prober) goesOn() bool {
	p.c.link.PollData()
	return p.c.link.Err() == nil && p.ctx.Err() == nil && time.Now().Before(p.deadline)
}
