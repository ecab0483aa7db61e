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

/* ---- a call ---- */

typedef struct pending {
  trial t;
  buffer in, out;
  unsigned char *given, *wanted; /* all blocks of input and output */
  uint64_t in_bytes[MAX_RANKS], out_bytes[MAX_RANKS];
  sagecomm_work work;
  _Atomic int done;
} pending;

static unsigned char *blocks(const trial *t, bool out, uint64_t bytes[]) {
  uint64_t total = 0;
  int n = n_blocks(t, out);
  for (int i = 0; i < n; i++) total += bytes[i] = (uint64_t)length_of(t, out, i) * t->elem;
  unsigned char *all = malloc(total + 1), *at = all;
  for (int i = 0; i < n; at += bytes[i++]) (out ? block_of_output : block_of_input)(t, i, at);
  return all;
}

static uint64_t total(const uint64_t bytes[], int n) {
  uint64_t sum = 0;
  for (int i = 0; i < n; i++) sum += bytes[i];
  return sum;
}

static void make_buffers(pending *p, uint64_t *own) {
  const trial *t = &p->t;
  int ins = n_blocks(t, false), outs = n_blocks(t, true);
  p->given = blocks(t, false, p->in_bytes);
  p->wanted = blocks(t, true, p->out_bytes);
  uint64_t n_in = total(p->in_bytes, ins), n_out = total(p->out_bytes, outs);
  if (t->in_place && outs > ins && ins > 0) {
    p->out = cut(own, n_out / t->elem, t->elem);
    p->in = part_of(&p->out, total(p->out_bytes, t->rank), n_in);
  } else {
    if (ins > 0) p->in = cut(own, n_in / t->elem, t->elem);
    if (t->in_place && ins > 0 && outs > 0) {
      p->out = part_of(&p->in, ins > outs ? total(p->in_bytes, t->rank) : 0, n_out);
    } else if (outs > 0) {
      p->out = cut(own, n_out / t->elem, t->elem);
    }
  }
  copy_in(&p->in, p->given);
}

static int32_t begin(const rank *r, pending *p, uint8_t flags, sagecomm_error *err) {
  bool blocks_differ = !flat(p->t.kind) && p->t.kind != SAGECOMM_GATHER && p->t.kind != SAGECOMM_SCATTER;
  sagecomm_op op = {.kind = p->t.kind,
                    .dtype = p->t.dtype,
                    .reduce_op = p->t.reduce_op,
                    .factor = FACTOR,
                    .root = p->t.root,
                    .flags = flags,
                    .n_in = p->in.n,
                    .n_out = p->out.n,
                    .in = p->in.list,
                    .out = p->out.list,
                    .in_blocks = blocks_differ && n_blocks(&p->t, false) > 1 ? p->in_bytes : NULL,
                    .out_blocks = blocks_differ && n_blocks(&p->t, true) > 1 ? p->out_bytes : NULL};
  return scr_issue(r->handle, &op, &p->work, NULL, err);
}

static void verify(pending *p) {
  expect_content(&p->t, &p->out, p->wanted);
  if (!p->t.in_place) expect_content(&p->t, &p->in, p->given);
  if (p->in.base) expect_gaps(&p->in);
  if (p->out.base) expect_gaps(&p->out);
  free(p->in.base);
  free(p->out.base);
  free(p->given);
  free(p->wanted);
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

static uint32_t draw_length(uint64_t *random, uint32_t elem) {
  uint64_t x = next_random(random);
  const uint32_t most[] = {2, 40, 1000, 24000 / elem};
  return (uint32_t)((x >> 8) % most[x % 4]);
}

/* All ranks draw the same call. */
static trial draw(uint64_t *random, int kind, int me) {
  static const uint8_t dtypes[] = {SAGECOMM_UINT8, SAGECOMM_INT32, SAGECOMM_FLOAT32};
  static const uint8_t reductions[] = {SAGECOMM_SUM, SAGECOMM_MAX, SAGECOMM_AVG, SAGECOMM_PREMUL_SUM};
  uint64_t x = next_random(random);
  trial t = {.kind = (uint8_t)kind, .dtype = dtypes[x % 3], .rank = me, .size = size, .salt = (uint32_t)(x >> 40)};
  t.root = x >> 4 & 1 && scr_rooted(kind) ? size - 1 : 0;
  t.in_place = (x >> 5) % 2 && kind != SAGECOMM_ALL_TO_ALL;
  if (scr_reduces(kind)) t.reduce_op = reductions[(x >> 6) % (t.dtype == SAGECOMM_FLOAT32 ? 4 : 2)];
  t.elem = t.dtype == SAGECOMM_UINT8 ? 1 : 4;
  bool even = kind == SAGECOMM_GATHER || kind == SAGECOMM_SCATTER || (x >> 8) % 2;
  uint32_t n = draw_length(random, t.elem * (flat(kind) ? 1 : 3));
  for (int i = 0; i < size; i++) {
    for (int k = 0; k < size; k++) t.length[i][k] = even ? n : draw_length(random, t.elem * 3);
  }
  return t;
}

/* Some algorithms of all_to_all need equal blocks. In slot plans, the root of a broadcast has one buffer. */
static void fit(trial *t) {
  const sagecomm_op op = {.kind = t->kind};
  const plan *p = chosen_plan(&op, 0, size, t->rank);
  if (p == NULL && t->kind == SAGECOMM_BROADCAST) t->in_place = true;
  if (p == NULL || !p->even) return;
  for (int i = 0; i < size; i++) {
    for (int k = 0; k < size; k++) t->length[i][k] = t->length[0][0];
  }
}

static void many(rank *r, void *arg) {
  (void)arg;
  uint64_t own = r->random + (uint64_t)r->rank * 977; /* every rank cuts its buffers elsewhere */
  pending *open[OPEN];
  int n_open = 0, first = (int)(next_random(&r->random) % SAGECOMM_SEND);
  for (int i = 0; i < TRIALS; i++) {
    uint64_t x = next_random(&r->random);
    pending *p = calloc(1, sizeof *p);
    p->t = draw(&r->random, i < SAGECOMM_SEND ? (first + i) % SAGECOMM_SEND : (int)(x % SAGECOMM_SEND), r->rank);
    fit(&p->t);
    make_buffers(p, &own);
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
  make_buffers(p, &own);
  sagecomm_error err;
  int32_t status = begin(r, p, 0, &err);
  if (status == SAGECOMM_PENDING) status = complete(p->work, &err);
  CHECK(status == SAGECOMM_SYSTEM);
  free(p->in.base);
  free(p->out.base);
  free(p->given);
  free(p->wanted);
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
    make_buffers(p, &own);
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
