/* gate_waits.c: how often drivers look at the gates of collectives, whose devices wake nobody (docs/protocol.md, section 11). */
#include <sched.h>
#include <unistd.h>

#include "scenarios.h"

static int size;

typedef struct gated {
  scr_gate_words words;
  sagecomm_work work;
} gated;

static void issue(const rank *r, gated *g, bool external) {
  memset(&g->words, 0, sizeof g->words);
  next_gate[r->rank] = (scr_gate){.words = &g->words, .inputs = 1, .outputs = external, .external = external};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_INT32, .device_type = 1};
  sagecomm_error err;
  CHECK(scr_issue(r->handle, &op, &g->work, NULL, &err) == SAGECOMM_PENDING);
}

static void reach(gated *g) {
  atomic_store_explicit(&g->words.input_ready, 1, memory_order_release);
  atomic_store_explicit(&g->words.output_taken, 1, memory_order_release);
}

static void run(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg) {
  size = n;
  device_lanes = true;
  run_ranks(n, w.spin, w.yield_us, seed, fn, arg);
  device_lanes = false;
}

/* Who waits for a collective that is blocked at its gate sleeps shortly. */
static void looks_often(rank *r, void *arg) {
  bool external = *(bool *)arg;
  gated *g = aligned_alloc(SCR_LINE, sizeof *g);
  sagecomm_error err;
  issue(r, g, external);
  uint64_t before = atomic_load(&r->beside->group->sleeps);
  CHECK(scr_wait(g->work, 3 * SLEEP_NS, &err) == SAGECOMM_PENDING);
  CHECK(atomic_load(&r->beside->group->sleeps) - before >= 10);
  reach(g);
  CHECK(complete(g->work, &err) == SAGECOMM_OK);
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield();
  free(g);
}

void test_driver_looks_at_gates(int n, waiting w, uint64_t seed) {
  for (int external = 0; external < 2 && n == 1; external++) run(n, w, seed, looks_often, &(bool){external});
}

/* ---- nobody waits, so the engine looks ---- */

#define TRIALS 10
#define SOON (8 * 1000000) /* an engine that does not look at gates looks every 20 ms */

typedef struct trials {
  bool external, before_a_peer;
  int soon;
} trials;

static void note_end(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  CHECK(status == SAGECOMM_OK);
  atomic_store((_Atomic int64_t *)ctx, scr_now());
}

/* `before_a_peer`: behind it is a run that waits for a peer and at no gate. */
static void left_to_the_engine(rank *r, void *arg) {
  trials *all = arg;
  gated *g = aligned_alloc(SCR_LINE, 2 * sizeof *g);
  sagecomm_error err;
  for (int i = 0; i < TRIALS; i++) {
    if (r->rank == 1) meet();
    issue(r, &g[0], all->external);
    if (all->before_a_peer) {
      issue(r, &g[1], false);
      reach(&g[1]);
    }
    if (r->rank == 0) {
      _Atomic int64_t at = 0;
      CHECK(scr_on_done(g[0].work, note_end, (void *)&at, &err) == SAGECOMM_PENDING);
      usleep(7000 + 3000 * (unsigned)i); /* the engine sleeps by now, and is to be met at various moments */
      int64_t reached = scr_now();
      reach(&g[0]);
      while (atomic_load(&at) == 0) sched_yield();
      all->soon += atomic_load(&at) - reached < SOON;
      scr_release(g[0].work);
      if (size > 1) meet();
    } else {
      reach(&g[0]);
      CHECK(complete(g[0].work, &err) == SAGECOMM_OK);
    }
    if (all->before_a_peer) CHECK(complete(g[1].work, &err) == SAGECOMM_OK);
    if (size > 1) meet();
  }
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield();
  if (size > 1) meet();
  free(g);
}

void test_engine_looks_at_gates(int n, waiting w, uint64_t seed) {
  static const trials cases[] = {{.external = false}, {.external = true}, {.external = true, .before_a_peer = true}};
  for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
    if (n != (cases[c].before_a_peer ? 2 : 1)) continue;
    trials all = cases[c];
    for (int i = 0; i < 3 && all.soon < TRIALS * 3 / 4; i++) { /* a machine may be busy */
      all.soon = 0;
      run(n, w, seed, left_to_the_engine, &all);
    }
    CHECK(all.soon >= TRIALS * 3 / 4);
  }
}
