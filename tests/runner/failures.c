/* failures.c: ranks that make different calls, do not come, give up or leave. Every rank must get the same first
 * cause. */
#include <pthread.h>
#include <sched.h>

#include "../../internal/runner/composite.h"
#include "plans.h"
#include "scenarios.h"

static int size;

/* On shared blocks, and by messages, by an algorithm each. */
static void run_both(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg) {
  run_ranks(n, w.spin, w.yield_us, seed, fn, arg);
  if (n == 1) return;
  choose_messages(1 + (int)(next_random(&seed) % (uint64_t)(algorithms_of(SAGECOMM_ALL_REDUCE) - 1)), 64, &seed);
  run_ranks(n, w.spin, w.yield_us, seed, fn, arg);
  choose_slots();
}

static int32_t sum(rank *r, uint32_t n, uint8_t flags, int64_t timeout_ns, sagecomm_error *err) {
  int32_t *data = calloc(n + 1, 4);
  sagecomm_segment s = {data, n * 4};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                    .dtype = SAGECOMM_INT32,
                    .flags = flags,
                    .n_in = 1,
                    .n_out = 1,
                    .in = &s,
                    .out = &s,
                    .timeout_ns = timeout_ns};
  int32_t status = call(r, &op, err);
  free(data);
  return status;
}

/* ---- another call ---- */

enum { OTHER_LENGTH, OTHER_SLOTS, OTHER_KIND, OTHER_ROOT, OTHER_REDUCTION, N_OTHERS };

static void disagree(rank *r, void *arg) {
  int how = *(int *)arg;
  uint8_t flags = how % 2 ? SAGECOMM_ASYNC : 0;
  bool odd = r->rank == size / 2;
  sagecomm_error err;
  for (int i = 0; i < 3; i++) CHECK(sum(r, 100, 0, 0, &err) == SAGECOMM_OK);
  meet(); /* made of messages, the last may still need ranks that are ahead */
  int32_t data[2][1001] = {0};
  sagecomm_segment in = {data[0], 4000}, out = {data[1], 4000};
  sagecomm_op op = {
      .kind = SAGECOMM_REDUCE, .dtype = SAGECOMM_INT32, .flags = flags, .n_in = 1, .n_out = 1, .in = &in, .out = &out};
  if (odd && how == OTHER_KIND) op.kind = SAGECOMM_BROADCAST;
  if (odd && how == OTHER_ROOT) op.root = size - 1;
  if (odd && how == OTHER_REDUCTION) op.reduce_op = SAGECOMM_MAX;
  int32_t status;
  if (how == OTHER_LENGTH || how == OTHER_SLOTS) {
    status = sum(r, !odd ? 1000 : how == OTHER_LENGTH ? 1001 : 30000, flags, 0, &err);
  } else {
    status = call(r, &op, &err);
  }
  /* A rank that needs nothing of the others may have finished that call, but it cannot finish the next one. */
  if (status == SAGECOMM_OK) status = sum(r, 10, 0, 0, &err);
  CHECK(status == SAGECOMM_MISMATCH && err.status == SAGECOMM_MISMATCH);
  CHECK(sum(r, 10, 0, 0, &err) == SAGECOMM_MISMATCH);
}

void test_mismatch(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  for (int how = 0; how < N_OTHERS; how++) run_both(n, w, seed + (uint64_t)how, disagree, &how);
}

/* ---- a rank that does not make its call ---- */

static void stay_away(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  CHECK(sum(r, 5000, 0, 0, &err) == SAGECOMM_OK);
  if (r->rank != size - 1) {
    /* Only one rank times out, the one that looks at the lonely rank before all others. However late the others enter,
     * it names none of them, and they get the failure from it. */
    int64_t timeout_ns = r->rank == size - 2 ? 30 * 1000000 : 0;
    CHECK(sum(r, 5000, r->rank % 2 ? SAGECOMM_ASYNC : 0, timeout_ns, &err) == SAGECOMM_TIMEOUT);
    CHECK(err.rank == size - 1);
  }
  meet();
  /* The late rank finds the group failed as well. */
  CHECK(sum(r, 5000, 0, 0, &err) == SAGECOMM_TIMEOUT);
  CHECK(scr_group_error(r->handle, &err) == SAGECOMM_TIMEOUT);
}

void test_timeout(int n, waiting w, uint64_t seed) {
  size = n;
  if (n > 1) run_ranks(n, w.spin, w.yield_us, seed, stay_away, NULL);
}

/* ---- abort ---- */

static void *abort_group(void *p) {
  declare(p, SAGECOMM_ABORTED, ((rank *)p)->rank, "enough");
  return NULL;
}

static void wait_for_abort(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  CHECK(sum(r, 64, 0, 0, &err) == SAGECOMM_OK);
  bool lonely = r->rank == size - 1;
  int32_t data = 0;
  sagecomm_segment s = {&data, 4};
  sagecomm_work posted = 0;
  sagecomm_op recv = {.kind = SAGECOMM_RECV, .root = r->rank, .flags = SAGECOMM_ASYNC, .n_out = 1, .out = &s};
  CHECK(scr_issue(r->handle, &recv, &posted, NULL, &err) == SAGECOMM_PENDING); /* never sent */
  meet();
  if (lonely) { /* a thread of this rank waits, too, while another aborts */
    pthread_t other;
    CHECK(pthread_create(&other, NULL, abort_group, r) == 0);
    CHECK(complete(posted, &err) == SAGECOMM_ABORTED);
    pthread_join(other, NULL);
  } else {
    CHECK(sum(r, 64, r->rank % 2 ? SAGECOMM_ASYNC : 0, 0, &err) == SAGECOMM_ABORTED);
    CHECK(complete(posted, &err) == SAGECOMM_ABORTED);
  }
  CHECK(err.rank == size - 1 && strcmp(err.message, "enough") == 0);
  CHECK(sum(r, 64, 0, 0, &err) == SAGECOMM_ABORTED);
}

void test_abort(int n, waiting w, uint64_t seed) {
  size = n;
  run_both(n, w, seed, wait_for_abort, NULL);
}

/* ---- several threads of every rank find a failure at once: one record, whole, for all ---- */

typedef struct finder {
  rank *r;
  int number;
} finder;

static void *find(void *p) {
  finder *f = p;
  char text[1500];
  memset(text, 'a' + f->r->rank * 3 + f->number, sizeof text - 1);
  text[sizeof text - 1] = 0;
  declare(f->r, SAGECOMM_PEER_FAILURE, f->r->rank * 3 + f->number, text);
  return NULL;
}

static char agreed;

static void declare_together(rank *r, void *arg) {
  (void)arg;
  finder f[3];
  pthread_t threads[3];
  meet();
  for (int i = 0; i < 3; i++) {
    f[i] = (finder){r, i};
    CHECK(pthread_create(&threads[i], NULL, find, &f[i]) == 0);
  }
  sagecomm_error err;
  while (scr_group_error(r->handle, &err) == SAGECOMM_OK) sched_yield();
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  CHECK(err.status == SAGECOMM_PEER_FAILURE);
  for (int i = 0; i < 1499; i++) CHECK(err.message[i] == 'a' + err.rank);
  if (r->rank == 0) agreed = err.message[0];
  meet();
  CHECK(err.message[0] == agreed);
}

void test_declare_from_many(int n, waiting w, uint64_t seed) {
  size = n;
  for (int i = 0; i < 5; i++) run_ranks(n, w.spin, w.yield_us, seed, declare_together, NULL);
}

/* ---- what the peers had published before the failure completes, however late the waiting rank looks ---- */

static void look_late(rank *r, void *arg) {
  (void)arg;
  meet();
  if (r->rank == 0) declare(r, SAGECOMM_PEER_FAILURE, size - 1, "");
  meet();
  _Atomic uint64_t flag = 4;
  scr_run waiting = {.flag = &flag, .need = 5, .peer = (r->rank + 1) % size, .timeout_ns = INT64_MAX / 2};
  CHECK(scr_check_wait(r->group, &waiting, scr_now()) == SCR_INCIDENT_FAILURE);
  atomic_store(&flag, 5);
  CHECK(scr_check_wait(r->group, &waiting, scr_now()) == 0);
}

void test_published_before_a_failure(int n, waiting w, uint64_t seed) {
  size = n;
  if (n > 1) run_ranks(n, w.spin, w.yield_us, seed, look_late, NULL);
}

/* ---- goodbye ---- */

static void leave(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  CHECK(sum(r, 3000, 0, 0, &err) == SAGECOMM_OK);
  if (r->rank == size - 1) {
    int32_t last = 42;
    sagecomm_segment s = {&last, 4};
    sagecomm_op send = {.kind = SAGECOMM_SEND, .root = 0, .n_in = 1, .in = &s};
    CHECK(call(r, &send, &err) == SAGECOMM_OK);
    scr_group_goodbye(r->group);
    meet();
    meet();
    return;
  }
  meet();
  /* Operations that do not need the rank that has left succeed; frames that it sent before are received. */
  int32_t data = 0;
  sagecomm_segment s = {&data, 4};
  sagecomm_op self = {.kind = SAGECOMM_SEND, .root = r->rank, .tag = 1, .flags = SAGECOMM_ASYNC, .n_in = 1, .in = &s};
  sagecomm_work work = 0;
  CHECK(scr_issue(r->handle, &self, &work, NULL, &err) >= 0);
  int32_t got = -1;
  sagecomm_segment d = {&got, 4};
  sagecomm_op recv = {.kind = SAGECOMM_RECV, .root = r->rank, .tag = 1, .n_out = 1, .out = &d};
  CHECK(call(r, &recv, &err) == SAGECOMM_OK && got == 0);
  if (work) CHECK(complete(work, &err) == SAGECOMM_OK);
  if (r->rank == 0) {
    recv.root = size - 1;
    recv.tag = 0;
    CHECK(call(r, &recv, &err) == SAGECOMM_OK && got == 42);
  }
  meet();
  CHECK(sum(r, 3000, r->rank % 2 ? SAGECOMM_ASYNC : 0, 0, &err) == SAGECOMM_PEER_FAILURE);
  CHECK(err.rank == size - 1);
}

void test_goodbye(int n, waiting w, uint64_t seed) {
  size = n;
  if (n > 1) run_both(n, w, seed, leave, NULL);
}

/* ---- a failure somewhere in a collective made of many messages ---- */

static void *abort_soon(void *p) {
  rank *r = p;
  for (uint64_t n = next_random(&r->random) % 200; n > 0; n--) sched_yield();
  return abort_group(r);
}

#define MANY 10000

static void fail_in_the_middle(rank *r, void *arg) {
  (void)arg;
  int32_t *data = malloc(MANY * 4), status = SAGECOMM_OK;
  sagecomm_segment s = {data, MANY * 4};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = 1, .in = &s, .out = &s};
  sagecomm_error err;
  pthread_t other;
  meet();
  if (r->rank == size - 1) CHECK(pthread_create(&other, NULL, abort_soon, r) == 0);
  for (int32_t round = 0; status == SAGECOMM_OK; round++) {
    for (int32_t i = 0; i < MANY; i++) data[i] = r->rank + i + round;
    op.flags = round % 2 ? SAGECOMM_ASYNC : 0;
    status = call(r, &op, &err);
    for (int32_t i = 0; status == SAGECOMM_OK && i < MANY; i++) {
      CHECK(data[i] == size * (size - 1) / 2 + size * (i + round)); /* a call that succeeds has the right result */
    }
  }
  CHECK(status == SAGECOMM_ABORTED && err.rank == size - 1 && strcmp(err.message, "enough") == 0);
  if (r->rank == size - 1) pthread_join(other, NULL);
  free(data);
}

void test_failure_between_messages(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  for (int i = 0; i < 2; i++) {
    int algorithm = (int)(next_random(&seed) % (uint64_t)algorithms_of(SAGECOMM_ALL_REDUCE));
    choose(SAGECOMM_ALL_REDUCE, 1, algorithm, 1024);
    run_ranks(n, w.spin, w.yield_us, seed, fail_in_the_middle, NULL);
  }
  choose_slots();
}

/* ---- what was sent before a goodbye arrives ---- */

static void send_and_leave(rank *r, void *arg) {
  (void)arg;
  int32_t mine = 100 + r->rank, all[MAX_RANKS];
  sagecomm_segment in = {&mine, 4}, out = {all, 4 * (uint64_t)size};
  sagecomm_op op = {
      .kind = SAGECOMM_GATHER, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = r->rank == 0, .in = &in, .out = &out};
  sagecomm_error err;
  if (r->rank != 0) {
    CHECK(call(r, &op, &err) == SAGECOMM_OK); /* the call waits for no rank */
    scr_group_goodbye(r->group);
  }
  meet();
  if (r->rank != 0) return;
  CHECK(call(r, &op, &err) == SAGECOMM_OK);
  for (int q = 0; q < size; q++) CHECK(all[q] == 100 + q);
  CHECK(call(r, &op, &err) == SAGECOMM_PEER_FAILURE);
}

void test_goodbye_after_a_message(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  choose(SAGECOMM_GATHER, 0, algorithm_named(SAGECOMM_GATHER, "direct"), 64);
  run_ranks(n, w.spin, w.yield_us, seed, send_and_leave, NULL);
  choose_slots();
}

/* ---- ranks that share no memory: each has a failure word of its own ---- */

static void fail_apart(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  meet();
  if (r->rank == 0) declare(r, SAGECOMM_TIMEOUT, 0, "of rank 0");
  meet();
  if (r->rank != 0) CHECK(scr_group_error(r->handle, &err) == SAGECOMM_OK);
  meet();
  if (r->rank != 0) declare(r, SAGECOMM_ABORTED, r->rank, "of another rank");
  CHECK(scr_group_error(r->handle, &err) == (r->rank == 0 ? SAGECOMM_TIMEOUT : SAGECOMM_ABORTED));
  CHECK(err.rank == r->rank);
  unsigned char record[SCR_FAILURE_BYTES];
  if (r->beside) CHECK(scr_group_get_failure(r->beside->group, record, sizeof record) == 1 + r->rank);
}

void test_own_words(int n, waiting w, uint64_t seed) {
  size = n;
  own_words = true;
  run_ranks(n, w.spin, w.yield_us, seed, fail_apart, NULL);
  device_lanes = true; /* which use the word of their host lane */
  run_ranks(n, w.spin, w.yield_us, seed, fail_apart, NULL);
  own_words = device_lanes = false;
}

/* ---- the cause is replaced while others read it ---- */

enum { CAUSES = 400, TEXT = 300, DRAINED = 1000 };

typedef struct reading {
  rank *r;
  _Atomic bool over;
} reading;

/* Each cause has another rank and text than the one before it, and another status. */
static sagecomm_error cause_number(int32_t number) {
  sagecomm_error e = {.status = number % 2 ? SAGECOMM_PEER_FAILURE : SAGECOMM_TIMEOUT, .rank = number % 26};
  memset(e.message, 'a' + e.rank, TEXT);
  return e;
}

/* What a caller gets is of one cause. */
static void check_whole(int32_t status, const sagecomm_error *err) {
  sagecomm_error e = cause_number(err->rank);
  CHECK(status == e.status && err->status == e.status && strcmp(err->message, e.message) == 0);
}

static void replace(rank *r, int32_t number) {
  sagecomm_error e = cause_number(number);
  if (number == 0) {
    declare(r, e.status, e.rank, e.message);
  } else {
    scr_group_recause(r->group, &e);
  }
}

static sagecomm_work post_recv(rank *r) { /* never sent */
  static int32_t data;
  sagecomm_segment s = {&data, 4};
  sagecomm_work posted = 0;
  sagecomm_op recv = {.kind = SAGECOMM_RECV, .root = r->rank, .flags = SAGECOMM_ASYNC, .n_out = 1, .out = &s};
  sagecomm_error err;
  CHECK(scr_issue(r->handle, &recv, &posted, NULL, &err) == SAGECOMM_PENDING);
  return posted;
}

static void *read_cause(void *p) {
  reading *c = p;
  sagecomm_error err;
  while (!atomic_load(&c->over)) {
    check_whole(sum(c->r, 10, 0, 0, &err), &err);
    check_whole(scr_group_error(c->r->handle, &err), &err);
  }
  return NULL;
}

static void replace_cause(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  sagecomm_work posted = post_recv(r), other = post_recv(r);
  replace(r, 0);
  /* The engine may have the p2p lock, and then drains in its next pass: the first cause is replaced behind that. */
  check_whole(complete(posted, &err), &err);
  CHECK(err.rank == 0);
  while (scr_wait(other, 10 * 1000000, &err) == SAGECOMM_PENDING) continue;
  pthread_t threads[2];
  reading c = {.r = r};
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, read_cause, &c) == 0);
  for (int32_t i = 1; i <= CAUSES; i++) {
    replace(r, i);
    if (i % 8 == 0) sched_yield();
  }
  atomic_store(&c.over, true);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  check_whole(complete(other, &err), &err);
  CHECK(err.rank == 0); /* it keeps the cause that it has failed with */
  check_whole(sum(r, 10, 0, 0, &err), &err);
  CHECK(err.rank == CAUSES % 26);
}

static void *keep_replacing(void *p) {
  reading *c = p;
  for (int32_t i = 1; i <= 10 * CAUSES && !atomic_load(&c->over);) {
    if (atomic_load(&c->r->group->cause) != NULL) replace(c->r, i++);
    if (i % 8 == 1) sched_yield();
  }
  return NULL;
}

/* Operations are drained while causes change: each fails with one of them, whole. */
static void drain_while_replaced(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  static sagecomm_work works[MAX_RANKS][DRAINED];
  sagecomm_work *posted = works[r->rank];
  for (int i = 0; i < DRAINED; i++) posted[i] = post_recv(r);
  pthread_t thread;
  reading c = {.r = r};
  CHECK(pthread_create(&thread, NULL, keep_replacing, &c) == 0);
  replace(r, 0);
  for (int i = 0; i < DRAINED; i++) check_whole(complete(posted[i], &err), &err);
  atomic_store(&c.over, true);
  pthread_join(thread, NULL);
}

/* Two parts of a composite fail with a cause each, at the same time. */

typedef struct part {
  scr_run *run;
  int32_t number;
  _Atomic bool *go;
} part;

static void *fail_part(void *p) {
  part *b = p;
  sagecomm_error e = cause_number(b->number);
  b->run->status = e.status;
  b->run->cause = scr_cause_new(&e);
  while (!atomic_load(b->go)) sched_yield();
  scr_run_settle(b->run, false);
  scr_run_unref(b->run);
  return NULL;
}

static void fail_parts(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  for (int round = 0; round < 50; round++) {
    scr_run *all = scr_composite_new(r->group, r->handle, 2);
    _Atomic bool go = false;
    part parts[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
      parts[i] = (part){scr_run_new(), i, &go};
      parts[i].run->group = r->group;
      scr_run_ref(parts[i].run); /* the composite takes one over */
      scr_composite_add(all, scr_run_handle(parts[i].run));
      CHECK(pthread_create(&threads[i], NULL, fail_part, &parts[i]) == 0);
    }
    sagecomm_work work = 0;
    CHECK(scr_composite_close(all, SAGECOMM_OK, &work, &err) == SAGECOMM_PENDING);
    atomic_store(&go, true);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    check_whole(scr_wait(work, 0, &err), &err);
    scr_release(work);
  }
}

void test_cause_is_replaced(int n, waiting w, uint64_t seed) {
  if (n > 2) return;
  size = n;
  own_words = true;
  run_ranks(n, w.spin, w.yield_us, seed, replace_cause, NULL);
  run_ranks(n, w.spin, w.yield_us, seed, drain_while_replaced, NULL);
  run_ranks(n, w.spin, w.yield_us, seed, fail_parts, NULL);
  own_words = false;
}
