/* bell.h: the clock, short locks, and futexes: sleeping on a word and waking its sleepers. */
#ifndef SCR_BELL_H
#define SCR_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SCR_LIKELY(x) __builtin_expect(!!(x), 1)
#define SCR_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* SCR_STEP counts a step of a search in builds that test how searches grow with the number of operations. */
#ifdef SCR_COUNT_STEPS
extern _Atomic uint64_t scr_steps;
#define SCR_STEP() atomic_fetch_add_explicit(&scr_steps, 1, memory_order_relaxed)
#else
#define SCR_STEP() ((void)0)
#endif

int64_t scr_now(void); /* CLOCK_MONOTONIC, ns */

static inline void scr_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Sleeps while *word is `value`, at most `ns`. It may return early, so the caller looks at its condition again. */
void scr_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t ns);
void scr_futex_wake(_Atomic uint32_t *word);
void scr_spin_lock(_Atomic uint32_t *lock);
void scr_spin_unlock(_Atomic uint32_t *lock);
bool scr_try_lock(_Atomic uint32_t *lock);

/* Adds to the bell and wakes its sleepers. */
void scr_bell_wake(_Atomic uint32_t *bell);

#endif
