/* bell.c: the clock, short locks, and futexes in shared memory. */
#define _GNU_SOURCE
#include "bell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef SCR_COUNT_STEPS
_Atomic uint64_t scr_steps;
#endif

int64_t scr_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The word is shared between processes, so the futex is not FUTEX_PRIVATE. */
void scr_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t ns) {
  if (ns <= 0) return;
  struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  syscall(SYS_futex, (void *)word, FUTEX_WAIT, value, &t, NULL, 0);
}

void scr_futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, (void *)word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

bool scr_try_lock(_Atomic uint32_t *lock) {
  return atomic_load_explicit(lock, memory_order_relaxed) == 0 &&
         atomic_exchange_explicit(lock, 1, memory_order_acquire) == 0;
}

/* The lock guards sections of a few instructions, and one pass over the fifos (p2p.c). It yields early because its
 * holder may be preempted. */
void scr_spin_lock(_Atomic uint32_t *lock) {
  for (uint32_t n = 0; !scr_try_lock(lock); n++) {
    if (n < 64) {
      scr_pause();
    } else {
      sched_yield();
    }
  }
}

void scr_spin_unlock(_Atomic uint32_t *lock) { atomic_store_explicit(lock, 0, memory_order_release); }

void scr_bell_wake(_Atomic uint32_t *bell) {
  atomic_fetch_add_explicit(bell, 1, memory_order_seq_cst);
  scr_futex_wake(bell);
}
