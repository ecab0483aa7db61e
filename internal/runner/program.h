/* program.h: what the interpreters of both kinds of program have in common: where buffers lie, and waiting for flags. */
#ifndef SCR_PROGRAM_H
#define SCR_PROGRAM_H

#include "recorder.h"

/* Bytes from `offset` on that lie together, at most `want`. */
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

static inline uint64_t scr_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* As a thread spins for a flag and has it, or has not. */
static inline void scr_spun(const scr_group *g, const scr_run *r, uint64_t since, int32_t peer) {
  if (SCR_UNLIKELY(g->tracer != NULL)) scr_trace_add(g->tracer, r, SCR_TRACE_WAIT, since, peer, 0);
}

/* 0 once the flag has risen to `need`, or SCR_BLOCKED: the run then tells where, with its `channel`, which the caller sets. */
static inline int scr_await(scr_group *g, scr_run *r, _Atomic uint64_t *flag, uint64_t need, int32_t peer) {
  if (SCR_LIKELY(atomic_load_explicit(flag, memory_order_acquire) >= need)) {
    scr_note_waited(r);
    return 0;
  }
  scr_note_blocked(r);
  uint64_t since = scr_trace_clock(g);
  for (uint32_t n = g->spin_now; n > 0; n--) {
    scr_pause();
    if (atomic_load_explicit(flag, memory_order_acquire) >= need) {
      scr_spun(g, r, since, peer);
      scr_note_waited(r);
      return 0;
    }
  }
  scr_spun(g, r, since, peer);
  r->flag = flag;
  r->need = need;
  r->peer = peer;
  return SCR_BLOCKED;
}

#endif
