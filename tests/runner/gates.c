/* gates.c: runs on the device lane. A thread beside each rank plays the two streams of a device: it copies units into and out
 * of the buffers of a run and moves the words of its gate (docs/protocol.md, section 11). */
#include <pthread.h>
#include <sched.h>

#include "../../internal/runner/gates.h"
#include "plans.h"
#include "scenarios.h"

#define MOST_UNITS 64
#define MOST_BYTES (MOST_UNITS * 8192)

static int size;

/* One operation on a device. */
typedef struct trip {
  scr_gate_words words;
  uint64_t bytes, unit;          /* of the operation, and of one unit */
  uint32_t n, window;            /* units, and for how many the buffers have room */
  unsigned char *from, *to;      /* memory of the device */
  unsigned char *input, *output; /* pinned buffers */
  sagecomm_segment in[MOST_UNITS], out[MOST_UNITS];
  uint64_t random;
  _Atomic bool held; /* the copy-in stream waits for something before the operation */
  pthread_t device;
} trip;

static uint64_t unit_bytes(const trip *t, uint32_t u) {
  uint64_t at = (uint64_t)u * t->unit;
  return t->bytes - at < t->unit ? t->bytes - at : t->unit;
}

static uint32_t place(const trip *t, uint32_t u) { return t->window ? u % t->window : u; }

static uint32_t look(_Atomic uint64_t *word) { return (uint32_t)atomic_load_explicit(word, memory_order_acquire); }

/* Both streams of the device. Which one goes on is random, so that each may be ahead. */
static void *streams(void *p) {
  trip *t = p;
  uint32_t in = 0, out = 0;
  while (in < t->n || out < t->n) {
    uint64_t x = next_random(&t->random);
    bool room = t->window == 0 || in < t->window || (int32_t)(look(&t->words.input_taken) - (in + 1 - t->window)) >= 0;
    if (x % 2 == 0 && in < t->n && room && !atomic_load(&t->held)) {
      memcpy(t->input + place(t, in) * t->unit, t->from + (uint64_t)in * t->unit, unit_bytes(t, in));
      in++;
      atomic_store_explicit(&t->words.input_ready, in, memory_order_release);
    }
    if (x % 2 == 1 && out < t->n && (int32_t)(look(&t->words.output_done) - (out + 1)) >= 0) {
      memcpy(t->to + (uint64_t)out * t->unit, t->output + place(t, out) * t->unit, unit_bytes(t, out));
      out++;
      atomic_store_explicit(&t->words.output_taken, out, memory_order_release);
    }
    if ((x >> 8) % 8 == 0) sched_yield();
  }
  /* When the output's word says that the gate is open, the gate is another operation's. */
  while (look(&t->words.output_done) != SCR_GATE_OPEN) sched_yield();
  memset(&t->words, 0, sizeof t->words);
  return NULL;
}

static trip *new_trip(uint64_t bytes, uint64_t unit, uint32_t window, uint64_t seed) {
  trip *t = aligned_alloc(SCR_LINE, (sizeof *t + SCR_LINE - 1) & ~(size_t)(SCR_LINE - 1));
  memset(t, 0, sizeof *t);
  t->bytes = bytes;
  t->unit = unit;
  t->n = (uint32_t)(bytes == 0 ? 1 : (bytes + unit - 1) / unit);
  CHECK(t->n <= MOST_UNITS);
  t->window = window;
  t->random = seed | 1;
  uint32_t room = window && window < t->n ? window : t->n;
  t->from = calloc(1, bytes + 1);
  t->to = calloc(1, bytes + 1);
  t->input = calloc(room, unit);
  t->output = calloc(room, unit);
  for (uint32_t u = 0; u < t->n; u++) {
    t->in[u] = (sagecomm_segment){t->input + place(t, u) * unit, unit_bytes(t, u)};
    t->out[u] = (sagecomm_segment){t->output + place(t, u) * unit, unit_bytes(t, u)};
  }
  return t;
}

static void free_trip(trip *t) {
  free(t->from);
  free(t->to);
  free(t->input);
  free(t->output);
  free(t);
}

static sagecomm_op operation(const rank *r, trip *t, int kind) {
  next_gate[r->rank] = (scr_gate){.words = &t->words, .window = t->window, .inputs = t->n, .outputs = t->n};
  return (sagecomm_op){.kind = (uint8_t)kind,
                       .dtype = SAGECOMM_INT32,
                       .device_type = 1,
                       .n_in = t->n,
                       .n_out = t->n,
                       .in = t->in,
                       .out = t->out};
}

/* Returns the chunk of the program for a call like op, which it compiles by a call whose gate stands open. */
static uint64_t chunk_of(const rank *r, uint64_t bytes) {
  trip *t = new_trip(bytes, bytes, 0, 1);
  sagecomm_error err;
  atomic_store(&t->words.input_ready, SCR_GATE_MAX);
  sagecomm_op op = operation(r, t, SAGECOMM_ALL_REDUCE);
  next_gate[r->rank].inputs = 0;
  CHECK(call(r, &op, &err) == SAGECOMM_OK);
  const scr_group *g = r->beside->group;
  const scr_program *p = scr_cache_find(g, scr_cache_key(g, &op, bytes));
  CHECK(p != NULL);
  free_trip(t);
  return p->chunk;
}

static void fill(trip *t, int of) {
  for (uint64_t i = 0; i < t->bytes / 4; i++) ((int32_t *)(void *)t->from)[i] = (int32_t)i + of;
}

static void check(const trip *t) {
  int32_t ranks = size * (size - 1) / 2;
  for (uint64_t i = 0; i < t->bytes / 4; i++) CHECK(((int32_t *)(void *)t->to)[i] == (int32_t)i * size + ranks);
}

static void gates(rank *r, void *arg) {
  (void)arg;
  for (int round = 0; round < 12; round++) {
    uint64_t x = next_random(&r->random), bytes = 4 * (1 + x % (round % 2 ? 40000 : 1000));
    uint64_t unit = chunk_of(r, bytes);
    uint32_t window = (x >> 32) % 3 == 0 ? 0 : 3 + (uint32_t)(x >> 40) % 3;
    trip *t = new_trip(bytes, unit, window, x + (uint64_t)r->rank);
    fill(t, r->rank);
    sagecomm_op op = operation(r, t, SAGECOMM_ALL_REDUCE);
    sagecomm_error err;
    CHECK(pthread_create(&t->device, NULL, streams, t) == 0);
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
    pthread_join(t->device, NULL);
    check(t);
    free_trip(t);
  }
}

static void run(int n, waiting w, uint64_t seed, rank_fn *fn) {
  size = n;
  device_lanes = true;
  run_ranks(n, w.spin, w.yield_us, seed, fn, NULL);
  device_lanes = false;
}

void test_gates(int n, waiting w, uint64_t seed) { run(n, w, seed, gates); }

#define AVERAGE_CHUNK 1024

/* Messages carry sums, which each rank divides behind the last step: the device takes a unit only then. */
static void averages(rank *r, void *arg) {
  (void)arg;
  for (int round = 0; round < 12; round++) {
    uint64_t x = next_random(&r->random), n = 1 + x % (MOST_UNITS * AVERAGE_CHUNK / 4);
    trip *t = new_trip(4 * n, AVERAGE_CHUNK, 0, x + (uint64_t)r->rank);
    for (uint64_t i = 0; i < n; i++)
      ((float *)(void *)t->from)[i] = (float)(int)(i % 1000 * (uint64_t)size) + (float)r->rank;
    sagecomm_op op = operation(r, t, SAGECOMM_ALL_REDUCE);
    op.dtype = SAGECOMM_FLOAT32;
    op.reduce_op = SAGECOMM_AVG;
    sagecomm_error err;
    CHECK(pthread_create(&t->device, NULL, streams, t) == 0);
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
    pthread_join(t->device, NULL);
    for (uint64_t i = 0; i < n; i++) {
      CHECK(((float *)(void *)t->to)[i] == (float)(int)(i % 1000 * (uint64_t)size) + (float)(size - 1) / 2);
    }
    free_trip(t);
  }
}

void test_averages_at_gates(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  for (int c = 0; c < SIZE_CLASSES; c++) {
    choose(SAGECOMM_ALL_REDUCE, c, algorithm_named(SAGECOMM_ALL_REDUCE, "ring"), AVERAGE_CHUNK);
  }
  run(n, w, seed, averages);
  choose_slots();
}

/* While the stream of an operation is late, operations on host memory go on, on the fast path, and no timeout begins. */
static void late_device(rank *r, void *arg) {
  (void)arg;
  uint64_t bytes = 4000, unit = chunk_of(r, bytes);
  int32_t one = 1;
  sagecomm_segment s = {&one, 4};
  sagecomm_op sum = {.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = 1, .in = &s, .out = &s};
  sagecomm_error err;
  CHECK(call(r, &sum, &err) == SAGECOMM_OK); /* compiles its program */
  trip *t = new_trip(bytes, unit, 0, r->random + (uint64_t)r->rank);
  fill(t, r->rank);
  atomic_store(&t->held, true);
  sagecomm_op op = operation(r, t, SAGECOMM_ALL_REDUCE);
  op.timeout_ns = 100 * 1000000;
  sagecomm_work work;
  CHECK(pthread_create(&t->device, NULL, streams, t) == 0);
  CHECK(scr_issue(r->handle, &op, &work, NULL, &err) == SAGECOMM_PENDING);
  meet();
  uint64_t entries = scr_go_entries();
  for (int i = 0; i < 50; i++) {
    one = 1;
    CHECK(call(r, &sum, &err) == SAGECOMM_OK);
    CHECK(one == size);
  }
  meet();
  CHECK(scr_go_entries() == entries);
  int64_t began = scr_now();
  while (scr_now() - began < 2 * op.timeout_ns) CHECK(scr_wait(work, 10 * 1000000, &err) == SAGECOMM_PENDING);
  CHECK(scr_group_reached(r->beside->group, r->rank) == 1); /* of the call in chunk_of() */
  meet();
  atomic_store(&t->held, false);
  CHECK(complete(work, &err) == SAGECOMM_OK);
  pthread_join(t->device, NULL);
  check(t);
  CHECK(scr_group_reached(r->beside->group, r->rank) == 2);
  free_trip(t);
}

void test_late_device(int n, waiting w, uint64_t seed) {
  if (n <= 4) run(n, w, seed, late_device);
}

/* When the group fails, the gates of all runs open, of those that have not begun as well. */
static void gate_opens(rank *r, void *arg) {
  (void)arg;
  uint64_t bytes = 4000, unit = chunk_of(r, bytes);
  trip *t[2];
  sagecomm_work work[2];
  sagecomm_error err;
  for (int i = 0; i < 2; i++) {
    t[i] = new_trip(bytes, unit, 0, r->random + (uint64_t)i);
    atomic_store(&t[i]->held, true); /* its other stream waits for output_done */
    sagecomm_op op = operation(r, t[i], SAGECOMM_ALL_REDUCE);
    CHECK(scr_issue(r->handle, &op, &work[i], NULL, &err) == SAGECOMM_PENDING);
  }
  meet();
  if (r->rank == 0) declare(r, SAGECOMM_ABORTED, 0, "the user aborts");
  for (int i = 0; i < 2; i++) {
    CHECK(complete(work[i], &err) == SAGECOMM_ABORTED);
    CHECK(look(&t[i]->words.output_done) == SCR_GATE_OPEN && look(&t[i]->words.input_taken) == SCR_GATE_OPEN);
  }
  meet();
  for (int i = 0; i < 2; i++) free_trip(t[i]);
}

void test_gate_opens(int n, waiting w, uint64_t seed) { run(n, w, seed, gate_opens); }

/* ---- external runs ---- */

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
  trip *t = new_trip(64, 64, 0, 1);
  scr_group *g = r->beside->group;
  sagecomm_work work;
  sagecomm_error err;
  sagecomm_op op = external(r, t, SAGECOMM_ALL_REDUCE);
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
