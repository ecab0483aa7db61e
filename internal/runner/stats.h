/* stats.h: statistics of a group's operations: number, duration, and time spent waiting for peers. There is one row
 * for each kind, type, size class and algorithm.
 *
 * Collectives and p2p operations have a table each, like the trails of the flight recorder: each table has one
 * writer at a time, under a lock that the operation holds anyway. So adding takes plain loads and stores. Readers
 * take no lock; a row that they read may lack the operation that is being added. */
#ifndef SCR_STATS_H
#define SCR_STATS_H

#include "group.h"

typedef struct scr_stats_row {
  _Atomic uint64_t key;           /* 0: free; stored after the rest was zero */
  _Atomic uint64_t count, bytes;  /* operations; bytes of this rank's input */
  _Atomic uint64_t fast, fused;   /* operations that did not enter Go; users' operations that were packed into others */
  _Atomic uint64_t ticks, waited; /* sums: issue to completion, and the part of it spent waiting for peers */
  _Atomic uint64_t longest;       /* ticks */
  uint64_t typical;               /* only the writer uses it: see scr_stats_estimate() */
  _Atomic uint64_t bucket[SCR_STAT_BUCKETS];
} scr_stats_row;

typedef struct scr_stats_table {
  alignas(SCR_LINE) scr_stats_row *rows;
  scr_stats_row *last; /* the row of the last operation */
  uint32_t mask;       /* rows - 1 */
  scr_stats_row *rest; /* by kind: operations that found no row */
} scr_stats_table;

struct scr_stats {
  scr_stats_table collectives, p2p;
  uint64_t typical, ended; /* ticks: typical duration of a short collective, end of the last one */
  void *memory;
};

/* NULL: no memory. */
scr_stats *scr_stats_new(void);
void scr_stats_free(scr_stats *s);

/* Returns the row of a run.
 * Requires: the drive lock for a collective, the p2p lock for a p2p operation. */
scr_stats_row *scr_stats_row_of(scr_stats *s, const scr_run *r);
/* Adds a run that has succeeded.
 * Requires: the lock of scr_stats_row_of(). */
void scr_stats_add(scr_stats *s, scr_stats_row *row, const scr_run *r, uint64_t now);

/* Estimates the start of a collective that neither read the clock when it started nor waited: its end less the last
 * measured duration of its row, or of any short collective, but not before the end of the collective before it. */
static inline uint64_t scr_stats_estimate(const scr_stats *s, const scr_stats_row *row, uint64_t now) {
  uint64_t typical = row->typical ? row->typical : s->typical;
  return now - typical > s->ended || s->ended > now ? now - typical : s->ended;
}

#endif
