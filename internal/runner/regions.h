/* regions.h: where the regions of a sendrecv plan lie in the buffers and in scratch memory (plan.SendRecvPlan.Extent), for
 * sendrecv.c alone. */
#ifndef SCR_REGIONS_H
#define SCR_REGIONS_H

#include <stdlib.h>

#include "program.h"

/* ---- where regions lie: plan.SendRecvPlan.Extent ---- */

/* Returns the length of the block that a region is a part of. */
static inline uint64_t block_bytes(const scr_run *r, const scr_region *x) {
  if (r->kind == SAGECOMM_ALL_TO_ALL) {
    return scr_block_bytes(x->space == SCR_INPUT ? &r->in_blocks : &r->out_blocks, x->block);
  }
  if (SCR_LIKELY(!r->coll.uneven)) return r->bytes;
  return scr_block_bytes(r->in_blocks.at ? &r->in_blocks : &r->out_blocks, x->block);
}

/* Whether all blocks of an all_to_all are equally long, as far as this rank sees. */
static inline bool blocks_are_equal(const scr_group *g, const scr_run *r) {
  for (int32_t i = 0; i < g->size; i++) {
    if (scr_block_bytes(&r->in_blocks, i) != r->coll.longest || scr_block_bytes(&r->out_blocks, i) != r->coll.longest)
      return false;
  }
  return true;
}

/* Returns where a piece begins in a chunk of n bytes. */
static inline uint64_t piece_at(uint32_t piece, uint64_t each, uint64_t more, uint64_t n) {
  return scr_min((piece * each + scr_min(piece, more)) * 64, n);
}

/* A region in chunk k: where the chunk begins in its block, where in it the region begins, and how long that is. */
typedef struct extent {
  uint64_t chunk, at, bytes;
} extent;

static inline extent extent_of(const scr_run *r, const scr_region *x, uint64_t k) {
  const scr_program *pg = r->coll.program;
  uint64_t length = block_bytes(r, x), chunk = scr_min(k * pg->chunk, length);
  uint64_t n = scr_min(length - chunk, pg->chunk), units = (n + 63) / 64;
  uint32_t pieces = pg->sendrecv->pieces;
  if (x->first == 0 && x->count == pieces) return (extent){chunk, 0, n};
  uint64_t each = units / pieces, more = units % pieces, at = piece_at(x->first, each, more, n);
  return (extent){chunk, at, piece_at(x->first + x->count, each, more, n) - at};
}

static inline uint64_t bytes_of(const scr_run *r, const scr_region *x, uint32_t n, uint64_t k) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < n; i++) sum += extent_of(r, &x[i], k).bytes;
  return sum;
}

/* The longest block that regions are a part of. */
static inline uint64_t block_of(const scr_run *r, const scr_region *x, uint32_t n) {
  uint64_t longest = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint64_t bytes = block_bytes(r, &x[i]);
    if (bytes > longest) longest = bytes;
  }
  return longest;
}

/* ---- memory ---- */

/* Scratch memory holds the cells of each set. Where the input is scaled, the scaled chunks follow, as many as can be
 * in the pipeline. */
static inline uint64_t n_scaled(const scr_group *g, const scr_program *pg) {
  return pg->input_blocks ? (uint64_t)g->size : 1;
}

static inline unsigned char *scaled_at(const scr_group *g, const scr_run *r, int32_t block, uint64_t k) {
  const scr_sendrecv *m = r->coll.program->sendrecv;
  uint64_t cells = (uint64_t)m->cells * m->sets, n = n_scaled(g, r->coll.program), set = k % (m->max_lag + UINT64_C(1));
  uint64_t number = cells + set * n + (n > 1 ? (uint64_t)block : 0);
  return g->coll.scratch + number * r->coll.cell;
}

static inline bool make_scratch(scr_group *g, scr_run *r) {
  const scr_program *pg = r->coll.program;
  const scr_sendrecv *m = pg->sendrecv;
  r->coll.cell = (scr_min(r->coll.longest, pg->chunk) + 63) & ~UINT64_C(63);
  uint64_t need = (uint64_t)m->cells * m->sets * r->coll.cell;
  if (pg->scale) need += n_scaled(g, pg) * (m->max_lag + UINT64_C(1)) * r->coll.cell;
  if (need <= g->coll.scratch_bytes) return true;
  free(g->coll.scratch);
  g->coll.scratch = aligned_alloc(SCR_LINE, (need + SCR_LINE - 1) & ~(uint64_t)(SCR_LINE - 1));
  g->coll.scratch_bytes = g->coll.scratch ? need : 0;
  return g->coll.scratch != NULL;
}

/* A cursor walks the bytes of several regions in contiguous pieces. */
typedef struct cursor {
  const scr_region *region;
  uint32_t left; /* regions after the current one */
  extent at;     /* the rest of the current one */
} cursor;

static inline cursor cursor_at(const scr_run *r, const scr_region *list, uint32_t n, uint64_t k) {
  return (cursor){list, n - 1, extent_of(r, list, k)};
}

/* Returns the next contiguous bytes, at most `want`. The cursor stays in front of them until skip(). */
static inline unsigned char *peek(scr_group *g, scr_run *r, cursor *c, uint64_t k, uint64_t want, uint64_t *got) {
  while (c->at.bytes == 0 && c->left > 0) {
    c->left--;
    c->at = extent_of(r, ++c->region, k);
  }
  const scr_program *pg = r->coll.program;
  const scr_region *x = c->region;
  uint64_t n = scr_min(want, c->at.bytes), offset = c->at.chunk + c->at.at;
  *got = n;
  if (x->space == SCR_SCRATCH) {
    return g->coll.scratch + ((k % pg->sendrecv->sets) * pg->sendrecv->cells + x->cell) * r->coll.cell + c->at.at;
  }
  if (x->space == SCR_OUTPUT) {
    return scr_span(&r->out, offset + (pg->output_blocks ? scr_block_at(&r->out_blocks, x->block) : 0), n, got);
  }
  if (pg->scale) return scaled_at(g, r, x->block, k) + c->at.at;
  return scr_span(&r->in, offset + (pg->input_blocks ? scr_block_at(&r->in_blocks, x->block) : 0), n, got);
}

static inline void skip(cursor *c, uint64_t n) {
  c->at.at += n;
  c->at.bytes -= n;
}

#endif
