package cost

import (
	"math"
	"time"
)

// Femto is time in femtoseconds. Prices are sums of whole numbers, so that ranks on different processors, whose
// compilers may fuse a multiplication and an addition of floats, come to the same choice.
type Femto int64

// Never is the price of a collective that cannot finish, or takes longer than Femto can count.
const Never = Femto(math.MaxInt64)

// mostTime is the longest time that a play counts. No sum of three such times overflows.
const mostTime = Femto(1) << 61

// Duration rounds up to nanoseconds.
func (f Femto) Duration() time.Duration {
	if f == Never {
		return math.MaxInt64
	}
	return time.Duration((f-1)/1_000_000 + 1)
}

// toFemto rounds to whole femtoseconds. It stops at mostTime.
func toFemto(seconds float64) Femto { return Femto(min(math.Round(seconds*1e15), float64(mostTime))) }
