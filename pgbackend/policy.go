package pgbackend

import (
	"time"

	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// This file holds the durations and limits that the runner and the shim use for waiting.

// policy holds the runner's limits, which are the same for all groups.
var policy = runner.Policy{
	// Callers look for Python's signals after each wait of this length, because a handler must run within 200 ms.
	Sync:       50 * time.Millisecond,
	Sleep:      50 * time.Millisecond,
	BeginBytes: 64 << 10,
	Begin:      200 * time.Microsecond,
	// A caller that cannot drive an operation learns of its end through two wake-ups: that of the progress engine and
	// that of the thread that calls the done function. Spinning pays for as long as these two take.
	Brief:  20 * time.Microsecond,
	Drain:  10 * time.Millisecond,
	AtOnce: 50 * time.Microsecond,
	Soon:   200 * time.Microsecond, // Python needs some 10 us between the two calls, and more when its code is not in the cache
	Gate:   gateLook,
}

// gateLook bounds how long a thread sleeps for a device, whose writes wake nobody.
const gateLook = 100 * time.Microsecond

var engineConfig = runner.EngineConfig{
	Backoff:   runner.Backoff{Spin: 20, Yield: 50 * time.Microsecond},
	Slice:     200 * time.Microsecond,
	Look:      20 * time.Millisecond,
	Gate:      gateLook,
	Sound:     time.Second,
	IdleLooks: 10,
}

// Waits are the longest waits of the caller of the C ABI.
type Waits struct {
	Slice time.Duration // between two looks for signals: a handler of Python must run within 200 ms
	Hooks time.Duration // for callbacks of users when a group fails or is destroyed, and at the end of the process
}

// ShimWaits is what sagecomm_api.waits returns.
var ShimWaits = Waits{Slice: 100 * time.Millisecond, Hooks: 2 * time.Second}

// streamBytes is the length from which an output that is not the input is written past the cache: such an
// output would evict the slots, and is not read soon.
const streamBytes = 4 << 20

// backoff is how callers wait. Spinning pays while every rank has a core; one wake-up by the system costs as much as
// about 20 us of spinning. With fewer cores than ranks a spinning rank keeps a peer from running: yielding at once
// takes
// 0.8 to 0.9 of the time of spinning 50 rounds first (docs/measured.md).
// Between hosts whoever waits polls the network: a round of spinning would only delay that.
func backoff(s *env.Settings, crowded, apart bool) runner.Backoff {
	spin := 2000
	if apart {
		spin = 1
	}
	if crowded {
		spin = 0
	}
	if chosen := env.Spin.Get(s); chosen.Given {
		spin = int(chosen.Value / pauseCost)
	}
	return runner.Backoff{Spin: spin, Yield: time.Millisecond}
}

// pauseCost is about what one round of waiting takes: a PAUSE and a look, 20 to 45 ns on current processors.
const pauseCost = 25 * time.Nanosecond
