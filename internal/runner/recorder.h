/* recorder.h: the flight recorder: the last operations of a group and how far each got, for whoever looks into a hang.
 *
 * A group has two trails of entries, because two locks guard what they tell: collectives are recorded under the drive
 * lock, messages under the message lock. So each trail has one writer at a time and needs no lock of its own, no
 * read-modify-write, no allocation and no system call. Readers take no lock for it: the state word of an entry says
 * which operation lies there, and is taken back while the entry is written anew. */
#ifndef SCR_RECORDER_H
#define SCR_RECORDER_H

#include "internal.h"

/* States of an entry are SCR_FLIGHT_... of runner.h, and this one. */
enum { SCR_FLIGHT_IN_WRITING = 0 };

struct scr_flight_entry {
  _Atomic uint64_t state;   /* position in its trail, from 1 (61 bits) | state (3) */
  _Atomic uint64_t created; /* ticks, as the next two; 0: not yet */
  _Atomic uint64_t started;
  _Atomic uint64_t completed;
  _Atomic uint64_t bytes;
  _Atomic uint64_t caller; /* thread (48 bits) | asynchronous (1) | reduce op (4) | dtype (5) | kind (6) */
  _Atomic uint64_t number; /* of the collective or of the message (40 bits) | root or peer, + 1 (24) */
  _Atomic uint64_t limits; /* timeout in ms (32 bits) | tag (32) */
};
_Static_assert(sizeof(struct scr_flight_entry) == 64, "an entry is one cache line");

typedef struct scr_trail {
  alignas(SCR_LINE) struct scr_flight_entry *entries;
  _Atomic uint64_t count; /* written so far */
  uint32_t at;            /* count % capacity */
} scr_trail;

struct scr_recorder {
  scr_trail collectives, messages;
  uint32_t capacity; /* of each */
  void *memory;      /* of the entries */
};

/* NULL: no memory. */
scr_recorder *scr_recorder_new(uint32_t capacity);
void scr_recorder_free(scr_recorder *rec);

void scr_recorder_created(scr_run *r);
void scr_recorder_started(scr_recorder *rec, scr_run *r);
void scr_recorder_finished(scr_recorder *rec, scr_run *r, bool ok);

/* What the runner calls. Nothing but one comparison when the group does not record. */

/* A queued collective has its number. */
static inline void scr_note_created(const scr_group *g, scr_run *r) {
  if (g->recorder) scr_recorder_created(r);
}

/* Under the drive lock for a collective, under the message lock for a message. */
static inline void scr_note_started(const scr_group *g, scr_run *r) {
  if (g->recorder) scr_recorder_started(g->recorder, r);
}

/* As above. A run that never started is recorded here. */
static inline void scr_note_finished(const scr_group *g, scr_run *r, bool ok) {
  if (g->recorder) scr_recorder_finished(g->recorder, r, ok);
}

#endif
