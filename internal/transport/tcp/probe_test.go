package tcp

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// probedLink returns a link between two processes, as both see it.
func probedLink(t *testing.T, change func(*Config)) (a, b *end, of, other *Link) {
	t.Helper()
	a, b = newEnd(t, change), newEnd(t, change)
	of = a.linkTo(t, b)
	return a, b, of, b.linkOf(t, a)
}

// answered sends a burst and requires that it is answered.
func answered(t *testing.T, l *Link, frames, bytes int) {
	t.Helper()
	if !l.burst(t, frames, bytes, soon) {
		t.Errorf("a burst of %d frames of %d bytes is not answered: %v", frames, bytes, l.Err())
	}
}

// burst sends a burst as Probe does, and reports whether it is answered.
func (l *Link) burst(t *testing.T, frames, bytes int, limit time.Duration) bool {
	t.Helper()
	c := l.conns[probeConn]
	c.probes.probing.Lock()
	defer c.probes.probing.Unlock()
	p := newProber(t.Context(), c)
	defer p.end()
	p.deadline = time.Now().Add(limit)
	var payload []byte
	if bytes > 0 {
		payload = make([]byte, bytes)
	}
	_, in := p.burst(frames, payload)
	return in
}

// allAnswered sends all bursts that a probe has.
func allAnswered(t *testing.T, l *Link) {
	t.Helper()
	p := &l.conns[probeConn].probes
	before := p.asked.Load()
	for range probeTrips {
		answered(t, l, 0, 0)
	}
	for range probeBursts {
		answered(t, l, burstFrames, 0)
	}
	for _, n := range probePayloads {
		answered(t, l, n, probeBytes)
	}
	if after := p.asked.Load(); after != before+probeTrips+probeBursts+uint64(len(probePayloads)) || p.echoed.Load() != after {
		t.Errorf("of %d, behind %d, %d were answered", after, before, p.echoed.Load())
	}
}

// Both processes may measure at the same time and again, while frames of users pass, and no receiver hears of it.
func TestProbe(t *testing.T) {
	for name, change := range map[string]func(*Config){"plain": nil, "TLS": secure(newAuthority(t).settings(t))} {
		t.Run(name, func(t *testing.T) {
			if change != nil {
				quick.Skip(t, "the same within TLS")
			}
			noLeaks(t)
			a, b, l, back := probedLink(t, change)
			for round := range 2 {
				var all sync.WaitGroup
				for _, one := range []*Link{l, back} {
					all.Go(func() { allAnswered(t, one) })
				}
				for n := range 50 {
					require.NoError(t, l.Send(1, message(uint64(n+1)), make([]byte, 20_000)))
				}
				all.Wait()
				require.Len(t, b.await(t, 50*(round+1)), 50*(round+1))
			}
			require.Zero(t, a.count())
			require.NoError(t, l.Err())
			require.NoError(t, back.Err())
			require.Eventually(t, func() bool { return busyWaiters.Load() == 0 }, soon, time.Millisecond)
		})
	}
}

// What a probe returns is what was measured, and what the kernel says.
func TestProbeOfALink(t *testing.T) {
	noLeaks(t)
	_, _, l, _ := probedLink(t, nil)
	var c Costs
	for began := time.Now(); c.RoundTrip == 0 && time.Since(began) < soon; {
		c = l.Probe(t.Context(), 100*time.Millisecond)
	}
	require.Positive(t, c.RoundTrip)
	require.Positive(t, c.Network)
	require.Less(t, c.Network, c.RoundTrip+1, "in seconds")
	l.conns[probeConn].probes.probing.Lock()
	require.Zero(t, l.Probe(t.Context(), soon), "one at a time")
	l.conns[probeConn].probes.probing.Unlock()
}

// Three processes that have one processor together measure each other: one after the other, and at the same time, so that each answers while it
// measures. Then their goroutines may keep each other from the network until the time is over.
func TestProbesOnOneCPU(t *testing.T) {
	quick.Skip(t, "it keeps one processor busy for seconds")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for name, change := range map[string]func(*Config){"plain": nil, "TLS": secure(newAuthority(t).settings(t))} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			ends := []*end{newEnd(t, change), newEnd(t, change), newEnd(t, change)}
			links := make([]*Link, len(ends))
			for i, of := range ends {
				links[i] = of.linkTo(t, ends[(i+1)%3])
				allAnswered(t, links[i])
			}
			var all sync.WaitGroup
			for _, l := range links {
				all.Go(func() { l.Probe(t.Context(), 100*time.Millisecond) })
			}
			all.Wait()
			for _, l := range links {
				require.NoError(t, l.Err())
			}
			require.Zero(t, busyWaiters.Load())
		})
	}
}

// Goroutines that wait without sleeping leave a processor to others: who reads sleeps where it would take the last one, and who measures sleeps now
// and then where there is none left, and lets the network wake who reads its answers.
func TestBusyWaitersLeaveAProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	link := &Link{began: time.Now()}
	read := &conn{link: link}
	read.probes.at.Store(int64(time.Hour)) // it was asked, in the future
	require.True(t, read.looksEagerly())
	require.EqualValues(t, 1, busyWaiters.Load())
	require.True(t, read.looksEagerly())
	require.EqualValues(t, 1, busyWaiters.Load(), "it is one")

	other := &conn{link: link}
	other.probes.at.Store(int64(time.Hour))
	require.True(t, other.looksEagerly())
	third := &conn{link: link}
	third.probes.at.Store(int64(time.Hour))
	require.False(t, third.looksEagerly(), "of three processors")
	require.EqualValues(t, 2, busyWaiters.Load())

	probed := &conn{link: link, plain: true}
	probed.raw = noDescriptor{}
	link.conns = []*conn{read, probed}
	p := newProber(t.Context(), probed)
	require.False(t, p.calm)
	require.Zero(t, probed.calmers.Load())
	require.False(t, read.looksEagerly(), "who measures goes first")
	require.EqualValues(t, 2, busyWaiters.Load())
	giveWay := func() {
		for range turnsIfCrowded {
			p.giveWay()
		}
	}
	giveWay()
	require.True(t, p.calm, "there is room again")
	require.EqualValues(t, 1, probed.calmers.Load())
	busyWaiters.Add(1)
	giveWay()
	require.False(t, p.calm)
	busyWaiters.Add(-1)
	giveWay()
	require.True(t, p.calm)

	p.end()
	require.Zero(t, probed.calmers.Load())
	other.probes.at.Store(int64(-time.Hour))
	require.False(t, other.looksEagerly())
	require.Zero(t, busyWaiters.Load())
}

// noDescriptor is a connection without one.
type noDescriptor struct{ syscall.RawConn }

func (noDescriptor) Control(func(uintptr)) error { return net.ErrClosed }

// Who reads eagerly when its link ends is none of busyWaiters behind that.
func TestBusyWaiterWhoseLinkEnds(t *testing.T) {
	noLeaks(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	a, b, l, back := probedLink(t, nil)
	at := &back.conns[probeConn].probes.at
	require.Eventually(t, func() bool {
		at.Store(int64(time.Hour)) // it was asked, in the future
		require.NoError(t, l.Send(probeConn, &Header{Kind: Probe}))
		return busyWaiters.Load() == 1
	}, soon, time.Millisecond)
	a.Close()
	require.Error(t, b.awaitLoss(t))
	require.Zero(t, busyWaiters.Load())
}

// hold keeps a process from reading the connection that is probed, as one that is stopped. It returns what lets it go on.
func (l *Link) hold() (release func()) {
	r := &l.conns[probeConn].receiving
	r.Lock()
	return r.Unlock
}

// A process that does not answer is not waited for, whether it is stopped before the first answer or within a burst; and later the link
// is as it was.
func TestProbeOfAStoppedProcess(t *testing.T) {
	noLeaks(t)
	_, b, l, back := probedLink(t, nil)
	for range 2 {
		release := back.hold()
		require.Zero(t, l.Probe(t.Context(), 100*time.Millisecond).RoundTrip)
		require.False(t, l.burst(t, 1000, probeBytes, 100*time.Millisecond), "more than the connection holds")
		release()
		answered(t, l, 0, 0)
	}
	require.NoError(t, l.Send(1, message(1)))
	b.await(t, 1)
	require.NoError(t, l.Err())
	require.NoError(t, back.Err())
}

// The end of the link, and of what the probe is for, ends it at once.
func TestProbeEnds(t *testing.T) {
	noLeaks(t)
	for name, end := range map[string]func(l *Link, cancel func()){
		"the link": func(l *Link, _ func()) { l.Break(errGivenUp) },
		"its user": func(_ *Link, cancel func()) { cancel() },
	} {
		_, _, l, back := probedLink(t, nil)
		release := back.hold()
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan bool, 1)
		go func() {
			p := newProber(ctx, l.conns[probeConn])
			defer p.end()
			p.deadline = time.Now().Add(time.Hour)
			_, answered := p.burst(0, nil)
			over <- answered
		}()
		require.Eventually(t, func() bool { return l.conns[probeConn].probes.asked.Load() > 0 }, soon, time.Millisecond)
		end(l, cancel)
		select {
		case answered := <-over:
			require.False(t, answered, name)
		case <-time.After(soon):
			t.Fatalf("the probe of a link does not end with %s", name)
		}
		cancel()
		release()
	}
}

// An answer that the connection does not take at once is sent later, and by one goroutine, however often the process is asked.
func TestAnswersThatWait(t *testing.T) {
	noLeaks(t)
	_, _, l, back := probedLink(t, nil)
	ask, answers := &l.conns[probeConn].probes, &back.conns[probeConn].probes
	sending := &back.conns[probeConn].sending
	sending.Lock()
	const asked = 1000
	ask.asked.Store(asked)
	for n := range uint64(asked) {
		require.NoError(t, l.Send(probeConn, &Header{Kind: Probe, Number: n + 1}))
	}
	require.Eventually(t, func() bool { return answers.owed.Load() == asked }, soon, time.Millisecond)
	require.True(t, answers.answering.Load())
	sending.Unlock()
	require.Eventually(t, func() bool { return ask.echoed.Load() == asked }, soon, time.Millisecond)
	require.Eventually(t, func() bool { return !answers.answering.Load() }, soon, time.Millisecond)
	answered(t, l, 0, 0) // it begins behind these numbers
	require.NoError(t, l.Err())
}

// Where a process is asked once more, and has answered, between the two looks at what is owed, nothing is answered twice: that would end the link.
func TestAnswersThatAreOvertaken(t *testing.T) {
	noLeaks(t)
	_, _, l, back := probedLink(t, nil)
	ask, c := &l.conns[probeConn].probes, back.conns[probeConn]
	echoed := func(n uint64) func() bool { return func() bool { return ask.echoed.Load() == n } }
	ask.asked.Store(2)
	require.True(t, c.probes.answering.CompareAndSwap(false, true), "as the goroutine that answers does")
	require.NoError(t, l.Send(probeConn, &Header{Kind: Probe, Number: 1}))
	require.Eventually(t, func() bool { return c.probes.owed.Load() == 1 }, soon, time.Millisecond)
	require.True(t, c.answerOnce())
	require.NoError(t, l.Send(probeConn, &Header{Kind: Probe, Number: 2}))
	require.Eventually(t, echoed(2), soon, time.Millisecond, "who reads answers")
	require.Eventually(t, func() bool { return !c.probes.answering.Load() }, soon, time.Millisecond)
	require.False(t, c.probes.mustAnswer())
	require.False(t, c.probes.answering.Load())
	answered(t, l, 0, 0)
	require.NoError(t, l.Err())
}

// A process looks eagerly only for what comes behind a PROBE with a number, only while no thread polls, and for a bounded time in all.
func TestEagerReadingIsBounded(t *testing.T) {
	noLeaks(t)
	_, b, l, back := probedLink(t, nil)
	c := back.conns[probeConn]
	require.NoError(t, l.Send(probeConn, &Header{Kind: Probe}, make([]byte, 100)))
	require.NoError(t, l.Send(probeConn, message(1)))
	b.await(t, 1)
	require.Zero(t, c.probes.at.Load())

	back.Calm(true)
	c.probes.at.Store(c.link.now() + int64(time.Hour))
	require.False(t, c.looksEagerly())
	c.probes.at.Store(0)
	back.Calm(false)

	spent := func() time.Duration {
		c.receiving.Lock()
		defer c.receiving.Unlock()
		return c.probes.eager
	}
	for spent() < eagerAtMost {
		before := spent()
		answered(t, l, 0, 0)
		require.LessOrEqual(t, spent()-before, eagerFor)
		require.Greater(t, spent(), before)
	}
	at := c.probes.at.Load()
	answered(t, l, 0, 0)
	require.Equal(t, at, c.probes.at.Load())
	require.NoError(t, l.Err())
}

// next returns the bytes of the next frame of a connection, which may be one that no process sends.
func (c *conn) next(h *Header, body []byte) []byte {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.sending.number++
	return encodedAs(c.sending.number-1, h, body)
}

// What no process sends while it probes, or answers, ends the link.
func TestProbesThatNoProcessSends(t *testing.T) {
	noLeaks(t)
	for name, x := range map[string]struct {
		first []*Header // right ones
		h     *Header
		bytes int
		on    int
	}{
		"the first number is 2":    {nil, &Header{Kind: Probe, Number: 2}, 0, 1},
		"a number twice":           {[]*Header{{Kind: Probe, Number: 1}}, &Header{Kind: Probe, Number: 1}, 0, 1},
		"a payload with a number":  {nil, &Header{Kind: Probe, Number: 1}, 8, 1},
		"a long payload":           {nil, &Header{Kind: Probe}, probeBytes + 1, 1},
		"the control connection":   {nil, &Header{Kind: Probe, Number: 1}, 0, 0},
		"a group":                  {nil, &Header{Kind: Probe, Number: 1, Group: 9}, 0, 1},
		"an answer nobody wants":   {nil, &Header{Kind: Echo, Number: 1}, 0, 1},
		"an answer without number": {nil, &Header{Kind: Echo}, 0, 1},
		"an answer with a payload": {nil, &Header{Kind: Echo, Number: 1}, 8, 1},
	} {
		_, b, l, _ := probedLink(t, nil)
		l.conns[probeConn].probes.asked.Store(uint64(len(x.first))) // whose answers come
		for _, h := range x.first {
			_, err := l.conns[x.on].Write(l.conns[x.on].next(h, nil))
			require.NoError(t, err)
		}
		_, err := l.conns[x.on].Write(l.conns[x.on].next(x.h, make([]byte, x.bytes)))
		require.NoError(t, err)
		require.ErrorIs(t, b.awaitLoss(t), errHeader, name)
		require.Zero(t, b.count(), name)
	}
}

// An answer counts once.
func TestAnswerTwice(t *testing.T) {
	noLeaks(t)
	a, _, l, back := probedLink(t, nil)
	answered(t, l, 0, 0)
	last := l.conns[probeConn].probes.asked.Load()
	c := back.conns[probeConn]
	_, err := c.Write(c.next(&Header{Kind: Echo, Number: last}, nil))
	require.NoError(t, err)
	err = a.awaitLoss(t)
	require.ErrorIs(t, err, errHeader)
	require.ErrorContains(t, err, fmt.Sprintf("ECHO of number %d, after %d were asked and %d were answered", last, last, last))
}

// A damaged frame of a probe is one of the link.
func TestDamagedProbe(t *testing.T) {
	noLeaks(t)
	_, b, l, _ := probedLink(t, nil)
	c := l.conns[probeConn]
	_, err := c.Write(c.next(&Header{Kind: Probe}, make([]byte, 100)))
	require.NoError(t, err)
	require.NoError(t, l.Send(1, message(1)))
	b.await(t, 1)
	text := c.next(&Header{Kind: Probe}, make([]byte, 100))
	text[HeaderBytes+50] = 1
	_, err = c.Write(text)
	require.NoError(t, err)
	require.ErrorIs(t, b.awaitLoss(t), errSum)
}
