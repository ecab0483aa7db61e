package runner

/*
#include "runner.h"

int32_t scr_on_done_go(sagecomm_work work, uintptr_t ctx, sagecomm_error *err);
*/
import "C"

import (
	"runtime"
	"runtime/cgo"
	"sync"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
)

// This file has the operations of the C ABI for callers in Go: composite operations, tests and benchmarks. They take the same
// way as a call from C, the fast path included.
//
// Ownership of buffers: the contents of a buffer belong to the operation until it is complete. Buffers may be memory of Go or of
// C. An operation pins buffers of Go, so that they are neither collected nor moved. It unpins them as soon as Go learns that it
// is complete: in Issue, in Wait, before the function given to OnDone runs, or, if the Work was released before, in a done
// function of its own.

// Work is an operation that was issued. The zero Work is complete.
type Work struct {
	p        *pendingWork // nil: it is complete
	sequence uint64
}

type pendingWork struct {
	handle C.sagecomm_work
	pins   runtime.Pinner
	unpin  sync.Once
	done   func(*coll.Failure) // function of OnDone; nil if completion only unpins buffers
}

func (p *pendingWork) settle() { p.unpin.Do(p.pins.Unpin) }

// inlineSegments is the number of segments that a frame holds without an allocation.
const inlineSegments = 8

// frame holds the arguments of one call of C. It is pinned while C may read it.
type frame struct {
	op       C.sagecomm_op
	work     C.sagecomm_work
	sequence C.uint64_t
	err      C.sagecomm_error
	list     [inlineSegments]C.sagecomm_segment
}

var frames = sync.Pool{New: func() any { return new(frame) }}

// Issue issues one operation. Its input is the concatenation of in and its output the concatenation of out; it ignores the
// lengths In and Out of op. A synchronous operation is complete when Issue returns, and so is its Work.
func (g *Group) Issue(op coll.Op, in, out [][]byte) (Work, *coll.Failure) {
	return g.IssueBridged(op, in, out, nil)
}

// IssueBridged is Issue for a caller that brings a sagecomm_bridge.
func (g *Group) IssueBridged(op coll.Op, in, out [][]byte, bridge unsafe.Pointer) (Work, *coll.Failure) {
	f := frames.Get().(*frame)
	defer frames.Put(f)
	p := pendingWork{}
	status := f.issue(g.handle, op, in, out, bridge, &p.pins)
	if status != C.SAGECOMM_PENDING {
		p.pins.Unpin()
		return Work{sequence: uint64(f.sequence)}, failureOf(status, &f.err)
	}
	return f.pending(&p, op.Async)
}

// Coalesced is one operation of a coalesced call.
type Coalesced struct {
	Op      coll.Op
	In, Out [][]byte
}

// IssueCoalesced issues several operations in one call. The first operation says whether all are asynchronous.
func (g *Group) IssueCoalesced(calls []Coalesced) (Work, *coll.Failure) {
	f := frames.Get().(*frame)
	defer frames.Put(f)
	p := pendingWork{}
	ops := make([]C.sagecomm_op, max(len(calls), 1))
	for i, c := range calls {
		list := make([]C.sagecomm_segment, max(len(c.In)+len(c.Out), 1))
		p.pins.Pin(&list[0])
		fill(&ops[i], list, c.Op, c.In, c.Out, &p.pins)
	}
	status := C.scr_issue_coalesced(C.sagecomm_group(g.handle), &ops[0], C.uint32_t(len(calls)), &f.work, &f.sequence, &f.err)
	if status != C.SAGECOMM_PENDING {
		p.pins.Unpin()
		return Work{}, failureOf(status, &f.err)
	}
	return f.pending(&p, calls[0].Op.Async)
}

// pending returns the Work of an operation that is not complete. It waits for a synchronous operation first.
func (f *frame) pending(p *pendingWork, async bool) (Work, *coll.Failure) {
	w := Work{&pendingWork{handle: f.work, pins: p.pins}, uint64(f.sequence)}
	if async {
		return w, nil
	}
	for {
		if done, failure := w.Wait(time.Second); done {
			w.Release()
			return Work{sequence: w.sequence}, failure
		}
	}
}

func (f *frame) issue(group uint64, op coll.Op, in, out [][]byte, bridge unsafe.Pointer, pins *runtime.Pinner) C.int32_t {
	list := f.list[:]
	if len(in)+len(out) > len(list) {
		list = make([]C.sagecomm_segment, len(in)+len(out))
		pins.Pin(&list[0])
	} else {
		pins.Pin(f)
	}
	fill(&f.op, list, op, in, out, pins)
	f.op.bridge = (*C.sagecomm_bridge)(bridge)
	status := C.scr_issue(C.sagecomm_group(group), &f.op, &f.work, &f.sequence, &f.err)
	clear(list) // C has its own copy; the frame must keep no memory alive
	return status
}

// fill writes an operation in the form of C. list has room for all segments.
func fill(to *C.sagecomm_op, list []C.sagecomm_segment, op coll.Op, in, out [][]byte, pins *runtime.Pinner) {
	segments := func(to []C.sagecomm_segment, from [][]byte) *C.sagecomm_segment {
		if len(from) == 0 {
			return nil
		}
		for i, b := range from {
			data := unsafe.Pointer(unsafe.SliceData(b))
			if len(b) > 0 {
				pins.Pin(data)
			} else {
				data = nil
			}
			to[i] = C.sagecomm_segment{data: data, bytes: C.uint64_t(len(b))}
		}
		return &to[0]
	}
	*to = C.sagecomm_op{kind: C.uint8_t(op.Kind), dtype: C.uint8_t(op.Type), reduce_op: C.uint8_t(op.Reduce),
		root: C.int32_t(op.Root), tag: C.int32_t(op.Tag), factor: C.double(op.Factor), timeout_ns: C.int64_t(op.Timeout), stack: C.uint64_t(op.Stack),
		n_in: C.uint32_t(len(in)), n_out: C.uint32_t(len(out)),
		device_type: C.uint8_t(op.Device.Type), device_index: C.int32_t(op.Device.Index), ordering: C.uint8_t(op.Ordering),
		in: segments(list, in), out: segments(list[len(in):], out)}
	*(*uintptr)(unsafe.Pointer(&to.stream)) = op.Stream // a handle, not memory of Go
	lengths := func(list []uint64) *C.uint64_t {
		if len(list) == 0 {
			return nil
		}
		pins.Pin(&list[0])
		return (*C.uint64_t)(unsafe.Pointer(&list[0]))
	}
	to.in_blocks, to.out_blocks = lengths(op.InBlocks), lengths(op.OutBlocks)
	if op.Async {
		to.flags |= C.SAGECOMM_ASYNC
	}
	if op.Paired {
		to.flags |= C.SAGECOMM_PAIRED
	}
}

// Wait waits until the operation is complete, but not longer than the given time, and helps to carry it out meanwhile. With 0 it
// only looks.
func (w Work) Wait(timeout time.Duration) (done bool, failure *coll.Failure) {
	if w.p == nil {
		return true, nil
	}
	f := frames.Get().(*frame)
	defer frames.Put(f)
	status := C.scr_wait(w.p.handle, C.int64_t(timeout), &f.err)
	if status == C.SAGECOMM_PENDING {
		return false, nil
	}
	w.p.settle()
	return true, failureOf(status, &f.err)
}

// OnDone makes done be called once when the operation is complete: on a thread of the library, or inside a Wait. If the operation
// is complete already, OnDone calls done itself. It may be called once for each Work.
func (w Work) OnDone(done func(*coll.Failure)) {
	if w.p == nil {
		done(nil)
		return
	}
	w.p.done = done
	C.scr_test(w.p.handle) // nobody waits; behind onDone the handle may be released
	w.p.onDone()
}

func (p *pendingWork) onDone() {
	f := frames.Get().(*frame)
	defer frames.Put(f)
	ctx := cgo.NewHandle(p)
	if status := C.scr_on_done_go(p.handle, C.uintptr_t(ctx), &f.err); status != C.SAGECOMM_PENDING {
		ctx.Delete()
		p.complete(failureOf(status, &f.err))
	}
}

func (p *pendingWork) complete(f *coll.Failure) {
	p.settle()
	if p.done != nil {
		p.done(f)
	}
}

//export scrGoDone
func scrGoDone(ctx C.uintptr_t, status C.int32_t, err *C.sagecomm_error) {
	h := cgo.Handle(ctx)
	p := h.Value().(*pendingWork)
	h.Delete()
	p.complete(failureOf(status, err))
}

// Release frees the Work. An operation that is not complete goes on.
func (w Work) Release() {
	if w.p == nil {
		return
	}
	if w.p.done == nil {
		if done, _ := w.Wait(0); !done {
			w.p.onDone()
		}
	}
	C.scr_release(w.p.handle)
}

// Sequence returns the number of the operation in its group, or 0 for a p2p operation.
func (w Work) Sequence() uint64 { return w.sequence }

// Source returns the rank whose send a complete recv has received, or -1 before that.
func (w Work) Source() int {
	if w.p == nil {
		return -1
	}
	return int(C.scr_work_source(w.p.handle))
}

// Error returns the group's first cause of failure, or nil if there is none.
func (g *Group) Error() *coll.Failure {
	f := frames.Get().(*frame)
	defer frames.Put(f)
	return failureOf(C.scr_group_error(C.sagecomm_group(g.handle), &f.err), &f.err)
}

func failureOf(status C.int32_t, e *C.sagecomm_error) *coll.Failure {
	if status >= 0 {
		return nil
	}
	return &coll.Failure{Status: coll.Status(status), Rank: int(e.rank), PID: int(e.pid), Sequence: uint64(e.sequence),
		Op: C.GoString(&e.op[0]), Group: C.GoString(&e.group[0]), Host: C.GoString(&e.host[0]),
		Message: C.GoString(&e.message[0])}
}
