/* stats.c: see stats.h. */
#define _GNU_SOURCE
#include "stats.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "ticks.h"

enum { COLLECTIVE_ROWS = 256, P2P_ROWS = 64, ALL_ROWS = COLLECTIVE_ROWS + P2P_ROWS + 2 * SAGECOMM_KIND_COUNT };

#define USED (UINT64_C(1) << 63)
#define REST_CLASS 255

static uint64_t key_of(uint64_t kind, uint64_t dtype, uint64_t size_class, uint64_t algorithm) {
  return USED | kind | dtype << 8 | size_class << 16 | algorithm << 24;
}

static void lay_out(scr_stats_table *t, scr_stats_row *rows, uint32_t n) {
  t->rows = t->last = rows;
  t->mask = n - 1;
  t->rest = rows + n;
}

scr_stats *scr_stats_new(void) {
  scr_ticks_begin();
  scr_stats *s = aligned_alloc(SCR_LINE, (sizeof *s + SCR_LINE - 1) & ~(size_t)(SCR_LINE - 1));
  /* mmap() instead of calloc(), which may clear the memory: so unused rows take no pages. */
  void *rows = mmap(NULL, ALL_ROWS * sizeof(scr_stats_row), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (s == NULL || rows == MAP_FAILED) {
    free(s);
    if (rows != MAP_FAILED) munmap(rows, ALL_ROWS * sizeof(scr_stats_row));
    return NULL;
  }
  memset(s, 0, sizeof *s);
  s->memory = rows;
  lay_out(&s->collectives, rows, COLLECTIVE_ROWS);
  lay_out(&s->p2p, (scr_stats_row *)rows + COLLECTIVE_ROWS + SAGECOMM_KIND_COUNT, P2P_ROWS);
  return s;
}

void scr_stats_free(scr_stats *s) {
  if (s == NULL) return;
  munmap(s->memory, ALL_ROWS * sizeof(scr_stats_row));
  free(s);
}

/* ---- adding ---- */

/* Class c holds lengths above 2^(c-1) and up to 2^c bytes; class 0 those of 0 and 1. */
static uint32_t class_of(uint64_t bytes) { return bytes <= 1 ? 0 : 64 - (uint32_t)__builtin_clzll(bytes - 1); }

/* Returns the bucket of a duration. There are four buckets to an octave, so values in one bucket differ by less than
 * a quarter. */
static uint32_t bucket_of(uint64_t ticks) {
  if (ticks < 4) return (uint32_t)ticks;
  uint32_t octave = 63 - (uint32_t)__builtin_clzll(ticks);
  uint32_t b = (octave - 1) * 4 + (uint32_t)(ticks >> (octave - 2) & 3);
  return b < SCR_STAT_BUCKETS ? b : SCR_STAT_BUCKETS - 1;
}

static double bucket_begin(uint32_t b) {
  if (b < 4) return b;
  uint32_t octave = b / 4 + 1;
  return (double)((UINT64_C(4) + b % 4) << (octave - 2));
}

static scr_stats_row *row_of(scr_stats_table *t, uint64_t key, uint32_t kind) {
  for (uint32_t probe = 0, at = (uint32_t)scr_mix(key) & t->mask; probe <= t->mask; probe++, at = (at + 1) & t->mask) {
    scr_stats_row *row = &t->rows[at];
    uint64_t found = atomic_load_explicit(&row->key, memory_order_relaxed);
    if (found == key) return row;
    if (found == 0) {
      atomic_store_explicit(&row->key, key, memory_order_release);
      return row;
    }
  }
  scr_stats_row *rest = &t->rest[kind];
  atomic_store_explicit(&rest->key, key_of(kind, 0, REST_CLASS, 0), memory_order_release);
  return rest;
}

static inline void add(_Atomic uint64_t *word, uint64_t n) {
  atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Returns the bytes of this rank's input. */
static inline uint64_t bytes_of(const scr_run *r) {
  return SCR_UNLIKELY(r->kind == SAGECOMM_ALL_TO_ALL) ? scr_total(r->in.list, r->in.n) : r->bytes;
}

scr_stats_row *scr_stats_row_of(scr_stats *s, const scr_run *r) {
  scr_stats_table *t = scr_is_p2p(r) ? &s->p2p : &s->collectives;
  uint64_t dtype = scr_is_inner(r) ? SAGECOMM_SPARSE : r->dtype; /* inner p2p operations belong to sparse all_reduce */
  uint64_t key = key_of(r->kind, dtype, class_of(bytes_of(r)), r->coll.program ? r->coll.program->algorithm : 0);
  scr_stats_row *row = t->last;
  if (SCR_UNLIKELY(atomic_load_explicit(&row->key, memory_order_relaxed) != key))
    row = t->last = row_of(t, key, r->kind);
  return row;
}

void scr_stats_add(scr_stats *s, scr_stats_row *row, const scr_run *r, uint64_t now) {
  uint64_t ticks = now - (r->records.created ? r->records.created : r->records.began);
  add(&row->count, 1);
  add(&row->bytes, bytes_of(r));
  add(&row->ticks, ticks);
  if (r == &r->group->coll.fast) add(&row->fast, 1);
  if (r->coll.batch) add(&row->fused, r->coll.batch);
  if (r->records.waited) add(&row->waited, r->records.waited);
  if (ticks > atomic_load_explicit(&row->longest, memory_order_relaxed)) {
    atomic_store_explicit(&row->longest, ticks, memory_order_relaxed);
  }
  add(&row->bucket[bucket_of(ticks)], 1);
  if (r->records.stamped) {
    uint64_t busy = now - r->records.began - r->records.waited;
    row->typical = busy > 0 && busy <= now - r->records.began ? busy : 1;
    if (!scr_is_p2p(r) && r->bytes <= SCR_STAMP_BYTES) s->typical = row->typical;
  }
  if (!scr_is_p2p(r)) s->ended = now;
}

/* ---- reading ---- */

static uint32_t read_rows(const scr_stats_row *rows, uint32_t n, double ns_per_tick, scr_stat *out, uint32_t most) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < n && found < most; i++) {
    const scr_stats_row *row = &rows[i];
    uint64_t key = atomic_load_explicit(&row->key, memory_order_acquire);
    if (key == 0) continue;
    scr_stat *s = &out[found++];
    *s = (scr_stat){.kind = (uint8_t)key, .dtype = (uint8_t)(key >> 8), .algorithm = (uint8_t)(key >> 24)};
    s->size_class = (uint8_t)(key >> 16) == REST_CLASS ? -1 : (int32_t)(uint8_t)(key >> 16);
    s->count = atomic_load_explicit(&row->count, memory_order_relaxed);
    s->bytes = atomic_load_explicit(&row->bytes, memory_order_relaxed);
    s->fast = atomic_load_explicit(&row->fast, memory_order_relaxed);
    s->fused = atomic_load_explicit(&row->fused, memory_order_relaxed);
    s->total_ns = (double)atomic_load_explicit(&row->ticks, memory_order_relaxed) * ns_per_tick;
    s->waited_ns = (double)atomic_load_explicit(&row->waited, memory_order_relaxed) * ns_per_tick;
    s->longest_ns = (double)atomic_load_explicit(&row->longest, memory_order_relaxed) * ns_per_tick;
    s->ns_per_tick = ns_per_tick;
    for (uint32_t b = 0; b < SCR_STAT_BUCKETS; b++) {
      s->bucket[b] = atomic_load_explicit(&row->bucket[b], memory_order_relaxed);
    }
  }
  return found;
}

double scr_stat_bucket_ns(const scr_stat *s, uint32_t bucket) { return bucket_begin(bucket) * s->ns_per_tick; }

uint32_t scr_group_read_stats(const scr_group *g, scr_stat *out, uint32_t most) {
  if (g->records.stats == NULL) return 0;
  double scale = scr_ticks_now().ns_per_tick;
  const scr_stats_table *tables[] = {&g->records.stats->collectives, &g->records.stats->p2p};
  uint32_t n = 0;
  for (int i = 0; i < 2; i++) {
    uint32_t rows = tables[i]->mask + 1 + SAGECOMM_KIND_COUNT; /* the rows of `rest` follow */
    n += read_rows(tables[i]->rows, rows, scale, out + n, most - n);
  }
  return n;
}
