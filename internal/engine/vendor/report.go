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

// timeoutMargin is how long before a timeout an error of the library is told, so that all ranks hear of that first.
const timeoutMargin = 500 * time.Millisecond

// report makes the group fail by an error. One of the library does so unless the group goes down by another failure first, for which it waits:
// see explained. goOn is asked each signalsEvery, and its error ends the wait. So does the timeout of an operation, which would find no more than
// that this rank does not go on.
func (e *Engine) report(err error, goOn func() error) {
	e.reports.Add(1)
	defer e.reports.Add(-1)
	e.explained(err, e.group.ReportWait, goOn)
	e.group.Fail(err) // returns when the group is down, whatever its cause
}

// explained waits, if an error may have been caused by another process, until the group is down by a failure that explains it, but no longer than
// the bound. The library may notice the death of a process before this one does: it has connections of its own. Every rank would then raise an
// error that names the rank with the error instead of the dead one.
func (e *Engine) explained(err error, bound time.Duration, goOn func() error) {
	if !errors.As(err, new(reported)) || errors.As(err, new(refusal)) {
		return
	}
	end := time.Now().Add(bound)
	if first, has := e.pool.firstTimeout(e.group.Run.Handle()); has && first.Add(-timeoutMargin).Before(end) {
		end = first.Add(-timeoutMargin)
	}
	for time.Now().Before(end) && goOn() == nil {
		select {
		case <-e.gone:
			return
		case <-time.After(min(signalsEvery, time.Until(end))):
		}
	}
}

// Reports reports whether an error is about to make the group fail. Who destroys the group waits for that: the error would be lost.
func (e *Engine) Reports() bool { return e.reports.Load() > 0 }
