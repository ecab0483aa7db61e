/* gate_waits.c: who looks at the gates of collectives, whose devices wake nobody (docs/protocol.md, section 11). While
 * these scenarios run, who does not look at gates sleeps for SELDOM_NS. */
#include <sched.h>
#include <unistd.h>

#include "on_devices.h"

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

static void reach(void *of) {
  gated *g = of;
  atomic_store_explicit(&g->words.input_ready, 1, memory_order_release);
  atomic_store_explicit(&g->words.output_taken, 1, memory_order_release);
}

static void run(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg) {
  size = n;
  run_seldom(n, w, seed, fn, arg);
}

/* ---- who waits looks ---- */

static void looks_often(rank *r, void *arg) {
  bool external = *(bool *)arg;
  gated *g = aligned_alloc(SCR_LINE, sizeof *g);
  issue(r, g, external);
  wait_in_short_sleeps(r, g->work, reach, g);
  scr_release(g->work);
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield();
  free(g);
}

void test_driver_looks_at_gates(int n, waiting w, uint64_t seed) {
  for (int external = 0; external < 2 && n == 1; external++) run(n, w, seed, looks_often, &(bool){external});
}

/* ---- nobody waits, so the engine looks ---- */

#define TRIALS 10

typedef struct manner {
  bool external, before_a_peer; /* behind it is a run that waits for a peer and at no gate */
} manner;

static void left_to_the_engine(rank *r, void *arg) {
  const manner *how = arg;
  gated *g = aligned_alloc(SCR_LINE, 2 * sizeof *g);
  sagecomm_error err;
  const _Atomic uint32_t *sleeper = &r->beside->group->shared->collective.waits_for;
  for (unsigned i = 0; i < TRIALS; i++) {
    if (r->rank == 1) meet();
    issue(r, &g[0], how->external);
    if (how->before_a_peer) {
      issue(r, &g[1], false);
      reach(&g[1]);
    }
    if (r->rank == 0) {
      ending e = {0};
      CHECK(scr_on_done(g[0].work, note_end, &e, &err) == SAGECOMM_PENDING);
      while (!(atomic_load(sleeper) & SCR_SLEEP_ENGINE)) sched_yield();
      usleep(100 * i); /* the engine, which is about to sleep, is met at various moments */
      reach(&g[0]);
      await_end(&e);
      scr_release(g[0].work);
      if (size > 1) meet();
    } else {
      reach(&g[0]);
      CHECK(complete(g[0].work, &err) == SAGECOMM_OK);
    }
    if (how->before_a_peer) CHECK(complete(g[1].work, &err) == SAGECOMM_OK);
    if (size > 1) meet();
  }
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield();
  if (size > 1) meet();
  free(g);
}

void test_engine_looks_at_gates(int n, waiting w, uint64_t seed) {
  manner cases[] = {{.external = false}, {.external = true}, {.external = true, .before_a_peer = true}};
  for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
    if (n == (cases[c].before_a_peer ? 2 : 1)) run(n, w, seed, left_to_the_engine, &cases[c]);
  }
}
