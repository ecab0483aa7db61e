/* composite.c: see composite.h. A part keeps the composite's run alive until the part completes; the composite keeps
 * its parts until it is freed. So both live until the last part has completed. */
#include "composite.h"

#include <sched.h>
#include <stdlib.h>

#include "queue.h"

struct scr_composite {
  scr_run *run;
  _Atomic uint32_t left;  /* parts that are not complete, plus one until the composite is closed */
  _Atomic int32_t status; /* of the first part that failed */
  scr_cause *failure; /* owned; its cause. Written by the thread that has changed `status`, before it counts down. */
  _Atomic uint32_t first; /* a hint that only rises: all parts before this index are complete */
  uint32_t n;
  scr_run *part[]; /* owned */
};

scr_run *scr_composite_new(scr_group *g, uint64_t group, uint32_t parts) {
  scr_composite *b = calloc(1, sizeof *b + parts * sizeof b->part[0]);
  scr_run *all = b ? scr_run_new() : NULL;
  if (all == NULL) {
    free(b);
    return NULL;
  }
  b->run = all;
  b->left = 1;
  all->group = g;
  all->group_handle = group;
  all->composite_of = b;
  return all;
}

void scr_composite_free(scr_composite *b) {
  if (b == NULL) return;
  for (uint32_t i = 0; i < b->n; i++) scr_run_unref(b->part[i]);
  scr_cause_unref(b->failure);
  free(b);
}

/* Counts `left` down and completes the composite when it reaches 0. */
static void through(scr_composite *b) {
  if (atomic_fetch_sub_explicit(&b->left, 1, memory_order_acq_rel) != 1) return;
  scr_run *all = b->run;
  all->status = atomic_load_explicit(&b->status, memory_order_relaxed);
  all->cause = scr_cause_ref(b->failure);
  scr_run_settle(all, false);
}

/* Keeps the first failure. Takes the reference to `cause` over. */
static void note_failure(scr_composite *b, int32_t status, scr_cause *cause) {
  int32_t ok = SAGECOMM_OK;
#ifdef SCR_MUTANT_CAUSE_OF_ANOTHER_PART
  scr_cause *none = NULL;
  if (!__atomic_compare_exchange_n(&b->failure, &none, cause, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    scr_cause_unref(cause);
  sched_yield();
  atomic_compare_exchange_strong(&b->status, &ok, status);
  return;
#endif
  if (atomic_compare_exchange_strong(&b->status, &ok, status)) {
    b->failure = cause;
  } else {
    scr_cause_unref(cause);
  }
}

static void note_part(scr_composite *b, const scr_run *part) {
  if (part->status < 0) note_failure(b, part->status, scr_cause_ref(part->cause));
  through(b);
}

void scr_composite_add(scr_run *all, sagecomm_work work) {
  scr_composite *b = all->composite_of;
  scr_run *part = scr_run_of(work);
  b->part[b->n++] = part;
  if (part->coll.seq != 0) all->coll.seq = part->coll.seq;
  scr_take_back(part); /* who waits for the composite waits for one part at a time */
  part->composite = b;
  scr_run_ref(all);
  atomic_fetch_add_explicit(&b->left, 1, memory_order_relaxed);
  uint32_t pending = SCR_PENDING_STATE;
  if (atomic_compare_exchange_strong_explicit(&part->state, &pending, SCR_HAS_COMPOSITE, memory_order_acq_rel,
                                              memory_order_acquire)) {
    return;
  }
  scr_composite_part_done(part); /* the part completed before it knew its composite */
}

void scr_composite_part_done(scr_run *part) {
  scr_composite *b = part->composite;
  scr_run *all = b->run;
  note_part(b, part);
  scr_run_unref(all);
}

int32_t scr_composite_close(scr_run *all, int32_t status, sagecomm_work *work, sagecomm_error *err) {
  scr_composite *b = all->composite_of;
  if (b->n == 0) { /* all parts were complete at once, or none was issued */
    scr_run_unref(all);
    return status < 0 ? status : SAGECOMM_OK;
  }
  if (status < 0) {
    /* Pending parts use the caller's buffers, so the work lives until they complete and then returns the error. */
    note_failure(b, status, scr_cause_new(err)); /* without memory for the cause, only the status */
  }
  through(b);
  if (atomic_load_explicit(&all->state, memory_order_acquire) & SCR_DONE) {
    status = all->status;
    if (status < 0) scr_cause_copy(all->cause, err);
    scr_run_unref(all);
    return status;
  }
  *work = scr_run_handle(all);
  return SAGECOMM_PENDING;
}

scr_run *scr_composite_unfinished(const scr_run *all) {
  scr_composite *b = all->composite_of;
  /* Several threads may store `first`. Each stores an index before which all parts are complete, so the last store
   * is right. */
  for (uint32_t i = atomic_load_explicit(&b->first, memory_order_relaxed); i < b->n; i++) {
    SCR_STEP();
    if (!(atomic_load_explicit(&b->part[i]->state, memory_order_acquire) & SCR_DONE)) return b->part[i];
    atomic_store_explicit(&b->first, i + 1, memory_order_relaxed);
  }
  return NULL;
}

/* ---- promises ---- */

scr_run *scr_promise_new(scr_group *g, uint64_t group) {
  scr_run *promise = scr_composite_new(g, group, 0);
  if (promise) scr_run_ref(promise); /* of whoever completes it */
  return promise;
}

void scr_promise_complete(scr_run *promise, int32_t status, const sagecomm_error *err) {
  if (status < 0) note_failure(promise->composite_of, status, scr_cause_new(err));
  through(promise->composite_of);
  scr_run_unref(promise);
}

void scr_promise_drop(scr_run *promise) {
  scr_run_unref(promise);
  scr_run_unref(promise);
}
