package runner

/*
#include "runner.h"
*/
import "C"

import (
	"cmp"
	"math"
	"slices"
	"time"
	"unsafe"

	"sagecomm/internal/coll"
)

// Progress is the state of a recorded operation.
type Progress uint8

// States of an operation. Failed includes operations that never started.
const (
	Scheduled Progress = C.SCR_FLIGHT_SCHEDULED // queued, or in an open bucket
	Started   Progress = C.SCR_FLIGHT_STARTED
	Completed Progress = C.SCR_FLIGHT_COMPLETED
	Failed    Progress = C.SCR_FLIGHT_FAILED
)

func (p Progress) String() string {
	return [...]string{"unknown", "scheduled", "started", "completed", "failed"}[min(p, Failed)]
}

// Flight is the record of one operation. A time is zero if that has not happened.
type Flight struct {
	Op       coll.Op // Root of a complete recv is its source; In and Out are not known, Bytes() is
	Number   uint64  // of the collective in its group, or of the p2p operation among all of this rank
	Progress Progress
	Thread   uint64 // pthread_t of the caller
	Stack    string // of the caller, in the form of group_stack in sagecomm.h; empty: not known

	Created, Started, Completed time.Time
}

// FlightLog is the content of the flight recorder of a group.
type FlightLog struct {
	Flights []Flight // the newest operations, in the order in which they were created
	Total   uint64   // operations since the group was made; Flights has the last of them
	// Numbers of the last collective that was issued, of the last that began, and of the last that succeeded.
	Issued, Started, Completed uint64
}

// FlightBytes returns the size in an arena of a recorder of that capacity.
func FlightBytes(capacity int, stacks bool) int64 {
	return int64(C.scr_flight_bytes(C.uint32_t(capacity), C.bool(stacks)))
}

// Recorder is the place of a flight recorder, of this process or of another one, which may have written anything.
type Recorder struct{ at C.scr_flights }

// RecorderAt returns the recorder at an offset of a mapping. It returns false if the recorder would lie outside, or if it counts
// time by another clock than this process.
func RecorderAt(base unsafe.Pointer, bytes, offset int64, capacity int, stacks bool) (Recorder, bool) {
	if capacity < 1 || capacity > math.MaxInt32 || offset < 0 || offset%pageBytes != 0 || offset > bytes-FlightBytes(capacity, stacks) {
		return Recorder{}, false
	}
	r := Recorder{C.scr_flights_at(unsafe.Add(base, offset), C.uint32_t(capacity), C.bool(stacks))}
	return r, r.at.capacity != 0
}

// pageBytes divides the offset at which a recorder begins.
const pageBytes = 4096

// Recorder returns the recorder of a rank. It is empty if the rank records nothing or if this process cannot read the records.
// It is valid until Close.
func (g *Group) Recorder(rank int) Recorder {
	return Recorder{C.scr_group_flights(g.c, C.int32_t(rank))}
}

// Flights returns the written records, whether their process lives or not.
func (r Recorder) Flights() FlightLog {
	raw := make([]C.scr_flight, 2*int(r.at.capacity)+1)
	var total C.uint64_t
	n := C.scr_flights_read(&r.at, &raw[0], &total)
	return r.log(raw[:n], total)
}

// Flights returns the records of this rank, with those of queued operations. Operations go on meanwhile.
// Requires: the group is not closed before it returns.
func (g *Group) Flights() FlightLog {
	r := g.Recorder(g.rank)
	raw := make([]C.scr_flight, 3*int(r.at.capacity)+1)
	var total C.uint64_t
	n := C.scr_group_read_flights(g.c, &raw[0], &total)
	return r.log(raw[:n], total)
}

func (r Recorder) log(raw []C.scr_flight, total C.uint64_t) FlightLog {
	log := FlightLog{Total: uint64(total)}
	for i := range raw {
		if f := &raw[i]; coll.Kind(f.kind).Collective() {
			log.Issued = max(log.Issued, uint64(f.number))
			if f.started_ns != 0 {
				log.Started = max(log.Started, uint64(f.number))
			}
			if f.state == C.SCR_FLIGHT_COMPLETED {
				log.Completed = max(log.Completed, uint64(f.number))
			}
		}
	}
	slices.SortStableFunc(raw, func(a, b C.scr_flight) int { return cmp.Compare(a.ticks, b.ticks) })
	raw = raw[max(0, len(raw)-int(r.at.capacity)):]
	log.Flights = make([]Flight, len(raw))
	stacks := map[C.uint32_t]string{}
	for i := range raw {
		log.Flights[i] = goFlight(&raw[i])
		if number := raw[i].stack; number != 0 {
			if _, known := stacks[number]; !known {
				stacks[number] = r.stack(number)
			}
			log.Flights[i].Stack = stacks[number]
		}
	}
	return log
}

// Last returns the newest collective, or p2p operation, that has begun.
func (r Recorder) Last(p2p bool) (Flight, bool) {
	var raw C.scr_flight
	if !bool(C.scr_flights_last(&r.at, C.bool(p2p), &raw)) {
		return Flight{}, false
	}
	f := goFlight(&raw)
	if raw.stack != 0 {
		f.Stack = r.stack(raw.stack)
	}
	return f, true
}

// longestStack bounds the text of one stack. No stack that the shim writes is as long.
const longestStack = 16 << 10

func (r Recorder) stack(number C.uint32_t) string {
	var text [longestStack]byte
	n := C.scr_flights_stack(&r.at, number, unsafe.Pointer(&text[0]), longestStack)
	return string(text[:n])
}

// stackBytes is the room for the texts of all stacks, each with 4 bytes for its length.
const stackBytes = C.SCR_STACK_BYTES

// PutStack stores a text at a place where there is none yet. The number of the text is the place plus 1. PutStack returns false
// if there is no room.
func (g *Group) PutStack(at int, text string) bool {
	b := []byte(text)
	return at >= 0 && at <= stackBytes && len(b) <= longestStack && bool(C.scr_group_put_stack(g.c, C.uint32_t(at), unsafe.Pointer(unsafe.SliceData(b)), C.uint32_t(len(b))))
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
