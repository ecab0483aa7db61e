package tcp

import "time"

// This file says which bursts measure a link, and what follows from their times (docs/protocol.md, section 16, The probe of links). It sends
// nothing and looks at no clock.

// Costs is what [Link.Probe] has measured, in seconds. What is 0 was not measured.
type Costs struct {
	RoundTrip float64 // of a frame without payload and its answer
	Frame     float64 // of each further frame in a burst of frames without payload
	Byte      float64 // of each byte in a burst of long payloads
	Network   float64 // the shortest round trip of a packet that the kernel has seen: no process takes part in it
	// Unclear: no burst took longer than the shortest round trip, which is a part of it, or one of frames was not repeated behind round trips that
	// were far shorter. So others had the processors, and the link may be as fast as any.
	Unclear bool
}

const (
	probeBytes   = 64 << 10         // of a long payload
	probeTrips   = 40               // round trips that are tried
	probeBursts  = 5                // bursts of frames that are tried,
	burstFrames  = 32               // and the frames of each
	longestBurst = time.Millisecond // no burst of more payloads is tried behind one that takes as long
)

// probePayloads are the numbers of long payloads in bursts that are tried. Shorter ones come first, because a slow network takes long for a
// long one.
var probePayloads = [...]int{1, 4, 16, 32}

// bursts measures. send sends some frames, with or without a long payload, and one behind them that is answered, and returns how long that took. It
// reports false when that has not ended so long after the beginning of the probe.
type bursts struct {
	send func(until time.Duration, frames int, long bool) (took time.Duration, answered bool)
	trip time.Duration // the shortest one so far
}

// measureCosts measures a link for a time at most.
func measureCosts(limit time.Duration, send func(until time.Duration, frames int, long bool) (time.Duration, bool)) (found Costs) {
	b := bursts{send: send}
	var answered bool
	if b.trip, answered = send(limit, 0, false); !answered {
		return found
	}
	b.trips(limit/8, probeTrips-1)
	took, answered := b.least(limit/4, probeBursts, burstFrames, false)
	for answered && took <= b.trip {
		found.Unclear = true
		b.trips(limit/4, probeTrips)
		took, answered = b.least(limit/4, probeBursts, burstFrames, false)
	}
	frames, slow := took, b.trip // of when frames were sent
	measured := answered
	if measured {
		found.Unclear = false
	}
	unclear := false
	for i, last := 0, len(probePayloads)-1; ; i = min(i+1, last) {
		n := probePayloads[i]
		if took, answered = b.least(limit, 2, n, true); !answered {
			break
		}
		if unclear = took <= b.trip; unclear { // a longer burst takes longer, and an undisturbed round trip less
			found.Byte = 0
			b.trips(limit, probeTrips)
			continue
		}
		found.Byte = (took - b.trip).Seconds() / float64(n*probeBytes)
		if took >= longestBurst || i == last {
			break
		}
	}
	if measured && slow-b.trip > frames-slow { // others had the processors until then: more of the burst was their time than that of frames
		took, measured = b.least(limit, probeBursts, burstFrames, false)
		frames, measured = min(frames, took), measured && took > b.trip
		unclear = unclear || !measured
	}
	if measured {
		found.Frame = (frames - b.trip).Seconds() / burstFrames
	}
	found.Unclear = found.Unclear || unclear
	found.RoundTrip = b.trip.Seconds()
	return found
}

// trips tries round trips.
func (b *bursts) trips(until time.Duration, trials int) {
	if took, answered := b.least(until, trials, 0, false); answered {
		b.trip = min(b.trip, took)
	}
}

// least returns the shortest time of some bursts, as many as there is time for. It reports false if that was none.
func (b *bursts) least(until time.Duration, trials, frames int, long bool) (shortest time.Duration, answered bool) {
	for range trials {
		took, in := b.send(until, frames, long)
		if !in {
			break
		}
		if !answered || took < shortest {
			shortest, answered = took, true
		}
	}
	return shortest, answered
}
