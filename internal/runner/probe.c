/* probe.c: measures the costs of memory on this machine, for one core and between two. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "bell.h"
#include "runner.h"
#include "shared_block.h"

/* The length of a chunk, so that the measured memory fits in a cache. */
#define BYTES (128 * 1024)
#define TRIALS 40
#define ROUND_TRIPS 100

/* What the other thread does with the shared buffer before it answers. */
enum { ANSWER, WRITE, READ, END };

typedef struct probe {
  alignas(SCR_LINE) _Atomic uint32_t ask; /* number of the question times 4, plus what to do */
  alignas(SCR_LINE) _Atomic uint32_t answer;
  alignas(SCR_LINE) unsigned char *shared;
  unsigned char *own[3], *others;
  const scr_kernels *kernels;
  int64_t deadline_ns;
  uint32_t asked;
} probe;

/* Waits for a value. It yields from time to time, because both threads may share one core. Returns false if the time
 * is up. */
static bool await(const probe *p, _Atomic uint32_t *word, uint32_t value) {
  for (uint32_t n = 1; atomic_load_explicit(word, memory_order_acquire) != value; n++) {
    scr_pause();
    if (n % 1024 != 0) continue;
    if (scr_now() > p->deadline_ns) return false;
    sched_yield();
  }
  return true;
}

static void *other(void *arg) {
  probe *p = arg;
  for (uint32_t seen = 0;;) {
    uint32_t now = atomic_load_explicit(&p->ask, memory_order_acquire);
    for (uint32_t n = 1; now == seen; n++) {
      scr_pause();
      if (n % 1024 == 0) sched_yield(); /* the first thread asks for END in any case, also when its time is up */
      now = atomic_load_explicit(&p->ask, memory_order_acquire);
    }
    seen = now;
    switch (now % 4) {
      case WRITE:
        p->kernels->copy(p->shared, p->others, BYTES);
        break;
      case READ:
        p->kernels->copy(p->others, p->shared, BYTES);
        break;
      case END:
        return NULL;
    }
    atomic_store_explicit(&p->answer, now, memory_order_release);
  }
}

static bool ask(probe *p, uint32_t what) {
  uint32_t number = ++p->asked * 4 + what;
  atomic_store_explicit(&p->ask, number, memory_order_release);
  return what == END || await(p, &p->answer, number);
}

static inline void least(int64_t *best, int64_t ns) {
  if (*best == 0 || ns < *best) *best = ns;
}

static int64_t timed_copy(const probe *p, unsigned char *to, const unsigned char *from) {
  int64_t began = scr_now();
  p->kernels->copy(to, from, BYTES);
  return scr_now() - began;
}

static void measure_alone(const probe *p, scr_probe *out) {
  int64_t copy = 0, reduce = 0;
  const void *operands[] = {p->own[1], p->own[2]};
  for (int i = 0; i < TRIALS; i++) {
    least(&copy, timed_copy(p, p->own[0], p->own[1]));
    int64_t began = scr_now();
    p->kernels->reduce[SAGECOMM_FLOAT32][SAGECOMM_SUM](p->own[0], NULL, operands, 2, BYTES / 4, 1);
    least(&reduce, scr_now() - began);
  }
  out->copy_ns = (double)copy / BYTES;
  out->reduce_ns = (double)reduce / BYTES / 2;
}

static void measure_together(probe *p, scr_probe *out) {
  int64_t hop = 0, far = 0, claim = 0;
  if (!ask(p, ANSWER)) return; /* an answer shows that the second thread runs */
  for (int i = 0; i < TRIALS; i++) {
    int64_t began = scr_now();
    for (int n = 0; n < ROUND_TRIPS; n++) {
      if (!ask(p, ANSWER)) return;
    }
    least(&hop, scr_now() - began);
    if (!ask(p, WRITE)) return;
    least(&far, timed_copy(p, p->own[0], p->shared));
    if (!ask(p, READ)) return;
    least(&claim, timed_copy(p, p->shared, p->own[0]));
  }
  out->hop_ns = (double)hop / ROUND_TRIPS / 2;
  out->far_ns = (double)far / BYTES;
  double more = (double)claim / BYTES - out->copy_ns;
  out->claim_ns = more > 0 ? more : 0;
}

static bool two_processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) != 0 ||
         CPU_COUNT(&set) > 1; /* it fails where there are more CPUs than the set holds */
}

bool scr_probe_run(int64_t budget_ns, scr_probe *out) {
  *out = (scr_probe){0};
  unsigned char *memory = aligned_alloc(4096, 5 * BYTES);
  if (memory == NULL) return false;
  memset(memory, 0, 5 * BYTES);
  probe p = {.shared = memory,
             .own = {memory + BYTES, memory + 2 * BYTES, memory + 3 * BYTES},
             .others = memory + 4 * BYTES,
             .kernels = scr_get_kernels(),
             .deadline_ns = scr_now() + budget_ns};
  measure_alone(&p, out);
  bool ok = true;
  if (two_processors()) {
    pthread_t thread;
    ok = pthread_create(&thread, NULL, other, &p) == 0;
    if (ok) {
      measure_together(&p, out);
      ask(&p, END);
      pthread_join(thread, NULL);
    }
  }
  free(memory);
  return ok;
}
