/* records.h: what Go reads of a group's past: counters, statistics, the flight recorder and the timeline. Included by
 * runner.h. */
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

/* What succeeded of one kind, type, size class and algorithm. */
typedef struct scr_stat {
  uint8_t kind, dtype, algorithm;
  int32_t size_class;    /* of 2^(c-1)+1 to 2^c bytes; 0: none or one; -1: of all types and sizes that found no row */
  uint64_t count, bytes; /* operations; what this rank put in */
  uint64_t fast, fused;  /* of these, that did not enter Go; operations of users that were packed into others */
  double total_ns, waited_ns, longest_ns; /* issue to completion; what of that was waiting for peers */
  double ns_per_tick;
  uint64_t bucket[SCR_STAT_BUCKETS]; /* operations by duration, see scr_stat_bucket_ns() */
} scr_stat;

/* The least duration that the bucket counts; the next one's is the end of it. */
double scr_stat_bucket_ns(const scr_stat *s, uint32_t bucket);
/* Copies at most `most` rows; returns how many. The group is not closed meanwhile. */
uint32_t scr_group_read_stats(const scr_group *g, scr_stat *out, uint32_t most);
#define SCR_MOST_STATS 512 /* no group has more rows */

/* ---- flight recorder ---- */

enum { SCR_FLIGHT_SCHEDULED = 1, SCR_FLIGHT_STARTED, SCR_FLIGHT_COMPLETED, SCR_FLIGHT_FAILED };

/* One operation as it was when it was read. */
typedef struct scr_flight {
  uint64_t ticks;  /* of its creation, to sort by */
  uint64_t number; /* of the collective in its group, or of the p2p operation among this rank's; both from 1 */
  uint64_t bytes;
  int64_t created_ns, started_ns, completed_ns; /* Unix time; 0: not yet, or never */
  uint64_t thread;                              /* pthread_t of the caller */
  int32_t root, tag; /* root, or peer of a p2p operation: of a recv its source once that is known */
  uint32_t timeout_ms;
  uint32_t stack; /* for scr_flights_stack(), 0: not known */
  uint8_t kind, dtype, reduce_op, state, async;
} scr_flight;

/* Bytes of a recorder of that capacity in an arena; it begins at a page. */
uint64_t scr_flight_bytes(uint32_t capacity, bool stacks);

/* A recorder, this process's or another's, which may have died or been stopped. It stays mapped meanwhile. */
typedef struct scr_flights {
  const void *area;  /* at least scr_flight_bytes(), aligned as it was made */
  uint32_t capacity; /* collectives, and p2p operations, that it keeps; 0: there is none */
  bool stacks;       /* who called is recorded */
} scr_flights;

/* What lies there; nothing where its clock is not this process's. */
scr_flights scr_flights_at(const void *area, uint32_t capacity, bool stacks);
/* That of a rank, nothing if it does not record, or where no other rank sees it. */
scr_flights scr_group_flights(const scr_group *g, int32_t rank);
/* Copies what is kept, collectives first: at most 2 * capacity. *total: how much there ever was. */
uint64_t scr_flights_read(const scr_flights *f, scr_flight *out, uint64_t *total);
/* The newest collective, or p2p operation, that has begun. False: there is none. */
bool scr_flights_last(const scr_flights *f, bool p2p, scr_flight *out);
/* As scr_flights_read() of this rank's, with what is queued before the rest: at most 3 * capacity. */
uint64_t scr_group_read_flights(scr_group *g, scr_flight *out, uint64_t *total);

/* ---- timeline ---- */

/* What an event is about: a stage of a program (SCR_PUBLISH ...) that a thread carried out, or one of these. */
enum {
  SCR_TRACE_WAIT = 32, /* a thread spins for a peer, inside a stage */
  SCR_TRACE_SLEEP,     /* a thread yields or sleeps between two stages */
  SCR_TRACE_QUEUE,     /* an operation, from its issue until it began; on no thread */
  SCR_TRACE_OP,        /* an operation, until its end */
};

typedef struct scr_trace_event {
  uint64_t begin, end; /* ns of Unix time */
  uint64_t number;     /* of the collective, or of the operation */
  uint64_t bytes;      /* of the operation */
  uint64_t chunk;
  uint32_t thread; /* of the system */
  int32_t peer;    /* that is waited for, -1 */
  uint8_t what, kind, dtype, algorithm;
} scr_trace_event;

/* Takes events out, at most `most`; one caller at a time. *dropped: how many were lost since the last call. */
uint32_t scr_group_take_trace(scr_group *g, scr_trace_event *out, uint32_t most, uint64_t *dropped);

/* All texts of the stacks of a group. */
#define SCR_STACK_BYTES (512 * 1024)
/* Puts a text where nothing lies yet; `at` + 1 is its number. False: no stacks are recorded, or no room. */
bool scr_group_put_stack(scr_group *g, uint32_t at, const void *text, uint32_t n);
/* Copies a text; its length, 0 if there is none or it is longer than `most`. */
uint32_t scr_flights_stack(const scr_flights *f, uint32_t number, void *text, uint32_t most);

#endif
