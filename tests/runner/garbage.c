/* garbage.c: a rank that writes what it should not. Whoever reads it must neither crash nor hang, and must say at once who
 * wrote it, where what lies there cannot be meant. */
#include "../../internal/runner/p2p.h"
#include "scenarios.h"

static int size;

static int32_t collective(const rank *r, uint32_t n, sagecomm_error *err) {
  int32_t *data = malloc(n * 4 + 4);
  for (uint32_t i = 0; i < n; i++) data[i] = r->rank;
  sagecomm_segment s = {data, n * 4};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = 1, .in = &s, .out = &s};
  int32_t status = call(r, &op, err);
  for (uint32_t i = 0; status == SAGECOMM_OK && i < n; i++) CHECK(data[i] == size * (size - 1) / 2);
  free(data);
  return status;
}

static int32_t message(const rank *r, uint8_t kind, int peer, int32_t *value, sagecomm_error *err) {
  sagecomm_segment s = {value, 4};
  sagecomm_op op = {.kind = kind, .dtype = SAGECOMM_INT32, .root = peer};
  if (kind == SAGECOMM_SEND) {
    op.n_in = 1;
    op.in = &s;
  } else {
    op.n_out = 1;
    op.out = &s;
  }
  return call(r, &op, err);
}

/* ---- the header of a board, after it was checked ---- */

static void other_size(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  int to = (r->rank + 1) % size, from = (r->rank + size - 1) % size;
  if (r->rank == size - 1) {
    for (int i = 0; i < size; i++) r->group->peer[i].board->size = UINT32_C(0x40000000);
  }
  meet();
  int32_t sent = r->rank, got = -1;
  CHECK(message(r, SAGECOMM_SEND, to, &sent, &err) == SAGECOMM_OK);
  CHECK(message(r, SAGECOMM_RECV, from, &got, &err) == SAGECOMM_OK && got == from);
  meet();
  scr_group_leave(r->group);
  meet();
  for (int i = 0; i < size; i++) CHECK(scr_group_deserted(r->group, i));
}

void test_board_size_is_not_read_again(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, other_size, NULL);
}

/* ---- offsets ---- */

/* Offsets of something of `bytes` bytes that cannot be meant. */
static uint64_t wrong_offset(int i, uint64_t bytes, const scr_peer *p) {
  const uint64_t list[] = {
      SCR_LINE / 2, /* not aligned */
      1,
      p->arena_bytes,
      p->arena_bytes - bytes + SCR_LINE, /* partly outside */
      UINT64_C(1) << 45,
      -(uint64_t)SCR_LINE,
  };
  return i < (int)(sizeof list / sizeof *list) ? list[i] : 0;
}

static void expect_garbage(const rank *r, int32_t status, const sagecomm_error *err) {
  CHECK(status == SAGECOMM_INTERNAL && err->status == SAGECOMM_INTERNAL && err->rank == size - 1);
  sagecomm_error again;
  CHECK(scr_group_error(r->handle, &again) == SAGECOMM_INTERNAL);
}

#define LARGE 3000 /* elements */

static void wrong_lane(rank *r, void *arg) {
  sagecomm_error err;
  int ill = size - 1;
  if (r->rank == ill) scr_store_flag(&r->group->board->large, *(uint64_t *)arg);
  meet();
  if (r->rank != ill) expect_garbage(r, collective(r, LARGE, &err), &err);
  meet();
  CHECK(collective(r, LARGE, &err) == SAGECOMM_INTERNAL);
}

/* Another rank writes into this one's board before this one has used its own lane. */
static void own_lane(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  if (r->rank == size - 1) scr_store_flag(&r->group->peer[0].board->large, 7);
  meet();
  if (r->rank == 0) CHECK(collective(r, LARGE, &err) == SAGECOMM_OK);
  if (r->rank == 0) CHECK(scr_group_has_large(r->group));
}

static void wrong_ring(rank *r, void *arg) {
  sagecomm_error err;
  int32_t got;
  if (r->rank == size - 1) {
    for (int i = 0; i < size; i++) {
      scr_store_flag(scr_board_ring(r->group->board, (uint32_t)size, (uint32_t)i), *(uint64_t *)arg);
    }
  }
  meet();
  if (r->rank == 0) expect_garbage(r, message(r, SAGECOMM_RECV, size - 1, &got, &err), &err);
  meet();
}

void test_wrong_offsets(int n, waiting w, uint64_t seed) {
  size = n;
  const scr_peer like = {.arena_bytes = UINT64_C(24) << 20};
  if (n == 1) {
    run_ranks(n, w.spin, w.yield_us, seed, own_lane, NULL);
    return;
  }
  for (int i = 0;; i++) {
    uint64_t lane = wrong_offset(i, SCR_LARGE_SLOTS * (uint64_t)SCR_LARGE_STRIDE, &like);
    uint64_t ring = wrong_offset(i, sizeof(scr_ring) + SCR_RING_BYTES, &like);
    if (lane == 0) return;
    run_ranks(n, w.spin, w.yield_us, seed, wrong_lane, &lane);
    run_ranks(n, w.spin, w.yield_us, seed, wrong_ring, &ring);
  }
}
