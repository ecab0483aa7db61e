/* bell.h: the clock, short locks, and sleeping on a word until somebody wakes who sleeps there. */
#ifndef SCR_BELL_H
#define SCR_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SCR_LIKELY(x) __builtin_expect(!!(x), 1)
#define SCR_UNLIKELY(x) __builtin_expect(!!(x), 0)

int64_t scr_now(void); /* CLOCK_MONOTONIC, ns */

static inline void scr_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void scr_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t ns);
void scr_futex_wake(_Atomic uint32_t *word);
void scr_spin_lock(_Atomic uint32_t *lock);
void scr_spin_unlock(_Atomic uint32_t *lock);
bool scr_try_lock(_Atomic uint32_t *lock);

/* Adds to the bell and wakes its sleepers. */
void scr_bell_wake(_Atomic uint32_t *bell);

#endif
