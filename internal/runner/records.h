/* records.h: what Go reads of a group's operations: counters, statistics, the flight recorder and the timeline.
 * Included by runner.h. */
#ifndef SCR_RECORDS_H
#define SCR_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Counters of one group. */
typedef struct scr_counters {
  uint64_t sleeps;  /* futex waits of drivers */
  uint64_t blocked; /* waits that outlasted spinning */
} scr_counters;
void scr_group_counters(const scr_group *g, scr_counters *out);

#define SCR_STAT_BUCKETS 192

/* The successful operations of one kind, type, size class and algorithm. */
typedef struct scr_stat {
  uint8_t kind, dtype, algorithm;
  int32_t size_class;    /* c: 2^(c-1)+1 to 2^c bytes; 0: 0 or 1 byte; -1: all types and sizes that found no row */
  uint64_t count, bytes; /* operations; bytes of this rank's input */
  uint64_t fast, fused;  /* operations that did not enter Go; users' operations that were packed into others */
  double total_ns, waited_ns, longest_ns; /* issue to completion; the part of it spent waiting for peers */
  double ns_per_tick;
  uint64_t bucket[SCR_STAT_BUCKETS]; /* operations by duration, see scr_stat_bucket_ns() */
} scr_stat;

/* Returns the least duration of a bucket. The bucket ends where the next one begins. */
double scr_stat_bucket_ns(const scr_stat *s, uint32_t bucket);
/* Copies at most `most` rows and returns how many. Requires: the caller keeps the group open. */
uint32_t scr_group_read_stats(const scr_group *g, scr_stat *out, uint32_t most);
#define SCR_MOST_STATS 512 /* no group has more rows */

/* ---- flight recorder ---- */

enum { SCR_FLIGHT_SCHEDULED = 1, SCR_FLIGHT_STARTED, SCR_FLIGHT_COMPLETED, SCR_FLIGHT_FAILED };

/* One operation as it was when it was read. */
typedef struct scr_flight {
  uint64_t ticks;  /* when it was created; readers sort by it */
  uint64_t number; /* from 1: the collective's in its group, or the p2p operation's among this rank's */
  uint64_t bytes;
  int64_t created_ns, started_ns, completed_ns; /* Unix time; 0: not yet, or never */
  uint64_t thread;                              /* pthread_t of the caller */
  int32_t root, tag; /* root is the peer of a p2p operation; of a recv, its source once that is known */
  uint32_t timeout_ms;
  uint32_t stack; /* for scr_flights_stack(), 0: not known */
  uint8_t kind, dtype, reduce_op, state, async;
} scr_flight;

/* Returns the bytes of a recorder of that capacity in an arena, where it begins at a page. */
uint64_t scr_flight_bytes(uint32_t capacity, bool stacks);

/* The recorder of this process, or of a peer, which may have died or been stopped. Requires: the memory stays
 * mapped. */
typedef struct scr_flights {
  const void *area;  /* at least scr_flight_bytes(), aligned as it was made */
  uint32_t capacity; /* collectives, and p2p operations, that it keeps; 0: there is none */
  bool stacks;       /* who called is recorded */
} scr_flights;

/* Returns the recorder at `area`, or an empty one if its ticks come from another clock than this process's. */
scr_flights scr_flights_at(const void *area, uint32_t capacity, bool stacks);
/* Returns a rank's recorder, or an empty one if that rank does not record or its recorder is not in its arena. */
scr_flights scr_group_flights(const scr_group *g, int32_t rank);
/* Copies the entries that are kept, collectives first, at most 2 * capacity, and returns how many. *total is the
 * number of entries ever written. */
uint64_t scr_flights_read(const scr_flights *f, scr_flight *out, uint64_t *total);
/* Copies the newest collective, or p2p operation, that has begun. Returns false if there is none. */
bool scr_flights_last(const scr_flights *f, bool p2p, scr_flight *out);
/* Like scr_flights_read() for this rank's recorder, with the queued collectives first: at most 3 * capacity entries. */
uint64_t scr_group_read_flights(scr_group *g, scr_flight *out, uint64_t *total);

/* ---- timeline ---- */

/* The kind of an event: a stage of a program (SCR_PUBLISH ...) that a thread carried out, or one of these. */
enum {
  SCR_TRACE_WAIT = 32, /* a thread spins for a peer, inside a stage */
  SCR_TRACE_SLEEP,     /* a thread yields or sleeps between two stages */
  SCR_TRACE_QUEUE,     /* an operation from its issue to its start; belongs to no thread */
  SCR_TRACE_OP,        /* an operation from its start to its end */
};

typedef struct scr_trace_event {
  uint64_t begin, end; /* ns of Unix time */
  uint64_t number;     /* of the collective, or of the operation */
  uint64_t bytes;      /* of the operation */
  uint64_t chunk;
  uint32_t thread; /* thread id of the kernel */
  int32_t peer;    /* the peer that is waited for, or -1 */
  uint8_t what, kind, dtype, algorithm;
} scr_trace_event;

/* Moves at most `most` events to out and returns how many. *dropped is the number of events lost since the last
 * call.
 * Requires: one caller at a time. */
uint32_t scr_group_take_trace(scr_group *g, scr_trace_event *out, uint32_t most, uint64_t *dropped);

/* The space for the stack texts of a group. */
#define SCR_STACK_BYTES (512 * 1024)
/* Stores a text at offset `at`, where nothing lies yet; its number is `at` + 1. Returns false if stacks are not
 * recorded or there is no room. */
bool scr_group_put_stack(scr_group *g, uint32_t at, const void *text, uint32_t n);
/* Copies a text and returns its length, or 0 if there is none or it is longer than `most`. */
uint32_t scr_flights_stack(const scr_flights *f, uint32_t number, void *text, uint32_t most);

#endif
