package runner

/*
#include "composite.h"
*/
import "C"

import (
	"errors"

	"sagecomm/internal/coll"
)

// Promise is the work of a composite operation that Go carries out. Its waiters sleep until Complete is called. The caller of the
// operation owns the work and releases it; the code that carries out the operation owns the Promise.
type Promise struct{ c *C.scr_run }

// NewPromise returns a Promise. Its owner calls either Complete or Drop, once.
func (g *Group) NewPromise() (*Promise, error) {
	run := C.scr_promise_new(g.c, C.uint64_t(g.handle))
	if run == nil {
		return nil, errors.New("no memory for another operation")
	}
	return &Promise{run}, nil
}

// Handle returns the handle of the work in the C ABI.
func (p *Promise) Handle() uint64 { return uint64(C.scr_run_handle(p.c)) }

// Work returns the work for callers in Go.
func (p *Promise) Work() Work { return Work{p: &pendingWork{handle: C.sagecomm_work(p.Handle())}} }

// Complete completes the work: with success if f is nil, else with that failure.
func (p *Promise) Complete(f *coll.Failure) {
	var err C.sagecomm_error
	status := C.int32_t(C.SAGECOMM_OK)
	if f != nil {
		status = C.int32_t(f.Status)
		fillError(&err, f)
	}
	C.scr_promise_complete(p.c, status, &err)
}

// Drop frees a Promise whose work no caller has got.
func (p *Promise) Drop() { C.scr_promise_drop(p.c) }
