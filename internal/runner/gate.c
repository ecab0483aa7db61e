/* gate.c: how runs wait at gates, and external runs. The memory of a device is moved elsewhere.
 * Requires: the drive lock, for every function. */
#include "gates.h"

#include "annotate.h"
#include "queue.h"

static void note_range(scr_segments *s, uint64_t at, uint64_t end, bool writes) {
  while (at < end) {
    uint64_t n;
    const void *address = scr_span(s, at, end - at, &n);
    if (writes) {
      scr_note_writes(address, n, "the library writes the output of a unit");
    } else {
      scr_note_reads(address, n, "the library reads the input of a unit");
    }
    at += n;
  }
}

/* Notes what the CPU reads or writes of a unit: a chunk of each block where the device moves a unit for each chunk, else the
 * whole buffer with the first unit. */
static void note_unit(scr_run *r, bool writes, uint32_t moved, uint64_t unit) {
  scr_segments *s = writes ? &r->out : &r->in;
  if (SCR_LIKELY(emulator_host_read == NULL) || s->n == 0) return;
  if (moved <= 1) {
    if (unit == 0) note_range(s, 0, scr_total(s->list, s->n), writes);
    return;
  }
  const scr_program *pg = r->coll.program;
  bool blocks = writes ? pg->output_blocks : pg->input_blocks;
  uint64_t at = unit * pg->chunk, end = scr_min(at + pg->chunk, r->bytes);
  for (int32_t i = 0; i < (blocks ? r->group->size : 1); i++) {
    uint64_t base = blocks ? scr_block_at(writes ? &r->out_blocks : &r->in_blocks, i) : 0;
    note_range(s, base + at, base + end, writes);
  }
}

static uint64_t units(uint64_t wanted, uint32_t moved) { return scr_min(wanted, moved); }

int scr_gate_enter(scr_group *g, scr_run *r, uint64_t unit) {
  scr_gate_words *w = r->gate.words;
  r->coll.channel = 0;
  r->at_gate = true;
#ifdef SCR_MUTANT_INPUT_NOT_AWAITED
  int rc = 0;
#else
  int rc = scr_await(g, r, &w->input_ready, units(unit + 1, r->gate.inputs), g->rank);
#endif
  if (rc) return rc;
  scr_note_acquired(&w->input_ready);
  note_unit(r, false, r->gate.inputs, unit);
  scr_note_released(&w->input_taken); /* for threads that have the drive lock after this one */
  if (!r->reached) {
    r->reached = true;
    atomic_store_explicit(&g->shared->reached, r->coll.seq, memory_order_release);
  }
#ifdef SCR_MUTANT_OUTPUT_NOT_AWAITED
  bool bounded = false;
#else
  bool bounded = r->gate.window != 0;
#endif
  if (bounded && unit >= r->gate.window) {
    rc = scr_await(g, r, &w->output_taken, units(unit + 1 - r->gate.window, r->gate.outputs), g->rank);
    if (rc) return rc;
    scr_note_acquired(&w->output_taken);
    scr_note_released(&w->input_taken);
  }
  r->at_gate = false;
  return 0;
}

/* No device waits for more units than it moves, so the counts may go beyond them. */
void scr_gate_leave(scr_run *r, uint64_t unit) {
  scr_note_acquired(&r->gate.words->input_taken);
  note_unit(r, false, r->gate.inputs, unit); /* which it may have read until now */
  note_unit(r, true, r->gate.inputs > 1 ? r->gate.inputs : r->gate.outputs, unit);
  scr_note_released(&r->gate.words->input_taken);
  scr_note_stored(&r->gate.words->output_done, unit + 1);
  scr_note_stored(&r->gate.words->input_taken, unit + 1);
  scr_note_released(
      &r->gate.words->output_taken); /* for the caller, who queues the copies back where no stream can wait */
  atomic_store_explicit(&r->gate.words->output_done, unit + 1, memory_order_release);
  atomic_store_explicit(&r->gate.words->input_taken, unit + 1, memory_order_release);
}

/* output_done comes last: the stream that sees it writes the last word of the device, and then the gate may belong to another
 * operation. */
void scr_gate_open(const scr_run *r) {
  scr_note_acquired(&r->gate.words->input_taken);
  scr_note_stored(&r->gate.words->input_taken, SCR_GATE_OPEN);
  scr_note_stored(&r->gate.words->output_done, SCR_GATE_OPEN);
  scr_note_released(&r->gate.words->output_taken); /* for who writes it when the run has ended: no stream could wait */
#ifdef SCR_MUTANT_OUTPUT_OPENED_FIRST
  extern int sched_yield(void);
  /* The mutant works if the stream goes on before the next store; on one core it runs only if this thread yields. */
  atomic_store_explicit(&r->gate.words->output_done, SCR_GATE_OPEN, memory_order_release);
  for (int i = 0; i < 5; i++) sched_yield();
#endif
#ifndef SCR_MUTANT_GATE_STAYS_SHUT
  atomic_store_explicit(&r->gate.words->input_taken, SCR_GATE_OPEN, memory_order_release);
  atomic_store_explicit(&r->gate.words->output_done, SCR_GATE_OPEN, memory_order_release);
#endif
}

/* ---- external runs ---- */

/* Returns the last collective that a rank has recorded, and reads one record where nothing is new: a group may have hundreds of
 * ranks, and this comes with each operation. Calls are recorded in the order of their numbers, so a record of a later call is in the
 * place of the next one, or the place behind it if the owner is writing that one, or was when STATE was made. */
static uint64_t recorded_by(scr_peer *p) {
  for (uint64_t last = p->recorded_seen;;) {
    uint64_t seq = atomic_load_explicit(&p->shared->records[(last + 1) % SCR_RECORDS].seq, memory_order_acquire);
    if (seq <= last) {
      seq = atomic_load_explicit(&p->shared->records[(last + 2) % SCR_RECORDS].seq, memory_order_acquire);
    }
    if (seq <= last) return p->recorded_seen = last;
    last = seq;
  }
}

/* Compares what this rank and a peer have recorded of the last collective that both have recorded, or of the last one that
 * both have marked. `last` is this rank's last one. */
static bool agrees(scr_group *g, int32_t peer, uint64_t last) {
  scr_call mine, theirs;
  scr_peer *p = &g->peer[peer];
  uint64_t both = scr_min(last, recorded_by(p));
  if (both == p->agreed) return true; /* what a remote rank has recorded since comes with STATE */
  if (scr_group_call(g, g->rank, both, &mine) && scr_group_call(g, peer, both, &theirs)) {
    if (mine.hash != theirs.hash) return false;
    p->agreed = both;
    return true;
  }
  return scr_group_marks_agree(g, peer, both);
}

int scr_external_compare(scr_group *g, scr_run *r) {
  uint64_t last = recorded_by(&g->peer[g->rank]);
  for (int32_t i = 0; i < scr_n_visited(g); i++) {
    int32_t p = g->visited[i];
    if (p == g->rank) continue;
    int code = !agrees(g, p, last) ? SCR_INCIDENT_MISMATCH : !scr_splits_fit(g, p) ? SCR_INCIDENT_UNFIT : 0;
    if (code == 0) continue;
    r->peer = p;
    return code;
  }
  return 0;
}

void scr_external_begin(scr_group *g, scr_run *r) {
  r->listed = true;
  r->next_external = NULL;
  if (g->coll.external_tail) {
    g->coll.external_tail->next_external = r;
  } else {
    g->coll.external_head = r;
  }
  g->coll.external_tail = r;
}

/* A library that is aborted ends its kernels early, and the stream writes output_taken behind them. A group goes down before its
 * libraries are aborted, so the word is looked at after output_taken. A peer that ends its own waits, or its kernels, may end what
 * this rank's stream waits for, with nothing written. Before, it voids the operations of this rank where they have a word for that,
 * which alone counts then; elsewhere it has declared a failure. */
static bool is_void(const scr_run *r) {
#ifndef SCR_MUTANT_CUT_IS_DONE
  if (atomic_load_explicit(&r->group->word, memory_order_acquire) & SCR_DOWN) return true;
#endif
#ifndef SCR_MUTANT_VOID_IS_DONE
  if (r->gate.voided) return atomic_load_explicit(r->gate.voided, memory_order_acquire) != 0;
#endif
#ifdef SCR_MUTANT_FAILED_IS_DONE
  return false;
#else
  return !r->gate.voided && atomic_load_explicit(r->group->failure, memory_order_acquire) != 0;
#endif
}

static bool is_done(scr_run *r) {
  if (!r->reached && atomic_load_explicit(&r->gate.words->input_ready, memory_order_acquire) != 0) {
    r->reached = true;
    atomic_store_explicit(&r->group->shared->reached, r->coll.seq, memory_order_release);
  }
  if (atomic_load_explicit(&r->gate.words->output_taken, memory_order_acquire) == 0) return false;
  return !is_void(r);
}

int scr_external_met(scr_group *g, scr_run **culprit) {
  scr_run *first = NULL;
  for (scr_run *r = g->coll.external_head; r != NULL; r = r->next_external) {
    r->met = is_done(r);
    if (r->met && first == NULL) first = r;
  }
  if (first == NULL) return 0;
  *culprit = first;
  return scr_external_compare(g, first);
}

bool scr_external_sweep(scr_group *g, const scr_run *until, bool all) {
  bool all_done = true;
  scr_run **link = &g->coll.external_head, *before = NULL;
  for (scr_run *r; (r = *link) != NULL;) {
    bool done = all ? is_done(r) : r->met; /* a stream may be done since calls were compared */
    all_done = all_done && done;
    if (!done && !all) {
      before = r;
      link = &r->next_external;
      continue;
    }
    *link = r->next_external;
    if (g->coll.external_tail == r) g->coll.external_tail = before;
    r->listed = false;
    scr_run_finish(r, !done, r == until);
    scr_run_unref(r);
  }
  scr_queue_settle(g);
  return all_done;
}

scr_run *scr_external_block(scr_group *g, scr_run *r) {
  r->flag = r->reached ? &r->gate.words->output_taken : &r->gate.words->input_ready;
  r->need = 1;
  r->peer = g->rank;
  r->at_gate = true;
  return r;
}

/* The ranks are visited once, however many runs are on the list. */
int scr_external_check(scr_group *g, int64_t now, scr_run **culprit) {
  scr_leaver left = scr_first_to_leave(g);
  for (scr_run *r = g->coll.external_head; r != NULL; r = r->next_external) {
    *culprit = scr_external_block(g, r);
    int code = scr_check_external(g, r, now, r == g->coll.external_head, &left);
    if (code) return code;
  }
  return 0;
}
