/* ticks.h: the clock of what is noted of operations. Reading it is the larger part of what noting costs, so on x86-64 it
 * is the time stamp counter, where that runs at one rate in all states of the processor; elsewhere it is CLOCK_MONOTONIC
 * in ns. Ticks become times only when somebody reads what was noted. */
#ifndef SCR_TICKS_H
#define SCR_TICKS_H

#include "bell.h"

#if defined(__x86_64__) && !defined(SCR_NO_TSC)
#define SCR_TSC 1
#endif

extern bool scr_ticks_tsc; /* set once, by scr_ticks_begin() */

enum { SCR_CLOCK_MONOTONIC = 1, SCR_CLOCK_TSC = 2 };

/* What this process counts ticks by. Two processes of one machine that answer alike can read each other's. */
static inline uint64_t scr_ticks_clock(void) { return scr_ticks_tsc ? SCR_CLOCK_TSC : SCR_CLOCK_MONOTONIC; }

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

/* 0 stays 0: not yet. What is decades away, as a peer may have written, is no time. */
static inline int64_t scr_ticks_wall(const scr_ticks_scale *s, uint64_t ticks) {
  int64_t since = (int64_t)(ticks - s->ticks), decades = INT64_C(1) << 60;
  return ticks == 0 || since > decades || since < -decades ? 0 : s->wall_ns + (int64_t)((double)since * s->ns_per_tick);
}

#endif
