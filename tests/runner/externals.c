/* externals.c: external runs, whose streams carry them out (docs/protocol.md, section 12). The tests move the words of their gates. */
#include <sched.h>

#include "../../internal/runner/gates.h"
#include "on_devices.h"
#include "trips.h"

static int size;

static void run(int n, waiting w, uint64_t seed, rank_fn *fn) {
  size = n;
  run_on_devices(n, w, seed, fn, NULL);
}

#define EXTERNAL 100

static sagecomm_op external(const rank *r, trip *t, int kind) {
  sagecomm_op op = operation(r, t, kind);
  next_gate[r->rank].external = true;
  return op;
}

/* Issues EXTERNAL external runs, whose gates get words of zero. */
static void issue_external(rank *r, trip *t, scr_gate_words *words, sagecomm_work *work) {
  sagecomm_error err;
  memset(words, 0, EXTERNAL * sizeof *words);
  for (int i = 0; i < EXTERNAL; i++) {
    sagecomm_op op = external(r, t, SAGECOMM_ALL_REDUCE);
    next_gate[r->rank].words = &words[i];
    CHECK(scr_issue(r->handle, &op, &work[i], NULL, &err) == SAGECOMM_PENDING);
  }
}

/* External runs complete in the order in which their streams do, and wait for no peer. More of them than there are slots lie
 * between two runs with a program. */
static void external_runs(rank *r, void *arg) {
  (void)arg;
  trip *t = new_trip(64, 64, 0, 1);
  scr_gate_words *words = aligned_alloc(SCR_LINE, EXTERNAL * sizeof *words);
  sagecomm_work work[EXTERNAL];
  sagecomm_error err;
  chunk_of(r, 64);
  issue_external(r, t, words, work);
  for (int i = EXTERNAL; i-- > 0;) { /* the last one first */
    CHECK(scr_wait(work[i], 0, &err) == SAGECOMM_PENDING);
    atomic_store_explicit(&words[i].input_ready, 1, memory_order_release);
    atomic_store_explicit(&words[i].output_taken, 1, memory_order_release);
    CHECK(complete(work[i], &err) == SAGECOMM_OK);
  }
  chunk_of(r, 64);
  meet();
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield(); /* the engine may be looking */
  meet();
  free(words);
  free_trip(t);
}

void test_external(int n, waiting w, uint64_t seed) { run(n, w, seed, external_runs); }

/* One rank makes another call than the others, and no data moves between them. */
static void external_mismatch(rank *r, void *arg) {
  (void)arg;
  trip *t = new_trip(64, 64, 0, 1);
  sagecomm_work work[EXTERNAL];
  sagecomm_error err;
  int issued = 0;
  for (int i = 0; i < EXTERNAL; i++) {
    bool other = r->rank == size - 1 && i == 40;
    if (i == 30) meet(); /* all have issued some when the group fails */
    sagecomm_op op = external(r, t, other ? SAGECOMM_BARRIER : SAGECOMM_ALL_REDUCE);
    int32_t status = scr_issue(r->handle, &op, &work[issued], NULL, &err);
    if (status == SAGECOMM_PENDING) issued++;
    if (status < 0) CHECK(status == SAGECOMM_MISMATCH);
  }
  CHECK(issued > 0);
  for (int i = 0; i < issued; i++) CHECK(complete(work[i], &err) == SAGECOMM_MISMATCH);
  meet();
  free_trip(t);
}

void test_external_mismatch(int n, waiting w, uint64_t seed) {
  if (n > 1) run(n, w, seed, external_mismatch);
}

/* Calls `f` on the group of rank 0 while all ranks have recorded their calls and no thread drives a lane. */
static void undriven(rank *r, void (*f)(scr_group *g)) {
  scr_group *g = r->beside->group;
  scr_run *blocked = NULL;
  while (!scr_drive_lock(g)) sched_yield();
  CHECK(scr_drive(g, NULL, 0, &blocked) == SCR_BLOCKED);
  meet();
  if (r->rank == 0) f(g);
  meet();
  scr_drive_unlock(g);
}

static uint64_t change_hash(const scr_group *g, int32_t peer, uint64_t seq, uint64_t by) {
  return atomic_fetch_add(&g->peer[peer].shared->records[seq % SCR_RECORDS].hash, by);
}

static int compare_all(scr_group *g) { return scr_external_compare(g, g->coll.external_head); }

/* What was compared is not compared again, and what comes later is, also where the peer is more calls ahead than it keeps. */
static void compare_runs(scr_group *g) {
  const uint64_t last = EXTERNAL;
  const scr_peer *p = &g->peer[g->size - 1];
  CHECK(compare_all(g) == 0 && p->agreed == last && p->recorded_seen == last);
  change_hash(g, g->size - 1, last, 1);
  CHECK(compare_all(g) == 0);
  scr_peer *again = &g->peer[g->size - 1];
  again->agreed = last - 1;
  CHECK(compare_all(g) == SCR_INCIDENT_MISMATCH && g->coll.external_head->peer == g->size - 1);
  change_hash(g, g->size - 1, last, UINT64_MAX);
  for (uint64_t seen = 0; seen <= last; seen++) { /* wherever it has stopped reading */
    again->recorded_seen = seen;
    CHECK(compare_all(g) == 0 && p->agreed == last && p->recorded_seen == last);
  }
  scr_record *next = &p->shared->records[5]; /* while the owner writes one over that was not read yet */
  uint64_t seq = atomic_exchange(&next->seq, 0);
  again->recorded_seen = 4;
  CHECK(compare_all(g) == 0 && p->recorded_seen == last);
  atomic_store(&next->seq, seq);
}

/* A look at all runs visits each rank once: it compares the last call that both have recorded, and no earlier one. */
static void check_runs(scr_group *g) {
  scr_run *culprit = NULL;
  int64_t now = scr_now();
  change_hash(g, g->size - 1, EXTERNAL - 1, 1);
  CHECK(scr_external_check(g, now, &culprit) == 0);
  change_hash(g, g->size - 1, EXTERNAL - 1, UINT64_MAX);
  _Atomic uint64_t *left = &g->peer[g->size - 1].lane[SCR_HOST_LANE]->left;
  atomic_store(left, 1);
  CHECK(scr_external_check(g, now, &culprit) == 0); /* it has called all of them */
  scr_record *newest = &g->peer[g->size - 1].shared->records[EXTERNAL % SCR_RECORDS];
  atomic_store(&newest->seq, EXTERNAL - SCR_RECORDS);
  CHECK(scr_external_check(g, now, &culprit) == SCR_INCIDENT_LEFT && culprit->coll.seq == EXTERNAL);
  CHECK(culprit->peer == g->size - 1);
  CHECK(scr_check_external(g, culprit, now, false, NULL) == 0); /* before a sleep at a gate it visits nobody */
  atomic_store(&newest->seq, EXTERNAL);
  atomic_store(left, 0);
}

/* Calls are compared in each look, and with each operation, in groups of hundreds of ranks. */
static void external_compared(rank *r, void *arg) {
  (void)arg;
  trip *t = new_trip(64, 64, 0, 1);
  scr_gate_words *words = aligned_alloc(SCR_LINE, EXTERNAL * sizeof *words);
  sagecomm_work work[EXTERNAL];
  sagecomm_error err;
  issue_external(r, t, words, work);
  undriven(r, compare_runs);
  undriven(r, check_runs);
  for (int i = 0; i < EXTERNAL; i++) {
    atomic_store_explicit(&words[i].input_ready, 1, memory_order_release);
    atomic_store_explicit(&words[i].output_taken, 1, memory_order_release);
    CHECK(complete(work[i], &err) == SAGECOMM_OK);
  }
  meet();
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield();
  meet();
  free(words);
  free_trip(t);
}

void test_external_compared(int n, waiting w, uint64_t seed) {
  if (n > 1) run(n, w, seed, external_compared);
}

static void note_status(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  atomic_store((_Atomic int32_t *)ctx, status);
}

/* The engine looks at external runs also while the first run in the queue waits at its gate: one that no peer makes times out. */
static void external_before_a_gate(rank *r, void *arg) {
  (void)arg;
  if (r->rank == 0) {
    trip *t = new_trip(64, 64, 0, 1), *late = new_trip(64, 64, 0, 1);
    sagecomm_work work, behind;
    sagecomm_error err;
    sagecomm_op op = external(r, t, SAGECOMM_ALL_REDUCE);
    op.timeout_ns = 100 * 1000000;
    atomic_store_explicit(&t->words.input_ready, 1, memory_order_release);
    CHECK(scr_issue(r->handle, &op, &work, NULL, &err) == SAGECOMM_PENDING);
    op = operation(r, late, SAGECOMM_ALL_REDUCE); /* its stream never reaches it */
    CHECK(scr_issue(r->handle, &op, &behind, NULL, &err) == SAGECOMM_PENDING);
    _Atomic int32_t status = SAGECOMM_PENDING;
    CHECK(scr_on_done(work, note_status, (void *)&status, &err) == SAGECOMM_PENDING);
    for (int64_t end = scr_now() + 20 * 1000000000LL; atomic_load(&status) == SAGECOMM_PENDING; sched_yield()) {
      CHECK(scr_now() < end);
    }
    CHECK(atomic_load(&status) == SAGECOMM_TIMEOUT);
    scr_release(work);
    CHECK(complete(behind, &err) == SAGECOMM_TIMEOUT);
    free_trip(t);
    free_trip(late);
  }
  meet();
}

void test_external_before_a_gate(int n, waiting w, uint64_t seed) {
  if (n > 1) run(n, w, seed, external_before_a_gate);
}

/* A library whose group is down is aborted: its kernel ends early, and the stream goes on. That is no success, also for a driver that
 * looks only then. */
static void external_cut(rank *r, void *arg) {
  (void)arg;
  static _Atomic uint32_t voided; /* no peer does that */
  trip *t = new_trip(64, 64, 0, 1);
  scr_group *g = r->beside->group;
  sagecomm_work work;
  sagecomm_error err;
  sagecomm_op op = external(r, t, SAGECOMM_ALL_REDUCE);
  next_gate[r->rank].voided = &voided;
  CHECK(scr_issue(r->handle, &op, &work, NULL, &err) == SAGECOMM_PENDING);
  while (!scr_drive_lock(g)) sched_yield(); /* nobody drains the lane meanwhile */
  meet();
  declare(r, SAGECOMM_ABORTED, 0, "the user aborts");
  atomic_store_explicit(&t->words.input_ready, 1, memory_order_release);
  atomic_store_explicit(&t->words.output_taken, 1, memory_order_release);
  scr_drive_unlock(g);
  CHECK(complete(work, &err) == SAGECOMM_ABORTED);
  meet();
  free_trip(t);
}

void test_external_cut(int n, waiting w, uint64_t seed) { run(n, w, seed, external_cut); }

/* The stream has ended the second operation, which no peer has voided, and no driver has looked since when the group goes down: it is
 * complete. The first one, whose stream is late, is not. The lock is released without waking the engine. */
static void external_unseen(rank *r, void *arg) {
  (void)arg;
  static _Atomic uint32_t voided;
  trip *t = new_trip(64, 64, 0, 1);
  scr_group *g = r->beside->group;
  scr_gate_words words[2];
  memset(words, 0, sizeof words);
  sagecomm_work work[2];
  sagecomm_error err;
  for (int i = 0; i < 2; i++) {
    sagecomm_op op = external(r, t, SAGECOMM_ALL_REDUCE);
    next_gate[r->rank].words = &words[i];
    next_gate[r->rank].voided = &voided;
    CHECK(scr_issue(r->handle, &op, &work[i], NULL, &err) == SAGECOMM_PENDING);
  }
  while (!scr_drive_lock(g)) sched_yield();
  meet();
  atomic_store_explicit(&words[1].input_ready, 1, memory_order_release);
  atomic_store_explicit(&words[1].output_taken, 1, memory_order_release);
  atomic_fetch_and_explicit(&g->word, ~SCR_LOCKED, memory_order_acq_rel);
  scr_group_down(g, &(sagecomm_error){.status = SAGECOMM_ABORTED}); /* no other rank hears of it */
  CHECK(complete(work[0], &err) == SAGECOMM_ABORTED);
  CHECK(complete(work[1], &err) == SAGECOMM_OK);
  meet();
  free_trip(t);
}

void test_external_unseen(int n, waiting w, uint64_t seed) { run(n, w, seed, external_unseen); }

/* A peer's library is aborted behind the failure that the peer has declared, and so ends what this rank's stream waits for. */
static void external_failed(rank *r, void *arg) {
  (void)arg;
  trip *t = new_trip(64, 64, 0, 1);
  scr_group *g = r->beside->group;
  sagecomm_work work;
  sagecomm_error err, cause = {.status = SAGECOMM_ABORTED, .rank = size - 1};
  sagecomm_op op = external(r, t, SAGECOMM_ALL_REDUCE);
  CHECK(scr_issue(r->handle, &op, &work, NULL, &err) == SAGECOMM_PENDING);
  while (!scr_drive_lock(g)) sched_yield();
  meet();
  scr_group_set_failure(r->group, &cause, sizeof cause); /* of one rank; nobody takes a group down */
  atomic_store_explicit(&t->words.input_ready, 1, memory_order_release);
  atomic_store_explicit(&t->words.output_taken, 1, memory_order_release);
  scr_run *blocked = NULL;
  scr_drive(g, NULL, 0, &blocked);
  scr_drive_unlock(g);
  CHECK(complete(work, &err) == SAGECOMM_ABORTED);
  meet();
  free_trip(t);
}

void test_external_failed(int n, waiting w, uint64_t seed) { run(n, w, seed, external_failed); }

/* A rank leaves after its last call. What it has called succeeds, though its peers' streams are late. What it has not called fails. */
static void external_left(rank *r, void *arg) {
  (void)arg;
  trip *t = new_trip(64, 64, 0, 1);
  scr_gate_words words[2];
  memset(words, 0, sizeof words);
  sagecomm_work work[2];
  sagecomm_error err;
  bool leaves = r->rank == size - 1;
  sagecomm_op op = external(r, t, SAGECOMM_ALL_REDUCE);
  next_gate[r->rank].words = &words[0];
  CHECK(scr_issue(r->handle, &op, &work[0], NULL, &err) == SAGECOMM_PENDING);
  meet();
  if (!leaves) meet();
  atomic_store_explicit(&words[0].input_ready, 1, memory_order_release);
  if (!leaves) CHECK(scr_wait(work[0], 5000000, &err) == SAGECOMM_PENDING); /* it looks who has left */
  atomic_store_explicit(&words[0].output_taken, 1, memory_order_release);
  CHECK(complete(work[0], &err) == SAGECOMM_OK);
  if (leaves) {
    scr_group_goodbye(r->group);
    meet();
  }
  meet(); /* nobody makes the call that fails before all have made the first */
  if (!leaves) {
    op = external(r, t, SAGECOMM_ALL_REDUCE);
    next_gate[r->rank].words = &words[1];
    atomic_store_explicit(&words[1].input_ready, 1,
                          memory_order_release); /* and no more: a kernel waits for the rank that has left */
    int32_t status = scr_issue(r->handle, &op, &work[1], NULL, &err);
    if (status == SAGECOMM_PENDING) status = complete(work[1], &err);
    CHECK(status == SAGECOMM_PEER_FAILURE && err.rank == size - 1);
  }
  meet();
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield();
  meet();
  free_trip(t);
}

void test_external_left(int n, waiting w, uint64_t seed) {
  if (n > 1) run(n, w, seed, external_left);
}

/* A peer has voided the operation before its stream went on. That is no success, also before anybody declares a failure. */
static void external_void(rank *r, void *arg) {
  (void)arg;
  static _Atomic uint32_t voided = 1;
  trip *t = new_trip(64, 64, 0, 1);
  scr_group *g = r->beside->group;
  sagecomm_work work;
  sagecomm_error err;
  sagecomm_op op = external(r, t, SAGECOMM_ALL_REDUCE);
  next_gate[r->rank].voided = &voided;
  CHECK(scr_issue(r->handle, &op, &work, NULL, &err) == SAGECOMM_PENDING);
  atomic_store_explicit(&t->words.input_ready, 1, memory_order_release);
  atomic_store_explicit(&t->words.output_taken, 1, memory_order_release);
  scr_run *blocked = NULL;
  while (!scr_drive_lock(g)) sched_yield();
  scr_drive(g, NULL, 0, &blocked);
  CHECK(atomic_load(&g->word) & SCR_QUEUED); /* or the engine would not look at it any more */
  scr_drive_unlock(g);
  meet();
  declare(r, SAGECOMM_ABORTED, 0, "the user aborts");
  CHECK(complete(work, &err) == SAGECOMM_ABORTED);
  meet();
  free_trip(t);
}

void test_external_void(int n, waiting w, uint64_t seed) { run(n, w, seed, external_void); }
