/* queue.c: the drive lock and the queue of collectives. Numbering and queueing are one step under the queue lock, so
 * the queue is in the order of the numbers. */
#include "queue.h"

#include <sched.h>
#include <stdlib.h>

#include "bucket.h"
#include "direct.h"
#include "engine.h"
#include "gates.h"
#include "p2p.h"
#include "recorder.h"
#include "wait.h"

/* ---- the drive lock ---- */

bool scr_drive_lock(scr_group *g) {
  uint64_t w = atomic_load_explicit(&g->word, memory_order_relaxed);
  while (!(w & SCR_LOCKED)) {
    if (atomic_compare_exchange_weak_explicit(&g->word, &w, w | SCR_LOCKED, memory_order_acq_rel, memory_order_relaxed))
      return true;
  }
  return false;
}

void scr_drive_unlock(scr_group *g) {
  uint64_t w = atomic_fetch_and_explicit(&g->word, ~SCR_LOCKED, memory_order_acq_rel);
  if (w & SCR_QUEUED) scr_engine_wake();
}

void scr_drive_leave(scr_group *g, const scr_run *r) {
  uint64_t w = atomic_fetch_and_explicit(&g->word, ~SCR_LOCKED, memory_order_seq_cst);
  if ((w & SCR_DOWN) || scr_word_seq(w) != r->coll.seq) {
    scr_engine_wake(); /* another thread has set DOWN, or queued a run, and expects that of a driver */
  } else {
#ifndef SCR_MUTANT_LEFT_UNWATCHED
    scr_engine_watch();
#endif
  }
}

bool scr_take_back(scr_run *r) {
  int64_t soon = atomic_exchange_explicit(&r->coll.soon_ns, 0, memory_order_relaxed);
  if (soon > 0) scr_engine_wake();
  return soon != 0;
}

void scr_see_to(scr_run *r) {
  if (scr_take_back(r)) atomic_store_explicit(&r->group->waited_soon, false, memory_order_relaxed);
}

/* ---- the queue ---- */

scr_run *scr_submit(scr_group *g, const sagecomm_op *op, uint64_t bytes, const scr_program *p, bool own,
                    const scr_gate *gate, bool *down) {
  *down = false;
  scr_run *r = scr_run_new();
  if (r == NULL || !scr_run_operands(r, op, g->size, NULL)) {
    if (r) scr_run_unref(r);
    return NULL;
  }
  r->group = g;
  r->group_handle = g->handle;
  r->bytes = bytes;
  r->coll.program = p;
  if (gate) r->gate = *gate;
  r->timeout_ns = scr_op_timeout(g, op);
  if (scr_enqueue(g, r, own)) return r;
  *down = true;
  scr_run_unref(r);
  return NULL;
}

bool scr_enqueue(scr_group *g, scr_run *r, bool own) {
  scr_run_ref(r); /* the queue's */
  scr_spin_lock(&g->queue_lock);
  uint64_t w = atomic_load_explicit(&g->word, memory_order_relaxed);
  do {
    if (w & SCR_DOWN) {
      scr_spin_unlock(&g->queue_lock);
      scr_run_unref(r);
      return false;
    }
  } while (!atomic_compare_exchange_weak_explicit(&g->word, &w, (w + SCR_SEQ_ONE) | SCR_QUEUED, memory_order_acq_rel,
                                                  memory_order_relaxed));
  r->coll.seq = scr_word_seq(w) + 1;
  scr_note_created(g, r);
  if (own) r->coll.own_program = (scr_program *)(uintptr_t)r->coll.program;
  if (g->queue_tail) {
    g->queue_tail->next = r;
  } else {
    g->queue_head = r;
  }
  g->queue_tail = r;
  scr_spin_unlock(&g->queue_lock);
  return true;
}

static scr_run *queue_first(scr_group *g) {
  scr_spin_lock(&g->queue_lock);
  scr_run *r = g->queue_head;
  scr_spin_unlock(&g->queue_lock);
  return r;
}

void scr_note_unattended(scr_group *g, int64_t now) {
  scr_run *r = queue_first(g);
  int64_t soon = r ? atomic_load_explicit(&r->coll.soon_ns, memory_order_relaxed) : 0;
  if (soon == 0 || now < llabs(soon)) return;
  atomic_store_explicit(&r->coll.soon_ns, 0, memory_order_relaxed);
#ifndef SCR_MUTANT_LEFT_FOR_EVER
  atomic_store_explicit(&g->waited_soon, false, memory_order_relaxed);
#endif
}

/* SCR_QUEUED is cleared under the same lock that guards setting it. */
static void settle(scr_group *g) {
  if (g->queue_head != NULL) return;
  g->queue_tail = NULL;
  if (SCR_LIKELY(g->coll.external_head == NULL)) {
    atomic_fetch_and_explicit(&g->word, ~SCR_QUEUED, memory_order_acq_rel);
  }
}

void scr_queue_settle(scr_group *g) {
  scr_spin_lock(&g->queue_lock);
  settle(g);
  scr_spin_unlock(&g->queue_lock);
}

/* Takes the first run out. */
static void queue_pop(scr_group *g) {
  scr_spin_lock(&g->queue_lock);
  scr_run *r = g->queue_head;
  g->queue_head = r->next;
  r->next = NULL;
  settle(g);
  scr_spin_unlock(&g->queue_lock);
}

static void start(scr_group *g, scr_run *r) {
  scr_run_start(g, r);
  if (SCR_UNLIKELY(r->members != NULL)) {
    scr_carrier_started(g, r);
  } else if (SCR_LIKELY(!r->agrees)) {
    scr_note_started(g, r);
  }
}

/* Starts the external runs at the head of the queue and completes those whose streams are done. Returns 0 or an incident
 * code of *culprit. */
static int drive_externals(scr_group *g, const scr_run *until, scr_run **culprit) {
  for (scr_run *r; (r = queue_first(g)) != NULL && r->gate.external;) {
    start(g, r);
    scr_external_begin(g, r); /* before queue_pop(), so that SCR_QUEUED stays */
    queue_pop(g);
    if (r->coll.seq % SCR_MARK_EVERY != 0 && r->kind != SAGECOMM_ALL_TO_ALL) continue;
    int code = scr_external_compare(g, r);
    *culprit = r;
    if (code) return code;
  }
  if (g->coll.external_head == NULL) return 0;
  int code = scr_external_met(g, culprit);
  if (code == 0) scr_external_sweep(g, until, false);
  return code;
}

void scr_complete_externals(scr_group *g) {
  if (g->lane != SCR_DEVICE_LANE) return;
  for (int64_t end = scr_now() + g->policy.drain_ns; !scr_drive_lock(g); sched_yield()) {
    uint64_t w = atomic_load_explicit(&g->word, memory_order_relaxed);
    if ((w & SCR_DOWN) || !(w & SCR_QUEUED) || scr_now() >= end) return;
  }
  scr_run *culprit; /* of a mismatch: the group goes down in any case */
  if (!(atomic_load_explicit(&g->word, memory_order_relaxed) & SCR_DOWN)) (void)drive_externals(g, NULL, &culprit);
  scr_drive_unlock(g);
}

int scr_drive(scr_group *g, scr_run *until, int64_t until_ns, scr_run **blocked) {
  if (atomic_load_explicit(&g->word, memory_order_relaxed) & SCR_DOWN) {
    scr_drain(g);
    return SCR_IDLE;
  }
  for (;;) {
    if (SCR_UNLIKELY(g->lane == SCR_DEVICE_LANE)) {
      int code = drive_externals(g, until, blocked);
      if (code) return code;
      if (until && until->listed) {
        *blocked = scr_external_block(g, until);
        return SCR_BLOCKED;
      }
      if (until && (atomic_load_explicit(&until->state, memory_order_acquire) & SCR_DONE)) return SCR_FINISHED;
    }
    scr_run *r = queue_first(g);
    if (r == NULL && SCR_UNLIKELY(g->coll.external_head != NULL)) {
      *blocked = scr_external_block(g, g->coll.external_head);
      return SCR_BLOCKED;
    }
    if (r == NULL) return SCR_IDLE;
    if (SCR_UNLIKELY(r->gate.external)) continue; /* it was queued since drive_externals() looked */
    if (SCR_UNLIKELY(r->coll.program == NULL)) {  /* it is to fail: see scr_queue_held() */
      scr_drain(g);
      return SCR_IDLE;
    }
    if (!r->coll.started) start(g, r);
    int rc = scr_run_advance(g, r, until_ns);
    if (rc != SCR_FINISHED) {
      *blocked = r;
      return rc;
    }
    queue_pop(g);
    bool stop = r == until;
    scr_run_finish(r, false, stop);
    scr_run_unref(r);
    if (stop) return SCR_FINISHED;
    if (until_ns != 0 && scr_now() >= until_ns) return queue_first(g) ? SCR_YIELDED : SCR_IDLE;
  }
}

/* What peers published before the failure is still there, so operations at the head of the queue may complete. The drain never
 * waits: the first operation that would wait fails, and so do all behind it. The slots bound what a dead peer has left;
 * policy.drain_ns bounds the time that live peers can add. */
void scr_drain(scr_group *g) {
  bool goes_on = g->coll.external_head == NULL || scr_external_sweep(g, NULL, true);
  bool forgotten = false;
  int64_t until_ns = 0;
  for (scr_run *r; (r = queue_first(g)) != NULL;) {
    goes_on = goes_on && !r->gate.external && r->coll.program != NULL;
    if (goes_on) {
      if (until_ns == 0) until_ns = scr_now() + g->policy.drain_ns;
      g->coll.spin_now = 0;
      if (!r->coll.started) start(g, r);
      goes_on = scr_run_advance(g, r, until_ns) == SCR_FINISHED;
    }
    queue_pop(g);
    if (!goes_on && !forgotten) {
      scr_forget_buffers(g);
      forgotten = true; /* nothing that is behind begins any more */
    }
    scr_run_finish(r, !goes_on, false);
    goes_on = goes_on && scr_now() < until_ns;
    scr_run_unref(r);
  }
}

/* ---- questions ---- */

/* External runs that have started come before those in the queue. */
static int oldest_collective(scr_group *g, scr_incident *out) {
  if (!scr_drive_lock(g)) return -1;
  scr_run *r = g->coll.external_head ? scr_external_block(g, g->coll.external_head) : queue_first(g);
  if (r) {
    scr_describe_incident(r, SCR_INCIDENT_TIMEOUT, out);
    if (!r->coll.started) out->peer = -1;
  }
  scr_drive_unlock(g);
  return r != NULL;
}

int scr_group_oldest(scr_group *g, scr_incident *out) {
  int found = oldest_collective(g, out);
  return found != 0 ? found : scr_p2p_oldest(g, out);
}
