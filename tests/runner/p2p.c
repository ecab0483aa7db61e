/* p2p.c: sends longer than a fifo, and more of them than the eager credit holds, matched in an order that is
 * not the one in which they were sent. */
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "scenarios.h"

static int size;

static int32_t value(int from, int number, uint32_t i) { return from * 15485863 + number * 7919 + (int32_t)i; }

static sagecomm_work post(rank *r, uint8_t kind, int peer, int tag, int32_t *data, uint32_t n) {
  sagecomm_segment s = {data, n * 4};
  sagecomm_op op = {.kind = kind, .dtype = SAGECOMM_INT32, .root = peer, .tag = tag, .flags = SAGECOMM_ASYNC};
  if (kind == SAGECOMM_SEND) {
    op.n_in = 1;
    op.in = &s;
  } else {
    op.n_out = 1;
    op.out = &s;
  }
  sagecomm_work work = 0;
  sagecomm_error err;
  CHECK(scr_issue(r->handle, &op, &work, NULL, &err) >= 0);
  return work;
}

static void end(sagecomm_work work) {
  sagecomm_error err;
  if (work) CHECK(complete(work, &err) == SAGECOMM_OK);
}

#define LONG (3 * SCR_FIFO_BYTES / 4 + 5) /* integers: three fifos */

static void long_ones(rank *r, void *arg) {
  (void)arg;
  int to = (r->rank + 1) % size, from = (r->rank + size - 1) % size;
  int32_t *out = malloc(LONG * 4), *in = malloc(LONG * 4);
  for (uint32_t i = 0; i < LONG; i++) out[i] = value(r->rank, 0, i);
  sagecomm_work send = post(r, SAGECOMM_SEND, to, 5, out, LONG);
  end(post(r, SAGECOMM_RECV, from, 5, in, LONG));
  end(send);
  for (uint32_t i = 0; i < LONG; i++) CHECK(in[i] == value(from, 0, i));
  free(out);
  free(in);
}

void test_long_sends(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, long_ones, NULL);
}

#define MANY 80
#define EACH 1000 /* integers: 80 sends are two and a half times the credit */

static void reversed(rank *r, void *arg) {
  (void)arg;
  int to = (r->rank + 1) % size, from = (r->rank + size - 1) % size;
  static_assert(MANY * EACH * 4 > 2 * 128 * 1024, "more than the eager credit");
  int32_t *out = malloc(MANY * EACH * 4), *in = malloc(EACH * 4);
  sagecomm_work send[MANY];
  for (int m = 0; m < MANY; m++) {
    for (uint32_t i = 0; i < EACH; i++) out[m * EACH + (int)i] = value(r->rank, m, i);
    send[m] = post(r, SAGECOMM_SEND, to, m / 2, out + m * EACH, EACH); /* two sends of each tag */
  }
  for (int tag = MANY / 2 - 1; tag >= 0; tag--) {
    for (int k = 0; k < 2; k++) {
      end(post(r, SAGECOMM_RECV, tag % 2 ? from : SAGECOMM_ANY_SOURCE, tag, in, EACH));
      for (uint32_t i = 0; i < EACH; i++) CHECK(in[i] == value(from, tag * 2 + k, i));
    }
  }
  for (int m = MANY - 1; m >= 0; m--) end(send[m]);
  free(out);
  free(in);
}

void test_reverse_tags(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, reversed, NULL);
}

/* ---- no thread holds the lock of the p2p operations for long ---- */

#define FRAMES 5000 /* sends without bytes: one frame each, all in the fifo at once */

static void one_at_a_time(rank *r, void *arg) {
  (void)arg;
  scr_group *g = r->group;
  if (r->rank == 1) {
    for (int i = 0; i < FRAMES; i++) end(post(r, SAGECOMM_SEND, 0, 0, NULL, 0));
  }
  meet();
  if (r->rank == 0) {
    int passes = 0, rc = SCR_YIELDED;
    uint64_t before = 0;
    for (; rc == SCR_YIELDED; passes++) {
      int32_t peer;
      scr_run *culprit;
      scr_spin_lock(&g->p2p.lock);
      rc = scr_p2p_progress(g, SCR_PASS_BYTES, &peer, &culprit);
      CHECK(g->p2p.activity - before <= FRAMES / 4);
      before = g->p2p.activity;
      scr_spin_unlock(&g->p2p.lock);
    }
    CHECK(rc == SCR_IDLE && passes > 4);
    for (int i = 0; i < FRAMES; i++) end(post(r, SAGECOMM_RECV, 1, 0, NULL, 0));
  }
  meet();
}

void test_bounded_passes(int n, waiting w, uint64_t seed) {
  size = n;
  if (n > 1) run_ranks(n, w.spin, w.yield_us, seed, one_at_a_time, NULL);
}

/* ---- a thread looks at the fifos itself before it sleeps, even if it must wait for another thread's pass ---- */

#define SLEEPS 6

typedef struct holder {
  scr_group *g;
  _Atomic int waits; /* rank 0 begins to wait for its recv */
  _Atomic int64_t released;
} holder;

static holder held;
static _Atomic int sent;

/* Holds the lock from before the payload comes until its receiver sleeps, or would have slept long since. */
static void *hold(void *p) {
  (void)p;
  scr_group *g = held.g;
  for (;;) {
    scr_spin_lock(&g->p2p.lock);
    if (atomic_load(&g->p2p.unfinished) > 0) break;
    scr_spin_unlock(&g->p2p.lock);
    sched_yield();
  }
  uint64_t sleeps = atomic_load(&g->sleeps);
  atomic_store(&held.waits, 1);
  while (atomic_load(&sent) == 0) sched_yield();
  for (int64_t began = scr_now(); scr_now() - began < 10 * 1000000 && atomic_load(&g->sleeps) < sleeps + 2;)
    sched_yield();
  atomic_store(&held.released, scr_now());
  scr_spin_unlock(&g->p2p.lock);
  return NULL;
}

static void sleepless(rank *r, void *arg) {
  int64_t *best = arg;
  int32_t data = 7;
  sagecomm_segment s = {&data, 4};
  sagecomm_op op = {.dtype = SAGECOMM_INT32, .root = 1 - r->rank};
  sagecomm_error err;
  for (int i = 0; i <= SLEEPS; i++) {
    usleep(50000); /* until the engine finds nothing to do and sleeps for a second, so that it cannot help */
    meet();
    if (r->rank == 1) {
      if (i > 0) {
        while (atomic_load(&held.waits) == 0) sched_yield();
      }
      op.kind = SAGECOMM_SEND;
      op.n_in = 1;
      op.in = &s;
      CHECK(call(r, &op, &err) == SAGECOMM_OK);
      atomic_store(&sent, 1);
    } else {
      pthread_t other;
      held.g = r->group;
      if (i > 0) CHECK(pthread_create(&other, NULL, hold, NULL) == 0); /* the first makes the fifo */
      op.kind = SAGECOMM_RECV;
      op.n_out = 1;
      op.out = &s;
      CHECK(call(r, &op, &err) == SAGECOMM_OK);
      int64_t now = scr_now();
      if (i > 0) {
        pthread_join(other, NULL);
        if (now - held.released < *best) *best = now - held.released;
      }
      atomic_store(&held.waits, 0);
      atomic_store(&sent, 0);
    }
    meet();
  }
}

void test_sleep_beside_another(int n, waiting w, uint64_t seed) {
  size = n;
  int64_t best = INT64_MAX;
  if (n == 2 && w.yield_us == 0) {
    run_ranks(n, w.spin, w.yield_us, seed, sleepless, &best);
    CHECK(best < SLEEP_NS / 2); /* who sleeps on does so for the rest of a slice: 30 ms of 50 */
  }
}

/* ---- the engine drives operations without a waiter, even out of a sound sleep ---- */

static _Atomic int64_t sent_at;

static void left_alone(rank *r, void *arg) {
  int64_t *best = arg;
  int32_t *data = malloc(LONG * 4);
  for (int i = 0; i < 8; i++) {
    uint32_t n = i % 2 ? LONG : 1;
    if (i == 2) usleep(SOUNDLY_US);
    meet();
    if (r->rank == 1) {
      usleep(25000); /* the other one computes, and its engine sleeps */
      for (uint32_t j = 0; j < n; j++) data[j] = value(1, i, j);
      atomic_store(&sent_at, scr_now());
      end(post(r, SAGECOMM_SEND, 0, i, data, n));
    } else {
      memset(data, 0, n * 4);
      ending e = {0};
      sagecomm_error err;
      sagecomm_work work = post(r, SAGECOMM_RECV, 1, i, data, n);
      int32_t status =
          work ? scr_on_done(work, note_end, &e, &err) : SAGECOMM_OK; /* complete if this thread was held up */
      int64_t took = status == SAGECOMM_PENDING ? sleep_until_end(&e) - atomic_load(&sent_at) : INT64_MAX;
      CHECK(e.status == SAGECOMM_OK);
      for (uint32_t j = 0; j < n; j++) CHECK(data[j] == value(1, i, j));
      if (n == 1 && took < *best) *best = took;
      if (work) scr_release(work);
    }
    meet();
  }
  free(data);
}

void test_left_to_the_engine(int n, waiting w, uint64_t seed) {
  size = n;
  int64_t best = INT64_MAX;
  if (n == 2) {
    run_ranks(n, w.spin, w.yield_us, seed, left_alone, &best);
    CHECK(best < 200 * 1000000); /* an engine that sleeps on does so for a second */
  }
}

static void nobody_sends(rank *r, void *arg) {
  int64_t *took = arg;
  if (r->rank == 0) {
    usleep(SOUNDLY_US);
    int32_t data;
    sagecomm_segment s = {&data, 4};
    sagecomm_op op = {.kind = SAGECOMM_RECV,
                      .dtype = SAGECOMM_INT32,
                      .root = 1,
                      .flags = SAGECOMM_ASYNC,
                      .n_out = 1,
                      .out = &s,
                      .timeout_ns = 50 * 1000000};
    sagecomm_work work;
    sagecomm_error err;
    ending e = {0};
    int64_t began = scr_now();
    CHECK(scr_issue(r->handle, &op, &work, NULL, &err) == SAGECOMM_PENDING);
    CHECK(scr_on_done(work, note_end, &e, &err) == SAGECOMM_PENDING);
    *took = sleep_until_end(&e) - began;
    CHECK(e.status == SAGECOMM_TIMEOUT);
    scr_release(work);
  }
  meet();
}

void test_timeout_of_what_nobody_waits_for(int n, waiting w, uint64_t seed) {
  size = n;
  int64_t took = INT64_MAX;
  if (n != 2) return;
  for (int i = 0; i < 3 && took >= 500 * 1000000;
       i++) { /* a machine may be busy, an engine that sleeps on is late always */
    run_ranks(n, w.spin, w.yield_us, seed, nobody_sends, &took);
    CHECK(took >= 50 * 1000000);
  }
  CHECK(took < 500 * 1000000);
}
