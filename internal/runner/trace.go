package runner

/*
#include "runner.h"
*/
import "C"

import (
	"time"

	"sagecomm/internal/coll"
)

// Phase is the kind of an event of the timeline.
type Phase uint8

// Kinds of events: the stages and steps of programs, and the others of runner.h.
const (
	PhasePublish     Phase = C.SCR_PUBLISH
	PhaseReduceSlots Phase = C.SCR_REDUCE
	PhaseCollect     Phase = C.SCR_COLLECT
	PhaseRead        Phase = C.SCR_READ
	PhaseAwait       Phase = C.SCR_AWAIT
	PhaseLocal       Phase = C.SCR_LOCAL
	PhaseSend        Phase = C.SCR_STEP_SEND
	PhaseRecv        Phase = C.SCR_STEP_RECV
	PhaseCombine     Phase = C.SCR_STEP_RECV_REDUCE
	PhaseReduceLocal Phase = C.SCR_STEP_REDUCE
	PhaseCopy        Phase = C.SCR_STEP_COPY
	PhaseWait        Phase = C.SCR_TRACE_WAIT  // spinning for a peer, inside a stage
	PhaseSleep       Phase = C.SCR_TRACE_SLEEP // yielding or sleeping between two stages
	PhaseQueue       Phase = C.SCR_TRACE_QUEUE // an operation from its issue until it began; it belongs to no thread
	PhaseOp          Phase = C.SCR_TRACE_OP    // an operation from its beginning until its end; it belongs to no thread
)

var phaseNames = map[Phase]string{PhasePublish: "publish", PhaseReduceSlots: "reduce", PhaseCollect: "collect", PhaseRead: "read",
	PhaseAwait: "await", PhaseLocal: "local", PhaseSend: "send", PhaseRecv: "recv", PhaseCombine: "recv_reduce",
	PhaseReduceLocal: "reduce", PhaseCopy: "copy", PhaseWait: "wait", PhaseSleep: "sleep", PhaseQueue: "queue", PhaseOp: "op"}

func (p Phase) String() string { return phaseNames[p] }

// Event is one event of the timeline.
type Event struct {
	Phase      Phase
	Kind       coll.Kind
	Type       coll.DataType
	Algorithm  string
	Begin, End time.Time
	Number     uint64 // number of the collective, or of the p2p operation
	Bytes      uint64 // length of the operation
	Chunk      uint64
	Thread     int // number of the thread in the operating system
	Peer       int // the rank that is waited for, or the other side of a p2p operation; -1: none
}

// TakeTrace takes the events out of the group's timeline and returns how many were lost since the last call.
// Requires: no other call is under way, and the group is not closed before it returns.
func (g *Group) TakeTrace() (events []Event, dropped uint64) {
	const most = 8192
	raw := make([]C.scr_trace_event, most)
	for {
		var lost C.uint64_t
		n := int(C.scr_group_take_trace(g.c, &raw[0], most, &lost))
		dropped += uint64(lost)
		for i := range raw[:n] {
			e := &raw[i]
			events = append(events, Event{Phase: Phase(e.what), Kind: coll.Kind(e.kind), Type: coll.DataType(e.dtype),
				Algorithm: algorithmName(e.algorithm), Begin: time.Unix(0, int64(e.begin)), End: time.Unix(0, int64(e.end)),
				Number: uint64(e.number), Bytes: uint64(e.bytes), Chunk: uint64(e.chunk), Thread: int(e.thread), Peer: int(e.peer)})
		}
		if n < most {
			return events, dropped
		}
	}
}
