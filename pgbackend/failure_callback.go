package pgbackend

import (
	"runtime"
	"sync"
	"time"

	"sagecomm/internal/coll"
)

// failureCallback calls functions of the user when the group has failed. It does so once, on a goroutine of its own, so
// that the functions may call anything and take any time.
type failureCallback struct {
	mu    sync.Mutex
	told  []func(*coll.Failure)
	off   bool          // the functions were called, or will never be called
	heard chan struct{} // closed when all functions have returned or headStart is over; nil: there are none
}

// headStart bounds how long operations wait for the functions before they raise the failure, so that the functions see
// the process as it was. It is short compared with the least time in which a wait must raise, 100 ms after an abort.
// Tests change it.
var headStart = 20 * time.Millisecond

// ask registers tell, which is called when the group fails. It reports false if the functions were called before.
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
		runtime.LockOSThread() // a function may change the thread's state, so the thread ends with the goroutine
		name("sagecomm-fail")
		defer enough()
		defer recoverFrom("a failure callback")
		for _, tell := range told {
			tell(cause)
		}
	}()
}

// wait returns when all functions have returned or headStart is over.
func (a *failureCallback) wait() {
	a.mu.Lock()
	heard := a.heard
	a.mu.Unlock()
	if heard != nil {
		<-heard
	}
}

// OnFailure registers tell, which is called once on a goroutine of its own: with the first cause when the group fails,
// or with nil when the group is destroyed before that. Operations raise the failure when tell has returned, or after 20
// ms. If the group has failed already, OnFailure returns its cause and never calls tell.
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
