/* completion.c: done functions that issue operations and wait for them, and wait() against on_done(). */
#include <pthread.h>
#include <sched.h>

#include "scenarios.h"

static int size;

#define DEPTH 5

/* One link: its done function issues the next one and returns only when that one's done function has run. A thread
 * that calls done functions is thus held by each link, and there must be another for the next. */
typedef struct link {
  rank *r;
  int depth;
  int32_t data;
  struct link *next;
  _Atomic int done;
} link;

static void begin(link *l);

static void ended(void *ctx, int32_t status, const sagecomm_error *err) {
  link *l = ctx;
  CHECK(status == SAGECOMM_OK && err != NULL && err->status == SAGECOMM_OK);
  CHECK(l->data == size * (size - 1) / 2 + size * l->depth);
  if (l->depth < DEPTH) {
    l->next = calloc(1, sizeof *l);
    *l->next = (link){.r = l->r, .depth = l->depth + 1};
    begin(l->next);
    while (atomic_load(&l->next->done) == 0) sched_yield();
    free(l->next);
  }
  atomic_store(&l->done, 1);
}

static void begin(link *l) {
  l->data = l->r->rank + l->depth;
  sagecomm_work work;
  sagecomm_error err = {0};
  int32_t status = begin_sum(l->r, &l->data, 0, &work, &err);
  if (status == SAGECOMM_PENDING) {
    status = scr_on_done(work, ended, l, &err);
    scr_release(work);
  }
  if (status != SAGECOMM_PENDING) ended(l, status, &err);
}

static void nest(rank *r, void *arg) {
  (void)arg;
  for (int round = 0; round < 4; round++) {
    link first = {.r = r};
    begin(&first);
    while (atomic_load(&first.done) == 0) sched_yield();
  }
}

void test_nested_done(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, nest, NULL);
}

/* ---- one thread waits while another sets the done function ---- */

typedef struct race {
  sagecomm_work work;
  _Atomic int called, expected;
} race;

static void count(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  CHECK(ctx != NULL && status == SAGECOMM_OK);
  atomic_fetch_add(&((race *)ctx)->called, 1);
}

static void *set(void *p) {
  race *c = p;
  sagecomm_error err;
  int32_t status = scr_on_done(c->work, count, c, &err);
  CHECK(status == SAGECOMM_OK || status == SAGECOMM_PENDING);
  if (status == SAGECOMM_PENDING) atomic_fetch_add(&c->expected, 1);
  return NULL;
}

static void both(rank *r, void *arg) {
  (void)arg;
  for (int round = 0; round < 60; round++) {
    int32_t data = 1;
    race c = {0};
    sagecomm_error err;
    int32_t status = begin_sum(r, &data, 0, &c.work, &err);
    CHECK(status >= 0);
    if (status == SAGECOMM_OK) continue;
    pthread_t other;
    CHECK(pthread_create(&other, NULL, set, &c) == 0);
    while (scr_wait(c.work, 1000000, &err) == SAGECOMM_PENDING) continue;
    pthread_join(other, NULL);
    while (atomic_load(&c.called) < atomic_load(&c.expected)) sched_yield();
    CHECK(atomic_load(&c.called) == atomic_load(&c.expected) && data == size);
    scr_release(c.work);
  }
}

void test_wait_against_on_done(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, both, NULL);
}
