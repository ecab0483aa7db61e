/* stats.h: what the operations of a group came to: how many, how long, how much of that they waited for peers; one row
 * for each kind, type, size class and algorithm.
 *
 * Collectives and p2p operations have a table each, for the reason that the flight recorder has two trails: one writer at a
 * time, under a lock that the operation holds anyway. So adding is plain loads and stores. Readers take no lock: a row may
 * lag by the operation that is being added. */
#ifndef SCR_STATS_H
#define SCR_STATS_H

#include "group.h"

typedef struct scr_stats_row {
  _Atomic uint64_t key;           /* 0: free; stored after the rest was zero */
  _Atomic uint64_t count, bytes;  /* operations; what this rank put in */
  _Atomic uint64_t fast, fused;   /* of these, that did not enter Go; operations of users packed into others */
  _Atomic uint64_t ticks, waited; /* sums: issue to completion, and what of that was waiting for peers */
  _Atomic uint64_t longest;       /* ticks */
  uint64_t typical;               /* the writer's: see scr_stats_estimate() */
  _Atomic uint64_t bucket[SCR_STAT_BUCKETS];
} scr_stats_row;

typedef struct scr_stats_table {
  alignas(SCR_LINE) scr_stats_row *rows;
  scr_stats_row *last; /* that was added to */
  uint32_t mask;       /* rows - 1 */
  scr_stats_row *rest; /* by kind: what found no row */
} scr_stats_table;

struct scr_stats {
  scr_stats_table collectives, p2p;
  uint64_t typical, ended; /* of short collectives; ticks when the last one ended */
  void *memory;
};

/* NULL: no memory. */
scr_stats *scr_stats_new(void);
void scr_stats_free(scr_stats *s);

/* The row that a run belongs to. Under the drive lock for a collective, under the p2p lock for a p2p operation. */
scr_stats_row *scr_stats_row_of(scr_stats *s, const scr_run *r);
/* It has succeeded. As above. */
void scr_stats_add(scr_stats *s, scr_stats_row *row, const scr_run *r, uint64_t now);

/* When a collective of the row began that did not read the clock then, and did not wait: as long ago as the last of the
 * row took that was measured, or of any other short one, but not before the one in front of it had ended. */
static inline uint64_t scr_stats_estimate(const scr_stats *s, const scr_stats_row *row, uint64_t now) {
  uint64_t typical = row->typical ? row->typical : s->typical;
  return now - typical > s->ended || s->ended > now ? now - typical : s->ended;
}

#endif
