package runner

/*
#include "runner.h"

static int32_t interrupted(const sagecomm_op *op) {
  return op->bridge != NULL ? op->bridge->interrupted(op->bridge->ctx) : 0;
}
*/
import "C"

import (
	"errors"
	"runtime"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
)

// LeftOut takes the place of a batch's number where an operation of a coalesced call is not carried out.
const LeftOut = uint32(C.SCR_LEFT_OUT)

// Call is an operation that waits to be issued. It is valid only until the method of [Handler] that got it returns.
type Call struct {
	raw *C.sagecomm_op
	out **C.scr_run
}

// Op returns the call in the form of Go, for a group of size ranks.
func (c Call) Op(size int) coll.Op {
	o := c.raw
	return coll.Op{Kind: coll.Kind(o.kind), Type: coll.DataType(o.dtype), Reduce: coll.ReduceOp(o.reduce_op),
		Root: int(o.root), Tag: int(o.tag), Factor: float64(o.factor),
		Timeout: time.Duration(o.timeout_ns), In: uint64(C.scr_total(o.in, o.n_in)), Out: uint64(C.scr_total(o.out, o.n_out)),
		InBlocks: blocks(o.in_blocks, size), OutBlocks: blocks(o.out_blocks, size), Parts: int(o.batch_size), Async: o.flags&C.SAGECOMM_ASYNC != 0, Paired: o.flags&C.SAGECOMM_PAIRED != 0,
		Device: coll.Device{Type: coll.DeviceType(o.device_type), Index: int(o.device_index)}, Stream: uintptr(o.stream), Ordering: coll.Ordering(o.ordering)}
}

// blocks returns a copy of the lengths of blocks.
func blocks(list *C.uint64_t, size int) []uint64 {
	if list == nil {
		return nil
	}
	return append([]uint64(nil), unsafe.Slice((*uint64)(unsafe.Pointer(list)), size)...)
}

// Whole reports whether every segment consists of whole elements of that many bytes, a power of two.
func (c Call) Whole(elem int) bool { return bool(C.scr_op_whole(c.raw, C.uint64_t(elem))) }

// Segment is a contiguous piece of memory, of the host or of a device.
type Segment struct {
	Data  uintptr
	Bytes uint64
}

// In returns the segments of the input.
func (c Call) In() []Segment { return goSegments(c.raw.in, c.raw.n_in) }

// Out returns the segments of the output.
func (c Call) Out() []Segment { return goSegments(c.raw.out, c.raw.n_out) }

func goSegments(list *C.sagecomm_segment, n C.uint32_t) []Segment {
	out := make([]Segment, n)
	for i, s := range unsafe.Slice(list, int(n)) {
		out[i] = Segment{uintptr(s.data), uint64(s.bytes)}
	}
	return out
}

// Bridge returns sagecomm_op.bridge.
func (c Call) Bridge() unsafe.Pointer { return unsafe.Pointer(c.raw.bridge) }

// Interrupted lets the caller handle signals, and reports whether the call is to end. It is called on the caller's thread.
// Requires: the bridge, if the call has one, is complete.
func (c Call) Interrupted() bool { return C.interrupted(c.raw) != 0 }

// ErrDown is returned by Submit when the group has failed.
var ErrDown = errors.New("sagecomm: the group is down")

// Submit numbers a call and queues it; length is as in [Group.Key]. With own the program is freed with the run.
func (g *Group) Submit(c Call, length uint64, p Compiled, own bool) error {
	return g.submit(c.raw, c, length, p, own, nil)
}

func (g *Group) submit(op *C.sagecomm_op, c Call, length uint64, p Compiled, own bool, gate *C.scr_gate) error {
	var down C.bool
	r := C.scr_submit(g.c, op, C.uint64_t(length), p.c, C.bool(own), gate, &down)
	return c.issued(r, down)
}

// Gate describes to SubmitAtGate how a run and the streams of a device hand over pinned memory: docs/protocol.md, section 11.
type Gate struct {
	Words           *GateWords
	Window          uint32    // units for which the buffers have room; 0: for all
	Inputs, Outputs uint32    // units that the device moves
	In, Out         []Segment // pinned memory in place of the buffers of the call, which are as long

	// External is for an operation that the streams carry out: the run is numbered, compared with the calls of the peers and
	// recorded, and reads no buffer. It is complete when OutputTaken is 1. The program is [NewExternal]'s.
	External bool
	// Void, where an external run has one, is not 0 when what the streams have done may be void: such a run does not complete, and
	// the group fails. It stays valid as long as Words.
	Void *uint32
}

// SubmitAtGate is Submit for an operation on a device. Words and segments stay in use until the run is complete.
func (g *Group) SubmitAtGate(c Call, length uint64, p Compiled, own bool, gate Gate) error {
	return c.atGate(gate, func(op *C.sagecomm_op, at *C.scr_gate) error {
		return g.submit(op, c, length, p, own, at)
	})
}

// atGate calls do with the operation on the pinned memory of a gate, and with the gate in C.
func (c Call) atGate(gate Gate, do func(*C.sagecomm_op, *C.scr_gate) error) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	op := *c.raw
	op.n_in, op.in = cSegments(gate.In, &pins)
	op.n_out, op.out = cSegments(gate.Out, &pins)
	return do(&op, &C.scr_gate{words: gate.Words.c(), window: C.uint32_t(gate.Window), inputs: C.uint32_t(gate.Inputs),
		outputs: C.uint32_t(gate.Outputs), external: C.bool(gate.External), voided: (*C.scr_word)(unsafe.Pointer(gate.Void))})
}

// issued hands a new run to the caller of the runner, or returns why there is none.
func (c Call) issued(r *C.scr_run, down C.bool) error {
	if r == nil {
		return unqueued(bool(down))
	}
	*c.out = r
	return nil
}

// unqueued returns why a collective was not queued.
func unqueued(down bool) error {
	if down {
		return ErrDown
	}
	return errors.New("sagecomm: no memory for another operation")
}

func cSegments(list []Segment, pins *runtime.Pinner) (C.uint32_t, *C.sagecomm_segment) {
	if len(list) == 0 {
		return 0, nil
	}
	out := make([]C.sagecomm_segment, len(list))
	for i, s := range list {
		out[i].bytes = C.uint64_t(s.Bytes)
		*(*uintptr)(unsafe.Pointer(&out[i].data)) = s.Data // not memory of Go
	}
	pins.Pin(&out[0])
	return C.uint32_t(len(list)), &out[0]
}
