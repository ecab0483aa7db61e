/* channels.c: sendrecv plans, by every algorithm, checked against the expected results. What may differ between
 * calls is drawn at random: lengths, types, reductions, buffers in several pieces or in place, who waits and who finishes it. In
 * each group some go over shared blocks, and there is a second group of the same ranks beside. */
#include <sched.h>

#include "plans.h"
#include "scenarios.h"
#include "trial.h"

static int size;

#define OPEN 3    /* asynchronous calls at a time */
#define TRIALS 12 /* calls in a group: each kind, then some more */
#define MOST_BYTES 24000

/* ---- a call ---- */

typedef struct pending {
  trial t;
  contents c;
  sagecomm_work work;
  _Atomic int done;
} pending;

static int32_t begin(const rank *r, pending *p, uint8_t flags, sagecomm_error *err) {
  sagecomm_op op = op_of(&p->t, &p->c);
  op.flags = flags;
  return scr_issue(r->handle, &op, &p->work, NULL, err);
}

static void verify(pending *p) {
  check_contents(&p->t, &p->c);
  free_contents(&p->c);
  free(p);
}

static void on_done(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  CHECK(status == SAGECOMM_OK);
  atomic_store((_Atomic int *)ctx, 1);
}

static void finish(pending *p, bool wait) {
  sagecomm_error err;
  if (p->work && wait) {
    CHECK(complete(p->work, &err) == SAGECOMM_OK);
  } else if (p->work) { /* the progress engine drives it */
    int32_t status = scr_on_done(p->work, on_done, &p->done, &err);
    CHECK(status == SAGECOMM_PENDING || status == SAGECOMM_OK);
    while (status == SAGECOMM_PENDING && atomic_load(&p->done) == 0) sched_yield();
    scr_release(p->work);
  }
  verify(p);
}

/* ---- what is called ---- */

static void many(rank *r, void *arg) {
  (void)arg;
  uint64_t own = r->random + (uint64_t)r->rank * 977; /* every rank cuts its buffers elsewhere */
  pending *open[OPEN];
  int n_open = 0, first = (int)(next_random(&r->random) % SAGECOMM_SEND);
  for (int i = 0; i < TRIALS; i++) {
    uint64_t x = next_random(&r->random);
    pending *p = calloc(1, sizeof *p);
    p->t = draw_trial(&r->random, i < SAGECOMM_SEND ? (first + i) % SAGECOMM_SEND : (int)(x % SAGECOMM_SEND), r->rank,
                      size, MOST_BYTES);
    make_contents(&p->t, &p->c, &own);
    sagecomm_error err;
    bool async = (x >> 8) % 2;
    CHECK(begin((x >> 9) % 4 ? r : r->beside, p, async ? SAGECOMM_ASYNC : 0, &err) >= 0);
    if (async) {
      open[n_open++] = p;
    } else {
      finish(p, true);
    }
    while (n_open == OPEN || (n_open > 0 && next_random(&own) % 3 == 0)) finish(open[--n_open], next_random(&own) % 2);
  }
  while (n_open > 0) finish(open[--n_open], true);
}

void test_channels(int n, waiting w, uint64_t seed) {
  size = n;
  two_groups = true;
  for (int round = 0; round < choose_rounds() && n > 1; round++) {
    if ((round + n / 4) % 2 == (w.spin == 0)) continue; /* each in one way of waiting or the other */
    choose_messages(round, 64, &seed);
    run_ranks(n, w.spin, w.yield_us, seed, many, NULL);
  }
  two_groups = false;
  choose_slots();
}

/* ---- an algorithm that needs equal blocks refuses blocks that differ ---- */

static void uneven(rank *r, void *arg) {
  (void)arg;
  pending *p = calloc(1, sizeof *p);
  p->t = (trial){.kind = SAGECOMM_ALL_TO_ALL, .dtype = SAGECOMM_INT32, .rank = r->rank, .size = size, .elem = 4};
  for (int i = 0; i < size; i++) {
    for (int k = 0; k < size; k++) p->t.length[i][k] = (uint32_t)(10 + i + k);
  }
  uint64_t own = r->random;
  make_contents(&p->t, &p->c, &own);
  sagecomm_error err;
  int32_t status = begin(r, p, 0, &err);
  if (status == SAGECOMM_PENDING) status = complete(p->work, &err);
  CHECK(status == SAGECOMM_SYSTEM);
  free_contents(&p->c);
  free(p);
}

void test_uneven_is_refused(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  int refused = 0;
  for (int a = 0; a < algorithms_of(SAGECOMM_ALL_TO_ALL); a++) {
    if (!takes_even_blocks_only(SAGECOMM_ALL_TO_ALL, a)) continue;
    choose(SAGECOMM_ALL_TO_ALL, 0, a, LONGEST_CHUNK);
    run_ranks(n, w.spin, w.yield_us, seed, uneven, NULL);
    refused++;
  }
  CHECK(refused > 0);
  choose_slots();
}

/* ---- a synchronous call that is blocked between two messages for long is queued as it is ---- */

static void blocked_for_long(rank *r, void *arg) {
  (void)arg;
  uint64_t own = r->random + (uint64_t)r->rank;
  for (int round = 0; round < 2; round++) {
    pending *p = calloc(1, sizeof *p);
    p->t = (trial){.kind = SAGECOMM_ALL_REDUCE,
                   .dtype = SAGECOMM_FLOAT32,
                   .reduce_op = SAGECOMM_PREMUL_SUM,
                   .rank = r->rank,
                   .size = size,
                   .in_place = true,
                   .elem = 4,
                   .length = {{3001}}};
    make_contents(&p->t, &p->c, &own);
    sagecomm_error err;
    if (round == 1 && r->rank > 0) meet();
    int32_t status = begin(r, p, 0, &err);
    /* The program is there from the round before, so rank 0 began by itself, and came back without the others. */
    if (round == 1 && r->rank == 0) CHECK(status == SAGECOMM_PENDING);
    if (round == 1 && r->rank == 0) meet();
    finish(p, true);
  }
}

void test_blocked_for_long(int n, waiting w, uint64_t seed) {
  size = n;
  if (n != 3) return;
  for (int a = 0; a < algorithms_of(SAGECOMM_ALL_REDUCE); a++) {
    choose(SAGECOMM_ALL_REDUCE, 1, a, 1024);
    run_ranks(n, w.spin, w.yield_us, seed, blocked_for_long, NULL);
  }
  choose_slots();
}
