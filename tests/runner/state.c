/* state.c: the state of a rank is copied, and stored in its shadow, while its runner goes on (docs/protocol.md, section 16). */
#include <pthread.h>
#include <sched.h>

#include "scenarios.h"

enum { CALLS = 3000, LENGTHS = 50 };

typedef struct copying {
  rank *r;
  _Atomic bool over;
} copying;

static uint64_t bytes_of_call(uint64_t seq) { return 4 * (1 + seq % LENGTHS); }

static void *copy_on(void *p) {
  copying *c = p;
  scr_group *g = c->r->group;
  void *shared[SCR_LANES] = {g->peer[g->rank].lane[0], g->peer[g->rank].lane[1]}, *shadow[SCR_LANES];
  uint64_t words[SCR_STATE_WORDS], last = 0, consumed = 0;
  for (int lane = 0; lane < SCR_LANES; lane++) {
    uint64_t bytes = scr_shared_bytes(lane, g->size);
    shadow[lane] = aligned_alloc(4096, bytes);
    CHECK(shadow[lane] != NULL);
    memset(shadow[lane], 0, bytes);
  }
  scr_shared_block *b = shadow[SCR_HOST_LANE];
  for (bool over = false; !over;) {
    over = atomic_load(&c->over); /* the last look finds all calls */
    scr_shared_copy_state(shared, g->size, 0, words);
    CHECK(scr_shared_put_state(shadow, g->size, 0, words));
    uint64_t newest = 0, now = atomic_load(&b->consumed0);
    for (uint64_t i = 0; i < SCR_RECORDS; i++) {
      uint64_t seq = atomic_load(&b->records[i].seq);
      CHECK(seq == 0 || (seq % SCR_RECORDS == i && atomic_load(&b->records[i].bytes) == bytes_of_call(seq)));
      if (seq > newest) newest = seq;
    }
    CHECK(newest >= last && now >= consumed); /* nothing falls */
    last = newest;
    consumed = now;
  }
  CHECK(last == CALLS);
  for (int lane = 0; lane < SCR_LANES; lane++) free(shadow[lane]);
  return NULL;
}

static void call_while_it_is_copied(rank *r, void *arg) {
  (void)arg;
  int32_t data[LENGTHS + 1] = {0};
  sagecomm_error err;
  copying c = {.r = r};
  pthread_t other;
  CHECK(pthread_create(&other, NULL, copy_on, &c) == 0);
  for (uint64_t seq = 1; seq <= CALLS; seq++) {
    sagecomm_segment s = {data, bytes_of_call(seq)};
    sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = 1, .in = &s, .out = &s};
    CHECK(call(r, &op, &err) == SAGECOMM_OK);
    if (seq % 64 == 0) sched_yield();
  }
  atomic_store(&c.over, true);
  pthread_join(other, NULL);
}

void test_state(int n, waiting w, uint64_t seed) {
  if (n <= 2) run_ranks(n, w.spin, w.yield_us, seed, call_while_it_is_copied, NULL);
}
