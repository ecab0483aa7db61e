/* drain.c: which operations succeed although the group fails before they are complete (docs/protocol.md, section 6). */
#include <pthread.h>
#include <sched.h>

#include "scenarios.h"

static int size;

/* ---- what is queued when the group fails completes as far as peers have published for it ---- */

#define QUEUED 3

static void published_for_the_queue(rank *r, void *arg) {
  (void)arg;
  int32_t data[QUEUED];
  sagecomm_work work[QUEUED];
  sagecomm_error err;
  bool root = r->rank == 0;
  scr_group *g = r->group;
  for (int i = 0; i < QUEUED; i++) {
    data[i] = root ? 100 + i : 0;
    sagecomm_segment s = {&data[i], 4};
    sagecomm_op op = {.kind = SAGECOMM_BROADCAST,
                      .dtype = SAGECOMM_INT32,
                      .flags = root ? 0 : SAGECOMM_ASYNC,
                      .n_in = root,
                      .n_out = 1,
                      .in = &s,
                      .out = &s};
    if (root) continue;
    CHECK(scr_issue(r->handle, &op, &work[i], NULL, &err) == SAGECOMM_PENDING);
  }
  /* Nobody drives while the root publishes and fails: neither the engine nor a waiter sees the data first. */
  while (!root && !scr_drive_lock(g)) sched_yield();
  meet();
  if (root) {
    for (int i = 0; i < QUEUED - 1; i++) {
      sagecomm_segment s = {&data[i], 4};
      sagecomm_op op = {
          .kind = SAGECOMM_BROADCAST, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = 1, .in = &s, .out = &s};
      CHECK(call(r, &op, &err) == SAGECOMM_OK);
    }
    declare(r, SAGECOMM_PEER_FAILURE, 0, "the root dies");
  }
  meet();
  if (root) return;
  declare(r, SAGECOMM_PEER_FAILURE, 0, "the root has died"); /* as the watch over peers does, on a thread of its own */
  scr_drive_unlock(g);
  for (int i = 0; i < QUEUED - 1; i++) {
    CHECK(complete(work[i], &err) == SAGECOMM_OK);
    CHECK(data[i] == 100 + i);
  }
  CHECK(complete(work[QUEUED - 1], &err) == SAGECOMM_PEER_FAILURE);
  CHECK(data[QUEUED - 1] == 0);
}

void test_published_for_the_queue(int n, waiting w, uint64_t seed) {
  size = n;
  if (n > 1) run_ranks(n, w.spin, w.yield_us, seed, published_for_the_queue, NULL);
}

/* ---- nothing succeeds behind an operation that has failed on the fast path ---- */

typedef struct behind {
  rank *r;
  int32_t status, value;
} behind;

/* Issues a broadcast from rank 1 while another thread of this rank is in a gather. */
static void *issue_behind(void *p) {
  behind *b = p;
  sagecomm_segment s = {&b->value, 4};
  sagecomm_op op = {
      .kind = SAGECOMM_BROADCAST, .dtype = SAGECOMM_INT32, .root = 1, .flags = SAGECOMM_ASYNC, .n_out = 1, .out = &s};
  sagecomm_error err;
  while (scr_group_sequence(b->r->group) < 2) sched_yield();
  b->status = call(b->r, &op, &err);
  return NULL;
}

/* Rank 0 collects from all, and the last rank does not come. Rank 1 has sent its part, goes on, and broadcasts. */
static void behind_a_failure(rank *r, void *arg) {
  (void)arg;
  int32_t mine = r->rank, all[MAX_RANKS];
  sagecomm_segment in = {&mine, 4}, out = {all, 4 * (uint64_t)size};
  sagecomm_op gather = {
      .kind = SAGECOMM_GATHER, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = r->rank == 0, .in = &in, .out = &out};
  sagecomm_op broadcast = {
      .kind = SAGECOMM_BROADCAST, .dtype = SAGECOMM_INT32, .root = 1, .n_in = 1, .n_out = 1, .in = &in, .out = &in};
  sagecomm_error err;
  CHECK(call(r, &gather, &err) == SAGECOMM_OK); /* compiles the program, so that the next call takes the fast path */
  meet();
  if (r->rank == 1) {
    CHECK(call(r, &gather, &err) == SAGECOMM_OK);
    CHECK(call(r, &broadcast, &err) == SAGECOMM_OK);
  }
  meet();
  if (r->rank == 0) {
    behind b = {.r = r};
    pthread_t other;
    CHECK(pthread_create(&other, NULL, issue_behind, &b) == 0);
    gather.timeout_ns = 30 * 1000000;
    CHECK(call(r, &gather, &err) == SAGECOMM_TIMEOUT);
    pthread_join(other, NULL);
    CHECK(b.status == SAGECOMM_TIMEOUT && b.value == 0);
  }
  meet();
}

void test_behind_a_failure(int n, waiting w, uint64_t seed) {
  size = n;
  if (n > 2) run_ranks(n, w.spin, w.yield_us, seed, behind_a_failure, NULL);
}
