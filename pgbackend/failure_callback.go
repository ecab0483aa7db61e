package pgbackend

import (
	"runtime"
	"sync"
	"time"

	"sagecomm/internal/coll"
)

// failureCallback calls functions of the user when the group has failed. It does so once, on a goroutine of its own, so that
// the functions may call anything and take any time.
type failureCallback struct {
	mu    sync.Mutex
	told  []func(*coll.Failure)
	off   bool          // the functions were called, or never will be
	heard chan struct{} // closed when all functions have returned, or had their head start; nil: there are none
}

// headStart is how long a failure waits for the functions before operations raise it: they may want to see the process as
// it was. It is short beside the least bound in which a wait must raise, 100 ms after an abort. Tests change it.
var headStart = 20 * time.Millisecond

// ask has tell called when the group fails. It returns false if that has happened before.
func (a *failureCallback) ask(tell func(*coll.Failure)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.off {
		return false
	}
	a.told = append(a.told, tell)
	return true
}

// call calls the functions. A nil cause means that the group was destroyed without a failure.
func (a *failureCallback) call(cause *coll.Failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.off {
		return
	}
	a.off = true
	told := a.told
	a.told = nil
	if len(told) == 0 {
		return
	}
	a.heard = make(chan struct{})
	enough := sync.OnceFunc(func() { close(a.heard) })
	time.AfterFunc(headStart, enough)
	go func() {
		runtime.LockOSThread() // a function may leave something on the thread, which ends with the goroutine
		name("sagecomm-fail")
		defer enough()
		defer recoverFrom("a failure callback")
		for _, tell := range told {
			tell(cause)
		}
	}()
}

// wait returns when the functions have had their head start.
func (a *failureCallback) wait() {
	a.mu.Lock()
	heard := a.heard
	a.mu.Unlock()
	if heard != nil {
		<-heard
	}
}

// OnFailure has tell called once, in a goroutine of its own: with the first cause when the group fails, or with nil when
// it is destroyed before that. Operations raise the failure when tell has returned, or a moment later. If the group has
// failed already its cause is returned, and tell is never called.
func (g *Group) OnFailure(tell func(*coll.Failure)) *coll.Failure {
	if !g.life.acquire() {
		return destroyed(g.name)
	}
	defer g.life.release()
	if f := g.failed(); f != nil {
		return f
	}
	if g.failureCallback.ask(tell) {
		return nil
	}
	if f := g.failed(); f != nil {
		return f
	}
	return destroyed(g.name)
}
