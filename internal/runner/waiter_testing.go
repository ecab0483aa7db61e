//go:build !release

package runner

/*
#include "queue.h"
#include "slots.h"

// scr_test_submit queues a collective of int32 with one segment on either side; none where its length is -1. out_blocks may be NULL.
static scr_run *scr_test_submit(scr_group *g, int kind, int root, void *in, int64_t n_in, void *out, int64_t n_out,
                                const uint64_t *out_blocks, scr_program *p) {
  sagecomm_segment from = {in, (uint64_t)n_in}, to = {out, (uint64_t)n_out};
  sagecomm_op op = {.kind = (uint8_t)kind,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .root = root,
                    .n_in = n_in >= 0,
                    .n_out = n_out >= 0,
                    .in = &from,
                    .out = &to,
                    .out_blocks = out_blocks};
  bool down;
  return scr_submit(g, &op, scr_op_bytes(&op, g->rank, g->size), p, true, NULL, &down);
}

// scr_test_drive drives the runs up to this one until it is finished (1) or one is blocked (0); -1: an incident. It says whether the
// blocked run owes its peers something.
static int scr_test_drive(scr_group *g, scr_run *until, bool *owes) {
  scr_run *at;
  if (!scr_drive_lock(g)) return -1;
  int rc = scr_drive(g, until, 0, &at);
  if (rc == SCR_BLOCKED) *owes = scr_run_owes(at);
  scr_drive_unlock(g);
  return rc == SCR_FINISHED ? 1 : rc == SCR_BLOCKED ? 0 : -1;
}

// scr_test_published returns a number that rises with all that this rank publishes but `consumed`.
static uint64_t scr_test_published(const scr_group *g) {
  scr_peer *me = &g->peer[g->rank];
  uint64_t n = 0;
  for (uint64_t t = 0; t < SCR_SMALL_SLOTS; t++) n += atomic_load(&slot_of(me, 0, t)->filled);
  for (uint64_t t = 0; t < SCR_LARGE_SLOTS && slot_of(me, 1, t) != NULL; t++) {
    n += atomic_load(&slot_of(me, 1, t)->filled) + atomic_load(slot_reduced(slot_of(me, 1, t)));
  }
  for (int32_t p = 0; p < g->size; p++) {
    for (int c = 0; c < SCR_CHANNELS; c++) n += g->coll.channels[p].sent[c];
  }
  return n;
}

static uint64_t scr_test_consumed_small(const scr_group *g) { return atomic_load(&g->shared->consumed0); }
*/
import "C"

import (
	"unsafe"

	"sagecomm/internal/coll"
)

// queuedRun is a collective that only a test drives.
type queuedRun struct {
	g *Group
	c *C.scr_run
}

// queueRun queues a collective of int32 on memory outside of Go's heap. A buffer of length -1 is none. Without outBlocks the blocks of the
// output are equal. The program is freed with the run.
func (g *Group) queueRun(kind coll.Kind, root int, in, out unsafe.Pointer, nIn, nOut int64, outBlocks []uint64, p Compiled) queuedRun {
	return queuedRun{g, C.scr_test_submit(g.c, C.int(kind), C.int(root), in, C.int64_t(nIn), out, C.int64_t(nOut), blocksInC(outBlocks), p.c)}
}

// drive drives the runs up to this one until it is finished, or one is blocked; that one is this one if those in front are finished.
func (r queuedRun) drive() (finished, owes, ok bool) {
	var o C.bool
	rc := C.scr_test_drive(r.g.c, r.c, &o)
	return rc == 1, bool(o), rc >= 0
}

// release gives the run back.
func (r queuedRun) release() { C.scr_run_unref(r.c) }

// published returns a number that rises with all that this rank publishes but `consumed`.
func (g *Group) published() uint64 { return uint64(C.scr_test_published(g.c)) }

// consumedSmall returns how many tickets of the small slots this rank has consumed.
func (g *Group) consumedSmall() uint64 { return uint64(C.scr_test_consumed_small(g.c)) }
