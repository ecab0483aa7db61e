/* fusing.c: groups that fuse, with asynchronous operations that are waited for, left to the engine, or fail. */
#include "fusing.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "scenarios.h"

/* ---- what Go does ---- */

#define MOST 512
#define LONGEST 1024 /* bytes of an all_reduce that joins others */

/* One rank of a group. */
typedef struct fuser {
  pthread_mutex_t lock;
  sagecomm_op list[MOST]; /* held operations, without their buffers */
  uint64_t bytes[MOST];
  uint32_t n;
  bool wanted;
  scr_run *agreement; /* under way */
  uint64_t proposed;
  _Atomic int watched; /* agreements whose done function has not returned */
} fuser;

static fuser fusers[MAX_RANKS];

static bool joins(const sagecomm_op *op, uint64_t bytes) {
  return op->kind == SAGECOMM_ALL_REDUCE && op->batch_size == 0 && bytes > 0 && bytes <= LONGEST;
}

static void carry(scr_group *g, fuser *f, uint32_t n) {
  uint64_t bytes = 0;
  bool down;
  for (uint32_t i = 0; i < n; i++) bytes += f->bytes[i];
  (void)scr_carry(g, n, bytes, program_of(g, &f->list[0], bytes), false, &down); /* false: they fail */
  f->n -= n;
  memmove(f->list, f->list + n, f->n * sizeof f->list[0]);
  memmove(f->bytes, f->bytes + n, f->n * sizeof f->bytes[0]);
}

/* Requires: f->lock. Returns an agreement that has begun, for watch(), or NULL. */
static scr_run *advance(scr_group *g, fuser *f) {
  static const sagecomm_op lowest_of_all = {
      .kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_INT64, .reduce_op = SAGECOMM_MIN};
  for (;;) {
    if (f->agreement) {
      uint64_t lowest;
      if (!scr_agreed(f->agreement, &lowest)) return NULL;
      f->agreement = NULL;
      if (lowest == 0) return NULL;
      CHECK(lowest <= f->proposed);
      carry(g, f, (uint32_t)lowest);
    }
    if (f->n == 0) return NULL;
    if (!joins(&f->list[0], f->bytes[0])) {
      carry(g, f, 1);
      continue;
    }
    uint32_t n = 1;
    while (n < f->n && joins(&f->list[n], f->bytes[n])) n++;
    if (n == f->n && n < MOST / 2 && !f->wanted) return NULL;
    f->wanted = false;
    bool down;
    f->proposed = n;
    f->agreement = scr_agree(g, 0, n, program_of(g, &lowest_of_all, 8), false, &down);
    return f->agreement;
  }
}

static void watch(scr_run *agreement);

static void agreed(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)status, (void)err;
  scr_run *r = ctx;
  scr_group *g = r->group;
  fuser *f = &fusers[g->rank];
  pthread_mutex_lock(&f->lock);
  scr_run *next = f->agreement == r ? advance(g, f) : NULL;
  pthread_mutex_unlock(&f->lock);
  watch(next);
  if (!scr_agreement_waited_for(r)) scr_group_begin(g);
  scr_run_drop(r);
  atomic_fetch_sub(&f->watched, 1);
}

/* Requires: no lock. */
static void watch(scr_run *agreement) {
  sagecomm_error unseen;
  if (agreement == NULL) return;
  atomic_fetch_add(&fusers[agreement->group->rank].watched, 1);
  if (scr_on_done(scr_run_handle(agreement), agreed, agreement, &unseen) != SAGECOMM_PENDING) {
    agreed(agreement, 0, NULL);
  }
}

int32_t hold(scr_group *g, const sagecomm_op *op, scr_run **out, sagecomm_error *err) {
  fuser *f = &fusers[g->rank];
  uint64_t bytes = scr_op_bytes(op, g->rank, g->size);
  bool down;
  pthread_mutex_lock(&f->lock);
  *out = scr_hold(g, op, bytes, &down);
  scr_run *begun = NULL;
  if (*out) {
    CHECK(f->n < MOST);
    f->list[f->n] = *op;
    f->bytes[f->n++] = bytes;
    begun = advance(g, f);
  }
  pthread_mutex_unlock(&f->lock);
  if (begun) (void)scr_agree_begin(begun);
  watch(begun);
  return *out ? SAGECOMM_OK : scr_copy_error(g, err);
}

void want(uint64_t handle, scr_run **agreement) {
  scr_group *g = scr_group_of(handle);
  fuser *f = &fusers[g->rank];
  pthread_mutex_lock(&f->lock);
  scr_run *begun = advance(g, f);
  if (begun == NULL && f->agreement == NULL) {
    f->wanted = f->n > 0;
    begun = advance(g, f);
  }
  *agreement = f->agreement;
  if (*agreement) scr_run_keep(*agreement);
  pthread_mutex_unlock(&f->lock);
  watch(begun);
}

typedef struct ticker {
  scr_group *group;
  _Atomic bool stop;
} ticker;

static void *tick(void *p) {
  ticker *t = p;
  fuser *f = &fusers[t->group->rank];
  while (!atomic_load(&t->stop)) {
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000}, NULL);
    scr_group_claim(t->group);
    pthread_mutex_lock(&f->lock);
    if (f->agreement == NULL) f->wanted = f->n > 0;
    scr_run *begun = advance(t->group, f);
    pthread_mutex_unlock(&f->lock);
    watch(begun);
    scr_group_begin(t->group);
  }
  return NULL;
}

void with_ticks(rank *r, rank_fn *fn, void *arg) {
  fuser *f = &fusers[r->rank];
  *f = (fuser){.lock = PTHREAD_MUTEX_INITIALIZER};
  ticker t = {.group = r->group};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, tick, &t) == 0);
  fn(r, arg);
  while (scr_group_carrying(r->group)) sched_yield(); /* done functions that nobody has called */
  atomic_store(&t.stop, true);
  pthread_join(thread, NULL);
  while (atomic_load(&f->watched) != 0) sched_yield(); /* done functions that completers are to call */
}

/* ---- many operations, two waiters ---- */

#define OPS 24

static int size;

typedef struct sums {
  rank *r;
  sagecomm_work work[OPS];
  int32_t data[OPS][20];
  _Atomic int done;
} sums;

static void count(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  CHECK(status == SAGECOMM_OK);
  atomic_fetch_add(&((sums *)ctx)->done, 1);
}

static void begin(sums *s, int i) {
  for (int k = 0; k < 20; k++) s->data[i][k] = s->r->rank + i * k;
  sagecomm_segment segment = {s->data[i], sizeof s->data[i]};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .n_in = 1,
                    .n_out = 1,
                    .in = &segment,
                    .out = &segment};
  uint64_t before = scr_group_issued(s->r->group), number;
  sagecomm_error err;
  int32_t status = scr_issue(s->r->handle, &op, &s->work[i], &number, &err);
  CHECK(status >= SAGECOMM_OK && number == before + 1);
}

static void *wait_backwards(void *p) {
  sums *s = p;
  sagecomm_error err;
  for (int i = OPS - 1; i >= 0; i -= 3) {
    if (s->work[i] == 0) continue;
    while (scr_wait(s->work[i], 10 * 1000000, &err) == SAGECOMM_PENDING) continue;
    CHECK(scr_wait(s->work[i], 0, &err) == SAGECOMM_OK);
  }
  return NULL;
}

static void many(rank *r, void *arg) {
  (void)arg;
  for (int round = 0; round < 6; round++) {
    sums s = {.r = r};
    int expected = 0;
    for (int i = 0; i < OPS; i++) {
      begin(&s, i);
      sagecomm_error err;
      if (s.work[i] && i % 3 == 1) {
        int32_t status = scr_on_done(s.work[i], count, &s, &err);
        CHECK(status >= SAGECOMM_OK);
        expected += status == SAGECOMM_PENDING;
      }
      if (s.work[i] && i % 3 == 0 && next_random(&r->random) % 8 == (uint64_t)r->rank % 8) {
        while (scr_wait(s.work[i], 10 * 1000000, &err) == SAGECOMM_PENDING) continue; /* other ranks go on */
      }
    }
    pthread_t other;
    CHECK(pthread_create(&other, NULL, wait_backwards, &s) == 0);
    sagecomm_error err;
    for (int i = 0; i < OPS; i++) {
      while (i % 3 != 2 && s.work[i] && scr_wait(s.work[i], 10 * 1000000, &err) == SAGECOMM_PENDING) continue;
    }
    pthread_join(other, NULL);
    for (int i = 0; i < OPS; i++) {
      if (s.work[i]) CHECK(complete(s.work[i], &err) == SAGECOMM_OK);
      for (int k = 0; k < 20; k++) CHECK(s.data[i][k] == size * (size - 1) / 2 + size * i * k);
    }
    while (atomic_load(&s.done) != expected) sched_yield();
  }
}

static void many_with_ticks(rank *r, void *arg) { with_ticks(r, many, arg); }

void test_fused(int n, waiting w, uint64_t seed) {
  size = n;
  fusing = true;
  run_ranks(n, w.spin, w.yield_us, seed, many_with_ticks, NULL);
  fusing = false;
}

/* ---- a failure while buckets are open ---- */

static void ended(void *ctx, int32_t status, const sagecomm_error *err) {
  CHECK(status == SAGECOMM_OK || (status == SAGECOMM_ABORTED && err->rank == 0));
  atomic_fetch_add(&((sums *)ctx)->done, 1);
}

static void abort_in_between(rank *r, void *arg) {
  (void)arg;
  sums s = {.r = r};
  int expected = 0, stop = (int)(next_random(&r->random) % OPS);
  sagecomm_error err;
  int32_t status = SAGECOMM_OK;
  for (int i = 0; i < OPS; i++) {
    if (i == stop && r->rank == 0) declare(r, SAGECOMM_ABORTED, 0, "for the test");
    sagecomm_segment segment = {s.data[i], sizeof s.data[i]};
    sagecomm_op op = {.kind = i % 7 == 6 ? SAGECOMM_BARRIER : SAGECOMM_ALL_REDUCE,
                      .dtype = SAGECOMM_INT32,
                      .flags = SAGECOMM_ASYNC,
                      .n_in = i % 7 != 6,
                      .n_out = i % 7 != 6,
                      .in = &segment,
                      .out = &segment};
    status = scr_issue(r->handle, &op, &s.work[i], NULL, &err);
    CHECK(status >= SAGECOMM_OK || status == SAGECOMM_ABORTED);
    if (status == SAGECOMM_PENDING && i % 2 == 0) {
      expected += scr_on_done(s.work[i], ended, &s, &err) == SAGECOMM_PENDING;
    }
  }
  for (int i = 0; i < OPS; i++) {
    if (s.work[i]) status = complete(s.work[i], &err);
    CHECK(status == SAGECOMM_OK || status == SAGECOMM_ABORTED);
  }
  while (atomic_load(&s.done) != expected) sched_yield();
  while (scr_group_unfinished(r->group) > 1) sched_yield(); /* the ticker may be inside */
  meet();
}

static void abort_with_ticks(rank *r, void *arg) { with_ticks(r, abort_in_between, arg); }

void test_fused_abort(int n, waiting w, uint64_t seed) {
  size = n;
  fusing = true;
  for (uint64_t i = 0; i < 10; i++) run_ranks(n, w.spin, w.yield_us, seed + i, abort_with_ticks, NULL);
  fusing = false;
}
