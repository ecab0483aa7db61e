/* on_devices.h: what scenarios of the device lane share (docs/protocol.md, section 11). */
#ifndef ON_DEVICES_H
#define ON_DEVICES_H

#include "scenarios.h"

/* The value of a word of a gate, as the device has it. */
static inline uint32_t look(_Atomic uint64_t *word) {
  return (uint32_t)atomic_load_explicit(word, memory_order_acquire);
}
/* Whether a word of a gate has come to a value. */
static inline bool there(_Atomic uint64_t *word, uint32_t value) { return (int32_t)(look(word) - value) >= 0; }

/* run_ranks() with device lanes, which `beside` of each rank has. */
void run_on_devices(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg);

/* ---- who looks at gates, whose devices wake nobody ---- */

#define HANG_NS (SELDOM_NS / 4)

/* run_on_devices() while who does not look at gates sleeps for SELDOM_NS. */
void run_seldom(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg);
/* Waits for an operation of the rank that is at its gate, and expects to sleep shortly: reach(of), by which its stream comes
 * to it, is called when the tenth sleep has begun, and before that the first one ends only if it is short. */
void wait_in_short_sleeps(const rank *r, sagecomm_work work, void (*reach)(void *of), void *of);
/* Returns when the operation, to which its stream has come, has ended with success. Expects that long before SELDOM_NS. */
void await_end(const ending *e);

#endif
