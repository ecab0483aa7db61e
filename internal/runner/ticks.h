/* ticks.h: the recorder's clock. Reading it is the larger part of what recording costs, so on x86-64 it is the time stamp
 * counter, where that runs at one rate in all states of the processor; elsewhere it is CLOCK_MONOTONIC in ns. Ticks
 * become times only when somebody reads the records. */
#ifndef SCR_TICKS_H
#define SCR_TICKS_H

#include "internal.h"

#if defined(__x86_64__) && !defined(SCR_NO_TSC)
#define SCR_TSC 1
#endif

extern bool scr_ticks_tsc; /* set once, by scr_ticks_begin() */

/* Before the first tick of the process is taken. Safe to call again. */
void scr_ticks_begin(void);

static inline uint64_t scr_ticks(void) {
#ifdef SCR_TSC
  if (__builtin_expect(scr_ticks_tsc, 1)) return __builtin_ia32_rdtsc();
#endif
  return (uint64_t)scr_now();
}

/* From ticks to Unix time, as of one moment. The rate is that between scr_ticks_begin() and this moment, so a tick in
 * between is off by no more than the two moments are: some 100 ns. */
typedef struct scr_ticks_scale {
  uint64_t ticks;
  int64_t wall_ns;
  double ns_per_tick;
} scr_ticks_scale;

scr_ticks_scale scr_ticks_now(void);

/* 0 stays 0: not yet. */
static inline int64_t scr_ticks_wall(const scr_ticks_scale *s, uint64_t ticks) {
  return ticks == 0 ? 0 : s->wall_ns + (int64_t)((double)(int64_t)(ticks - s->ticks) * s->ns_per_tick);
}

#endif
