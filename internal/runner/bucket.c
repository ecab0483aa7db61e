/* bucket.c: see bucket.h. A held operation refers to its carrier as long as it lives; a carrier refers to its operations
 * until it is complete, so the segments of a single operation may stay where they are. */
#include "bucket.h"

#include <stdlib.h>

#include "engine.h"
#include "queue.h"
#include "recorder.h"
#include "ticks.h"
#include "wait.h"

/* ---- holding ---- */

static void append(scr_group *g, scr_run *r) {
  r->next = NULL;
  if (g->held_tail) {
    g->held_tail->next = r;
  } else {
    g->held_head = r;
  }
  g->held_tail = r;
  atomic_fetch_add_explicit(&g->held, 1, memory_order_seq_cst);
}

scr_run *scr_hold(scr_group *g, const sagecomm_op *op, uint64_t bytes, bool *down) {
  *down = false;
  scr_run *r = scr_run_new();
  if (r == NULL || !scr_run_operands(r, op, g->size, NULL)) {
    if (r) scr_run_unref(r);
    return NULL;
  }
  r->group = g;
  r->group_handle = g->handle;
  r->bytes = bytes;
  r->held = true;
  r->timeout_ns = scr_op_timeout(g, op);
  scr_note_created(g, r);
  scr_run_ref(r); /* the list's */
  scr_spin_lock(&g->queue_lock);
  *down = (atomic_load_explicit(&g->word, memory_order_seq_cst) & SCR_DOWN) != 0;
  if (!*down) {
    r->coll.seq = atomic_fetch_add_explicit(&g->numbered, 1, memory_order_relaxed) + 1;
    append(g, r);
  }
  scr_spin_unlock(&g->queue_lock);
  if (!*down) return r;
  scr_run_unref(r);
  scr_run_unref(r);
  return NULL;
}

void scr_queue_held(scr_group *g) {
  if (g->held_head == NULL) return;
  if (g->queue_tail) {
    g->queue_tail->next = g->held_head;
  } else {
    g->queue_head = g->held_head;
  }
  g->queue_tail = g->held_tail;
  g->held_head = g->held_tail = NULL;
  atomic_store_explicit(&g->held, 0, memory_order_seq_cst);
  atomic_fetch_or_explicit(&g->word, SCR_QUEUED, memory_order_acq_rel);
}

/* Takes the first n held operations out. Returns false if there are fewer, which only a group that is down has. */
static bool take(scr_group *g, uint32_t n, scr_run **list) {
  scr_spin_lock(&g->queue_lock);
  bool all = atomic_load_explicit(&g->held, memory_order_relaxed) >= n;
  if (all) {
    scr_run *last = *list = g->held_head;
    for (uint32_t i = 1; i < n; i++) last = last->next;
    g->held_head = last->next;
    if (g->held_head == NULL) g->held_tail = NULL;
    last->next = NULL;
    atomic_fetch_sub_explicit(&g->held, n, memory_order_seq_cst);
  }
  scr_spin_unlock(&g->queue_lock);
  return all;
}

/* Requires: the group is down. Whoever has the drive lock now wakes the engine when it leaves. */
static void drain_soon(scr_group *g) {
  if (!scr_drive_lock(g)) return;
  scr_drain(g);
  scr_drive_unlock(g);
}

/* Undoes take(). If the group has gone down meanwhile, the operations fail. */
static void give_back(scr_group *g, uint32_t n, scr_run *list) {
  scr_run *last = list;
  while (last->next) last = last->next;
  scr_spin_lock(&g->queue_lock);
  last->next = g->held_head;
  g->held_head = list;
  if (g->held_tail == NULL) g->held_tail = last;
  atomic_fetch_add_explicit(&g->held, n, memory_order_seq_cst);
  bool down = (atomic_load_explicit(&g->word, memory_order_seq_cst) & SCR_DOWN) != 0;
  if (down) scr_queue_held(g);
  scr_spin_unlock(&g->queue_lock);
  if (down) drain_soon(g);
}

/* Queues a carrier of a group that has gone down. It has no program, so scr_drain() fails it. */
static void queue_to_fail(scr_group *g, scr_run *c) {
  scr_run_ref(c); /* the queue's */
  scr_spin_lock(&g->queue_lock);
  append(g, c);
  scr_queue_held(g);
  scr_spin_unlock(&g->queue_lock);
  drain_soon(g);
}

/* ---- carriers ---- */

static uint32_t list_segments(sagecomm_segment *to, uint32_t n, const scr_segments *from) {
  for (uint32_t i = 0; i < from->n; i++) {
    const sagecomm_segment *s = &from->list[i];
    if (n > 0 && (unsigned char *)to[n - 1].data + to[n - 1].bytes == s->data) {
      to[n - 1].bytes += s->bytes;
    } else {
      to[n++] = *s;
    }
  }
  return n;
}

/* Makes the carrier's buffers those of all its operations, one after the other. Returns false without memory. */
static bool gather(scr_run *c) {
  size_t most = 0;
  for (const scr_run *m = c->members; m; m = m->next) most += (size_t)m->in.n + m->out.n;
  sagecomm_segment *to = c->more_segments = malloc(most * sizeof *to);
  if (to == NULL) return false;
  uint32_t n_in = 0, n_out = 0;
  for (const scr_run *m = c->members; m; m = m->next) n_in = list_segments(to, n_in, &m->in);
  for (const scr_run *m = c->members; m; m = m->next) n_out = list_segments(to + n_in, n_out, &m->out);
  c->in = (scr_segments){.list = to, .n = n_in};
  c->out = (scr_segments){.list = to + n_in, .n = n_out};
  return true;
}

/* Makes the run carry out its members. Returns false without memory. */
static bool load(scr_run *c, uint32_t n, uint64_t bytes) {
  scr_run *first = c->members;
  c->group = first->group;
  c->group_handle = first->group_handle;
  c->kind = first->kind;
  c->dtype = first->dtype;
  c->reduce_op = first->reduce_op;
  c->async = first->async;
  c->root = first->root;
  c->tag = first->tag;
  c->factor = first->factor;
  c->bytes = bytes;
  c->timeout_ns = first->timeout_ns;
  c->in = first->in;
  c->out = first->out;
  c->in_blocks = first->in_blocks;
  c->out_blocks = first->out_blocks;
  c->coll.uneven = first->coll.uneven;
  c->coll.batch = first->coll.batch;
  c->coll.batch_hash = first->coll.batch_hash;
  if (n == 1) return true;
  c->coll.batch = (uint8_t)(n < SCR_MANY_PARTS ? n : SCR_MANY_PARTS);
  c->coll.batch_hash = n;
  for (const scr_run *m = first; m; m = m->next) {
    c->coll.batch_hash = scr_batch_hash(c->coll.batch_hash, m->bytes);
    if (m->timeout_ns < c->timeout_ns) c->timeout_ns = m->timeout_ns;
  }
  return gather(c);
}

static void count_carriers(scr_group *g, int more) {
  atomic_fetch_add_explicit(&g->carrying, (uint32_t)more, memory_order_seq_cst);
}

/* From before the operations leave the list of held ones they are counted in `carrying`, or their carrier is queued: see
 * scr_group_unfinished(). */
bool scr_carry(scr_group *g, uint32_t n, uint64_t bytes, const scr_program *p, bool own, bool *down) {
  scr_run *list = NULL;
  count_carriers(g, 1);
  *down = !take(g, n, &list);
  if (*down) {
    count_carriers(g, -1);
    return false;
  }
  scr_run *c = scr_run_new();
  if (c == NULL) {
    give_back(g, n, list);
    count_carriers(g, -1);
    return false;
  }
  c->members = list;
  c->coll.program = p;
  bool ok = load(c, n, bytes);
  if (ok) {
    /* Before the carrier is queued: from then on it may complete at any time. */
    for (scr_run *m = list; m; m = m->next) {
      if (n > 1) m->coll.batch = 1; /* statistics count it as fused */
      scr_run_ref(c);
      atomic_store_explicit(&m->carrier, c, memory_order_release);
    }
    if (!scr_enqueue(g, c, own)) {
      *down = true;
      c->coll.program = NULL;
      queue_to_fail(g, c);
    }
  } else {
    c->members = NULL;
    give_back(g, n, list);
  }
  if (n == 1 || !ok) count_carriers(g, -1); /* else scr_carrier_finished() does */
  scr_run_unref(c);
  return ok && !*down;
}

void scr_carrier_started(scr_group *g, scr_run *c) {
  for (scr_run *m = c->members; m; m = m->next) scr_note_started(g, m);
}

/* Links the operations of a carrier for leave(), which has a reference to each. Returns the last one. */
static scr_run *chain(scr_group *g, scr_run *list) {
  scr_run *last = NULL;
  for (scr_run *m = list; m; m = m->next) {
    scr_run_ref(m);
    m->next_completed = m->next;
    last = m;
    count_carriers(g, 1);
  }
  return last;
}

/* Leaves the done functions of complete operations to waiters and to scr_group_claim(). */
static void leave(scr_group *g, scr_run *list, scr_run *last) {
  scr_spin_lock(&g->queue_lock);
  if (g->unclaimed_tail) {
    g->unclaimed_tail->next_completed = list;
  } else {
    g->unclaimed = list;
  }
  g->unclaimed_tail = last;
  scr_spin_unlock(&g->queue_lock);
}

void scr_group_claim(scr_group *g) {
  scr_spin_lock(&g->queue_lock);
  scr_run *list = g->unclaimed;
  g->unclaimed = g->unclaimed_tail = NULL;
  scr_spin_unlock(&g->queue_lock);
  for (scr_run *r = list, *next; r; r = next) {
    next = r->next_completed;
    bool has_done = atomic_load_explicit(&r->done, memory_order_acquire) != NULL;
    if (has_done && atomic_load_explicit(&r->claimed, memory_order_acquire) == 0) scr_push_completed(r);
    scr_run_unref(r);
    count_carriers(g, -1);
  }
}

bool scr_group_carrying(const scr_group *g) { return atomic_load_explicit(&g->carrying, memory_order_seq_cst) != 0; }

void scr_carrier_finished(scr_run *c, bool waiter) {
  scr_group *g = c->group;
  scr_run *list = c->members;
  bool several = list->next != NULL;
  scr_run *last = several && waiter ? chain(g, list) : NULL;
  uint64_t waited = c->records.waited + (c->records.blocked ? scr_ticks() - c->records.blocked : 0);
  c->members = NULL;
#ifdef SCR_MUTANT_LEFT_TOO_EARLY
  if (last) leave(g, list, last);
  last = NULL;
#endif
  for (scr_run *m = list, *next; m; m = next) {
    next = m->next;
    m->next = NULL;
    m->status = c->status;
    m->cause = scr_cause_ref(c->cause);
    m->records.waited = waited;
    m->coll.program = c->coll.program; /* statistics have a row for each algorithm */
    scr_note_finished(g, m, c->status == SAGECOMM_OK);
    m->coll.program = NULL; /* it may be the carrier's own */
    scr_run_settle(m, waiter);
    scr_run_unref(m);
  }
  if (last) leave(g, list, last); /* now that they are complete: their done functions may be called at any moment */
  if (several) count_carriers(g, -1);
}

scr_run *scr_carrier_of(scr_run *r, int64_t slice_end, bool *again) {
  *again = false;
  scr_run *c = atomic_load_explicit(&r->carrier, memory_order_acquire);
  if (SCR_LIKELY(c != NULL)) return c;
  scr_run *agreement = NULL;
  scr_entering_go();
  scr_go.want(r->group_handle, &agreement);
  if (agreement != NULL) {
    sagecomm_error unseen; /* a failure is that of the operation, too */
    int64_t left = slice_end - scr_now();
    /* Once this thread is not counted any more, whoever completes the agreement sees to the carriers that follow; until
     * then it is this thread: its caller drives them, or wakes the engine where its time is over. */
    atomic_fetch_add_explicit(&agreement->p2p.waiters, 1, memory_order_seq_cst);
    if (left > 0) (void)scr_wait(scr_run_handle(agreement), left, &unseen);
    atomic_fetch_sub_explicit(&agreement->p2p.waiters, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&agreement->state, memory_order_seq_cst) & SCR_DONE) scr_run_complete(agreement);
    scr_run_unref(agreement);
    *again = true;
  }
  return atomic_load_explicit(&r->carrier, memory_order_acquire);
}

/* ---- agreements ---- */

static int64_t least_timeout(scr_group *g, uint64_t n) {
  int64_t least = SCR_LONGEST_NS;
  scr_spin_lock(&g->queue_lock);
  for (const scr_run *r = g->held_head; r && n > 0; r = r->next, n--) {
    if (r->timeout_ns < least) least = r->timeout_ns;
  }
  scr_spin_unlock(&g->queue_lock);
  return least;
}

scr_run *scr_agree(scr_group *g, uint32_t about, uint64_t proposal, const scr_program *p, bool own, bool *down) {
  *down = false;
  scr_run *r = scr_run_new();
  if (r == NULL) return NULL;
  r->agreed = proposal;
  r->agrees = true;
  r->group = g;
  r->group_handle = g->handle;
  r->kind = SAGECOMM_ALL_REDUCE;
  r->dtype = SAGECOMM_INT64;
  r->reduce_op = SAGECOMM_MIN;
  r->async = 1;
  r->root = (int32_t)(SCR_AGREES | about);
  r->bytes = sizeof r->agreed;
  r->timeout_ns = least_timeout(g, proposal);
  r->segments[0] = (sagecomm_segment){&r->agreed, sizeof r->agreed};
  r->in = r->out = (scr_segments){.list = r->segments, .n = 1};
  r->coll.program = p;
  if (scr_enqueue(g, r, own)) return r;
  *down = true;
  scr_run_unref(r);
  return NULL;
}

bool scr_agree_begin(scr_run *r) {
  scr_group *g = r->group;
  scr_run *blocked;
  if (scr_drive_lock(g)) {
    g->coll.spin_now = 0;
    if (!(atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE)) {
      (void)scr_drive(g, r, scr_now() + g->policy.begin_ns, &blocked); /* the next driver meets an incident again */
    }
    scr_drive_unlock(g);
  }
  return (atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE) != 0;
}

bool scr_agreed(const scr_run *r, uint64_t *lowest) {
  if (!(atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE)) return false;
  uint64_t agreed = r->agreed != 0 ? r->agreed : UINT64_MAX;
  *lowest = r->status == SAGECOMM_OK ? agreed : 0;
  return true;
}

bool scr_agreement_waited_for(const scr_run *r) {
  return atomic_load_explicit(&r->p2p.waiters, memory_order_seq_cst) != 0;
}

void scr_group_begin(scr_group *g) {
  scr_run *blocked;
  if (!(atomic_load_explicit(&g->word, memory_order_acquire) & SCR_QUEUED) || !scr_drive_lock(g)) return;
  g->coll.spin_now = 0;
  (void)scr_drive(g, NULL, scr_now() + g->policy.begin_ns, &blocked); /* the next driver meets an incident again */
  scr_drive_unlock(g);
}

void scr_run_keep(scr_run *r) { scr_run_ref(r); }

void scr_run_drop(scr_run *r) { scr_run_unref(r); }
