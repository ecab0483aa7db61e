package runner

/*
#include "runner.h"
*/
import "C"

import (
	"sagecomm/internal/coll"
)

// This file has the operations of a group that fuses: bucket.h.

// Hold appends a collective to the held operations of the group. It gets a number among those of the user, and a place in the
// order of collectives when Carry takes it.
func (g *Group) Hold(c Call, length uint64) error {
	var down C.bool
	r := C.scr_hold(g.c, c.raw, C.uint64_t(length), &down)
	return c.issued(r, down)
}

// Carry numbers and queues one collective that carries out the first n held operations. length is the sum of their lengths. With
// own the program is freed with the run. After an error the program is the caller's.
// Requires: no other call of Carry for this group is under way.
func (g *Group) Carry(n int, length uint64, p Compiled, own bool) error {
	var down C.bool
	if C.scr_carry(g.c, C.uint32_t(n), C.uint64_t(length), p.c, C.bool(own), &down) {
		return nil
	}
	return unqueued(bool(down))
}

// CallOf returns a call without buffers, for [Group.Key].
func CallOf(op coll.Op) Call {
	return Call{raw: &C.sagecomm_op{kind: C.uint8_t(op.Kind), dtype: C.uint8_t(op.Type), reduce_op: C.uint8_t(op.Reduce), root: C.int32_t(op.Root)}}
}

// Agreement is a collective in which all ranks agree on the lowest of their proposals. It belongs to no operation of the user.
type Agreement struct{ c *C.scr_run }

// Agree begins an agreement on what follows from the held operations: about describes the first of them. With own the program,
// which is one for [AgreementOp], is freed with the run. After an error the program is the caller's.
func (g *Group) Agree(about coll.Op, proposal int, p Compiled, own bool) (Agreement, error) {
	var down C.bool
	r := C.scr_agree(g.c, C.uint32_t(about.Type)|C.uint32_t(about.Reduce)<<aboutReduce, C.uint64_t(proposal), p.c, C.bool(own), &down)
	if r == nil {
		return Agreement{}, unqueued(bool(down))
	}
	return Agreement{r}, nil
}

// AgreementOp is the collective that an agreement is made of.
var AgreementOp = coll.Op{Kind: coll.AllReduce, Type: coll.Int64, Reduce: coll.Min, Async: true, In: 8, Out: 8}

// aboutReduce is the place of the reduction in what peers compare; the type is in front of it.
const aboutReduce = 8

// Begin drives the agreement briefly and reports whether it is complete.
func (a Agreement) Begin() bool { return bool(C.scr_agree_begin(a.c)) }

// Lowest returns the lowest proposal of all ranks, or 0 if the agreement has failed. It reports false if it is not complete.
func (a Agreement) Lowest() (proposal uint64, complete bool) {
	var lowest C.uint64_t
	complete = bool(C.scr_agreed(a.c, &lowest))
	return uint64(lowest), complete
}

// WaitedFor reports whether a thread waits for the agreement that will drive what follows from it.
func (a Agreement) WaitedFor() bool { return bool(C.scr_agreement_waited_for(a.c)) }

// OnDone makes done be called once when the agreement is complete, as that of [Work.OnDone].
func (a Agreement) OnDone(done func(*coll.Failure)) {
	Work{p: &pendingWork{handle: C.scr_run_handle(a.c)}}.OnDone(done)
}

// Free gives the agreement back.
func (a Agreement) Free() { C.scr_run_drop(a.c) }

// share returns the agreement for C, with a reference of its own.
func (a Agreement) share() *C.scr_run {
	if a.c != nil {
		C.scr_run_keep(a.c)
	}
	return a.c
}

//export scrGoWant
func scrGoWant(group C.uint64_t, agreement **C.scr_run) {
	handler.Want(uint64(group), func(a Agreement) { *agreement = a.share() })
}

// Begin drives what is queued for a short time and leaves the rest to the engine.
func (g *Group) Begin() { C.scr_group_begin(g.c) }

// Claim calls the done functions of complete operations of carriers, on threads of the library, unless a waiter has called them.
func (g *Group) Claim() { C.scr_group_claim(g.c) }

// Carrying reports whether carriers of several operations are under way, or Claim has something to do.
func (g *Group) Carrying() bool { return bool(C.scr_group_carrying(g.c)) }

// Issued returns how many collectives the user has issued in this lane.
func (g *Group) Issued() uint64 { return uint64(C.scr_group_issued(g.c)) }

// Recorded returns the number of the last collective that a rank has begun in this lane.
func (g *Group) Recorded(rank int) uint64 { return uint64(C.scr_group_recorded(g.c, C.int32_t(rank))) }
