/* queue.c: the drive lock and the queue of collectives. Numbering and queueing are one step under the queue lock, so
 * the queue is in the order of the numbers. */
#include "queue.h"

#include "engine.h"
#include "program.h"

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

/* ---- the queue ---- */

scr_run *scr_submit(scr_group *g, const sagecomm_op *op, uint64_t bytes, const scr_program *p, bool own, bool *down) {
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
  r->timeout_ns = scr_op_timeout(g, op);
  scr_run_ref(r); /* the queue's */
  scr_spin_lock(&g->queue_lock);
  uint64_t w = atomic_load_explicit(&g->word, memory_order_relaxed);
  do {
    if (w & SCR_DOWN) {
      scr_spin_unlock(&g->queue_lock);
      *down = true;
      scr_run_unref(r);
      scr_run_unref(r);
      return NULL;
    }
  } while (!atomic_compare_exchange_weak_explicit(&g->word, &w, (w + SCR_SEQ_ONE) | SCR_QUEUED, memory_order_acq_rel,
                                                  memory_order_relaxed));
  r->coll.seq = scr_word_seq(w) + 1;
  scr_note_created(g, r);
  if (own) r->coll.own_program = (scr_program *)(uintptr_t)p;
  if (g->queue_tail) {
    g->queue_tail->next = r;
  } else {
    g->queue_head = r;
  }
  g->queue_tail = r;
  scr_spin_unlock(&g->queue_lock);
  return r;
}

static scr_run *queue_first(scr_group *g) {
  scr_spin_lock(&g->queue_lock);
  scr_run *r = g->queue_head;
  scr_spin_unlock(&g->queue_lock);
  return r;
}

/* Takes the first run out. The last one clears SCR_QUEUED, under the same lock that guards setting it. */
static void queue_pop(scr_group *g) {
  scr_spin_lock(&g->queue_lock);
  scr_run *r = g->queue_head;
  g->queue_head = r->next;
  r->next = NULL;
  if (g->queue_head == NULL) {
    g->queue_tail = NULL;
    atomic_fetch_and_explicit(&g->word, ~SCR_QUEUED, memory_order_acq_rel);
  }
  scr_spin_unlock(&g->queue_lock);
}

int scr_drive(scr_group *g, scr_run *until, int64_t until_ns, scr_run **blocked) {
  if (atomic_load_explicit(&g->word, memory_order_relaxed) & SCR_DOWN) {
    scr_drain(g);
    return SCR_IDLE;
  }
  for (;;) {
    scr_run *r = queue_first(g);
    if (r == NULL) return SCR_IDLE;
    if (!r->coll.started) scr_run_start(g, r);
    int rc = scr_run_advance(g, r, until_ns);
    if (rc != SCR_FINISHED) {
      *blocked = r;
      return rc;
    }
    queue_pop(g);
    bool stop = r == until;
    scr_run_finish(r, SAGECOMM_OK, stop);
    scr_run_unref(r);
    if (stop) return SCR_FINISHED;
    if (until_ns != 0 && scr_now() >= until_ns) return queue_first(g) ? SCR_YIELDED : SCR_IDLE;
  }
}

/* What the peers had published before the group failed is still there, so operations at the head of the queue may complete
 * yet. None of them waits: the first one that would ends the attempt, and whatever a dead peer left is bounded by its
 * slots. policy.drain_ns bounds what peers that are alive go on to publish meanwhile. */
void scr_drain(scr_group *g) {
  bool goes_on = true;
  int64_t until_ns = 0;
  for (scr_run *r; (r = queue_first(g)) != NULL;) {
    if (goes_on) {
      if (until_ns == 0) until_ns = scr_now() + g->policy.drain_ns;
      g->coll.spin_now = 0;
      if (!r->coll.started) scr_run_start(g, r);
      goes_on = scr_run_advance(g, r, until_ns) == SCR_FINISHED;
    }
    queue_pop(g);
    scr_run_finish(r, goes_on ? SAGECOMM_OK : scr_copy_error(g, NULL), false);
    goes_on = goes_on && scr_now() < until_ns;
    scr_run_unref(r);
  }
}
