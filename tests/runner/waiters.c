/* waiters.c: collectives that their callers leave to threads that will wait for them. */
#include <sched.h>
#include <unistd.h>

#include "scenarios.h"

static int size;

typedef struct ending {
  _Atomic bool there;
  int32_t status;
} ending;

static void note(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  ending *e = ctx;
  e->status = status;
  atomic_store(&e->there, true);
}

/* Waits without driving the group. */
static void sleep_until(const ending *e) {
  while (!atomic_load(&e->there)) usleep(200);
}

static int32_t sum(rank *r, int32_t *data, int64_t timeout_ns, sagecomm_work *work) {
  *data = 1;
  sagecomm_segment s = {data, 4};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .n_in = 1,
                    .n_out = 1,
                    .in = &s,
                    .out = &s,
                    .timeout_ns = timeout_ns};
  sagecomm_error err;
  return scr_issue(r->handle, &op, work, NULL, &err);
}

static void nobody_waits(rank *r, void *arg) {
  int64_t *took = arg;
  if (r->rank == 0) {
    usleep(SOUNDLY_US);
    atomic_store(&r->group->coll.waited_soon, true);
    int32_t data;
    sagecomm_work work;
    sagecomm_error err;
    ending e = {0};
    int64_t began = scr_now();
    CHECK(sum(r, &data, 50 * 1000000, &work) == SAGECOMM_PENDING);
    CHECK(scr_on_done(work, note, &e, &err) == SAGECOMM_PENDING);
    sleep_until(&e);
    *took = scr_now() - began;
    CHECK(e.status == SAGECOMM_TIMEOUT);
    scr_release(work);
  }
  meet();
}

static _Atomic int begun; /* rounds that rank 0 has begun */

/* Rank 0 issues, and the others only then. It does not wait for them. */
static int32_t issue_first(rank *r, int round, int32_t *data, sagecomm_work *work) {
  while (r->rank != 0 && atomic_load(&begun) <= round) sched_yield();
  int32_t status = sum(r, data, 0, work);
  if (r->rank == 0) atomic_store(&begun, round + 1);
  return status;
}

/* A rank learns from a thread that waits soon, and from one that does not wait. It may take some rounds on a busy machine. */
static void learns(rank *r, void *arg) {
  _Atomic bool *over = arg; /* whether rank 0 has seen both */
  bool soon = false;
  int unattended = 0;
  for (int round = 0; !atomic_load(over); round++) {
    CHECK(round < 2000 && unattended < 100);
    int32_t data;
    sagecomm_work work;
    sagecomm_error err;
    int32_t status = issue_first(r, round, &data, &work);
    CHECK(r->rank != 0 || status == SAGECOMM_PENDING);
    if (r->rank == 0 && soon) { /* nobody waits */
      ending e = {0};
      unattended++;
      CHECK(atomic_load(&r->group->coll.waited_soon));
      if (scr_on_done(work, note, &e, &err) == SAGECOMM_PENDING) sleep_until(&e);
      scr_release(work);
      soon = atomic_load(&r->group->coll.waited_soon);
      atomic_store(over, !soon);
    } else if (status == SAGECOMM_PENDING) {
      CHECK(complete(work, &err) == SAGECOMM_OK);
      soon = atomic_load(&r->group->coll.waited_soon);
    }
    CHECK(data == size);
    meet();
  }
}

/* Who asks takes the collective from the waiter that may come. */
static void asks(rank *r, void *arg) {
  (void)arg;
  atomic_store(&r->group->coll.waited_soon, true);
  int32_t data;
  sagecomm_work work;
  sagecomm_error err;
  if (r->rank == 0) {
    CHECK(sum(r, &data, 0, &work) == SAGECOMM_PENDING);
    CHECK(scr_test(work) == 0);
    CHECK(atomic_load(&scr_run_of(work)->coll.left_ns) == 0);
    meet();
    while (scr_test(work) == 0) sched_yield();
    CHECK(complete(work, &err) == SAGECOMM_OK);
  } else {
    meet();
    if (sum(r, &data, 0, &work) == SAGECOMM_PENDING) CHECK(complete(work, &err) == SAGECOMM_OK);
  }
  CHECK(data == size);
}

void test_left_to_a_waiter(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  run_ranks(n, w.spin, w.yield_us, seed, asks, NULL);
  _Atomic bool over = false;
  atomic_store(&begun, 0);
  run_ranks(n, w.spin, w.yield_us, seed, learns, &over);
  if (n != 2) return;
  int64_t took = INT64_MAX;
  for (int i = 0; i < 3 && took >= 500 * 1000000;
       i++) { /* a machine may be busy, an engine that nobody has rung is late always */
    run_ranks(n, w.spin, w.yield_us, seed, nobody_waits, &took);
  }
  CHECK(took < 500 * 1000000);
}
