package runner

/*
#include "runner.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
)

// Code is the kind of an incident: of what a driver met that Go has to diagnose.
type Code int

// Kinds of incidents.
const (
	FailureWord Code = C.SCR_INCIDENT_FAILURE  // a rank has declared the group failed
	Mismatch    Code = C.SCR_INCIDENT_MISMATCH // Peer made another call
	Timeout     Code = C.SCR_INCIDENT_TIMEOUT  // the deadline passed while waiting for Peer
	Left        Code = C.SCR_INCIDENT_LEFT     // Peer has left the group, but is needed
	Length      Code = C.SCR_INCIDENT_LENGTH   // Peer sent Got bytes where Op.Bytes() were expected
	Garbage     Code = C.SCR_INCIDENT_GARBAGE  // Peer wrote an invalid p2p frame, or an invalid offset of its slots
	WrongType   Code = C.SCR_INCIDENT_TYPE     // Peer sent elements of the DataType Got
	NoMemory    Code = C.SCR_INCIDENT_MEMORY   // this process has no memory for what came from Peer
	Uneven      Code = C.SCR_INCIDENT_UNEVEN   // this rank's blocks differ in length, which the program does not allow
	Split       Code = C.SCR_INCIDENT_SPLIT    // Peer has a block of Got bytes where Want were expected
	BlocksUnfit Code = C.SCR_INCIDENT_UNFIT    // the blocks between this rank and Peer differ in an external all_to_all: see Group.Unfit

	// In a collective, Peer wrote what no rank writes:

	BadLongest Code = C.SCR_INCIDENT_BAD_LONGEST // as the length of the longest block of its all_to_all
	BadChannel Code = C.SCR_INCIDENT_BAD_CHANNEL // as the offset of its channel number Got to this rank
	BadMessage Code = C.SCR_INCIDENT_BAD_MESSAGE // as a message in that channel
	BadTaken   Code = C.SCR_INCIDENT_BAD_TAKEN   // as the number of messages that it has taken from this rank's channel number Got
)

// Incident is an event that a driver met in an operation and that Go has to diagnose.
type Incident struct {
	Code     Code
	Peer     int // -1: the operation has not started
	Sequence uint64
	Op       coll.Op
	Sent     bool // of a recv: a rank has called the matching send, whose payload has not come
	Got      uint64
	Want     uint64
	Waited   time.Duration
	Timeout  time.Duration
}

// Oldest returns the first of the operations that are not complete, as one that has timed out: collectives come before p2p operations. It
// finds none while a thread drives the collectives, and reports that.
func (g *Group) Oldest() (t Incident, found, driven bool) {
	var c C.scr_incident
	if answer := C.scr_group_oldest(g.c, &c); answer <= 0 {
		return t, false, answer < 0
	}
	return goIncident(&c), true, false
}

func goIncident(t *C.scr_incident) Incident {
	op := known(coll.Op{Kind: coll.Kind(t.kind), Type: coll.DataType(t.dtype), Reduce: coll.ReduceOp(t.reduce_op),
		Root: int(t.root), Tag: int(t.tag), Parts: int(t.parts)}, uint64(t.bytes))
	op = agreementOf(op)
	return Incident{Code: Code(t.code), Peer: int(t.peer), Sequence: uint64(t.sequence), Op: op, Sent: bool(t.announced), Got: uint64(t.got), Want: uint64(t.bytes),
		Waited: time.Duration(t.waited_ns), Timeout: time.Duration(t.timeout_ns)}
}

// known returns an operation of which only the length is known.
func known(op coll.Op, bytes uint64) coll.Op {
	op.In, op.Out = bytes, bytes
	return op
}

func copyText(to []C.char, text string) {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > len(to)-1 {
		text = strings.ToValidUTF8(text[:len(to)-1], "")
	}
	for i := range len(text) {
		to[i] = C.char(text[i])
	}
	to[len(text)] = 0
}

func fillError(to *C.sagecomm_error, f *coll.Failure) {
	to.status, to.rank = C.int32_t(f.Status), C.int32_t(f.Rank)
	to.pid, to.sequence = C.int64_t(f.PID), C.uint64_t(f.Sequence)
	copyText(to.op[:], f.Op)
	copyText(to.group[:], f.Group)
	copyText(to.host[:], f.Host)
	copyText(to.message[:], f.Message)
}

// FillError copies a failure into a sagecomm_error; nil is allowed. It returns the failure's status.
func FillError(to unsafe.Pointer, f *coll.Failure) coll.Status {
	if to != nil {
		fillError((*C.sagecomm_error)(to), f)
	}
	return f.Status
}

// FailureOf returns the failure that a sagecomm_error holds.
func FailureOf(e unsafe.Pointer) *coll.Failure {
	c := (*C.sagecomm_error)(e)
	if f := failureOf(c.status, c); f != nil {
		return f
	}
	return &coll.Failure{Status: coll.Status(c.status)}
}

// Declare writes f into this rank's failure record and tries to make it the group's first cause. It returns the first cause:
// f, or the one that another thread or rank declared before.
func (g *Group) Declare(f *coll.Failure) *coll.Failure {
	record := EncodeFailure(f)
	C.scr_group_set_failure(g.c, unsafe.Pointer(&record[0]), C.size_t(len(record)))
	if first := g.FirstCause(); first != nil {
		return first
	}
	return f
}

// GiveUp stores f and a goodbye in this rank's shared block, for peers that have opened a group which this rank could not open.
func GiveUp(shared unsafe.Pointer, f *coll.Failure) {
	record := EncodeFailure(f)
	C.scr_shared_give_up(shared, unsafe.Pointer(&record[0]), C.size_t(len(record)))
}

// GaveUp returns the failure that a rank stored with GiveUp, or nil if it has not given up.
func (g *Group) GaveUp(rank int) *coll.Failure {
	record := make([]byte, FailureBytes)
	if !bool(C.scr_group_gave_up(g.c, C.int32_t(rank), unsafe.Pointer(&record[0]), FailureBytes)) {
		return nil
	}
	return decode(record, rank, fmt.Sprintf("rank %d gave up while the group was made", rank))
}

// EncodeFailure returns the record of a failure, at most FailureBytes.
func EncodeFailure(f *coll.Failure) []byte {
	// A long message is shortened before it is encoded, because a record that is cut at its end is not readable.
	short := *f
	if len(short.Message) > 2000 {
		short.Message = strings.ToValidUTF8(short.Message[:2000], "")
	}
	record, err := json.Marshal(&short)
	if err != nil || len(record) >= FailureBytes {
		short.Message = short.Message[:min(len(short.Message), 300)]
		record, _ = json.Marshal(&short)
	}
	record = append(record, 0)
	return record[:min(len(record), FailureBytes)]
}

// StrayPointers is the advice for errors about shared memory that holds what no rank writes.
const StrayPointers = "a process has written where it should not: look for stray pointers, first in the process of that rank"

// decode reads the failure record of a rank. claim describes what made this rank read it, for the error text of a record that
// is not valid.
func decode(record []byte, writer int, claim string) *coll.Failure {
	text, _, _ := strings.Cut(string(record), "\x00")
	f := new(coll.Failure)
	if err := json.Unmarshal([]byte(text), f); err != nil || !f.Status.Known() || f.Rank < -1 {
		return &coll.Failure{Status: coll.Internal, Rank: writer,
			Message: fmt.Sprintf("sagecomm: shared memory corrupted: %s, but the failure record of rank %d is not readable; %s", claim, writer, StrayPointers)}
	}
	return f
}

// FirstCause returns the failure that a rank has declared for the group, or nil.
func (g *Group) FirstCause() *coll.Failure {
	if C.scr_group_get_failure(g.c, nil, 0) == 0 {
		return nil
	}
	record := make([]byte, FailureBytes)
	winner := int(C.scr_group_get_failure(g.c, unsafe.Pointer(&record[0]), FailureBytes))
	if winner == 0 {
		return nil
	}
	return decode(record, winner-1, fmt.Sprintf("rank %d has declared a failure (written in the memory of rank %d)", winner-1, g.word))
}

// Down makes every later operation of the group in this process fail with f, and completes the queued operations. Only the
// first call sets the cause.
func (g *Group) Down(f *coll.Failure) {
	var e C.sagecomm_error
	fillError(&e, f)
	C.scr_group_down(g.c, &e)
}

// FailureRank returns the rank whose shared block has the failure word of the group.
func (g *Group) FailureRank() int { return g.word }

// Recause replaces the cause with which this lane is down. Operations that have failed keep theirs. It reports whether there was memory for
// that; else the lane keeps its cause, and other ranks may have another one: the caller logs it.
// Requires: the group is down, and cannot be closed meanwhile.
func (g *Group) Recause(f *coll.Failure) bool {
	var e C.sagecomm_error
	fillError(&e, f)
	return bool(C.scr_group_recause(g.c, &e))
}

// coll.ManyParts equals the limit up to which C counts. This does not compile where they differ.
var _ = [1]struct{}{}[coll.ManyParts-C.SCR_MANY_PARTS]

// Announced describes a collective as a rank has announced it in its shared block.
type Announced struct {
	Sequence, Hash uint64
	Op             coll.Op
	Uneven         bool // blocks differ in length
}

// Announced returns the collective that a rank announced under a sequence number, if its record has not been overwritten.
func (g *Group) Announced(rank int, sequence uint64) (Announced, bool) {
	var c C.scr_call
	if !bool(C.scr_group_call(g.c, C.int32_t(rank), C.uint64_t(sequence), &c)) {
		return Announced{}, false
	}
	return announced(&c), true
}

// LastIn returns the last collective that a rank announced in a lane, which this process need not have opened.
func (g *Group) LastIn(lane Lane, rank int) (Announced, bool) {
	var c C.scr_call
	if !bool(C.scr_group_last_in(g.c, C.int(lane), C.int32_t(rank), &c)) {
		return Announced{}, false
	}
	return announced(&c), true
}

func announced(c *C.scr_call) Announced {
	op := known(coll.Op{Kind: coll.Kind(c.kind), Type: coll.DataType(c.dtype), Reduce: coll.ReduceOp(c.reduce_op), Root: int(c.root),
		Parts: int(c.parts)},
		uint64(c.bytes))
	return Announced{Sequence: uint64(c.sequence), Hash: uint64(c.hash), Op: agreementOf(op), Uneven: c.uneven != 0}
}

// agreementOf returns an operation as users know it: an agreement stands for the operations that it is about.
func agreementOf(op coll.Op) coll.Op {
	if op.Kind != coll.AllReduce || op.Root&C.SCR_AGREES == 0 {
		return op
	}
	return coll.Op{Kind: coll.AllReduce, Type: coll.DataType(op.Root & (1<<aboutReduce - 1)), Reduce: coll.ReduceOp(op.Root >> aboutReduce & (1<<aboutReduce - 1)), Bucket: true}
}

// Unfit is an external all_to_all of which two ranks have told different lengths of the blocks between them. Where they are equal, the blocks of
// an earlier one did not fit, which the ranks do not remember any more.
type Unfit struct {
	Sequence               uint64
	Sent, Expected         uint64 // by this rank: bytes to the peer, and from it
	PeerSent, PeerExpected uint64 // by the peer: bytes to this rank, and from it
}

// Unfit returns the first external all_to_all in which the blocks between this rank and a peer do not fit, of those that both remember.
func (g *Group) Unfit(peer int) (Unfit, bool) {
	var u C.scr_unfit
	if !bool(C.scr_group_unfit(g.c, C.int32_t(peer), &u)) {
		return Unfit{}, false
	}
	return Unfit{uint64(u.sequence), uint64(u.sent), uint64(u.expected), uint64(u.peer_sent), uint64(u.peer_expected)}, true
}

// BlocksTold returns of how many external all_to_alls a rank has told its blocks.
func (g *Group) BlocksTold(rank int) uint64 { return uint64(C.scr_group_splits(g.c, C.int32_t(rank))) }

// LastCall returns the number of the last collective that a rank announced, 0 for none, and whether the rank has left the group.
func (g *Group) LastCall(rank int) (sequence uint64, left bool) {
	var l C.bool
	s := C.scr_group_last_call(g.c, C.int32_t(rank), &l)
	return uint64(s), bool(l)
}

// Consumed returns how many chunks of all collectives so far a rank has finished. It orders ranks that have made the same calls
// by their progress.
func (g *Group) Consumed(rank int) uint64 { return uint64(C.scr_group_consumed(g.c, C.int32_t(rank))) }

// Awaits returns the rank for which another rank sleeps in a collective, or over which it has met an incident. It returns -1 if
// that rank is awake; a rank that waits for long is awake from time to time.
func (g *Group) Awaits(rank int) int { return int(C.scr_group_awaits(g.c, C.int32_t(rank))) }
