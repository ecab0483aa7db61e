package tcp

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// probedLink returns a link between two processes, as both see it.
func probedLink(t *testing.T, change func(*Config)) (a, b *end, of, other *Link) {
	t.Helper()
	a, b = newEnd(t, change), newEnd(t, change)
	of = a.linkTo(t, b)
	return a, b, of, b.linkOf(t, a)
}

// Both processes may measure at the same time and again, while frames of users pass, and no receiver hears of it.
func TestProbe(t *testing.T) {
	for name, change := range map[string]func(*Config){"plain": nil, "TLS": secure(newAuthority(t).settings(t))} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			a, b, l, back := probedLink(t, change)
			for round := range 2 {
				var all sync.WaitGroup
				for _, one := range []*Link{l, back} {
					all.Go(func() {
						c := one.Probe(t.Context(), soon)
						if c.RoundTrip <= 0 || c.RoundTrip > soon.Seconds() || c.Frame <= 0 || c.Frame > 1 || c.Byte < 1e-15 || c.Byte > 1e-3 {
							t.Errorf("%+v", c)
						}
					})
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
		})
	}
}

// hold keeps a process from reading the connection that is probed, as one that is stopped. It returns what lets it go on.
func (l *Link) hold() (release func()) {
	r := &l.conns[probed].receiving
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
		require.Zero(t, l.Probe(t.Context(), 100*time.Millisecond))
		p := prober{c: l.conns[probed], ctx: t.Context(), deadline: time.Now().Add(100 * time.Millisecond)}
		_, answered := p.burst(1000, make([]byte, probeBytes)) // more than the connection holds
		require.False(t, answered)
		release()
		require.NotZero(t, l.Probe(t.Context(), soon).RoundTrip)
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
		p := prober{c: l.conns[probed], ctx: ctx, deadline: time.Now().Add(time.Hour)}
		over := make(chan bool)
		go func() {
			_, answered := p.burst(0, nil)
			over <- answered
		}()
		require.Eventually(t, func() bool { return l.conns[probed].probes.asked.Load() > 0 }, soon, time.Millisecond)
		end(l, cancel)
		require.False(t, <-over, name)
		cancel()
		release()
	}
}

// An answer that the connection does not take at once is sent later, and by one goroutine, however often the process is asked.
func TestAnswersThatWait(t *testing.T) {
	noLeaks(t)
	_, _, l, back := probedLink(t, nil)
	ask, answers := &l.conns[probed].probes, &back.conns[probed].probes
	sending := &back.conns[probed].sending
	sending.Lock()
	const asked = 1000
	ask.asked.Store(asked)
	for n := range uint64(asked) {
		require.NoError(t, l.Send(probed, &Header{Kind: Probe, Number: n + 1}))
	}
	require.Eventually(t, func() bool { return answers.owed.Load() == asked }, soon, time.Millisecond)
	require.True(t, answers.answering.Load())
	sending.Unlock()
	require.Eventually(t, func() bool { return ask.echoed.Load() == asked }, soon, time.Millisecond)
	require.Eventually(t, func() bool { return !answers.answering.Load() }, soon, time.Millisecond)
	require.NotZero(t, l.Probe(t.Context(), soon).RoundTrip, "it begins behind these numbers")
	require.NoError(t, l.Err())
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
		l.conns[probed].probes.asked.Store(uint64(len(x.first))) // whose answers come
		for _, h := range x.first {
			_, err := l.conns[x.on].Write(encoded(h, nil))
			require.NoError(t, err)
		}
		_, err := l.conns[x.on].Write(encoded(x.h, make([]byte, x.bytes)))
		require.NoError(t, err)
		require.ErrorIs(t, b.awaitLoss(t), errHeader, name)
		require.Zero(t, b.count(), name)
	}
}

// An answer counts once.
func TestAnswerTwice(t *testing.T) {
	noLeaks(t)
	a, _, l, back := probedLink(t, nil)
	require.NotZero(t, l.Probe(t.Context(), soon).RoundTrip)
	last := l.conns[probed].probes.asked.Load()
	_, err := back.conns[probed].Write(encoded(&Header{Kind: Echo, Number: last}, nil))
	require.NoError(t, err)
	err = a.awaitLoss(t)
	require.ErrorIs(t, err, errHeader)
	require.ErrorContains(t, err, fmt.Sprintf("ECHO of number %d, after %d were asked and %d were answered", last, last, last))
}

// A damaged frame of a probe is one of the link.
func TestDamagedProbe(t *testing.T) {
	noLeaks(t)
	_, b, l, _ := probedLink(t, nil)
	text := encoded(&Header{Kind: Probe}, make([]byte, 100))
	text[HeaderBytes+50] = 1
	_, err := l.conns[probed].Write(text)
	require.NoError(t, err)
	require.ErrorIs(t, b.awaitLoss(t), errSum)
}
