/* garbage.c: a rank that writes what it should not. Whoever reads it must neither crash nor hang, and must say at once who
 * wrote it, where what lies there cannot be meant. */
#include "../../internal/runner/p2p.h"
#include "scenarios.h"

static int size;

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
