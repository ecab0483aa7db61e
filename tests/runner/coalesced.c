/* coalesced.c: coalesced calls of collectives, packed or not, and p2p operations. One work stands for a call. */
#include <sched.h>

#include "scenarios.h"

static int size;

#define CALLS 30
#define MOST 12

static int32_t value(int rank, int op, uint32_t i) {
  return (int32_t)(rank * 7919 + op * 104729 + (int)(i % 8191) * 31);
}

typedef struct part {
  int32_t *in, *out;
  uint32_t n;
  sagecomm_segment segment[2];
} part;

static void describe(const rank *r, part *p, sagecomm_op *op, int number, int kind, uint32_t n) {
  uint32_t n_in = kind == SAGECOMM_RECV || kind == SAGECOMM_BARRIER ? 0 : n;
  uint32_t n_out = kind == SAGECOMM_SEND || kind == SAGECOMM_BARRIER ? 0 : n;
  if (kind == SAGECOMM_REDUCE_SCATTER) n_in *= (uint32_t)size;
  if (kind == SAGECOMM_ALL_GATHER) n_out *= (uint32_t)size;
  *p = (part){.in = malloc(n_in * 4 + 4), .out = malloc(n_out * 4 + 4), .n = n};
  for (uint32_t i = 0; i < n_in; i++) p->in[i] = value(r->rank, number, i);
  p->segment[0] = (sagecomm_segment){p->in, n_in * 4};
  p->segment[1] = (sagecomm_segment){p->out, n_out * 4};
  *op = (sagecomm_op){.kind = (uint8_t)kind,
                      .dtype = SAGECOMM_INT32,
                      .n_in = n_in || kind == SAGECOMM_SEND || kind < SAGECOMM_BARRIER,
                      .n_out = n_out || kind == SAGECOMM_RECV || kind < SAGECOMM_BARRIER,
                      .in = &p->segment[0],
                      .out = &p->segment[1]};
  if (kind == SAGECOMM_BARRIER) op->n_in = op->n_out = 0;
  if (kind == SAGECOMM_SEND) op->root = (r->rank + 1) % size;
  if (kind == SAGECOMM_RECV) op->root = (r->rank + size - 1) % size;
}

static int32_t sum_of(int op, uint32_t i) {
  uint32_t sum = 0;
  for (int q = 0; q < size; q++) sum += (uint32_t)value(q, op, i);
  return (int32_t)sum;
}

static void verify(const rank *r, const part *p, const sagecomm_op *op, int number) {
  for (uint32_t i = 0; i < p->n; i++) {
    switch (op->kind) {
      case SAGECOMM_ALL_REDUCE:
        CHECK(p->out[i] == sum_of(number, i));
        break;
      case SAGECOMM_REDUCE_SCATTER:
        CHECK(p->out[i] == sum_of(number, (uint32_t)r->rank * p->n + i));
        break;
      case SAGECOMM_ALL_GATHER:
        for (int q = 0; q < size; q++) CHECK(p->out[(uint32_t)q * p->n + i] == value(q, number, i));
        break;
      case SAGECOMM_RECV:
        CHECK(p->out[i] == value(op->root, number - 1, i));
        break;
      default:
        break;
    }
  }
}

static void count_done(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  CHECK(status == SAGECOMM_OK);
  atomic_fetch_add((_Atomic int *)ctx, 1);
}

static void finish(sagecomm_work work, bool engine) {
  sagecomm_error err;
  if (!engine) {
    CHECK(complete(work, &err) == SAGECOMM_OK);
    return;
  }
  _Atomic int *done = calloc(1, sizeof *done);
  if (scr_on_done(work, count_done, (void *)done, &err) == SAGECOMM_PENDING) {
    while (atomic_load(done) == 0) sched_yield();
  }
  scr_release(work);
  free((void *)done);
}

static void calls(rank *r, void *arg) {
  (void)arg;
  static const uint8_t kinds[] = {SAGECOMM_ALL_REDUCE, SAGECOMM_ALL_REDUCE,     SAGECOMM_ALL_GATHER,
                                  SAGECOMM_BARRIER,    SAGECOMM_REDUCE_SCATTER, SAGECOMM_SEND};
  static const uint32_t lengths[] = {0, 1, 17, 600, 3000, 20000};
  uint64_t random = r->random;
  for (int k = 0; k < CALLS; k++) {
    part parts[2 * MOST];
    sagecomm_op ops[2 * MOST];
    int n = 0, most = (int)(next_random(&random) % MOST), kind = -1;
    bool async = next_random(&random) % 2, engine = next_random(&random) % 2;
    while (n < most) {
      if (kind < 0 || next_random(&random) % 3 == 0) kind = kinds[next_random(&random) % sizeof kinds];
      uint32_t length = lengths[next_random(&random) % (sizeof lengths / sizeof *lengths)];
      describe(r, &parts[n], &ops[n], k * 100 + n, kind, length);
      n++;
      if (kind == SAGECOMM_SEND) {
        describe(r, &parts[n], &ops[n], k * 100 + n, SAGECOMM_RECV, length);
        n++;
      }
    }
    for (int i = 0; i < n; i++) ops[i].flags = async ? SAGECOMM_ASYNC : 0;
    sagecomm_work work;
    sagecomm_error err;
    int32_t status = scr_issue_coalesced(r->handle, ops, (uint32_t)n, &work, NULL, &err);
    CHECK(status >= 0);
    if (status == SAGECOMM_PENDING) finish(work, engine);
    for (int i = 0; i < n; i++) {
      verify(r, &parts[i], &ops[i], k * 100 + i);
      free(parts[i].in);
      free(parts[i].out);
    }
  }
}

void test_coalesced(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, calls, NULL);
}

/* Rank 0 makes no call and declares the failure: the works of the others, each of several operations, end with it. */
static void fails(rank *r, void *arg) {
  (void)arg;
  if (size == 1) return;
  if (r->rank == 0) {
    meet();
    declare(r, SAGECOMM_ABORTED, 0, "for a test");
    return;
  }
  part parts[3];
  sagecomm_op ops[3];
  describe(r, &parts[0], &ops[0], 0, SAGECOMM_RECV, 100);
  describe(r, &parts[1], &ops[1], 1, SAGECOMM_ALL_REDUCE, 20000);
  describe(r, &parts[2], &ops[2], 2, SAGECOMM_BARRIER, 0);
  ops[0].root = 0;
  ops[0].flags = SAGECOMM_ASYNC;
  sagecomm_work work;
  sagecomm_error err;
  int32_t status = scr_issue_coalesced(r->handle, ops, 3, &work, NULL, &err);
  meet();
  CHECK((status == SAGECOMM_PENDING ? complete(work, &err) : status) == SAGECOMM_ABORTED);
  CHECK(err.status == SAGECOMM_ABORTED);
  for (int i = 0; i < 3; i++) {
    free(parts[i].in);
    free(parts[i].out);
  }
}

/* If a rank cannot issue a later operation of a coalesced call, its group fails, because other ranks have issued it. */
static void parts_ways(rank *r, void *arg) {
  (void)arg;
  if (size == 1) return;
  part parts[2];
  sagecomm_op ops[2];
  describe(r, &parts[0], &ops[0], 0, SAGECOMM_ALL_REDUCE, 20000);
  describe(r, &parts[1], &ops[1], 1, SAGECOMM_BROADCAST, 20000);
  ops[1].root = size - 1;
  ops[0].flags = SAGECOMM_ASYNC;
  if (r->rank == size - 1) {
    ops[1].n_out = 0;
  } else {
    ops[1].n_in = 0;
  }
  atomic_store(&no_memory_on, size - 1);
  meet();
  sagecomm_work work;
  sagecomm_error err;
  int32_t status = scr_issue_coalesced(r->handle, ops, 2, &work, NULL, &err);
  CHECK((status == SAGECOMM_PENDING ? complete(work, &err) : status) == SAGECOMM_SYSTEM);
  meet();
  atomic_store(&no_memory_on, -1);
  CHECK(scr_issue(r->handle, &ops[0], &work, NULL, &err) == SAGECOMM_SYSTEM);
  for (int i = 0; i < 2; i++) {
    free(parts[i].in);
    free(parts[i].out);
  }
}

void test_coalesced_without_memory(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, parts_ways, NULL);
}

void test_coalesced_failure(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, fails, NULL);
}

/* ---- the time of a call grows linearly with its operations ---- */

#define MANY 1000
#define SHORT 8192 /* longer than the eager limit, so that each send is announced */

static uint64_t steps(void) {
#ifdef SCR_COUNT_STEPS
  return atomic_load(&scr_steps);
#else
  return 0;
#endif
}

/* Makes n sends from rank 0 to rank 1 in one coalesced call and returns the steps of all searches. The recvs have
 * the tags of the sends in the same order or in reverse. */
static uint64_t exchange_many(rank *r, uint32_t n, uint64_t bytes, bool reverse) {
  static unsigned char memory[SHORT + 1]; /* what arrives is not looked at here */
  sagecomm_segment s = {memory, bytes};
  sagecomm_op *ops = calloc(n, sizeof *ops);
  unsigned char *received = r->rank == 1 ? malloc(n * bytes) : NULL;
  sagecomm_segment *to = calloc(n, sizeof *to);
  for (uint32_t i = 0; i < n; i++) {
    ops[i] = (sagecomm_op){.dtype = SAGECOMM_UINT8, .flags = SAGECOMM_ASYNC, .root = 1 - r->rank, .tag = (int32_t)i};
    if (r->rank == 0) {
      ops[i].kind = SAGECOMM_SEND;
      ops[i].n_in = 1;
      ops[i].in = &s;
    } else {
      if (reverse) ops[i].tag = (int32_t)(n - 1 - i);
      to[i] = (sagecomm_segment){received + i * bytes, bytes};
      ops[i].kind = SAGECOMM_RECV;
      ops[i].n_out = 1;
      ops[i].out = &to[i];
    }
  }
  meet();
  uint64_t before = steps();
  meet();
  sagecomm_work work;
  sagecomm_error err;
  int32_t status = scr_issue_coalesced(r->handle, ops, n, &work, NULL, &err);
  CHECK((status == SAGECOMM_PENDING ? complete(work, &err) : status) == SAGECOMM_OK);
  meet();
  uint64_t after = steps();
  meet();
  free(ops);
  free(received);
  free(to);
  return after - before;
}

static void many(rank *r, void *arg) {
  (void)arg;
  for (int way = 0; way < 4; way++) {
    uint64_t bytes = way % 2 ? SHORT + 1 : 4;
    bool reverse = way / 2;
    /* A short list is searched entry by entry, so an operation may take some ten steps in each of its searches. A search
     * through all operations before it would take 500 steps on average. */
    CHECK(exchange_many(r, MANY, bytes, reverse) <= 200 * MANY);
  }
}

void test_steps_of_coalesced_p2p(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 2) run_ranks(n, w.spin, w.yield_us, seed, many, NULL);
}
