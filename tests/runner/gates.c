/* gates.c: runs on the device lane. A thread beside each rank plays the two streams of a device: it copies units into and out
 * of the buffers of a run and moves the words of its gate (docs/protocol.md, section 11). */
#include <pthread.h>
#include <sched.h>

#include "../../internal/runner/gates.h"
#include "on_devices.h"
#include "plans.h"
#include "trips.h"

static int size;

/* Both streams of the device. Which one goes on is random, so that each may be ahead. */
static void *streams(void *p) {
  trip *t = p;
  uint32_t in = 0, out = 0;
  while (in < t->n || out < t->n) {
    uint64_t x = next_random(&t->random);
    bool room = t->window == 0 || in < t->window || there(&t->words.input_taken, in + 1 - t->window);
    if (x % 2 == 0 && in < t->n && room && !atomic_load(&t->held)) {
      memcpy(t->input + place(t, in) * t->unit, t->from + (uint64_t)in * t->unit, unit_bytes(t, in));
      in++;
      atomic_store_explicit(&t->words.input_ready, in, memory_order_release);
    }
    if (x % 2 == 1 && out < t->n && there(&t->words.output_done, out + 1)) {
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
  run_on_devices(n, w, seed, fn, NULL);
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
