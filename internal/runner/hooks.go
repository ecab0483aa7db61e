package runner

/*
#include "runner.h"

*/
import "C"

import (
	"sync"

	"sagecomm/internal/coll"
)

// Handler is what the runner asks. Its methods are called on the threads of callers, with no lock of the runner held.
type Handler interface {
	// Issue checks a call that the fast path cannot take, finds its program and submits it.
	Issue(group uint64, call Call) *coll.Failure
	// Trouble judges what a driver found. The group is down when it returns.
	Trouble(group uint64, t Trouble)
	// Ring makes the ring from this rank to the peer, or takes the group down.
	Ring(group uint64, peer int)
	// Trace hears of an operation that is about to be issued, in a group opened with Config.Trace.
	Trace(group uint64, call Call)
}

var (
	handler Handler
	install sync.Once
)

// SetHandler installs the handler, once per process, before the first group.
func SetHandler(h Handler) {
	install.Do(func() {
		handler = h
		C.scr_call_go()
	})
}

//export scrGoIssue
func scrGoIssue(group C.uint64_t, op *C.sagecomm_op, out **C.scr_run, err *C.sagecomm_error) C.int32_t {
	if f := handler.Issue(uint64(group), Call{op, out}); f != nil {
		if err != nil {
			fillError(err, f)
		}
		return C.int32_t(f.Status)
	}
	return C.SAGECOMM_OK
}

//export scrGoTrouble
func scrGoTrouble(group C.uint64_t, t *C.scr_trouble) {
	handler.Trouble(uint64(group), goTrouble(t))
}

//export scrGoTrace
func scrGoTrace(group C.uint64_t, op *C.sagecomm_op) {
	handler.Trace(uint64(group), Call{raw: op})
}

//export scrGoRing
func scrGoRing(group C.uint64_t, peer C.int32_t) C.int32_t {
	handler.Ring(uint64(group), int(peer))
	return C.SAGECOMM_OK
}
