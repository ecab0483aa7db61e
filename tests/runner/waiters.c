/* waiters.c: collectives that their callers leave to threads that will wait for them, and what takes them from these. */
#include <sched.h>
#include <unistd.h>

#include "../../internal/runner/composite.h"
#include "plans.h"
#include "scenarios.h"

static int size;

static int32_t sum(rank *r, int32_t *data, int64_t timeout_ns, sagecomm_work *work) {
  *data = 1;
  sagecomm_error err;
  return begin_sum(r, data, timeout_ns, work, &err);
}

static void nobody_waits(rank *r, void *arg) {
  int64_t *took = arg;
  if (r->rank == 0) {
    usleep(SOUNDLY_US);
    atomic_store(&r->group->waited_soon, true);
    int32_t data;
    sagecomm_work work;
    sagecomm_error err;
    ending e = {0};
    int64_t began = scr_now();
    CHECK(sum(r, &data, 50 * 1000000, &work) == SAGECOMM_PENDING);
    CHECK(scr_on_done(work, note_end, &e, &err) == SAGECOMM_PENDING);
    *took = sleep_until_end(&e) - began;
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
      if (scr_on_done(work, note_end, &e, &err) == SAGECOMM_PENDING) sleep_until_end(&e);
      scr_release(work);
      soon = atomic_load(&r->group->waited_soon);
      atomic_store(over, !soon);
    } else if (status == SAGECOMM_PENDING) {
      CHECK(complete(work, &err) == SAGECOMM_OK);
      soon = atomic_load(&r->group->waited_soon);
    }
    CHECK(data == size);
    meet();
  }
}

/* Who asks takes the collective from the waiter that may come. */
static void asks(rank *r, void *arg) {
  (void)arg;
  atomic_store(&r->group->waited_soon, true);
  int32_t data;
  sagecomm_work work;
  sagecomm_error err;
  if (r->rank == 0) {
    CHECK(sum(r, &data, 0, &work) == SAGECOMM_PENDING);
    CHECK(scr_test(work) == 0);
    CHECK(atomic_load(&scr_run_of(work)->coll.soon_ns) == 0);
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

/* ---- who takes a collective that was left ---- */

/* Issues a sum and leaves it to a waiter, unless something comes in between. Returns with the drive lock, so that the engine does not
 * look at the collective. */
static scr_run *leave(rank *r, int32_t *data, sagecomm_work *work) {
  atomic_store(&r->group->waited_soon, true);
  CHECK(sum(r, data, 0, work) == SAGECOMM_PENDING);
  while (!scr_drive_lock(r->group)) sched_yield();
  return scr_run_of(*work);
}

static bool is_left(const scr_run *run) { return atomic_load(&run->coll.soon_ns) > 0; }

/* Nobody can wait for a handle that was released. */
static void release(rank *r, sagecomm_work work, ending *e) {
  (void)r;
  sagecomm_error err;
  CHECK(scr_on_done(work, note_end, e, &err) == SAGECOMM_PENDING);
  scr_release(work);
}

/* Who waits for several operations waits for one at a time. That tells nothing of who waits for one alone. */
static void compose(rank *r, sagecomm_work part, ending *e) {
  sagecomm_error err;
  scr_run *all = scr_composite_new(r->group, r->handle, 1);
  scr_composite_add(all, part);
  sagecomm_work work;
  CHECK(scr_composite_close(all, SAGECOMM_OK, &work, &err) == SAGECOMM_PENDING);
  CHECK(scr_on_done(work, note_end, e, &err) == SAGECOMM_PENDING);
  scr_release(work);
}

typedef struct taking {
  void (*take)(rank *r, sagecomm_work work, ending *e);
  bool teaches;      /* that nobody waits soon for the next one either */
  _Atomic bool over; /* rank 0 has left a collective, and seen what becomes of it */
} taking;

static void takes(rank *r, void *arg) {
  taking *t = arg;
  bool over = false;
  for (int round = 0; !over; round++) {
    CHECK(round < 1000);
    int32_t data;
    sagecomm_work work;
    ending e = {0};
    if (r->rank == 0) {
      scr_run *run = leave(r, &data, &work);
      bool left = is_left(run);
      uint32_t before = rings();
      t->take(r, work, &e);
      if (left) {
        CHECK(rings() != before && !is_left(run)); /* the queue keeps the run alive */
        CHECK(atomic_load(&r->group->waited_soon) == !t->teaches);
      }
      scr_drive_unlock(r->group);
      atomic_store(&t->over, left);
    }
    meet();
    over = atomic_load(&t->over);
    sagecomm_error err;
    if (r->rank != 0 && sum(r, &data, 0, &work) == SAGECOMM_PENDING) CHECK(complete(work, &err) == SAGECOMM_OK);
    if (r->rank == 0) sleep_until_end(&e);
    CHECK(data == size && (r->rank != 0 || e.status == SAGECOMM_OK));
    meet();
  }
}

/* A driver that leaves a collective wakes the engine for what came while it had the lock. */
static void leaves_two(rank *r, void *arg) {
  bool *goes_down = arg;
  int32_t data[2];
  sagecomm_work work[2];
  sagecomm_error err;
  if (r->rank == 0) {
    scr_group *g = r->group;
    while (!scr_drive_lock(g)) sched_yield();
    CHECK(sum(r, &data[0], 0, &work[0]) == SAGECOMM_PENDING);
    if (*goes_down) {
      scr_group_down(g, &(sagecomm_error){.status = SAGECOMM_ABORTED});
    } else {
      CHECK(sum(r, &data[1], 0, &work[1]) == SAGECOMM_PENDING);
    }
    uint32_t before = rings();
    scr_drive_leave(g, scr_run_of(work[0]));
    CHECK(rings() != before);
  }
  meet();
  for (int i = 0; i < 2 && !*goes_down; i++) {
    if (r->rank == 0 || sum(r, &data[i], 0, &work[i]) == SAGECOMM_PENDING)
      CHECK(complete(work[i], &err) == SAGECOMM_OK);
    CHECK(data[i] == size);
  }
  if (*goes_down && r->rank == 0) CHECK(complete(work[0], &err) == SAGECOMM_ABORTED);
  meet();
}

void test_taken_from_a_waiter(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  const taking ways[] = {{.take = release, .teaches = true}, {.take = compose}};
  for (int i = 0; i < 2; i++) {
    taking t = {.take = ways[i].take, .teaches = ways[i].teaches};
    run_ranks(n, w.spin, w.yield_us, seed, takes, &t);
  }
  for (int goes_down = 0; goes_down < 2; goes_down++) {
    bool arg = goes_down;
    run_ranks(n, w.spin, w.yield_us, seed, leaves_two, &arg);
  }
}

/* ---- what is left to nobody ---- */

#define BYTES 8192 /* of the buffers */

typedef struct kept {
  uint8_t kind;
  uint32_t bytes; /* of the input and of the output, where the kind has blocks on one side only: of the longer one */
  int root;
} kept;

/* Peers need something of the collective, so it is left to the engine. */
static void keeps(rank *r, void *arg) {
  const kept *k = arg;
  unsigned char in[BYTES] = {0}, out[BYTES];
  bool scatters = k->kind == SAGECOMM_SCATTER, gathers = k->kind == SAGECOMM_GATHER, is_root = r->rank == k->root;
  sagecomm_segment from = {in, gathers ? k->bytes / (uint32_t)size : k->bytes};
  sagecomm_segment to = {out, scatters ? k->bytes / (uint32_t)size : k->bytes};
  sagecomm_op op = {.kind = k->kind,
                    .dtype = SAGECOMM_UINT8,
                    .flags = SAGECOMM_ASYNC,
                    .root = k->root,
                    .n_in = is_root || !(scatters || k->kind == SAGECOMM_BROADCAST),
                    .n_out = is_root || !(gathers || k->kind == SAGECOMM_REDUCE),
                    .in = &from,
                    .out = &to};
  sagecomm_work work;
  sagecomm_error err;
  atomic_store(&r->group->waited_soon, true);
  if (r->rank == 0) {
    CHECK(scr_issue(r->handle, &op, &work, NULL, &err) == SAGECOMM_PENDING);
    CHECK(!is_left(scr_run_of(work)));
    meet();
    CHECK(complete(work, &err) == SAGECOMM_OK);
  } else {
    meet();
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
  }
}

void test_kept_from_a_waiter(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  /* Rank 0 waits for inputs before it has reduced its share, for the inputs of all, the input of the last, heads. */
  const kept list[] = {{SAGECOMM_ALL_REDUCE, BYTES, 0},
                       {SAGECOMM_GATHER, 64 * (uint32_t)n, 0},
                       {SAGECOMM_BROADCAST, 64, n - 1},
                       {SAGECOMM_SCATTER, 64 * (uint32_t)n, n - 1},
                       {SAGECOMM_ALL_TO_ALL, 64 * (uint32_t)n, 0}};
  for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
    run_ranks(n, w.spin, w.yield_us, seed, keeps, (void *)(uintptr_t)&list[i]);
  }
  kept by_messages = {SAGECOMM_ALL_REDUCE, 64, 0};
  for (int c = 0; c < SIZE_CLASSES; c++)
    choose(SAGECOMM_ALL_REDUCE, c, algorithm_named(SAGECOMM_ALL_REDUCE, "ring"), 1024);
  run_ranks(n, w.spin, w.yield_us, seed, keeps, &by_messages);
  choose_slots();
}
