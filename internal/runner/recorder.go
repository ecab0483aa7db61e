package runner

/*
#include "runner.h"
*/
import "C"

import (
	"cmp"
	"slices"
	"time"

	"sagecomm/internal/coll"
)

// Progress is how far a recorded operation has come.
type Progress uint8

// The stages of an operation. Failed covers operations that never started.
const (
	Scheduled Progress = C.SCR_FLIGHT_SCHEDULED // numbered and queued
	Started   Progress = C.SCR_FLIGHT_STARTED
	Completed Progress = C.SCR_FLIGHT_COMPLETED
	Failed    Progress = C.SCR_FLIGHT_FAILED
)

func (p Progress) String() string {
	return [...]string{"unknown", "scheduled", "started", "completed", "failed"}[min(p, Failed)]
}

// Flight is one operation as the flight recorder knows it. Times are zero for what has not happened.
type Flight struct {
	Op       coll.Op // Root of a complete recv is its source; of the lengths only Bytes() is known
	Number   uint64  // of the collective in its group, or of the message among those of this rank
	Progress Progress
	Thread   uint64 // pthread_t of the caller

	Created, Started, Completed time.Time
}

// FlightLog is what a group's recorder knows.
type FlightLog struct {
	Flights []Flight // the newest operations, in the order in which they were created
	Total   uint64   // operations ever, the last of which are the Flights
	// Numbers of the last collectives that began and that succeeded.
	Started, Completed uint64
}

// Flights reads the recorder. The group is not closed meanwhile; operations go on.
func (g *Group) Flights() FlightLog {
	capacity := int(C.scr_group_flight_capacity(g.c))
	if capacity == 0 {
		return FlightLog{}
	}
	var log FlightLog
	var total C.uint64_t
	raw := make([]C.scr_flight, 3*capacity)
	raw = raw[:int(C.scr_group_read_flight(g.c, &raw[0], &total))]
	log.Total = uint64(total)
	for i := range raw {
		if f := &raw[i]; coll.Kind(f.kind).Collective() {
			if f.started_ns != 0 {
				log.Started = max(log.Started, uint64(f.number))
			}
			if f.state == C.SCR_FLIGHT_COMPLETED {
				log.Completed = max(log.Completed, uint64(f.number))
			}
		}
	}
	slices.SortStableFunc(raw, func(a, b C.scr_flight) int { return cmp.Compare(a.ticks, b.ticks) })
	raw = raw[max(0, len(raw)-capacity):]
	log.Flights = make([]Flight, len(raw))
	for i := range raw {
		log.Flights[i] = goFlight(&raw[i])
	}
	return log
}

func goFlight(f *C.scr_flight) Flight {
	at := func(ns C.int64_t) time.Time {
		if ns == 0 {
			return time.Time{}
		}
		return time.Unix(0, int64(ns))
	}
	op := known(coll.Op{Kind: coll.Kind(f.kind), Type: coll.DataType(f.dtype), Reduce: coll.ReduceOp(f.reduce_op),
		Root: int(f.root), Tag: int(f.tag), Timeout: time.Duration(f.timeout_ms) * time.Millisecond,
		Async: f.async != 0}, uint64(f.bytes))
	return Flight{Op: op, Number: uint64(f.number), Progress: Progress(f.state), Thread: uint64(f.thread),
		Created: at(f.created_ns), Started: at(f.started_ns), Completed: at(f.completed_ns)}
}
