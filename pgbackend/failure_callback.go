package pgbackend

import (
	"runtime"
	"sync"
	"time"

	"sagecomm/internal/coll"
)

// failureCallback tells those who asked that the group has failed. It goes off once, in a goroutine of its own, so that who is told
// may call whatever it likes and take as long as it likes.
type failureCallback struct {
	mu    sync.Mutex
	told  []func(*coll.Failure)
	off   bool          // it has gone off
	heard chan struct{} // closed when all were told, or had their head start; nil: nobody asked
}

// headStart is how long a failure waits for those who are told of it before operations raise it: they may want to see the
// process as it was. It is short beside the least bound in which a wait must raise, 100 ms after an abort. Tests change it.
var headStart = 20 * time.Millisecond

// ask has tell called when the failureCallback goes off; false if it has gone off before.
func (a *failureCallback) ask(tell func(*coll.Failure)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.off {
		return false
	}
	a.told = append(a.told, tell)
	return true
}

// ring sets it off. A nil cause says that it will not go off any more.
func (a *failureCallback) ring(cause *coll.Failure) {
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
		runtime.LockOSThread() // who is told may leave something on the thread, which ends with the goroutine
		name("sagecomm-fail")
		defer enough()
		defer recoverFrom("what is told of a failure")
		for _, tell := range told {
			tell(cause)
		}
	}()
}

// wait returns when those who are being told have had their head start.
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
