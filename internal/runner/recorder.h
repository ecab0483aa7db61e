/* recorder.h: the flight recorder keeps the last operations of a group and how far each got, to analyse a hang.
 *
 * A group has two trails of entries, because two locks guard the operations: collectives are recorded under the
 * drive lock, p2p operations under the p2p lock. So each trail has one writer at a time and needs no lock of its
 * own, no read-modify-write, no allocation and no system call. Readers take no lock either: the state word of an
 * entry says which operation lies there, and is reset while the entry is rewritten.
 *
 * The trails lie in the rank's arena, so that peers can still read them when the rank has died or was stopped. A
 * reader does not trust a peer's trails: it cuts every field to its range and bounds `count` by the capacity, which
 * the ranks exchanged at rendezvous or Go has checked (internal/observe/list.go). */
#ifndef SCR_RECORDER_H
#define SCR_RECORDER_H

#include "group.h"
#include "stats.h"
#include "ticks.h"
#include "trace.h"

/* The state of an entry is one of SCR_FLIGHT_... of records.h, or this one. */
enum { SCR_FLIGHT_IN_WRITING = 0 };

struct scr_flight_entry {
  _Atomic uint64_t state;   /* position in its trail, from 1 (61 bits) | state (3) */
  _Atomic uint64_t created; /* ticks, like the next two; 0: not yet */
  _Atomic uint64_t started;
  _Atomic uint64_t completed;
  _Atomic uint64_t bytes;
  _Atomic uint64_t caller; /* thread (48 bits) | asynchronous (1) | reduce op (4) | dtype (5) | kind (6) */
  _Atomic uint64_t number; /* of the collective or of the p2p operation (40 bits) | root or peer, + 1 (24) */
  _Atomic uint64_t limits; /* timeout in ms (32 bits) | tag (32) */
};
_Static_assert(sizeof(struct scr_flight_entry) == 64, "an entry is one cache line");
_Static_assert(SAGECOMM_KIND_COUNT <= 64 && SAGECOMM_DTYPE_COUNT <= 32 && SAGECOMM_REDUCE_OP_COUNT <= 16,
               "each fits into its field of `caller`");

/* What lies in the arena. */
struct scr_flight_area {
  alignas(SCR_LINE) uint64_t clock; /* of the ticks: SCR_CLOCK_... of ticks.h */
  /* Operations written so far, by trail. */
  alignas(SCR_LINE) _Atomic uint64_t collectives;
  alignas(SCR_LINE) _Atomic uint64_t p2p;
  /* `capacity` entries of collectives, then as many of p2p operations. Where stacks are recorded, there follow one
   * uint32_t for each entry, 1 + the offset of its stack's text, and SCR_STACK_BYTES of texts. */
  alignas(SCR_LINE) struct scr_flight_entry entries[];
};

typedef struct scr_trail {
  alignas(SCR_LINE) struct scr_flight_entry *entries;
  _Atomic uint32_t *stacks; /* NULL: not recorded */
  _Atomic uint64_t *count;
  uint32_t at; /* count % capacity */
} scr_trail;

struct scr_recorder {
  scr_trail collectives, p2p;
  uint32_t capacity; /* of each */
  bool stacks;
  scr_flight_area *area;
  void *owned; /* the memory of the area if the arena had no room for it */
};

/* `area` is zeroed memory of scr_flight_bytes(), or NULL for memory that peers cannot read. Returns NULL without
 * memory. */
scr_recorder *scr_recorder_new(uint32_t capacity, bool stacks, void *area);
void scr_recorder_free(scr_recorder *rec);

void scr_recorder_created(scr_run *r);
void scr_recorder_started(scr_recorder *rec, scr_run *r);
/* Writes r->records.began to the entry of a run that did not read the clock when it started. */
void scr_recorder_stamp(scr_run *r);
void scr_recorder_finished(scr_recorder *rec, scr_run *r, uint64_t now, bool ok);

/* The runner calls the functions below. A build with SCR_NO_NOTES records nothing, to measure their cost.
 *
 * Reading the clock is most of that cost, 10 to 30 ns. So a short collective that starts at once reads it only when
 * it ends. It also reads it when it has to wait, where the time is free, and at the start of every eighth one. The
 * start of the others is estimated from the last measured collective of the same row of statistics, without its
 * waiting. */

#define SCR_STAMP_EVERY 8

/* Records a collective that was just queued and numbered. */
static inline void scr_note_created(const scr_group *g, scr_run *r) {
#ifndef SCR_NO_NOTES
  (void)g;
  scr_recorder_created(r);
#endif
}

/* Requires: the drive lock for a collective, the p2p lock for a p2p operation. */
static inline void scr_note_started(scr_group *g, scr_run *r) {
#ifndef SCR_NO_NOTES
  bool stamped = r->records.created != 0 || scr_is_p2p(r) || r->bytes > SCR_STAMP_BYTES;
  if (!stamped) stamped = ++g->records.unstamped % SCR_STAMP_EVERY == 0;
  r->records.stamped = stamped;
  r->records.began = stamped ? scr_ticks() : 0;
  r->records.waited = r->records.blocked = 0;
  if (g->records.recorder) scr_recorder_started(g->records.recorder, r);
#endif
}

/* A collective waits for a peer from now on. */
static inline void scr_note_blocked(scr_run *r) {
#ifndef SCR_NO_NOTES
  if (r->records.blocked != 0) return;
  r->records.blocked = scr_ticks();
  if (r->records.began == 0) {
    r->records.began = r->records.blocked;
    scr_recorder_stamp(r);
  }
#endif
}

/* Ends the waiting. With one chunk, the work that is left is short, so the end of the run counts as the end of the
 * waiting and saves a look at the clock. */
static inline void scr_note_waited(scr_run *r) {
#ifndef SCR_NO_NOTES
  if (r->records.blocked == 0 || r->coll.chunks <= 1) return;
  r->records.waited += scr_ticks() - r->records.blocked;
  r->records.blocked = 0;
#endif
}

/* Counts the time of a p2p operation until now, when it has matched its peer's, as waiting. */
static inline void scr_note_met(scr_run *r) {
#ifndef SCR_NO_NOTES
  r->records.waited = scr_ticks() - r->records.began;
#endif
}

/* Records the end of a run, and the run itself if it never started.
 * Requires: the lock of scr_note_started(). */
static inline void scr_note_finished(scr_group *g, scr_run *r, bool ok) {
#ifndef SCR_NO_NOTES
  uint64_t now = scr_ticks();
  if (r->records.blocked != 0) r->records.waited += now - r->records.blocked;
  scr_stats_row *row = ok && g->records.stats ? scr_stats_row_of(g->records.stats, r) : NULL;
  if (r->records.began == 0 && row) r->records.began = scr_stats_estimate(g->records.stats, row, now);
  if (g->records.recorder) scr_recorder_finished(g->records.recorder, r, now, ok);
  if (row) scr_stats_add(g->records.stats, row, r, now);
  if (SCR_UNLIKELY(g->records.tracer != NULL)) scr_trace_op(g->records.tracer, r);
#endif
}

#endif
