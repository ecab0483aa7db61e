/* run.c: the pool of runs, their handles, and completing them. */
#include <stdlib.h>

#include "bucket.h"
#include "composite.h"
#include "engine.h"
#include "gates.h"
#include "queue.h"
#include "recorder.h"

#define RUNS_PER_BLOCK 256
#define MAX_BLOCKS 1024

static scr_run *blocks[MAX_BLOCKS];
static _Atomic uint32_t n_blocks;
static scr_run *free_runs;
static _Atomic uint32_t pool_lock;

static bool grow(void) {
  uint32_t b = atomic_load_explicit(&n_blocks, memory_order_relaxed);
  if (b == MAX_BLOCKS) return false;
  scr_run *block = calloc(RUNS_PER_BLOCK, sizeof *block);
  if (block == NULL) return false;
  for (uint32_t i = RUNS_PER_BLOCK; i-- > 0;) {
    block[i].index = b * RUNS_PER_BLOCK + i;
    block[i].next = free_runs;
    free_runs = &block[i];
  }
  blocks[b] = block;
  atomic_store_explicit(&n_blocks, b + 1, memory_order_release);
  return true;
}

scr_run *scr_run_new(void) {
  scr_spin_lock(&pool_lock);
  scr_run *r = free_runs != NULL || grow() ? free_runs : NULL;
  if (r != NULL) free_runs = r->next;
  scr_spin_unlock(&pool_lock);
  if (r == NULL) return NULL;
  uint32_t index = r->index, generation = r->generation + 1;
  memset(r, 0, sizeof *r);
  r->index = index;
  r->generation = generation;
  r->source = -1;
  atomic_store_explicit(&r->refs, 1, memory_order_relaxed);
  return r;
}

uint64_t scr_run_handle(const scr_run *r) { return (uint64_t)r->generation << 32 | (r->index + 1); }

scr_run *scr_run_of(uint64_t handle) {
  uint32_t index = (uint32_t)handle - 1;
  if (index / RUNS_PER_BLOCK >= atomic_load_explicit(&n_blocks, memory_order_acquire)) return NULL;
  scr_run *r = &blocks[index / RUNS_PER_BLOCK][index % RUNS_PER_BLOCK];
  bool live = r->generation == (uint32_t)(handle >> 32) && atomic_load_explicit(&r->refs, memory_order_acquire) != 0 &&
              atomic_load_explicit(&r->released, memory_order_relaxed) == 0;
  return live ? r : NULL;
}

void scr_run_ref(scr_run *r) { atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed); }

void scr_run_unref(scr_run *r) {
  if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
  free(r->more_segments);
  r->more_segments = NULL;
  free(r->offsets);
  r->offsets = NULL;
  if (r->coll.own_program) scr_program_free(r->coll.own_program);
  r->coll.own_program = NULL;
  scr_cause_unref(r->cause);
  r->cause = NULL;
  scr_run *carrier = atomic_exchange_explicit(&r->carrier, NULL, memory_order_relaxed);
  if (carrier) scr_run_unref(carrier); /* which has no carrier itself */
  scr_composite_free(r->composite_of);
  r->composite_of = NULL;
  scr_spin_lock(&pool_lock);
  r->next = free_runs;
  free_runs = r;
  scr_spin_unlock(&pool_lock);
}

/* Stores the offsets of the blocks in `at`, unless all blocks have the same length. */
static scr_blocks blocks_of(const uint64_t *bytes, uint64_t total, int32_t size, uint64_t *at) {
  scr_blocks b = {.equal = total / (uint64_t)size};
  if (bytes == NULL) return b;
  bool even = true;
  at[0] = 0;
  for (int32_t i = 0; i < size; i++) {
    at[i + 1] = at[i] + bytes[i];
    even &= bytes[i] == bytes[0];
  }
  if (!even) b.at = at;
  return b;
}

bool scr_run_operands(scr_run *r, const sagecomm_op *op, int32_t size, uint64_t *scratch) {
  /* Fields that the kind does not use are 0, because peers compare all fields. */
  r->kind = op->kind;
  r->dtype = op->kind == SAGECOMM_BARRIER ? 0 : op->dtype;
  r->reduce_op = scr_reduces(op->kind) ? op->reduce_op : 0;
  r->async = (op->flags & SAGECOMM_ASYNC) != 0;
  r->root = scr_rooted(op->kind) || op->kind == SAGECOMM_SEND || op->kind == SAGECOMM_RECV ? op->root : 0;
  r->tag = op->tag;
  r->factor = op->factor;
  r->coll.batch = (uint8_t)(op->batch_size < SCR_MANY_PARTS ? op->batch_size : SCR_MANY_PARTS);
  r->coll.batch_hash = op->batch_hash;
  r->records.stack = (uint32_t)op->stack;
  r->in = (scr_segments){.list = op->in, .n = op->n_in};
  r->out = (scr_segments){.list = op->out, .n = op->n_out};
  if (op->kind == SAGECOMM_ALL_GATHER || (op->kind >= SAGECOMM_REDUCE_SCATTER && op->kind <= SAGECOMM_SCATTER)) {
    uint64_t *at = scratch;
    if (at == NULL && (op->in_blocks || op->out_blocks)) {
      at = r->offsets = malloc(2 * ((size_t)size + 1) * sizeof *at);
      if (at == NULL) return false;
    }
    r->in_blocks = blocks_of(op->in_blocks, scr_total(op->in, op->n_in), size, at);
    r->out_blocks = blocks_of(op->out_blocks, scr_total(op->out, op->n_out), size, at ? at + size + 1 : NULL);
  } else {
    r->in_blocks = r->out_blocks = (scr_blocks){0};
  }
  r->coll.uneven = op->kind != SAGECOMM_ALL_TO_ALL && (r->in_blocks.at || r->out_blocks.at);
  if (scratch) return true;
  sagecomm_segment *to = r->segments;
  if (op->n_in + op->n_out > 2 * SCR_INLINE_SEGMENTS) {
    to = r->more_segments = malloc((op->n_in + op->n_out) * sizeof *to);
    if (to == NULL) return false;
  }
  if (op->n_in) memcpy(to, op->in, op->n_in * sizeof *to);
  if (op->n_out) memcpy(to + op->n_in, op->out, op->n_out * sizeof *to);
  r->in.list = to;
  r->out.list = to + op->n_in;
  return true;
}

void scr_run_finish(scr_run *r, bool failed, bool waiter) {
  r->status = SAGECOMM_OK;
  if (SCR_UNLIKELY(failed)) {
    atomic_store_explicit(&r->group->has_failed, true, memory_order_release);
#ifdef SCR_MUTANT_CAUSE_READ_TWICE
    extern int sched_yield(void);
    r->status = scr_copy_error(r->group, NULL);
    sched_yield();
    r->cause = scr_cause_ref(atomic_load_explicit(&r->group->cause, memory_order_acquire));
#else
    /* Read once: the cause may be replaced, and status, rank and text are of one. */
    r->cause = scr_cause_ref(atomic_load_explicit(&r->group->cause, memory_order_acquire));
    r->status = scr_cause_copy(r->cause, NULL);
#endif
  }
  if (SCR_UNLIKELY(r->gate.words != NULL)) scr_gate_open(r);
  if (SCR_UNLIKELY(r->members != NULL)) {
    scr_carrier_finished(r, waiter);
  } else if (SCR_LIKELY(!r->agrees)) {
    scr_note_finished(r->group, r, !failed);
  }
  scr_run_settle(r, waiter);
#ifdef SCR_MUTANT_GATE_OPENED_AGAIN
  if (SCR_UNLIKELY(r->gate.words != NULL)) scr_gate_open(r);
#endif
}

void scr_run_settle(scr_run *r, bool waiter) {
  uint32_t before = atomic_exchange_explicit(&r->state, SCR_DONE, memory_order_seq_cst);
  bool sleeper = atomic_load_explicit(&r->sleepers, memory_order_seq_cst) != 0;
  if (sleeper) scr_futex_wake(&r->state);
  if ((before & SCR_HAS_DONE) && !sleeper && !waiter) {
    /* A thread that waits for a p2p operation, or an agreement, reads its state once more after it has decremented
     * `waiters`. */
    if (atomic_load_explicit(&r->p2p.waiters, memory_order_seq_cst) == 0) scr_push_completed(r);
  }
  if (before & SCR_HAS_COMPOSITE) scr_composite_part_done(r);
}

void scr_run_complete(scr_run *r) {
  sagecomm_done_fn done = atomic_load_explicit(&r->done, memory_order_acquire);
  if (done == NULL || atomic_exchange_explicit(&r->claimed, 1, memory_order_acq_rel) != 0) return;
  sagecomm_error err = {0};
  err.rank = -1;
  if (r->status < 0) scr_cause_copy(r->cause, &err);
  done(r->done_ctx, r->status, &err);
}

int32_t scr_on_done(sagecomm_work work, sagecomm_done_fn done, void *ctx, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  scr_run *r = scr_run_of(work);
  if (r == NULL || done == NULL) return scr_plain_error(err, SAGECOMM_INVALID, "sagecomm: on_done: bad work handle");
  uint32_t state = SCR_PENDING_STATE;
  if (atomic_load_explicit(&r->done, memory_order_relaxed) == NULL) {
    r->done_ctx = ctx;
#ifdef SCR_MUTANT_DONE_BEFORE_CONTEXT
    extern int sched_yield(void);
    /* The mutant works if a waiter reads `done` before the state is stored; on one core the waiter runs only if this
     * thread yields. */
    atomic_store_explicit(&r->done, done, memory_order_relaxed);
    for (int i = 0; i < 5; i++) sched_yield();
#else
    atomic_store_explicit(&r->done, done, memory_order_release);
#endif
    if (atomic_compare_exchange_strong_explicit(&r->state, &state, SCR_HAS_DONE, memory_order_acq_rel,
                                                memory_order_acquire)) {
      return SAGECOMM_PENDING;
    }
    /* The run is complete already. A thread in wait() may have read the function nevertheless; then that thread
     * calls it. */
    if (atomic_exchange_explicit(&r->claimed, 1, memory_order_acq_rel) != 0) return SAGECOMM_PENDING;
  } else if (!(atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE)) {
    return scr_plain_error(err, SAGECOMM_INVALID, "sagecomm: on_done: this work has a done function already");
  }
  if (r->status < 0) scr_cause_copy(r->cause, err);
  return r->status;
}

int32_t scr_work_source(sagecomm_work work) {
  scr_run *r = scr_run_of(work);
  return r && atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE ? r->source : -1;
}

void scr_release(sagecomm_work work) {
  if (scr_in_child()) return;
  scr_run *r = scr_run_of(work);
  if (r && atomic_exchange_explicit(&r->released, 1, memory_order_acq_rel) == 0) {
    if (!(atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE)) scr_see_to(r); /* nobody can wait for it */
    scr_run_unref(r);
  }
}
