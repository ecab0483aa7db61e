/* wait.h: how a driver waits for a peer, and how a peer is woken. */
#ifndef SCR_WAIT_H
#define SCR_WAIT_H

#include "group.h"

/* State of one spell of waiting. Zero it; zero it again after progress. */
typedef struct scr_backoff {
  int64_t began, looked, last;
} scr_backoff;

/* By how much more than `asked` ns the time since *last is too long to be a wait of this process alone, else 0. */
int64_t scr_overrun(int64_t *last, int64_t now, int64_t asked);
/* Gives a run that had begun to wait the time back. Who waits for it and the engine both find a stop out; it counts once. */
void scr_extend(scr_run *r, scr_stop stop);
/* The time; a gap far longer than `asked` ns since the last look moves the run's deadline. The first look of a spell goes by
 * the group's: the engine looks 50 times a second as long as a run that has begun to wait goes on. */
int64_t scr_look_at_clock(scr_run *r, scr_backoff *p, int64_t asked);

/* For ever, and still far from where sums of times overflow. */
#define SCR_LONGEST_NS (INT64_MAX / 4)

/* Stores the flag and wakes the peers that sleep for it: store, then read of the sleeper words, both sequentially
 * consistent, which together with the sleeper's store-then-look lets no wake-up be lost (docs/protocol.md). */
static inline void scr_store_flag(_Atomic uint64_t *flag, uint64_t value) {
#ifdef SCR_MUTANT_FLAG_RELAXED
  atomic_store_explicit(flag, value, memory_order_relaxed);
#else
  atomic_store_explicit(flag, value, memory_order_seq_cst);
#endif
}
void scr_wake_peer(const scr_peer *p, const scr_sleeper *s, uint32_t word);
/* 1 + the rank whose flag a sleeper of collectives waits for, or 0. */
static inline uint32_t scr_sleeps_for(uint32_t word) { return word & 0xffff; }
/* What it says as it waits where the run is blocked. */
static inline uint32_t scr_sleeps_word(const scr_run *r) { return r->coll.channel | (1 + (uint32_t)r->peer); }
static inline void scr_wake_readers(scr_group *g) {
  uint32_t me = 1 + (uint32_t)g->rank;
  for (int32_t i = 0; i < g->size; i++) {
    scr_sleeper *s = &g->peer[i].shared->collective;
    uint32_t word = atomic_load_explicit(&s->waits_for, memory_order_seq_cst);
    if (SCR_UNLIKELY(word != 0)) {
      if (i != g->rank && scr_sleeps_for(word) == me) scr_wake_peer(&g->peer[i], s, word);
    }
  }
}

/* Waits a little for the blocked run: yields, then sleeps in slices. 0 to look again, SCR_YIELDED when slice_end has
 * passed, or an incident code with run->peer set. */
int scr_relax(scr_group *g, scr_run *r, scr_backoff *p, scr_sleeper *s, int64_t slice_end);
/* Looks whether waiting still makes sense. 0 or an incident code. */
int scr_health(scr_group *g, scr_run *r, int64_t now);
void scr_describe_incident(const scr_run *r, int code, scr_incident *out);

#endif
