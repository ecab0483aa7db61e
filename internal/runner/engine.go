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

// Reason is why an engine's turn ended.
type Reason int

// The reasons.
const (
	Control       Reason = C.SCR_ENGINE_CONTROL   // WakeEngine was called
	FoundIncident Reason = C.SCR_ENGINE_INCIDENT  // a group met an incident
	WantCompleter Reason = C.SCR_ENGINE_COMPLETER // completed operations wait for a thread
	WantFifo      Reason = C.SCR_ENGINE_FIFO      // a group needs a fifo to a peer
)

// Turn is the outcome of one turn.
type Turn struct {
	Reason   Reason
	Group    uint64
	Incident Incident // its Peer also says whom a fifo is wanted to
}

// BellBytes is how much memory an engine bell takes in an arena.
const BellBytes = bellBytes

// MaxBells is how many arenas with a bell a process can have at a time.
const MaxBells = C.SCR_MAX_BELLS

// AddEngineBell has the engine listen to the word at that place of an arena of this process.
func AddEngineBell(word unsafe.Pointer) bool { return bool(C.scr_engine_add_bell(word)) }

// RemoveEngineBell undoes AddEngineBell. The engine itself may read the word until its next turn. Callers take turns with
// those of AddEngineBell.
func RemoveEngineBell(word unsafe.Pointer) { C.scr_engine_remove_bell(word) }

// EngineConfig is how the engine waits for peers and for work.
type EngineConfig struct {
	Backoff   Backoff
	Slice     time.Duration // one look at a group drives its queue for so long
	Look      time.Duration // while there is work it looks so often whether waiting makes sense
	Sound     time.Duration // its longest sleep where there is none
	IdleLooks int           // after so many looks without work it sleeps for so long
}

// ConfigureEngine is called once, before the first turn.
func ConfigureEngine(c EngineConfig) {
	C.scr_engine_configure(&C.scr_engine_config{spin: C.uint32_t(c.Backoff.Spin), yield_us: C.uint32_t(c.Backoff.Yield / time.Microsecond),
		slice_ns: C.int64_t(c.Slice), look_ns: C.int64_t(c.Look), sound_ns: C.int64_t(c.Sound), idle_looks: C.uint32_t(c.IdleLooks)})
}

// Engine is the list of groups that one progress engine drives. Its methods are for one goroutine that is locked to
// its thread.
type Engine struct {
	list unsafe.Pointer
	n    int
}

// SetGroups replaces the list.
func (e *Engine) SetGroups(groups []*Group) {
	C.free(e.list)
	e.list, e.n = nil, len(groups)
	if e.n == 0 {
		return
	}
	// Zeroed, because storing a pointer makes the collector look at the one that was there before.
	e.list = C.calloc(C.size_t(e.n), C.size_t(unsafe.Sizeof(uintptr(0))))
	for i, g := range groups {
		unsafe.Slice((**C.scr_group)(e.list), e.n)[i] = g.c
	}
}

// Turn drives the groups until there is something for Go to do. It blocks in C.
func (e *Engine) Turn() Turn {
	var group C.uint64_t
	var t C.scr_incident
	reason := C.scr_engine_turn((**C.scr_group)(e.list), C.int(e.n), &group, &t)
	return Turn{Reason(reason), uint64(group), goIncident(&t)}
}

// WakeEngine ends the engine's turn.
func WakeEngine() { C.scr_engine_control() }

// RunCompleter calls the done functions of completed operations on this thread, until there was nothing to do for that
// long.
func RunCompleter(idle time.Duration) { C.scr_completer_run(C.int64_t(idle)) }

// GoEntries counts how often operations of this process entered Go.
func GoEntries() uint64 { return uint64(C.scr_go_entries()) }

// InChild reports whether this process is a fork of one that used the runner.
func InChild() bool { return bool(C.scr_in_child()) }
