package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const us = time.Microsecond

// scripted is a link on a clock of its own: a burst takes what a script says, in the order in which bursts of its kind are sent, and then the last
// of these times.
type scripted struct {
	trips, frames []time.Duration
	payloads      map[int][]time.Duration // by the number of payloads
	now           time.Duration
	sent          map[int]int // payload bursts, by the number of payloads
}

func (s *scripted) send(until time.Duration, frames int, long bool) (took time.Duration, answered bool) {
	of := &s.trips
	switch {
	case long:
		list := s.payloads[frames]
		s.sent[frames]++
		took = list[min(s.sent[frames], len(list))-1]
		of = nil
	case frames > 0:
		of = &s.frames
	}
	if of != nil {
		took = (*of)[0]
		if len(*of) > 1 {
			*of = (*of)[1:]
		}
	}
	if s.now += took; s.now > until {
		s.now = max(until, s.now-took)
		return 0, false
	}
	return took, true
}

// What follows from the times of bursts, however others disturb them.
func TestCostsOfBursts(t *testing.T) {
	const limit = 40 * time.Millisecond
	only := func(all ...time.Duration) []time.Duration { return all }
	quick := map[int][]time.Duration{1: only(60 * us), 4: only(90 * us), 16: only(210 * us), 32: only(370 * us)} // 50 us, and 10 for each
	never := map[int][]time.Duration{1: only(time.Second), 4: only(time.Second), 16: only(time.Second), 32: only(time.Second)}
	for name, c := range map[string]struct {
		link    scripted
		want    Costs
		bursts  [4]int // of payloads
		atLeast bool   // there are more of the longest one
	}{
		"a link that nobody disturbs": {
			link:   scripted{trips: only(50 * us), frames: only(82 * us), payloads: quick},
			want:   Costs{RoundTrip: 50e-6, Frame: 1e-6, Byte: 10e-6 / probeBytes},
			bursts: [4]int{2, 2, 2, 2},
		},
		"the shortest times count": {
			link: scripted{trips: only(70*us, 90*us, 50*us, 80*us), frames: only(300*us, 82*us, 100*us),
				payloads: map[int][]time.Duration{1: only(90*us, 60*us), 4: only(90*us, 200*us), 16: only(210 * us), 32: only(2000*us, 370*us)}},
			want:   Costs{RoundTrip: 50e-6, Frame: 1e-6, Byte: 10e-6 / probeBytes},
			bursts: [4]int{2, 2, 2, 2},
		},
		"payloads that take long end it": {
			link: scripted{trips: only(50 * us), frames: only(82 * us),
				payloads: map[int][]time.Duration{1: only(450 * us), 4: only(1650 * us), 16: only(7 * time.Millisecond), 32: only(time.Second)}},
			want:   Costs{RoundTrip: 50e-6, Frame: 1e-6, Byte: 400e-6 / probeBytes},
			bursts: [4]int{2, 2, 0, 0},
		},
		"round trips that others disturb until frames are sent": {
			link:   scripted{trips: append(repeat(probeTrips, 100*us), 50*us), frames: only(82 * us), payloads: quick},
			want:   Costs{RoundTrip: 50e-6, Frame: 1e-6, Byte: 10e-6 / probeBytes},
			bursts: [4]int{2, 2, 2, 2},
		},
		// The first burst of payloads takes longer than longestBurst, and less than the trips so far: it says nothing, and is no reason to end. So are
		// the frames of before: they are sent again.
		"round trips that others disturb until payloads are sent": {
			link: scripted{trips: append(repeat(4, 1300*us), 50*us), frames: append(append(only(1301*us), repeat(3, 1600*us)...), 82*us),
				payloads: map[int][]time.Duration{1: only(1200*us, 1200*us, 60*us), 4: only(90 * us), 16: only(210 * us), 32: only(370 * us)}},
			want:   Costs{RoundTrip: 50e-6, Frame: 1e-6, Byte: 10e-6 / probeBytes},
			bursts: [4]int{2, 2, 2, 2},
		},
		"round trips that others disturb a little until payloads are sent": { // frames are not sent again
			link: scripted{trips: append(repeat(probeTrips, 60*us), 50*us), frames: append(repeat(probeBursts, 82*us), 200*us),
				payloads: map[int][]time.Duration{1: only(59 * us), 4: only(90 * us), 16: only(210 * us), 32: only(370 * us)}},
			want:   Costs{RoundTrip: 50e-6, Frame: 1e-6, Byte: 10e-6 / probeBytes},
			bursts: [4]int{2, 2, 2, 2},
		},
		"round trips that others disturb until payloads are sent, and no time for frames behind them": {
			link: scripted{trips: append(repeat(4, 1300*us), 50*us), frames: append(append(only(1301*us), repeat(3, 1600*us)...), time.Second),
				payloads: map[int][]time.Duration{1: only(1200*us, 1200*us, 60*us), 4: only(90 * us), 16: only(210 * us), 32: only(370 * us)}},
			want:   Costs{RoundTrip: 50e-6, Byte: 10e-6 / probeBytes, Unclear: true},
			bursts: [4]int{2, 2, 2, 2},
		},
		"round trips that others disturb until payloads are sent, and frames behind them too": {
			link: scripted{trips: append(repeat(4, 1300*us), 50*us), frames: append(append(only(1301*us), repeat(3, 1600*us)...), 50*us),
				payloads: map[int][]time.Duration{1: only(1200*us, 1200*us, 60*us), 4: only(90 * us), 16: only(210 * us), 32: only(370 * us)}},
			want:   Costs{RoundTrip: 50e-6, Byte: 10e-6 / probeBytes, Unclear: true},
			bursts: [4]int{2, 2, 2, 2},
		},
		"long payloads that others disturb": {
			link: scripted{trips: only(50 * us), frames: only(82 * us),
				payloads: map[int][]time.Duration{1: only(50 * us), 4: only(49 * us), 16: only(48 * us), 32: only(47*us, 46*us, 45*us, 370*us)}},
			want:   Costs{RoundTrip: 50e-6, Frame: 1e-6, Byte: 10e-6 / probeBytes},
			bursts: [4]int{2, 2, 2, 6},
		},
		"others have the processors all the time, for frames": {
			link:   scripted{trips: only(100 * us), frames: only(100 * us), payloads: quick},
			want:   Costs{RoundTrip: 100e-6, Byte: 270e-6 / 32 / probeBytes, Unclear: true},
			bursts: [4]int{2, 2, 2, 2},
		},
		"others have the processors all the time, for payloads": {
			link: scripted{trips: only(50 * us), frames: only(82 * us),
				payloads: map[int][]time.Duration{1: only(60 * us), 4: only(50 * us), 16: only(50 * us), 32: only(50 * us)}},
			want:    Costs{RoundTrip: 50e-6, Frame: 1e-6, Unclear: true},
			bursts:  [4]int{2, 2, 2, 8},
			atLeast: true,
		},
		"nobody answers": {
			link: scripted{trips: only(time.Second), frames: only(time.Second), payloads: never},
		},
		"the first answer only": {
			link:   scripted{trips: only(50*us, time.Second), frames: only(time.Second), payloads: never},
			want:   Costs{RoundTrip: 50e-6},
			bursts: [4]int{1, 0, 0, 0},
		},
		"a long way": { // there is no time for a burst of frames
			link: scripted{trips: only(9 * time.Millisecond), frames: only(9100 * us),
				payloads: map[int][]time.Duration{1: only(9100 * us), 4: only(9400 * us), 16: only(10600 * us), 32: only(time.Second)}},
			want:   Costs{RoundTrip: 9e-3, Byte: 100e-6 / probeBytes},
			bursts: [4]int{2, 0, 0, 0},
		},
		"a line that carries little": {
			link:   scripted{trips: only(50 * us), frames: only(82 * us), payloads: never},
			want:   Costs{RoundTrip: 50e-6, Frame: 1e-6},
			bursts: [4]int{1, 0, 0, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.link
			s.sent = map[int]int{}
			got := measureCosts(limit, s.send)
			require.InDelta(t, c.want.RoundTrip, got.RoundTrip, 1e-12)
			require.InDelta(t, c.want.Frame, got.Frame, 1e-12)
			require.InDelta(t, c.want.Byte, got.Byte, 1e-18)
			require.Equal(t, c.want.Unclear, got.Unclear)
			require.LessOrEqual(t, s.now, limit)
			for i, n := range probePayloads {
				if c.atLeast && n == probePayloads[len(probePayloads)-1] {
					require.GreaterOrEqual(t, s.sent[n], c.bursts[i])
				} else {
					require.Equal(t, c.bursts[i], s.sent[n], "bursts of %d payloads", n)
				}
			}
		})
	}
}

func repeat(n int, each time.Duration) (list []time.Duration) {
	for range n {
		list = append(list, each)
	}
	return list
}
