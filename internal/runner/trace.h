/* trace.h: what each thread did when, step by step, for a timeline. Off unless a group asks for it.
 *
 * A group has two queues of events, as the flight recorder has two trails: each has one writer, under a lock that is held
 * anyway, and one reader in Go, which empties it all the time. A writer that finds its queue full counts what it drops. */
#ifndef SCR_TRACE_H
#define SCR_TRACE_H

#include "group.h"
#include "ticks.h"

enum { SCR_TRACE_EVENTS = 16384 }; /* power of two; of each queue */

typedef struct scr_trace_queue {
  alignas(SCR_LINE) _Atomic uint64_t written; /* events */
  _Atomic uint64_t dropped;
  alignas(SCR_LINE) _Atomic uint64_t read;
  scr_trace_event *events;
} scr_trace_queue;

struct scr_tracer {
  scr_trace_queue collectives, p2p;
};

scr_tracer *scr_tracer_new(void); /* NULL: no memory */
void scr_tracer_free(scr_tracer *t);

/* From `begin`, in ticks, until now; under the lock of the run's queue. peer: -1 for none. */
void scr_trace_add(scr_tracer *t, const scr_run *r, int what, uint64_t begin, int32_t peer, uint64_t chunk);

/* An operation has ended: its events as a whole. */
void scr_trace_op(scr_tracer *t, const scr_run *r);

/* A step of a collective took from `begin` until now. */
static inline void scr_trace_step(const scr_group *g, const scr_run *r, int action, uint64_t begin, uint64_t chunk) {
  if (SCR_UNLIKELY(g->records.tracer != NULL)) scr_trace_add(g->records.tracer, r, action, begin, -1, chunk);
}

/* The time before a step, if anybody wants to know. */
static inline uint64_t scr_trace_clock(const scr_group *g) {
  return SCR_UNLIKELY(g->records.tracer != NULL) ? scr_ticks() : 0;
}

#endif
