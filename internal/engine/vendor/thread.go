package vendor

import (
	"errors"
	"runtime"
	"sync/atomic"
)

// Thread calls functions of a library that wait for peers, one after the other, on an OS thread of its own. So a peer that does not
// come holds up this thread alone, for good if the library has no end for such a wait.
type Thread struct {
	calls  chan func() error
	left   atomic.Int64          // calls that have not succeeded
	failed atomic.Pointer[error] // of the first call that has failed, after which none is made
	last   func()                // called behind the calls; nil: nothing is. Set before calls is closed
	over   chan struct{}         // closed when nothing is called any more
}

var errPanic = errors.New("internal error in a call of the library")

// NewThread makes a thread on a goroutine of a group. use is called on it first, to make its device the current one. A panic of a call makes
// the group fail, and then the call has an error, so that nobody makes that the group's failure.
func NewThread(g Group, use func() error) *Thread {
	t := &Thread{calls: make(chan func() error, 2), over: make(chan struct{})}
	t.Begin(use)
	g.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		defer close(t.over)
		whole := false
		g.Guard(func() {
			t.serve()
			whole = true
		})
		if !whole {
			t.failed.CompareAndSwap(nil, &errPanic)
		}
	})
	return t
}

func (t *Thread) serve() {
	for f := range t.calls {
		if t.failed.Load() != nil {
			continue
		}
		if err := f(); err != nil {
			t.failed.CompareAndSwap(nil, &err)
			continue
		}
		t.left.Add(-1)
	}
	if t.last != nil {
		t.last()
	}
}

// Begin adds a call. Requires: at most one other has not begun.
func (t *Thread) Begin(f func() error) {
	t.left.Add(1)
	select {
	case t.calls <- f:
	case <-t.over: // a call has panicked
	}
}

// Queue adds the calls of a group: sends and recvs by exchange, others by call, one after the other.
func (t *Thread) Queue(calls []Call, call func(Call) error, exchange func() error) {
	if calls[0].Kind >= Send {
		t.Begin(exchange)
		return
	}
	t.Begin(func() error {
		for _, one := range calls {
			if err := t.Stopped(); err != nil {
				return err
			}
			if err := call(one); err != nil {
				return err
			}
		}
		return nil
	})
}

// Stopped returns an error once Stop was called. A function of several calls asks before each of them.
func (t *Thread) Stopped() error {
	if failed := t.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// State reports whether all calls have succeeded. The error is that of the first call that has failed. That call stays one of those
// that are left: nobody who has looked for an error before it failed takes it for a success.
func (t *Thread) State() (idle bool, err error) { return t.left.Load() == 0, t.Stopped() }

// End ends the thread behind its calls. Begin is not called again.
func (t *Thread) End() { close(t.calls) }

// Stop ends the thread. A call that the library is in goes on, and no other one is made. last, which may be nil, is called on the thread
// behind it.
func (t *Thread) Stop(last func()) {
	t.failed.CompareAndSwap(nil, &errEnding)
	t.last = last
	t.End()
}

// Over returns a channel that is closed when the thread has ended.
func (t *Thread) Over() <-chan struct{} { return t.over }

// Ended reports whether the thread has ended.
func (t *Thread) Ended() bool {
	select {
	case <-t.over:
		return true
	default:
		return false
	}
}
