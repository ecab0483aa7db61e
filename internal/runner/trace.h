/* trace.h: the events of the timeline: which thread did which step when. Off unless a group asks for it.
 *
 * A group has two queues of events, like the trails of the flight recorder. Each has one writer at a time, under a
 * lock that the operation holds anyway, and one reader in Go, which empties it continuously. A writer that finds its
 * queue full drops the event and counts it. */
#ifndef SCR_TRACE_H
#define SCR_TRACE_H

#include "group.h"
#include "ticks.h"

enum { SCR_TRACE_EVENTS = 16384 }; /* power of two; of each queue */

/* A thread that yields while it waits attempts the same stage after each yield, up to a million times a second. The
 * writer holds a sleep back until something else happens: two sleeps for one peer become one, with the attempts between
 * them that moved nothing. */
typedef struct scr_trace_queue {
  alignas(SCR_LINE) _Atomic uint64_t written; /* events */
  _Atomic uint64_t dropped;
  scr_trace_event sleep;      /* what is held back; its `what` is 0 if nothing is */
  scr_trace_event attempt[2]; /* behind it: a wait and the stage around it */
  uint32_t attempts;
  alignas(SCR_LINE) _Atomic uint64_t read;
  scr_trace_event *events;
} scr_trace_queue;

struct scr_tracer {
  scr_trace_queue collectives, p2p;
};

scr_tracer *scr_tracer_new(void); /* NULL: no memory */
void scr_tracer_free(scr_tracer *t);

/* Adds an event from `begin`, in ticks, until now. `peer` is -1 for none. `idle` says that nothing has moved: a stage
 * or a wait that ends blocked.
 * Requires: the drive lock for a collective, the p2p lock for a p2p operation. */
void scr_trace_add(scr_tracer *t, const scr_run *r, int what, uint64_t begin, int32_t peer, uint64_t chunk, bool idle);

/* Adds the events of an operation as a whole when it ends.
 * Requires: the lock of scr_trace_add(). */
void scr_trace_op(scr_tracer *t, const scr_run *r);

/* Adds a step of a collective, which has returned rc, from `begin` until now. */
static inline void scr_trace_step(const scr_group *g, const scr_run *r, int action, uint64_t begin, uint64_t chunk,
                                  int rc) {
  if (SCR_UNLIKELY(g->records.tracer != NULL))
    scr_trace_add(g->records.tracer, r, action, begin, -1, chunk, rc == SCR_BLOCKED);
}

/* Returns the ticks before a step, or 0 if the timeline is off. */
static inline uint64_t scr_trace_clock(const scr_group *g) {
  return SCR_UNLIKELY(g->records.tracer != NULL) ? scr_ticks() : 0;
}

#endif
