package vendor

import (
	"errors"
	"time"
)

// reported is an error that a library has reported. Unless it is a refusal, another process may have caused it.
type reported struct{ error }

func (r reported) Unwrap() error { return r.error }

// refusal is the error of a library for a call that it refuses.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// Refusal returns the error of a library for a call that it refuses, because of its arguments for example. No other process has caused it.
func Refusal(err error) error { return refusal{err} }

// timeoutMargin is how long before the first timeout of an operation the group fails by an error of the library, so that all ranks hear of that
// first.
const timeoutMargin = 500 * time.Millisecond

// report makes the group fail by an error. One of the library does so unless the group goes down by another failure first, for which it waits.
// Between hosts the library has connections of its own, so it may report the death of a process before this one has noticed it. Every rank would
// then raise an error that names the rank with the report instead of the dead one. goOn is asked each signalsEvery, and its error ends the wait.
// So does the timeout of an operation, which would find no more than that this rank does not go on.
func (e *Engine) report(err error, goOn func() error) {
	e.reports.Add(1)
	defer e.reports.Add(-1)
	if errors.As(err, new(reported)) && !errors.As(err, new(refusal)) {
		end := time.Now().Add(e.group.ReportWait)
		if first, has := e.pool.firstTimeout(e.group.Run.Handle()); has && first.Add(-timeoutMargin).Before(end) {
			end = first.Add(-timeoutMargin)
		}
		for time.Now().Before(end) && goOn() == nil {
			select {
			case <-e.gone:
				end = time.Time{}
			case <-time.After(min(signalsEvery, time.Until(end))):
			}
		}
	}
	e.group.Fail(err) // returns when the group is down, whatever its cause
}

// Reports reports whether an error is about to make the group fail. Who destroys the group waits for that: the error would be lost.
func (e *Engine) Reports() bool { return e.reports.Load() > 0 }
