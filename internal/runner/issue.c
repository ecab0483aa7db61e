/* issue.c: issues collectives, on the fast path or through Go, and waits for operations by driving them. */
#include <stdlib.h>

#include "bucket.h"
#include "composite.h"
#include "direct.h"
#include "engine.h"
#include "p2p.h"
#include "program.h"
#include "queue.h"

/* ---- driving with backoff ---- */

/* Holds: nothing. The incident was described under the drive lock. */
static void report(uint64_t handle, const scr_incident *t) {
  scr_entering_go();
  scr_go.incident(handle, t);
}

static bool same_place(const scr_run *r, _Atomic uint64_t *flag, uint64_t need) {
  return r->flag == flag && r->need == need;
}

/* As drive_patiently(), and may still poll for peers. */
static int drive_until(scr_group *g, scr_run *r, int64_t slice_end, scr_run **culprit) {
  scr_backoff backoff = {0};
  _Atomic uint64_t *flag = NULL;
  uint64_t need = 0;
  for (;;) {
    scr_run *at = r;
    int rc;
    if (r == &g->coll.fast) {
      rc = scr_run_advance(g, r, 0);
      if (rc == SCR_FINISHED) return rc;
    } else {
      rc = scr_drive(g, r, slice_end, &at);
      if (rc == SCR_FINISHED || rc == SCR_IDLE) return SCR_FINISHED;
      if (rc == SCR_YIELDED) return rc;
    }
    *culprit = at;
    if (rc > 0) return rc;
    if (!same_place(at, flag, need)) {
      flag = at->flag;
      need = at->need;
      backoff = (scr_backoff){0};
      g->coll.spin_now = g->spin;
      if (g->pairs && at->peer >= 0 && g->peer[at->peer].pair == 0) scr_stop_polling(g, &g->coll.attended);
    }
    uint64_t since = scr_trace_clock(g);
    int32_t peer = at->peer;
    rc = scr_relax(g, at, &backoff, &g->shared->collective, slice_end);
    if (SCR_UNLIKELY(g->records.tracer != NULL))
      scr_trace_add(g->records.tracer, at, SCR_TRACE_SLEEP, since, peer, 0, false);
    if (rc) return rc;
  }
}

/* Drives until `r`, the fast run or a queued run, is done. Returns SCR_FINISHED, SCR_YIELDED if slice_end has
 * passed, or an incident code of *culprit.
 * Requires: the drive lock. */
static int drive_patiently(scr_group *g, scr_run *r, int64_t slice_end, scr_run **culprit) {
  int rc = drive_until(g, r, slice_end, culprit);
  if (g->pairs) scr_stop_polling(g, &g->coll.attended);
  return rc;
}

/* ---- issue ---- */

/* The fast run moves to the head of the queue, as it is, and gets a handle. False when there is no memory for that.
 * Requires: the drive lock. */
static bool promote(scr_group *g, const sagecomm_op *op, sagecomm_work *work) {
  scr_run *r = scr_run_new();
  if (r == NULL) return false;
  uint32_t index = r->index, generation = r->generation;
  *r = g->coll.fast;
  r->index = index;
  r->generation = generation;
  atomic_store_explicit(&r->refs, 2, memory_order_relaxed);
  r->offsets = NULL;
  r->in_blocks.at = r->out_blocks.at = NULL;
  if (!scr_run_operands(r, op, g->size, NULL)) {
    scr_run_unref(r);
    scr_run_unref(r);
    return false;
  }
  scr_spin_lock(&g->queue_lock);
  r->next = g->queue_head;
  g->queue_head = r;
  if (g->queue_tail == NULL) g->queue_tail = r;
  atomic_fetch_or_explicit(&g->word, SCR_QUEUED, memory_order_acq_rel);
  scr_spin_unlock(&g->queue_lock);
  *work = scr_run_handle(r);
  return true;
}

/* Ends the fast run that has met an incident. If it had begun, it stays at the head of the queue until the group is down
 * and scr_drain() has tried it once more. So nothing that other threads have queued behind it begins before that, in
 * tickets and messages that are still this run's at its peers. Requires: the drive lock, which it gives back before it
 * enters Go. */
static int32_t fail_here(scr_group *g, const sagecomm_op *op, int code, bool begun, sagecomm_work *work,
                         sagecomm_error *err) {
  scr_run *r = &g->coll.fast;
  uint64_t handle = r->group_handle;
  scr_incident t;
  scr_describe_incident(r, code, &t);
#ifdef SCR_MUTANT_FAILS_ALONE
  bool stays = false;
#else
  bool stays = begun && promote(g, op, work);
#endif
  if (!stays) {
    if (begun) scr_forget_buffers(g);
    scr_note_finished(g, r, false);
  }
  atomic_fetch_add_explicit(&g->inside, 1, memory_order_seq_cst);
  scr_drive_unlock(g);
  report(handle, &t);
  int32_t status = stays ? SAGECOMM_PENDING : scr_copy_error(g, err);
  scr_group_exit(g);
  if (!stays) return status;
  status = scr_wait(*work, g->policy.sync_ns, err);
  if (status != SAGECOMM_PENDING) {
    scr_release(*work);
    *work = 0;
  }
  return status;
}

static int32_t run_here(scr_group *g, uint64_t handle, const sagecomm_op *op, uint64_t bytes, uint64_t seq,
                        const scr_program *pg, sagecomm_work *work, sagecomm_error *err) {
  scr_run *r = &g->coll.fast;
  scr_run_operands(r, op, g->size, g->coll.fast_offsets);
  r->group = g;
  r->group_handle = handle;
  r->bytes = bytes;
  r->coll.program = pg;
  r->coll.seq = seq;
  r->timeout_ns = scr_op_timeout(g, op);
  g->coll.spin_now = g->spin;
  scr_run_start(g, r);
  scr_note_started(g, r);
  bool begins = SCR_LIKELY(atomic_load_explicit(g->failure, memory_order_relaxed) == 0);
  int rc = begins ? scr_run_advance(g, r, 0) : SCR_INCIDENT_FAILURE;
  scr_run *culprit = r;
  while (SCR_UNLIKELY(rc == SCR_BLOCKED || rc == SCR_YIELDED)) {
    rc = drive_patiently(g, r, scr_now() + g->policy.sync_ns, &culprit);
    if (rc == SCR_YIELDED && promote(g, op, work)) {
      scr_drive_unlock(g);
      return SAGECOMM_PENDING;
    }
  }
  if (SCR_LIKELY(rc == SCR_FINISHED)) {
    scr_note_finished(g, r, true);
    scr_drive_unlock(g);
    return SAGECOMM_OK;
  }
  return fail_here(g, op, rc, begins, work, err);
}

/* Begins an asynchronous collective at the end of the queue. Compiled programs wait right after they have issued; the
 * engine would only be in the way of such a waiter (docs/protocol.md, section 4). Requires: the drive lock, which it gives
 * back. */
static void begin_here(scr_group *g, scr_run *r) {
  scr_run *blocked;
  g->coll.spin_now = 0;
  int rc = scr_drive(g, NULL, scr_now() + g->policy.begin_ns, &blocked);
  bool can_wait = rc == SCR_BLOCKED && blocked == r && g->lane == SCR_HOST_LANE && !scr_run_owes(r);
  bool leaves = can_wait && atomic_load_explicit(&g->waited_soon, memory_order_relaxed);
  if (can_wait) {
    int64_t soon = scr_now() + g->policy.soon_ns;
    atomic_store_explicit(&r->coll.soon_ns, leaves ? soon : -soon, memory_order_relaxed);
  }
  if (leaves) {
    scr_drive_leave(g, r);
  } else {
    scr_drive_unlock(g); /* the next driver meets an incident again and reports it */
  }
}

/* A thread has come to wait for a run that its caller may have begun. */
static void learn_from(scr_group *g, scr_run *r) {
  if (atomic_load_explicit(&r->coll.soon_ns, memory_order_relaxed) == 0) return;
  int64_t soon = atomic_exchange_explicit(&r->coll.soon_ns, 0, memory_order_relaxed);
  if (soon == 0) return; /* another thread waits, too */
  atomic_store_explicit(&g->waited_soon, scr_now() < llabs(soon), memory_order_relaxed);
}

/* Issues an operation that Go has to submit. */
static int32_t issue_through_go(sagecomm_group group, const sagecomm_op *op, sagecomm_work *work, uint64_t *sequence,
                                sagecomm_error *err) {
  scr_run *r = NULL;
  scr_entering_go();
  int32_t status = scr_go.issue(group, op, &r, err);
  if (status != SAGECOMM_OK) return status;
  if (r == NULL) return SAGECOMM_OK; /* it has become a part of a graph, so there is nothing to wait for */
  scr_group *g = r->group;           /* of the lane that Go has chosen */
  if (scr_is_p2p(r)) return scr_p2p_begin(r, op, work, err);
  if (sequence) *sequence = r->coll.seq;
  sagecomm_work handle = scr_run_handle(r);
  if ((op->flags & SAGECOMM_ASYNC) || g->lane == SCR_DEVICE_LANE) {
    if (r->held && !(atomic_load_explicit(&g->word, memory_order_relaxed) & SCR_QUEUED)) {
      /* There is nothing to begin: it waits for others to share a collective. */
    } else if (r->bytes <= g->policy.begin_bytes && scr_drive_lock(g)) {
      begin_here(g, r);
    } else {
      scr_engine_wake();
    }
    status = scr_wait(handle, 0, err);
  } else {
    status = scr_wait(handle, g->policy.sync_ns, err);
  }
  if (status == SAGECOMM_PENDING) {
    *work = handle;
  } else {
    scr_run_unref(r);
  }
  return status;
}

int32_t scr_issue(sagecomm_group group, const sagecomm_op *op, sagecomm_work *work, uint64_t *sequence,
                  sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  *work = 0;
  if (sequence) *sequence = 0;
  scr_group *g = scr_group_of(group);
  if (SCR_UNLIKELY(g == NULL)) return scr_plain_error(err, SAGECOMM_INVALID, "sagecomm: the group was destroyed");
  if (SCR_UNLIKELY(g->trace)) {
    scr_entering_go();
    scr_go.trace(group, op);
  }
  if (SCR_UNLIKELY(op->device_type != SAGECOMM_HOST)) return issue_through_go(group, op, work, sequence, err);
  if (op->kind == SAGECOMM_SEND || op->kind == SAGECOMM_RECV) return scr_p2p_issue(g, group, op, work, err);
  int32_t size =
      *(volatile int32_t *)&g->size; /* 0: the handle is stale and its place is being given to another group */
  if (SCR_LIKELY(!(op->flags & SAGECOMM_ASYNC) && op->kind < SAGECOMM_SEND && size > 0)) {
    uint64_t bytes = scr_op_bytes(op, g->rank, size);
    const scr_program *pg = scr_cache_find(g, scr_cache_key(g, op, bytes));
    uint64_t w = atomic_load_explicit(&g->word, memory_order_relaxed);
    if (SCR_LIKELY(pg != NULL && scr_op_allowed(g->rank, op, bytes) && (w & SCR_FLAGS) == 0 &&
                   w >> SCR_GEN_SHIFT == group >> 32) &&
        atomic_compare_exchange_strong_explicit(&g->word, &w, (w + SCR_SEQ_ONE) | SCR_LOCKED, memory_order_acq_rel,
                                                memory_order_relaxed)) {
      if (sequence) *sequence = scr_word_seq(w) + 1;
      return run_here(g, group, op, bytes, scr_word_seq(w) + 1, pg, work, err);
    }
  }
  return issue_through_go(group, op, work, sequence, err);
}

/* ---- wait ---- */

/* Sleeps until the run is done or the slice is over, while another thread drives. */
static void sleep_on(scr_run *r, int64_t slice_end) {
  for (int i = 0; i < 200; i++) {
    if (atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE) return;
    scr_pause();
  }
  atomic_fetch_add_explicit(&r->sleepers, 1, memory_order_seq_cst);
  uint32_t state = atomic_load_explicit(&r->state, memory_order_seq_cst);
  int64_t ns = slice_end - scr_now();
  if (ns > 5 * 1000000) ns = 5 * 1000000; /* then look whether the drive lock is free */
  if (!(state & SCR_DONE)) scr_futex_wait(&r->state, state, ns);
  atomic_fetch_sub_explicit(&r->sleepers, 1, memory_order_seq_cst);
}

static int wait_collective(scr_group *g, scr_run *r, int64_t slice_end) {
  learn_from(g, r);
  if (!scr_drive_lock(g)) {
    sleep_on(r, slice_end);
    return 0;
  }
  scr_run *culprit = r;
  g->coll.spin_now = g->spin;
  int rc = atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE
               ? SCR_FINISHED
               : drive_patiently(g, r, slice_end, &culprit);
  scr_incident t;
  if (rc > 0) scr_describe_incident(culprit, rc, &t);
  scr_drive_unlock(g);
  if (rc > 0) report(r->group_handle, &t);
  return 0;
}

static int32_t wait_until(scr_run *r, int64_t timeout_ns, sagecomm_error *err) {
  int64_t slice_end = 0;
  bool agreed = false; /* this thread has waited for an agreement, and has to see to what follows */
  /* This is also the last look of a thread that has waited for a p2p operation: see scr_run_settle(). */
  while (!(atomic_load_explicit(&r->state, memory_order_seq_cst) & SCR_DONE)) {
    if (timeout_ns <= 0) return SAGECOMM_PENDING;
    int64_t now = scr_now();
    if (slice_end == 0) slice_end = now + timeout_ns;
    if (now >= slice_end) {
      if (SCR_UNLIKELY(agreed)) scr_engine_wake();
      return SAGECOMM_PENDING;
    }
    scr_run *at = r->composite_of ? scr_composite_unfinished(r) : r;
    if (at != NULL && SCR_UNLIKELY(at->held)) {
      bool again;
      at = scr_carrier_of(at, slice_end, &again);
      agreed = agreed || again;
      if (at == NULL && again) continue;
    }
    if (at == NULL) {
      sleep_on(r, slice_end); /* a promise; or the last part is complete, and its driver is about to say so */
    } else if (at->kind == SAGECOMM_SEND || at->kind == SAGECOMM_RECV) {
      scr_p2p_wait(at->group, at, slice_end);
    } else {
      wait_collective(at->group, at, slice_end);
    }
  }
  scr_run_complete(r);
  if (r->status < 0) scr_cause_copy(r->cause, err);
  return r->status;
}

int32_t scr_wait(sagecomm_work work, int64_t timeout_ns, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  scr_run *r = scr_run_of(work);
  if (r == NULL) return scr_plain_error(err, SAGECOMM_INVALID, "sagecomm: wait: bad work handle");
  scr_run_ref(r); /* the done function may release the handle */
  int32_t status = wait_until(r, timeout_ns > SCR_LONGEST_NS ? SCR_LONGEST_NS : timeout_ns, err);
  scr_run_unref(r);
  return status;
}

int32_t scr_test(sagecomm_work work) {
  scr_run *r = scr_in_child() ? NULL : scr_run_of(work);
  if (r == NULL || (atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE)) return 1;
  scr_see_to(r);
  return 0;
}

int32_t scr_wait_briefly(sagecomm_work work, sagecomm_error *err) {
  scr_run *r = scr_run_of(work);
  if (r && r->composite_of) r = scr_composite_unfinished(r);
  int32_t status = scr_wait(work, r && r->bytes <= r->group->policy.begin_bytes ? r->group->policy.brief_ns : 0, err);
  if (status == SAGECOMM_PENDING) (void)scr_test(work); /* nobody waits from here on */
  return status;
}
