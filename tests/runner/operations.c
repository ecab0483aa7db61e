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
