package observe_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
)

// Equal stages that follow each other become one event, and so do the waits inside them. Other events stay as they are.
func TestAdjacentStagesBecomeOneEvent(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(phase runner.Phase, number uint64, thread, peer int, from, to time.Duration) runner.Event {
		return runner.Event{Phase: phase, Number: number, Thread: thread, Peer: peer, Begin: start.Add(from), End: start.Add(to)}
	}
	const us = time.Microsecond
	got := []string{}
	for _, s := range observe.Merged([]runner.Event{
		at(runner.PhaseOp, 1, 0, -1, 0, 100*us),
		at(runner.PhasePublish, 1, 7, -1, 0, 2*us),
		at(runner.PhaseWait, 1, 7, 1, 2*us, 2*us),
		at(runner.PhaseReduceSlots, 1, 7, -1, 2*us, 3*us),
		at(runner.PhaseWait, 1, 7, 2, 3*us, 3*us),
		at(runner.PhaseReduceSlots, 1, 8, -1, 3*us, 4*us), // on another thread
		at(runner.PhaseReduceSlots, 1, 7, -1, 3*us, 4*us),
		at(runner.PhaseReduceSlots, 1, 7, -1, 9*us, 10*us), // later
		at(runner.PhaseReduceSlots, 2, 7, -1, 10*us, 11*us),
	}) {
		got = append(got, fmt.Sprintf("%v #%d on %d, peer %d: %d of %v", s.Phase, s.Number, s.Thread, s.Peer, s.Count(), s.End.Sub(s.Begin)))
	}
	want := []string{"op #1 on 0, peer -1: 1 of 100µs", "publish #1 on 7, peer -1: 1 of 2µs", "wait #1 on 7, peer -1: 2 of 1µs",
		"reduce #1 on 7, peer -1: 2 of 2µs", "reduce #1 on 8, peer -1: 1 of 1µs", "reduce #1 on 7, peer -1: 1 of 1µs", "reduce #2 on 7, peer -1: 1 of 1µs"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
