/* operations.c: reductions that scale or divide, and buffers in several segments. */
#include "scenarios.h"

static int size;

/* Numbers whose sums and quarters are exact. */
static float number(int rank, uint32_t i) { return (float)((rank + 1) * 64 + (int)(i % 97) * 4); }

static void reduce_all(rank *r, void *arg) {
  (void)arg;
  static const uint32_t lengths[] = {1, 7, 1000, 1025, 9000, 40000};
  for (unsigned k = 0; k < sizeof lengths / sizeof *lengths; k++) {
    for (int scaled = 0; scaled < 2; scaled++) {
      uint32_t n = lengths[k];
      float *data = malloc(n * 4), sum = 0;
      for (uint32_t i = 0; i < n; i++) data[i] = number(r->rank, i);
      sagecomm_segment s = {data, n * 4};
      sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                        .dtype = SAGECOMM_FLOAT32,
                        .n_in = 1,
                        .n_out = 1,
                        .in = &s,
                        .out = &s,
                        .reduce_op = scaled ? SAGECOMM_PREMUL_SUM : SAGECOMM_AVG,
                        .factor = 0.5};
      sagecomm_error err;
      CHECK(call(r, &op, &err) == SAGECOMM_OK);
      for (uint32_t i = 0; i < n; i++) {
        sum = 0;
        for (int q = 0; q < size; q++) sum += scaled ? number(q, i) * 0.5F : number(q, i);
        CHECK(data[i] == (scaled ? sum : sum / (float)size));
      }
      free(data);
    }
  }
}

void test_reductions(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, reduce_all, NULL);
}

#define PIECES 11

/* Cuts a buffer of n integers at random places, some of them the same. Memory in which nothing may be written lies
 * between the pieces. */
static int32_t *cut(uint64_t *random, uint32_t n, sagecomm_segment list[PIECES]) {
  int32_t *base = malloc((n + PIECES) * 4);
  uint32_t left = n, at = 0;
  for (int i = 0; i < PIECES; i++) {
    uint32_t len = i == PIECES - 1 ? left : (uint32_t)(next_random(random) % (left + 1));
    if (i % 4 == 3) len = 0;
    if (i == PIECES - 1) len = left;
    list[i] = (sagecomm_segment){base + at, len * 4};
    base[at + len] = INT32_MIN;
    at += len + 1;
    left -= len;
  }
  return base;
}

static int32_t *element(const sagecomm_segment *list, uint32_t i) {
  while (i >= list->bytes / 4) i -= (uint32_t)(list++->bytes / 4);
  return (int32_t *)list->data + i;
}

static void in_pieces(rank *r, void *arg) {
  (void)arg;
  static const uint8_t kinds[] = {SAGECOMM_ALL_REDUCE, SAGECOMM_ALL_GATHER, SAGECOMM_REDUCE, SAGECOMM_BROADCAST};
  uint64_t own = r->random + (uint64_t)r->rank * 977; /* every rank cuts elsewhere */
  for (int round = 0; round < 24; round++) {
    uint8_t kind = kinds[round % 4];
    uint32_t n = (uint32_t)(next_random(&r->random) % (round % 3 ? 300 : 30000)), blocks = 1;
    if (kind == SAGECOMM_ALL_GATHER) blocks = (uint32_t)size;
    sagecomm_segment in[PIECES], out[PIECES];
    int32_t *a = cut(&own, n, in), *b = cut(&own, n * blocks, out);
    bool root = r->rank == size - 1;
    for (uint32_t i = 0; i < n; i++) *element(in, i) = (int32_t)i * 3 + r->rank * 1000003;
    if (kind == SAGECOMM_BROADCAST && root) {
      for (uint32_t i = 0; i < n; i++) *element(out, i) = *element(in, i);
    }
    sagecomm_op op = {.kind = kind,
                      .dtype = SAGECOMM_INT32,
                      .root = size - 1,
                      .n_in = PIECES,
                      .n_out = PIECES,
                      .in = in,
                      .out = out,
                      .flags = round % 2 ? SAGECOMM_ASYNC : 0};
    if (kind == SAGECOMM_BROADCAST && !root) op.n_in = 0;
    if (kind == SAGECOMM_REDUCE && !root) op.n_out = 0;
    sagecomm_error err;
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
    for (uint32_t i = 0; i < n * blocks && op.n_out; i++) {
      int32_t sum = 0;
      for (int q = 0; q < size; q++) sum += (int32_t)i * 3 + q * 1000003;
      int32_t from = kind == SAGECOMM_BROADCAST ? size - 1 : (int32_t)(i / n);
      int32_t whole = (int32_t)(i % n) * 3 + from * 1000003;
      CHECK(*element(out, i) == (kind == SAGECOMM_ALL_REDUCE || kind == SAGECOMM_REDUCE ? sum : whole));
    }
    for (int i = 0; i < PIECES; i++) CHECK(*((int32_t *)out[i].data + out[i].bytes / 4) == INT32_MIN);
    free(a);
    free(b);
  }
}

void test_segments(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, in_pieces, NULL);
}

/* ---- blocks ---- */

/* Returns the i-th element that one rank sends to another one. */
static int32_t between(int from, int to, uint32_t i) { return from * 1000003 + to * 1009 + (int32_t)i; }

static void exchange(rank *r, void *arg) {
  (void)arg;
  uint64_t shared = r->random; /* all ranks draw the same lengths */
  static uint32_t most[] = {0, 30, 900, 20000};
  for (int round = 0; round < 24; round++) {
    uint32_t length[MAX_RANKS][MAX_RANKS];
    for (int i = 0; i < size; i++) {
      for (int k = 0; k < size; k++) length[i][k] = (uint32_t)(next_random(&shared) % (most[round % 4] + 1));
    }
    uint64_t in_blocks[MAX_RANKS], out_blocks[MAX_RANKS];
    uint32_t n_in = 0, n_out = 0;
    for (int k = 0; k < size; k++) {
      n_in += length[r->rank][k];
      n_out += length[k][r->rank];
      in_blocks[k] = length[r->rank][k] * UINT64_C(4);
      out_blocks[k] = length[k][r->rank] * UINT64_C(4);
    }
    sagecomm_segment in[PIECES], out[PIECES];
    int32_t *a = cut(&shared, n_in, in), *b = cut(&shared, n_out, out);
    uint32_t at = 0;
    for (int k = 0; k < size; k++) {
      for (uint32_t i = 0; i < length[r->rank][k]; i++) *element(in, at++) = between(r->rank, k, i);
    }
    sagecomm_op op = {.kind = SAGECOMM_ALL_TO_ALL,
                      .dtype = SAGECOMM_INT32,
                      .n_in = PIECES,
                      .n_out = PIECES,
                      .in = in,
                      .out = out,
                      .in_blocks = in_blocks,
                      .out_blocks = out_blocks,
                      .flags = round % 2 ? SAGECOMM_ASYNC : 0};
    sagecomm_error err;
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
    at = 0;
    for (int k = 0; k < size; k++) {
      for (uint32_t i = 0; i < length[k][r->rank]; i++) CHECK(*element(out, at++) == between(k, r->rank, i));
    }
    free(a);
    free(b);
  }
}

void test_all_to_all(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, exchange, NULL);
}

static void equal_blocks(rank *r, void *arg) {
  (void)arg;
  static const uint32_t lengths[] = {0, 1, 100, 1500, 30000};
  int32_t *many = malloc(30000 * 4 * (size_t)size), *one = malloc(30000 * 4);
  for (unsigned k = 0; k < 2 * sizeof lengths / sizeof *lengths; k++) {
    uint32_t n = lengths[k / 2];
    sagecomm_segment all = {many, n * 4 * (uint64_t)size}, block = {one, n * 4};
    sagecomm_op op = {.kind = SAGECOMM_REDUCE_SCATTER,
                      .dtype = SAGECOMM_INT32,
                      .n_in = 1,
                      .n_out = 1,
                      .in = &all,
                      .out = &block,
                      .root = (int)k % size,
                      .flags = k % 2 ? SAGECOMM_ASYNC : 0};
    sagecomm_error err;
    for (int to = 0; to < size; to++) {
      for (uint32_t i = 0; i < n; i++) many[(uint32_t)to * n + i] = between(r->rank, to, i);
    }
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
    for (uint32_t i = 0; i < n; i++) {
      int32_t sum = 0;
      for (int q = 0; q < size; q++) sum += between(q, r->rank, i);
      CHECK(one[i] == sum);
    }
    op.kind = SAGECOMM_SCATTER;
    op.n_in = r->rank == op.root;
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
    for (uint32_t i = 0; i < n; i++) CHECK(one[i] == between(op.root, r->rank, i));
    op = (sagecomm_op){.kind = SAGECOMM_GATHER,
                       .dtype = SAGECOMM_INT32,
                       .n_in = 1,
                       .n_out = r->rank == op.root,
                       .in = &block,
                       .out = &all,
                       .root = op.root,
                       .flags = op.flags};
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
    for (int q = 0; q < size && op.n_out; q++) {
      for (uint32_t i = 0; i < n; i++) CHECK(many[(uint32_t)q * n + i] == between(op.root, q, i));
    }
  }
  free(many);
  free(one);
}

void test_blocks(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, equal_blocks, NULL);
}
