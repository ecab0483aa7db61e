/* ticks.c: see ticks.h. */
#define _GNU_SOURCE
#include "ticks.h"

#include <pthread.h>
#include <time.h>

#ifdef SCR_TSC
#include <cpuid.h>
#endif

bool scr_ticks_tsc;

typedef struct moment {
  uint64_t ticks;
  int64_t monotonic_ns, wall_ns;
} moment;

static moment origin;

static int64_t wall_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Reads the three clocks at one moment. Of a few attempts it takes the one that took the least time. */
static moment look(void) {
  moment best = {0};
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 8; i++) {
    uint64_t before = scr_ticks();
    moment m = {.monotonic_ns = scr_now(), .wall_ns = wall_now()};
    uint64_t gap = scr_ticks() - before;
    m.ticks = before + gap / 2;
    if (gap < least) {
      least = gap;
      best = m;
    }
  }
  return best;
}

/* Whether the counter runs at one rate in all power states and never stops (constant_tsc and nonstop_tsc of Linux). */
static bool invariant_tsc(void) {
#ifdef SCR_TSC
  unsigned a, b, c, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
#else
  return false;
#endif
}

static void begin(void) {
  scr_ticks_tsc = invariant_tsc();
  origin = look();
}

void scr_ticks_begin(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, begin);
}

scr_ticks_scale scr_ticks_now(void) {
  moment m = look();
  scr_ticks_scale s = {m.ticks, m.wall_ns, 1};
  if (m.ticks > origin.ticks && scr_ticks_tsc) {
    s.ns_per_tick = (double)(m.monotonic_ns - origin.monotonic_ns) / (double)(m.ticks - origin.ticks);
  }
  return s;
}
