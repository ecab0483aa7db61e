/* wait.h: how a driver waits for a peer, and how a peer is woken. */
#ifndef SCR_WAIT_H
#define SCR_WAIT_H

#include "group.h"

/* The state of one wait. The caller zeroes it before the wait and after each progress. */
typedef struct scr_backoff {
  int64_t began, looked, last;
} scr_backoff;

/* Returns by how much the time since *last exceeds `asked` ns if that shows a stop of this process, else 0. */
int64_t scr_overrun(int64_t *last, int64_t now, int64_t asked);
/* Moves the deadline of a run that waited during the stop. Its waiter and the engine both notice a stop; it counts
 * once. */
void scr_extend(scr_run *r, scr_stop stop);
/* Returns the time. A gap far longer than `asked` ns since the last look at the clock is a stop of this process and
 * moves the run's deadline. The first look of a wait compares with the group's last look: the engine looks 50 times
 * a second while a run waits. */
int64_t scr_look_at_clock(scr_run *r, scr_backoff *p, int64_t asked);

/* The longest timeout: in effect for ever, and far from where sums of times overflow. */
#define SCR_LONGEST_NS (INT64_MAX / 4)

/* Stores a flag. The caller then reads the sleeper words of peers and wakes those that sleep for the flag. The store
 * and the reads are sequentially consistent, and so are the sleeper's store of its word and its last look at the
 * flag; so no wake-up is lost (docs/protocol.md). */
static inline void scr_store_flag(_Atomic uint64_t *flag, uint64_t value) {
#ifdef SCR_MUTANT_FLAG_RELAXED
  atomic_store_explicit(flag, value, memory_order_relaxed);
#else
  atomic_store_explicit(flag, value, memory_order_seq_cst);
#endif
}
/* Wakes the engine of a rank, or sends what lies in the shared blocks for it if they are those of a shadow. */
void scr_wake_engine(const scr_peer *p);
/* One round of a wait for a rank, or for any (-1), that has lasted for `waited_ns`: reads what has come from the processes of other
 * hosts that are waited for, or that are in *attended, or else yields. Nobody else is woken for what comes from those in *attended,
 * so whoever does something else than to drive calls scr_stop_polling() before. */
bool scr_poll_or_yield(const scr_group *g, int32_t rank, int64_t waited_ns, uint64_t *attended);
/* Ends what polling began: from now on others are woken for what comes. */
void scr_stop_polling(const scr_group *g, uint64_t *attended);
void scr_wake_peer(const scr_peer *p, const scr_sleeper *s, uint32_t word);
/* Returns 1 + the rank whose flag a sleeper of collectives waits for, or 0. */
static inline uint32_t scr_sleeps_for(uint32_t word) { return word & 0xffff; }
/* Returns the sleeper word for the flag at which the run is blocked. */
static inline uint32_t scr_sleeps_word(const scr_run *r) { return r->coll.channel | (1 + (uint32_t)r->peer); }
/* Wakes a rank that waits for this one. */
static inline void scr_wake_waiter(const scr_group *g, int32_t rank) {
  scr_sleeper *s = &g->peer[rank].shared->collective;
  uint32_t word = atomic_load_explicit(&s->waits_for, memory_order_seq_cst);
  if (SCR_UNLIKELY(scr_sleeps_for(word) == 1 + (uint32_t)g->rank)) scr_wake_peer(&g->peer[rank], s, word);
}
/* Wakes all ranks that do. What they wait for lies in a slot, and a group with slots is on one host. */
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

static inline bool scr_has_left(const scr_group *g, int32_t rank) {
  return atomic_load_explicit(&g->peer[rank].lane[SCR_HOST_LANE]->left, memory_order_acquire) != 0;
}

/* Waits a little for a blocked run: yields, then sleeps in slices. Returns 0 to look again, SCR_YIELDED if slice_end
 * has passed, or an incident code with run->peer set.
 * Requires: the drive lock. */
int scr_relax(scr_group *g, scr_run *r, scr_backoff *p, scr_sleeper *s, int64_t slice_end);
/* Sets the deadline of a run that begins to wait, unless its input is not ready yet: the timeout of an operation counts
 * from then on. */
void scr_begin_timeout(scr_run *r, int64_t now);
/* A rank that has left, and the last collective that it has recorded; rank -1: no rank has left. */
typedef struct scr_leaver {
  int32_t rank;
  uint64_t last;
} scr_leaver;

/* Returns the one of those that have left that has recorded the fewest collectives. */
scr_leaver scr_first_to_leave(const scr_group *g);
/* scr_check_wait() for an external run. With `compare` it compares this rank's calls with those of all peers, and if `left` is not NULL
 * it looks whether that rank has made the call. So it visits no rank without. */
int scr_check_external(scr_group *g, scr_run *r, int64_t now, bool compare, const scr_leaver *left);
/* Looks whether the wait can still succeed: DOWN, failure word, goodbye of the peer, records that differ, deadline. All
 * timeouts of collectives are found here. Returns 0 or an incident code. */
int scr_check_wait(scr_group *g, scr_run *r, int64_t now);
void scr_describe_incident(const scr_run *r, int code, scr_incident *out);

#endif
