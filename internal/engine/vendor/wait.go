package vendor

import (
	"errors"
	"time"

	"sagecomm/internal/runner"
)

// ErrInterrupted is the error of a call whose caller has ended its wait for the other ranks, as Ctrl-C does.
var ErrInterrupted = errors.New("a signal has interrupted the wait for the other ranks")

// signalsEvery is how often a caller that waits for peers handles signals.
const signalsEvery = 50 * time.Millisecond

// wait returns when ready is closed or has a value, or with ErrInterrupted, or with [runner.ErrDown] once gone is closed.
// Requires: the thread and the bridge of the call.
func wait(call runner.Call, ready, gone <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	default:
	}
	tick := time.NewTicker(signalsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ready:
			return nil
		case <-gone:
			return runner.ErrDown
		case <-tick.C:
			if call.Interrupted() {
				return ErrInterrupted
			}
		}
	}
}

// waitFor returns what a caller does between looks for its peers: begin at first, which may be nil, and then it handles signals.
func waitFor(call runner.Call, begin func()) func() error {
	next := time.Time{} // the time to handle signals; 0: this is the first look
	return func() error {
		now := time.Now()
		if next.IsZero() {
			if begin != nil {
				begin()
			}
		} else if now.Before(next) {
			return nil
		} else if call.Interrupted() {
			return ErrInterrupted
		}
		next = now.Add(signalsEvery)
		return nil
	}
}

// listener is a caller that handles signals while it waits, in one wait after another, until one has come.
type listener struct {
	goOn        func() error
	interrupted time.Time // 0: not yet
}

// listens returns a listener for a call, which a signal may have interrupted already.
func listens(call runner.Call, interrupted bool) *listener {
	l := &listener{goOn: waitFor(call, nil)}
	if interrupted {
		l.interrupted = time.Now()
	}
	return l
}

// look handles signals. It returns an error once one has come.
func (l *listener) look() error {
	if !l.interrupted.IsZero() {
		return ErrInterrupted
	}
	err := l.goOn()
	if err != nil {
		l.interrupted = time.Now()
	}
	return err
}

// turn is a lock whose holder may wait for peers, so that who waits for it goes on handling signals. It holds a value while it
// is free.
type turn chan struct{}

func newTurn() turn {
	t := make(turn, 1)
	t <- struct{}{}
	return t
}

func (t turn) take(call runner.Call, gone <-chan struct{}) error { return wait(call, t, gone) }
func (t turn) give()                                             { t <- struct{}{} }
