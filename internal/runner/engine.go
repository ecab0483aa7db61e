package runner

/*
#include <stdlib.h>
#include "runner.h"
*/
import "C"

import (
	"time"
	"unsafe"
)

// Reason says why a turn of the engine ended.
type Reason int

// Reasons for the end of a turn.
const (
	Control       Reason = C.SCR_ENGINE_CONTROL   // WakeEngine was called
	FoundIncident Reason = C.SCR_ENGINE_INCIDENT  // a group met an incident
	WantCompleter Reason = C.SCR_ENGINE_COMPLETER // completed operations wait for a thread
	WantFifo      Reason = C.SCR_ENGINE_FIFO      // a group needs a fifo to a peer
)

// Turn is the outcome of one call of [Engine.Turn].
type Turn struct {
	Reason   Reason
	Group    uint64
	Incident Incident // with WantFifo, its Peer is the rank to which a fifo is needed
}

// BellBytes is the size of an engine bell in an arena.
const BellBytes = bellBytes

// MaxBells bounds how many arenas with a bell a process can have at a time.
const MaxBells = C.SCR_MAX_BELLS

// AddEngineBell makes the engine listen to the bell at an address in an arena of this process. It returns false if there are
// MaxBells already.
func AddEngineBell(word unsafe.Pointer) bool { return bool(C.scr_engine_add_bell(word)) }

// RemoveEngineBell undoes AddEngineBell. The engine may read the bell until its next turn.
// Requires: no other call of AddEngineBell or RemoveEngineBell is under way.
func RemoveEngineBell(word unsafe.Pointer) { C.scr_engine_remove_bell(word) }

// EngineConfig says how the engine waits for peers and for work.
type EngineConfig struct {
	Backoff   Backoff
	Slice     time.Duration // for how long one look at a group drives its queue
	Look      time.Duration // while there is work: how often the engine checks whether its waits can still succeed
	Gate      time.Duration // the longest sleep while a run is blocked at a gate
	Sound     time.Duration // the longest sleep while there is no work
	IdleLooks int           // looks without work before a sleep of that length
}

// ConfigureEngine sets the configuration. It is called once, before the first turn.
func ConfigureEngine(c EngineConfig) {
	C.scr_engine_configure(&C.scr_engine_config{spin: C.uint32_t(c.Backoff.Spin), yield_us: C.uint32_t(c.Backoff.Yield / time.Microsecond),
		slice_ns: C.int64_t(c.Slice), look_ns: C.int64_t(c.Look), gate_ns: C.int64_t(c.Gate), sound_ns: C.int64_t(c.Sound), idle_looks: C.uint32_t(c.IdleLooks)})
}

// Engine is the list of groups that one progress engine drives. Its methods are for one goroutine that is locked to
// its thread.
type Engine struct {
	list unsafe.Pointer
	n    int
}

// SetGroups replaces the list of groups.
func (e *Engine) SetGroups(groups []*Group) {
	C.free(e.list)
	e.list, e.n = nil, len(groups)
	if e.n == 0 {
		return
	}
	// The memory is zeroed, because the garbage collector looks at a pointer before it is overwritten.
	e.list = C.calloc(C.size_t(e.n), C.size_t(unsafe.Sizeof(uintptr(0))))
	for i, g := range groups {
		unsafe.Slice((**C.scr_group)(e.list), e.n)[i] = g.c
	}
}

// Turn drives the groups until Go has something to do. It blocks in C.
func (e *Engine) Turn() Turn {
	var group C.uint64_t
	var t C.scr_incident
	reason := C.scr_engine_turn((**C.scr_group)(e.list), C.int(e.n), &group, &t)
	return Turn{Reason(reason), uint64(group), goIncident(&t)}
}

// WakeEngine ends the engine's turn.
func WakeEngine() { C.scr_engine_control() }

// RunCompleter calls the done functions of completed operations on this thread. It returns when there was none for the given
// time.
func RunCompleter(idle time.Duration) { C.scr_completer_run(C.int64_t(idle)) }

// Completing reports whether done functions of completed operations are left to call, or are being called by completers.
func Completing() bool { return bool(C.scr_completing()) }

// GoEntries returns how often operations of this process have entered Go.
func GoEntries() uint64 { return uint64(C.scr_go_entries()) }

// InChild reports whether this process was forked from one that used the runner.
func InChild() bool { return bool(C.scr_in_child()) }
