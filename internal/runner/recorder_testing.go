//go:build !release

package runner

/*
#include <stdlib.h>
#include "recorder.h"
#include "trace.h"

// scr_test_recording makes a group that only records.
static scr_group *scr_test_recording(uint32_t capacity) {
  scr_group *g = aligned_alloc(SCR_LINE, (sizeof *g + SCR_LINE - 1) / SCR_LINE * SCR_LINE);
  memset(g, 0, sizeof *g);
  g->records.recorder = scr_recorder_new(capacity, false, NULL);
  return g;
}
// scr_test_timeline gives the group a timeline.
static void scr_test_timeline(scr_group *g) { g->records.tracer = scr_tracer_new(); }
static void scr_test_trace(scr_group *g, scr_run *r, int what, int peer, uint64_t chunk, _Bool idle) {
  scr_trace_add(g->records.tracer, r, what, scr_ticks(), peer, chunk, idle);
}
static void scr_test_forget(scr_group *g) {
  scr_tracer_free(g->records.tracer);
  scr_recorder_free(g->records.recorder);
  free(g);
}
static scr_run *scr_test_run(int kind, int dtype, uint64_t seq, uint64_t bytes, int root, int tag, int64_t timeout_ns) {
  scr_run *r = calloc(1, sizeof *r);
  r->kind = (uint8_t)kind;
  r->dtype = (uint8_t)dtype;
  r->coll.seq = seq;
  r->bytes = bytes;
  r->root = root;
  r->tag = tag;
  r->timeout_ns = timeout_ns;
  r->source = -1;
  return r;
}
static void scr_test_queue(scr_group *g, scr_run *r) {
  scr_spin_lock(&g->queue_lock);
  scr_note_created(g, r);
  if (g->queue_tail) {
    g->queue_tail->next = r;
  } else {
    g->queue_head = r;
  }
  g->queue_tail = r;
  scr_spin_unlock(&g->queue_lock);
}
static void scr_test_await(scr_run *r, int peer) {
  r->coll.started = 1;
  r->peer = peer;
}
static void scr_test_start(scr_group *g, scr_run *r) { scr_note_started(g, r); }
static void scr_test_finish(scr_group *g, scr_run *r, int source, _Bool ok) {
  r->source = source;
  scr_note_finished(g, r, ok);
}
// scr_test_record records n operations one after another, as the fast path does. Every field of an operation depends on its
// number, so that a reader can tell a mixture of two.
static void scr_test_record(scr_group *g, int kind, uint64_t from, uint64_t n) {
  scr_run r = {.kind = (uint8_t)kind, .dtype = SAGECOMM_FLOAT32, .source = -1};
  for (uint64_t i = from; i < from + n; i++) {
    r.coll.seq = i;
    r.bytes = 4 * i;
    r.tag = (int32_t)i;
    scr_note_started(g, &r);
    scr_note_finished(g, &r, true);
  }
}
*/
import "C"

import (
	"time"

	"sagecomm/internal/coll"
)

// This file serves tests only: a file whose name ends in _test.go may not use cgo. The linker would keep its C code in the
// library, so a build of that leaves the file out.

// recording is a group that only records.
type recording struct{ Group }

func newRecording(capacity int) *recording {
	return &recording{Group{c: C.scr_test_recording(C.uint32_t(capacity))}}
}

func (r *recording) free() { C.scr_test_forget(r.c) }

// timeline gives the group a timeline.
func (r *recording) timeline() { C.scr_test_timeline(r.c) }

// recordedRun is one operation of a recording.
type recordedRun struct {
	g *C.scr_group
	c *C.scr_run
}

func (r *recording) run(op coll.Op, seq uint64) recordedRun {
	return recordedRun{r.c, C.scr_test_run(C.int(op.Kind), C.int(op.Type), C.uint64_t(seq), C.uint64_t(op.Bytes()), C.int(op.Root),
		C.int(op.Tag), C.int64_t(op.Timeout/time.Nanosecond))}
}

func (r recordedRun) queue() { C.scr_test_queue(r.g, r.c) }

// await makes the operation one that has started and waits for a peer.
func (r recordedRun) await(peer int) { C.scr_test_await(r.c, C.int(peer)) }

// trace adds an event to the timeline. idle says that nothing has moved.
func (r recordedRun) trace(phase Phase, peer int, chunk uint64, idle bool) {
	C.scr_test_trace(r.g, r.c, C.int(phase), C.int(peer), C.uint64_t(chunk), C._Bool(idle))
}

func (r recordedRun) start() { C.scr_test_start(r.g, r.c) }

// finish completes the operation. source is the rank whose send a recv has received, else -1.
func (r recordedRun) finish(source int, ok bool) {
	C.scr_test_finish(r.g, r.c, C.int(source), C._Bool(ok))
}

// record starts and finishes n operations. Operation i, from `from` on, has 4*i bytes and tag i.
func (r *recording) record(kind coll.Kind, from, n int) {
	C.scr_test_record(r.c, C.int(kind), C.uint64_t(from), C.uint64_t(n))
}
