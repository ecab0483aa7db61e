package runner

/*
#include "annotate.h"
#include "gate.h"

static void scr_gate_reset(scr_gate_words *w) {
  scr_note_acquired(&w->input_ready);
  scr_note_acquired(&w->output_taken);
  scr_note_stored(&w->input_ready, 0);
  scr_note_stored(&w->output_taken, 0);
  scr_note_stored(&w->input_taken, 0);
  scr_note_stored(&w->output_done, 0);
  atomic_store_explicit(&w->input_ready, 0, memory_order_relaxed);
  atomic_store_explicit(&w->output_taken, 0, memory_order_relaxed);
  atomic_store_explicit(&w->input_taken, 0, memory_order_relaxed);
  atomic_store_explicit(&w->output_done, 0, memory_order_relaxed);
}

static void scr_gate_end(scr_gate_words *w) {
  scr_note_stored(&w->input_taken, SCR_GATE_OPEN);
  scr_note_stored(&w->output_done, SCR_GATE_OPEN);
  atomic_store_explicit(&w->input_taken, SCR_GATE_OPEN, memory_order_release);
  atomic_store_explicit(&w->output_done, SCR_GATE_OPEN, memory_order_release);
}

// Whoever sees that a device has moved all comes behind it, and so does what that thread queues from then on.
static bool scr_gate_moved(scr_gate_words *w, uint32_t inputs, uint32_t outputs) {
  if ((uint32_t)atomic_load_explicit(&w->input_ready, memory_order_acquire) != inputs ||
      (uint32_t)atomic_load_explicit(&w->output_taken, memory_order_acquire) != outputs) {
    return false;
  }
  scr_note_acquired(&w->input_ready);
  scr_note_acquired(&w->output_taken);
  return true;
}
static bool scr_gate_read(scr_gate_words *w, uint32_t inputs) {
  if ((uint32_t)atomic_load_explicit(&w->input_ready, memory_order_acquire) != inputs) return false;
  scr_note_acquired(&w->input_ready);
  return true;
}
static bool scr_gate_opened(scr_gate_words *w) {
  return atomic_load_explicit(&w->output_done, memory_order_acquire) == SCR_GATE_OPEN;
}
static void scr_gate_seen(scr_gate_words *w) { scr_note_acquired(&w->input_taken); }
static uint32_t *scr_gate_input_ready(scr_gate_words *w) { return (uint32_t *)(void *)&w->input_ready; }
static uint32_t *scr_gate_input_taken(scr_gate_words *w) { return (uint32_t *)(void *)&w->input_taken; }
static uint32_t *scr_gate_output_done(scr_gate_words *w) { return (uint32_t *)(void *)&w->output_done; }
static uint32_t *scr_gate_output_taken(scr_gate_words *w) { return (uint32_t *)(void *)&w->output_taken; }
*/
import "C"

import "unsafe"

// GateWords are the words of a gate, in pinned memory: docs/protocol.md, section 11.
type GateWords C.scr_gate_words

// GateBytes is the length of GateWords. They are aligned to 128 bytes.
const GateBytes = C.sizeof_scr_gate_words

func (w *GateWords) c() *C.scr_gate_words { return (*C.scr_gate_words)(unsafe.Pointer(w)) }

// Reset sets all words to 0. Requires: the device has written its last values of the operation before.
func (w *GateWords) Reset() { C.scr_gate_reset(w.c()) }

// SeenReset is for a goroutine that has seen by other means that the words were reset.
func (w *GateWords) SeenReset() { C.scr_gate_seen(w.c()) }

// Open ends all waits of the device. Requires: no run uses the gate.
func (w *GateWords) Open() { C.scr_gate_end(w.c()) }

// Moved reports whether the device has copied so many units of the input into the pinned memory, and so many of the output out of
// it.
func (w *GateWords) Moved(inputs, outputs uint32) bool {
	return bool(C.scr_gate_moved(w.c(), C.uint32_t(inputs), C.uint32_t(outputs)))
}

// Read reports whether the device has copied so many units of the input into the pinned memory.
func (w *GateWords) Read(inputs uint32) bool { return bool(C.scr_gate_read(w.c(), C.uint32_t(inputs))) }

// Opened reports whether the run has ended, or Open was called: the runner does not use the gate any more.
func (w *GateWords) Opened() bool { return bool(C.scr_gate_opened(w.c())) }

// GateComplete is a value that OutputDone reaches when the run is complete, and not before.
const GateComplete = C.SCR_GATE_MAX

// InputReady returns the word that counts the units of the input in pinned memory. A device writes it.
func (w *GateWords) InputReady() *uint32 { return (*uint32)(C.scr_gate_input_ready(w.c())) }

// InputTaken returns the word that counts the units of the input that the run has read. A device waits for it.
func (w *GateWords) InputTaken() *uint32 { return (*uint32)(C.scr_gate_input_taken(w.c())) }

// OutputDone returns the word that counts the units of the output in pinned memory. A device waits for it.
func (w *GateWords) OutputDone() *uint32 { return (*uint32)(C.scr_gate_output_done(w.c())) }

// OutputTaken returns the word that counts the units that the device has copied out. A device writes it.
func (w *GateWords) OutputTaken() *uint32 { return (*uint32)(C.scr_gate_output_taken(w.c())) }
