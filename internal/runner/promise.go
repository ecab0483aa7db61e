package runner

/*
#include "composite.h"
*/
import "C"

import (
	"errors"

	"sagecomm/internal/coll"
)

// Promise is the work of a composite operation that Go carries out: its waiters sleep until Complete is called. The work
// belongs to the caller of the operation, who releases it; the Promise belongs to the code that carries the operation out.
type Promise struct{ c *C.scr_run }

// NewPromise makes a Promise. Its owner must call either Complete or Drop, once.
func (g *Group) NewPromise() (*Promise, error) {
	run := C.scr_promise_new(g.c, C.uint64_t(g.handle))
	if run == nil {
		return nil, errors.New("no memory for another operation")
	}
	return &Promise{run}, nil
}

// Handle returns the work's handle in the C ABI.
func (p *Promise) Handle() uint64 { return uint64(C.scr_run_handle(p.c)) }

// Work returns the work for callers in Go.
func (p *Promise) Work() Work { return Work{p: &pendingWork{handle: C.sagecomm_work(p.Handle())}} }

// Complete completes the work, successfully if f is nil.
func (p *Promise) Complete(f *coll.Failure) {
	var err C.sagecomm_error
	status := C.int32_t(C.SAGECOMM_OK)
	if f != nil {
		status = C.int32_t(f.Status)
		fillError(&err, f)
	}
	C.scr_promise_complete(p.c, status, &err)
}

// Drop frees a Promise whose work was not given to any caller.
func (p *Promise) Drop() { C.scr_promise_drop(p.c) }
