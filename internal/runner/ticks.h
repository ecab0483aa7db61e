/* ticks.h: the clock of the flight recorder, statistics and timeline. Reading the clock is most of the cost of
 * recording. So on x86-64 a tick is one of the time stamp counter, if that runs at one rate in all power states;
 * elsewhere it is a nanosecond of CLOCK_MONOTONIC. Readers convert ticks to times. */
#ifndef SCR_TICKS_H
#define SCR_TICKS_H

#include "bell.h"

#if defined(__x86_64__) && !defined(SCR_NO_TSC)
#define SCR_TSC 1
#endif

extern bool scr_ticks_tsc; /* set once, by scr_ticks_begin() */

enum { SCR_CLOCK_MONOTONIC = 1, SCR_CLOCK_TSC = 2 };

/* Returns which clock this process uses. Two processes of one machine with the same clock can read each other's
 * ticks. */
static inline uint64_t scr_ticks_clock(void) { return scr_ticks_tsc ? SCR_CLOCK_TSC : SCR_CLOCK_MONOTONIC; }

/* Chooses the clock. It may be called again. Requires: a first call before the process takes its first tick. */
void scr_ticks_begin(void);

static inline uint64_t scr_ticks(void) {
#ifdef SCR_TSC
  if (__builtin_expect(scr_ticks_tsc, 1)) return __builtin_ia32_rdtsc();
#endif
  return (uint64_t)scr_now();
}

/* The conversion of ticks to Unix time at one moment. Its rate is measured from scr_ticks_begin() to that moment, so
 * a tick in between is off by no more than the two readings are, about 100 ns. */
typedef struct scr_ticks_scale {
  uint64_t ticks;
  int64_t wall_ns;
  double ns_per_tick;
} scr_ticks_scale;

scr_ticks_scale scr_ticks_now(void);

/* Converts ticks to Unix time. Returns 0 for 0 ("not yet") and for ticks that are decades away, which only a
 * corrupted shared block can hold. */
static inline int64_t scr_ticks_wall(const scr_ticks_scale *s, uint64_t ticks) {
  int64_t since = (int64_t)(ticks - s->ticks), decades = INT64_C(1) << 60;
  return ticks == 0 || since > decades || since < -decades ? 0 : s->wall_ns + (int64_t)((double)since * s->ns_per_tick);
}

#endif
