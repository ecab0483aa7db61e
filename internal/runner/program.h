/* program.h: what the interpreters of slot programs (program.c) and of sendrecv programs (sendrecv.c) share: starting a
 * run (start.c), addresses in buffers, and waiting for flags. */
#ifndef SCR_PROGRAM_H
#define SCR_PROGRAM_H

#include "recorder.h"
#include "wait.h"

/* Returns the address of the byte at `offset`; *got is how many bytes from there on are contiguous, at most `want`. */
static inline unsigned char *scr_span(scr_segments *s, uint64_t offset, uint64_t want, uint64_t *got) {
  if (s->n == 0) {
    *got = 0;
    return NULL;
  }
  while (SCR_UNLIKELY(offset < s->base)) s->base -= s->list[--s->at].bytes;
  while (s->at + 1 < s->n && offset - s->base >= s->list[s->at].bytes) s->base += s->list[s->at++].bytes;
  const sagecomm_segment *segment = &s->list[s->at];
  uint64_t left = segment->bytes - (offset - s->base);
  *got = left < want ? left : want;
  return (unsigned char *)segment->data + (offset - s->base);
}

/* Hashes and records the call of a run, and takes its tickets (start.c). It waits for nothing.
 * Requires: the drive lock. */
void scr_run_start(scr_group *g, scr_run *r);
/* Compares what this rank and a peer have told each other of the blocks of external all_to_alls (calls.c). Requires: the drive lock. */
bool scr_splits_fit(scr_group *g, int32_t peer);
/* Advances the run until it is finished or blocked, or until_ns has passed (0: no limit).
 * Requires: the drive lock. */
int scr_run_advance(scr_group *g, scr_run *r, int64_t until_ns);
/* Whether peers may need something that a blocked run has yet to do: docs/protocol.md, section 4. Requires: the drive lock. */
bool scr_run_owes(const scr_run *r);

/* Returns how many bytes are cut into chunks: the length of the longest block that this rank knows of. */
uint64_t scr_sendrecv_longest(const scr_group *g, const scr_run *r);
/* Like scr_run_advance(), for a sendrecv program. */
int scr_sendrecv_advance(scr_group *g, scr_run *r, int64_t until_ns);
/* Whether the message, or the room, that `rank` sleeps for (`word` of its sleeper) in a channel from or to `awaited`
 * is there. */
bool scr_channel_is_there(const scr_group *g, int32_t rank, int32_t awaited, uint32_t word);

static inline uint64_t scr_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Adds the spinning of a thread for a flag to the timeline, whether the flag came or not. */
static inline void scr_spun(const scr_group *g, const scr_run *r, uint64_t since, int32_t peer, bool came) {
  if (SCR_UNLIKELY(g->records.tracer != NULL))
    scr_trace_add(g->records.tracer, r, SCR_TRACE_WAIT, since, peer, 0, !came);
}

/* Returns 0 once the flag has risen to `need`, or SCR_BLOCKED after spinning. Then the run's flag, need and peer say
 * where it is blocked; the caller sets `channel`. */
static inline int scr_await(scr_group *g, scr_run *r, _Atomic uint64_t *flag, uint64_t need, int32_t peer) {
  if (SCR_LIKELY(atomic_load_explicit(flag, memory_order_acquire) >= need)) {
    scr_note_waited(r);
    return 0;
  }
  scr_note_blocked(r);
  uint64_t since = scr_trace_clock(g);
  for (uint32_t n = g->coll.spin_now; n > 0; n--) {
    scr_pause();
    if (atomic_load_explicit(flag, memory_order_acquire) >= need) {
      scr_spun(g, r, since, peer, true);
      scr_note_waited(r);
      return 0;
    }
  }
  scr_spun(g, r, since, peer, false);
  r->flag = flag;
  r->need = need;
  r->peer = peer;
  return SCR_BLOCKED;
}

#endif
