package bootstrap

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// watchSlice is how long a [Watchful] store waits before it asks again whether waiting makes sense.
const watchSlice = 250 * time.Millisecond

// Watchful makes the waits of a store end early, as timeouts, once lost says that some of size ranks has ended. What
// was written until then is still found.
func Watchful(store Store, size int, lost func() bool) Store { return watchful{store, size, lost} }

type watchful struct {
	Store
	size int
	lost func() bool
}

func (s watchful) Get(key string, timeout time.Duration) ([]byte, error) {
	for deadline := time.Now().Add(timeout); ; {
		start := time.Now()
		wait := max(min(deadline.Sub(start), watchSlice), time.Millisecond)
		last := s.lost() // before the look: what a rank wrote before it ended is there by now
		if last {
			wait = min(wait, probeTimeout(s.size))
		}
		value, err := s.Store.Get(key, wait)
		switch {
		case err == nil, isDefect(err, start, wait):
			return value, err
		case last, !time.Now().Before(deadline):
			return nil, fmt.Errorf("%s: %w", key, ErrTimeout)
		}
	}
}

// isDefect tells an error of a store from a timeout. Stores that cannot are given the benefit of the clock.
func isDefect(err error, start time.Time, wait time.Duration) bool {
	return !errors.Is(err, ErrTimeout) && (time.Since(start) < wait*9/10 || strings.Contains(err.Error(), "interrupted"))
}
