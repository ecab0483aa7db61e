package runner

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A thread that yields while it waits attempts the same stage again and again. All but the first attempt are part of one sleep, so that a
// long wait does not fill the timeline. A stage that has moved something, and a wait for another peer, are no part of it.
func TestAttemptsBetweenSleepsArePartOfOneSleep(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := recorded(t, 8)
	g.timeline()
	r := g.run(sumOf(1), 1)
	attempt := func(peer int) {
		r.trace(PhaseWait, peer, 3, true)
		r.trace(PhaseReduceSlots, -1, 3, true)
	}
	r.start()
	for range 100000 {
		attempt(1)
		r.trace(PhaseSleep, 1, 0, false)
	}
	r.trace(PhaseWait, 1, 3, false)
	r.trace(PhaseReduceSlots, -1, 3, false)
	attempt(2)
	r.trace(PhaseSleep, 2, 0, false)
	attempt(1)
	r.trace(PhaseSleep, 1, 0, false)
	attempt(1)
	r.finish(-1, true)
	next := g.run(sumOf(1), 2)
	next.start()
	next.trace(PhasePublish, -1, 0, false)
	next.finish(-1, true)
	var got []string
	events, dropped := g.TakeTrace()
	for i, e := range events {
		got = append(got, fmt.Sprintf("%v %d", e.Phase, e.Peer))
		require.False(t, e.End.Before(e.Begin))
		require.True(t, i == 0 || e.Phase == PhaseReduceSlots || !e.Begin.Before(events[i-1].Begin), "event %d", i)
	}
	// A thread that has lost its core between two events for longer than events may be apart has more than one sleep.
	require.Less(t, len(got), 10000)
	require.Zero(t, dropped)
	require.Equal(t, []string{"wait 1", "reduce -1", "sleep 1"}, got[:3])
	require.Equal(t, []string{"sleep 1", "wait 1", "reduce -1", "wait 2", "reduce -1", "sleep 2", "wait 1", "reduce -1", "sleep 1", "wait 1", "reduce -1", "publish -1"},
		got[len(got)-12:])
}
