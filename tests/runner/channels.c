/* channels.c: sendrecv plans, by every algorithm, checked against the expected results. What may differ between
 * calls is drawn at random: lengths, types, reductions, buffers in several pieces or in place, who waits and who finishes it. In
 * each group some go over shared blocks, and there is a second group of the same ranks beside. */
#include <sched.h>

#include "plans.h"
#include "scenarios.h"

static int size;

#define PIECES 5
#define OPEN 3    /* asynchronous calls at a time */
#define TRIALS 12 /* calls in a group: each kind, then some more */
#define FACTOR 0.5

/* ---- contents ---- */

/* One call. `length`: elements of what a rank has for another one, by ranks, where both matter. */
typedef struct trial {
  uint8_t kind, dtype, reduce_op;
  int root, rank;
  bool in_place;
  uint32_t salt, elem;
  uint32_t length[MAX_RANKS][MAX_RANKS];
} trial;

static bool flat(int kind) {
  return kind == SAGECOMM_ALL_REDUCE || kind == SAGECOMM_REDUCE || kind == SAGECOMM_BROADCAST;
}

static bool gathers(int kind) { return kind == SAGECOMM_ALL_GATHER || kind == SAGECOMM_GATHER; }

/* Returns element i that a rank sends to another one, or to all. Floats are chosen so that sums are exact. */
static uint32_t content(const trial *t, int from, int to, uint32_t i) {
  if (t->dtype != SAGECOMM_FLOAT32) return (uint32_t)from * 1000003 + (uint32_t)to * 1009 + i * 31 + t->salt * 7919;
  return (uint32_t)(from + 1) * 64 + (uint32_t)to * 16 + (i + t->salt) % 97 * 4;
}

static void encode(const trial *t, double x, unsigned char *to) {
  float f = (float)x;
  uint32_t n = (uint32_t)(int64_t)x;
  if (t->dtype == SAGECOMM_FLOAT32) {
    memcpy(to, &f, 4);
  } else if (t->elem == 4) {
    memcpy(to, &n, 4);
  } else {
    *to = (unsigned char)n;
  }
}

/* Rounds a value to the type. */
static double held(const trial *t, uint32_t x) {
  if (t->dtype == SAGECOMM_FLOAT32) return x;
  return t->elem == 4 ? (int32_t)x : (uint8_t)x;
}

/* Returns element i of the reduction of all ranks' contents. */
static double reduced(const trial *t, int to, uint32_t i) {
  double all = held(t, content(t, 0, to, i));
  for (int q = 1; q < size; q++) {
    double x = held(t, content(t, q, to, i));
    if (t->reduce_op != SAGECOMM_MAX) all += x;
    if (t->reduce_op == SAGECOMM_MAX && x > all) all = x;
  }
  if (t->reduce_op == SAGECOMM_AVG) return (float)all / (float)size;
  return t->reduce_op == SAGECOMM_PREMUL_SUM ? all * FACTOR : all;
}

/* The blocks of this rank's input or output. A flat buffer is one block. */
static int n_blocks(const trial *t, bool out) {
  if (t->kind == SAGECOMM_BARRIER) return 0;
  if (scr_rooted(t->kind) && t->rank != t->root) {
    bool receives = t->kind == SAGECOMM_BROADCAST || t->kind == SAGECOMM_SCATTER;
    return out == receives ? 1 : 0;
  }
  if (t->kind == SAGECOMM_ALL_TO_ALL) return size;
  if (out) return gathers(t->kind) ? size : 1;
  return t->kind == SAGECOMM_REDUCE_SCATTER || t->kind == SAGECOMM_SCATTER ? size : 1;
}

static uint32_t length_of(const trial *t, bool out, int block) {
  if (flat(t->kind)) return t->length[0][0];
  if (n_blocks(t, out) == 1) block = t->rank;
  if (t->kind == SAGECOMM_ALL_TO_ALL) return out ? t->length[block][t->rank] : t->length[t->rank][block];
  return t->length[0][block];
}

static void block_of_input(const trial *t, int block, unsigned char *to) {
  bool for_all = flat(t->kind) || gathers(t->kind);
  for (uint32_t i = 0; i < length_of(t, false, block); i++, to += t->elem) {
    encode(t, held(t, content(t, t->rank, for_all ? 0 : block, i)), to);
  }
}

static void block_of_output(const trial *t, int block, unsigned char *to) {
  for (uint32_t i = 0; i < length_of(t, true, block); i++, to += t->elem) {
    double x;
    if (scr_reduces(t->kind)) {
      x = reduced(t, t->kind == SAGECOMM_REDUCE_SCATTER ? t->rank : 0, i);
    } else if (t->kind == SAGECOMM_BROADCAST) {
      x = held(t, content(t, t->root, 0, i));
    } else if (t->kind == SAGECOMM_SCATTER) {
      x = held(t, content(t, t->root, t->rank, i));
    } else {
      x = held(t, content(t, block, t->kind == SAGECOMM_ALL_TO_ALL ? t->rank : 0, i));
    }
    encode(t, x, to);
  }
}

/* ---- buffers ---- */

/* Segments with guard bytes between them. */
typedef struct buffer {
  unsigned char *base;
  uint64_t room;
  sagecomm_segment list[PIECES];
  uint32_t n;
} buffer;

#define UNTOUCHED 0xa5

static buffer cut(uint64_t *random, uint64_t elements, uint32_t elem) {
  buffer b = {.room = (elements + PIECES) * elem, .n = next_random(random) % 2 ? 1 : PIECES};
  b.base = malloc(b.room);
  memset(b.base, UNTOUCHED, b.room);
  unsigned char *at = b.base;
  for (uint32_t i = 0; i < b.n; i++) {
    uint64_t n = i == b.n - 1 ? elements : next_random(random) % (elements + 1);
    b.list[i] = (sagecomm_segment){at, n * elem};
    at += (n + 1) * elem;
    elements -= n;
  }
  return b;
}

static void copy_in(const buffer *b, const unsigned char *from) {
  for (uint32_t i = 0; i < b->n; from += b->list[i++].bytes) memcpy(b->list[i].data, from, b->list[i].bytes);
}

static void tell(const trial *t) {
  fprintf(stderr, "kind %d of type %d, reduction %d, root %d, rank %d of %d, %u elements (to rank 0: %u)%s\n", t->kind,
          t->dtype, t->reduce_op, t->root, t->rank, size, t->length[0][0], t->length[size - 1][0],
          t->in_place ? ", in place" : "");
}

static void expect_content(const trial *t, const buffer *b, const unsigned char *want) {
  for (uint32_t i = 0; i < b->n; want += b->list[i++].bytes) {
    if (memcmp(b->list[i].data, want, b->list[i].bytes) != 0) tell(t);
    CHECK(memcmp(b->list[i].data, want, b->list[i].bytes) == 0);
  }
}

static void expect_gaps(const buffer *b) {
  const unsigned char *at = b->base;
  for (uint32_t i = 0; i < b->n; i++) {
    for (; at < (const unsigned char *)b->list[i].data; at++) CHECK(*at == UNTOUCHED);
    at += b->list[i].bytes;
  }
  for (; at < b->base + b->room; at++) CHECK(*at == UNTOUCHED);
}

/* A part of a buffer. */
static buffer part_of(const buffer *b, uint64_t at, uint64_t bytes) {
  buffer part = {0};
  for (uint32_t i = 0; i < b->n; i++) {
    uint64_t n = b->list[i].bytes, skip = at < n ? at : n, take = n - skip < bytes ? n - skip : bytes;
    part.list[part.n++] = (sagecomm_segment){(unsigned char *)b->list[i].data + skip, take};
    at -= skip;
    bytes -= take;
  }
  return part;
}

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
  trial t = {.kind = (uint8_t)kind, .dtype = dtypes[x % 3], .rank = me, .salt = (uint32_t)(x >> 40)};
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
  p->t = (trial){.kind = SAGECOMM_ALL_TO_ALL, .dtype = SAGECOMM_INT32, .rank = r->rank, .elem = 4};
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
