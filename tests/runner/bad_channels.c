/* bad_channels.c: a rank that writes invalid values into its channels, or into its counts of other ranks' messages.
 * The rank that reads one must name the culprit at once. scr_group_awaits(), which reads them for diagnosis only,
 * must accept any value. */
#include <sched.h>

#include "plans.h"
#include "scenarios.h"

static int size;

static int ill(void) { return size - 1; }

/* The ill rank is the root: in a chain its bytes go to rank 0 first. In a scatter, rank 0 sends them to all. */
static int32_t move(const rank *r, int kind, uint32_t n, sagecomm_error *err) {
  uint32_t blocks = kind == SAGECOMM_BROADCAST ? 1 : (uint32_t)size;
  unsigned char *in = calloc(blocks, n), *out = calloc(blocks, n);
  sagecomm_segment from = {in, (uint64_t)blocks * n}, to = {out, (uint64_t)blocks * n};
  sagecomm_op op = {.kind = (uint8_t)kind,
                    .dtype = SAGECOMM_UINT8,
                    .root = kind == SAGECOMM_BROADCAST ? ill() : 0,
                    .n_in = kind == SAGECOMM_ALL_TO_ALL || r->rank == (kind == SAGECOMM_BROADCAST ? ill() : 0),
                    .n_out = 1,
                    .in = &from,
                    .out = &to};
  if (kind == SAGECOMM_SCATTER) to.bytes = n;
  int32_t status = call(r, &op, err);
  free(in);
  free(out);
  return status;
}

static void use(int kind, const char *algorithm) {
  for (int c = 0; c < SIZE_CLASSES; c++) choose(kind, c, algorithm_named(kind, algorithm), 64);
}

/* ---- offsets ---- */

static void wrong_channel(rank *r, void *arg) {
  sagecomm_error err;
  if (r->rank == ill()) {
    for (uint32_t to = 0; to < (uint32_t)size; to++) {
      scr_store_flag(scr_shared_channel(r->group->shared, (uint32_t)size, to, 0), *(uint64_t *)arg);
    }
  }
  meet();
  if (r->rank != ill()) CHECK(move(r, SAGECOMM_BROADCAST, 10, &err) == SAGECOMM_INTERNAL && err.rank == ill());
  meet();
}

void test_wrong_channels(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  use(SAGECOMM_BROADCAST, "chain");
  uint64_t offsets[] = {1,
                        SCR_LINE / 2,
                        ARENA_BYTES,
                        ARENA_BYTES - SCR_CHANNEL_PLACES * SCR_CHANNEL_BYTES, /* partly outside */
                        ARENA_BYTES - SCR_LINE,
                        UINT64_C(1) << 45,
                        -(uint64_t)SCR_LINE};
  for (unsigned i = 0; i < sizeof offsets / sizeof *offsets; i++) {
    run_ranks(n, w.spin, w.yield_us, seed, wrong_channel, &offsets[i]);
  }
  choose_slots();
}

/* ---- messages ---- */

/* The error of a message: values that are added to the right ones of its header. */
typedef struct wrong {
  int kind;
  uint64_t filled, hash, bytes, block;
  int32_t status; /* the expected status */
} wrong;

/* Forges message n of the channel to rank 0, when rank 0 has begun its n-th call. */
static void forge(const rank *r, uint64_t n, const wrong *x) {
  scr_call begun;
  while (!scr_group_call(r->group, 0, n, &begun)) sched_yield();
  scr_channel *f = r->group->coll.channels[0].out[0];
  scr_place *p = (scr_place *)(void *)(f->places + n % SCR_CHANNEL_PLACES * scr_channel_stride(SCR_CHANNEL_BYTES));
  p->hash = begun.hash + x->hash;
  p->bytes = 1 + x->bytes;
  p->block = 1 + x->block;
  atomic_store(&f->sent, n);
  scr_store_flag(&p->filled, n + x->filled);
  scr_wake_readers(r->group);
}

static void bad_message(rank *r, void *arg) {
  const wrong *x = arg;
  sagecomm_error err;
  CHECK(move(r, x->kind, 1, &err) == SAGECOMM_OK); /* there is a channel, and one message went through it */
  meet();
  if (r->rank == ill()) {
    forge(r, 2, x);
  } else {
    int32_t status = move(r, x->kind, 1, &err);
    if (r->rank == 0) CHECK(status == x->status && (status == SAGECOMM_OK || err.rank == ill()));
    if (r->rank != 0 && x->status != SAGECOMM_OK) CHECK(status == x->status);
  }
  meet();
}

void test_bad_messages(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  use(SAGECOMM_BROADCAST, "chain");
  use(SAGECOMM_ALL_TO_ALL, "direct");
  const int b = SAGECOMM_BROADCAST;
  const wrong list[] = {
      {.kind = b, .status = SAGECOMM_OK}, /* nothing: the forger knows how */
      {.kind = b, .hash = 1, .status = SAGECOMM_MISMATCH},
      {.kind = b, .filled = 1, .status = SAGECOMM_INTERNAL},
      {.kind = b, .filled = SCR_CHANNEL_PLACES, .status = SAGECOMM_INTERNAL},
      {.kind = b, .filled = UINT64_C(1) << 63, .status = SAGECOMM_INTERNAL},
      {.kind = b, .bytes = 1, .status = SAGECOMM_INTERNAL},
      {.kind = b, .bytes = -UINT64_C(1), .status = SAGECOMM_INTERNAL},
      {.kind = b, .bytes = UINT64_C(1) << 40, .status = SAGECOMM_INTERNAL},
      {.kind = b, .block = 1, .status = SAGECOMM_INTERNAL},
      {.kind = SAGECOMM_ALL_TO_ALL, .block = 1, .status = SAGECOMM_MISMATCH}, /* splits that differ */
      {.kind = SAGECOMM_ALL_TO_ALL, .bytes = 1, .status = SAGECOMM_INTERNAL},
  };
  for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
    wrong x = list[i];
    run_ranks(n, w.spin, w.yield_us, seed, bad_message, &x);
  }
  choose_slots();
}

/* ---- counts: no rank can have taken more than was sent ---- */

static void wrong_taken(rank *r, void *arg) {
  sagecomm_error err;
  if (r->rank == ill()) {
    scr_store_flag(&scr_shared_channel_reader(r->group->shared, (uint32_t)size, 0)->taken[0], *(uint64_t *)arg);
  }
  meet();
  /* Each call sends a message to each rank, until a send needs room in the channel to the ill one. */
  int32_t status = SAGECOMM_OK;
  for (int i = 0; i <= SCR_CHANNEL_PLACES && status == SAGECOMM_OK && r->rank != ill(); i++) {
    status = move(r, SAGECOMM_SCATTER, 1, &err);
  }
  if (r->rank == 0) CHECK(status == SAGECOMM_INTERNAL && err.rank == ill());
  meet();
}

void test_wrong_taken(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  use(SAGECOMM_SCATTER, "direct");
  uint64_t counts[] = {SCR_CHANNEL_PLACES + 1, UINT64_C(1) << 40, UINT64_MAX};
  for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
    run_ranks(n, w.spin, w.yield_us, seed, wrong_taken, &counts[i]);
  }
  choose_slots();
}

/* ---- scr_group_awaits() ---- */

/* What the rank says, as if it had been stopped then. */
static int32_t awaits(const rank *r, int who, uint32_t word) {
  atomic_store(&r->group->peer[who].shared->collective.waits_for, word);
  return scr_group_awaits(r->group, who);
}

/* A rank was stopped while it waited for a message that has come since. It counts as one that waits for no rank, because it
 * holds up the others itself. */
static void stopped(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  uint32_t message = SCR_SLEEP_CHANNEL(0, 0) | (1 + (uint32_t)ill()), room = SCR_SLEEP_CHANNEL(0, 1) | 1;
  if (r->rank == 0) {
    CHECK(awaits(r, 0, message) == ill()); /* the channel does not exist yet */
    CHECK(awaits(r, 0, message | SCR_SLEEP_ENGINE) == ill());
  }
  meet();
  for (uint64_t i = 1; i <= SCR_CHANNEL_PLACES; i++) {
    if (r->rank == ill()) CHECK(move(r, SAGECOMM_BROADCAST, 1, &err) == SAGECOMM_OK);
    meet();
    if (r->rank == 0) {
      CHECK(awaits(r, 0, message) == -1);
      CHECK(awaits(r, 0, message | SCR_SLEEP_ENGINE) == -1);
      CHECK(awaits(r, 0, 1 + (uint32_t)ill()) == ill()); /* a flag of a shared block */
      CHECK(awaits(r, ill(), room) == (i == SCR_CHANNEL_PLACES ? 0 : -1));
      CHECK(awaits(r, ill(), SCR_SLEEP_CHANNEL(1, 1) | 1) == 0); /* a channel that does not exist */
      atomic_store(&r->group->shared->collective.waits_for, 0);
      atomic_store(&r->group->peer[ill()].shared->collective.waits_for, 0);
    }
    meet();
  }
  for (int i = 0; i < SCR_CHANNEL_PLACES && r->rank != ill(); i++) {
    CHECK(move(r, SAGECOMM_BROADCAST, 1, &err) == SAGECOMM_OK);
    if (r->rank == 0) CHECK(awaits(r, ill(), room) == -1);
  }
  meet();
  if (r->rank == 0) CHECK(awaits(r, 0, message) == ill());
  meet();
}

/* What a rank sees of the channels between two others, one of which is on another host, are words of a shadow that has the words of
 * its own pair only. So the rank that is waited for is named, although a message of it is there. */
static void third(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  uint32_t message = SCR_SLEEP_CHANNEL(0, 0) | (1 + (uint32_t)ill());
  if (r->rank == ill()) CHECK(move(r, SAGECOMM_BROADCAST, 1, &err) == SAGECOMM_OK);
  meet();
  if (size > 2 && r->rank == 1) {
    scr_peer *p = r->group->peer;
    CHECK(awaits(r, 0, message) == -1);
    p[ill()].pair = 1;
    CHECK(awaits(r, 0, message) == ill());
    p[ill()].pair = 0;
    p[0].pair = 1;
    atomic_store(&p[0].shared->collective.told, message);
    CHECK(scr_group_awaits(r->group, 0) == ill());
    p[0].pair = 0;
    atomic_store(&p[0].shared->collective.waits_for, 0);
  }
  meet();
  if (r->rank != ill()) CHECK(move(r, SAGECOMM_BROADCAST, 1, &err) == SAGECOMM_OK);
}

/* Returns the sleeper word of a rank that sleeps for the ill rank. */
static uint32_t word_asleep(const rank *r, int who, int awaited) {
  uint32_t word;
  do {
    sched_yield();
    word = atomic_load(&r->group->peer[who].shared->collective.waits_for);
  } while (scr_sleeps_for(word) != 1 + (uint32_t)awaited);
  return word & ~SCR_SLEEP_ENGINE;
}

/* A rank that sleeps for room in a channel stores which one. */
static void asleep(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  const uint32_t several = 64 * (SCR_CHANNEL_PLACES + 1);
  if (r->rank == ill()) CHECK(move(r, SAGECOMM_BROADCAST, several, &err) == SAGECOMM_OK);
  if (r->rank == 0) {
    CHECK(word_asleep(r, ill(), 0) == (SCR_SLEEP_CHANNEL(0, 1) | 1));
    while (scr_group_awaits(r->group, ill()) != 0) sched_yield(); /* the rank is awake from time to time */
  }
  if (r->rank != ill()) CHECK(move(r, SAGECOMM_BROADCAST, several, &err) == SAGECOMM_OK);
}

/* A rank that sleeps for the first message names it, although the channel does not exist yet. */
static void asleep_at_first(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  if (r->rank == ill()) CHECK(word_asleep(r, 0, ill()) == (SCR_SLEEP_CHANNEL(0, 0) | (1 + (uint32_t)ill())));
  CHECK(move(r, SAGECOMM_BROADCAST, 1, &err) == SAGECOMM_OK);
}

/* For any sleeper word, the result is a rank or -1. */
static void any_words(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  CHECK(move(r, SAGECOMM_BROADCAST, 10, &err) == SAGECOMM_OK);
  meet();
  for (int i = 0; i < 2000 && r->rank == 0; i++) {
    uint64_t x = next_random(&r->random), y = next_random(&r->random);
    if (i % 4 == 0)
      atomic_store(scr_shared_channel(r->group->peer[ill()].shared, (uint32_t)size, 0, x >> 62), y >> x % 64);
    if (i % 4 == 1) {
      scr_channel_reader *reader = scr_shared_channel_reader(r->group->shared, (uint32_t)size, (uint32_t)ill());
      atomic_store(&reader->taken[x >> 62], y >> x % 64);
    }
    int32_t who = awaits(r, i % size, (uint32_t)x & (i % 2 ? UINT32_C(0x800f000f) : UINT32_MAX));
    CHECK(who >= -1 && who < size);
  }
  meet();
}

void test_awaits(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  use(SAGECOMM_BROADCAST, "chain");
  rank_fn *const all[] = {stopped, third, asleep, asleep_at_first, any_words};
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++) run_ranks(n, w.spin, w.yield_us, seed, all[i], NULL);
  choose_slots();
}
