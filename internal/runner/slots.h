/* slots.h: addresses of chunks in slots, and the functions that program.c and heads.c share. */
#ifndef SCR_SLOTS_H
#define SCR_SLOTS_H

#include "program.h"

/* ---- addresses ---- */

static inline scr_slot *small_slot(const scr_shared_block *b, uint64_t ticket) {
  return (scr_slot *)(void *)((unsigned char *)(uintptr_t)b->small + (ticket % SCR_SMALL_SLOTS) * SCR_SMALL_STRIDE);
}

/* Returns the peer's large slots, or NULL if their offset is not there yet or is invalid. A peer stores the offset
 * before it fills its first large slot. */
static unsigned char *large_slots(scr_peer *p) {
  if (SCR_UNLIKELY(p->large == NULL)) {
    uint64_t offset = atomic_load_explicit(&p->shared->large, memory_order_acquire);
#ifdef SCR_MUTANT_SLOTS_BELIEVED
    if (offset == 0) return NULL;
#else
    if (offset == 0 || !scr_inside(p, offset, SCR_LARGE_SLOTS * (uint64_t)SCR_LARGE_STRIDE)) return NULL;
#endif
    p->large = p->arena + offset;
  }
  return p->large;
}

static inline scr_slot *slot_of(scr_peer *p, int large, uint64_t ticket) {
  if (large == 0) return small_slot(p->shared, ticket);
  unsigned char *base = large_slots(p);
  return base ? (scr_slot *)(void *)(base + (ticket % SCR_LARGE_SLOTS) * SCR_LARGE_STRIDE) : NULL;
}

static inline unsigned char *slot_data(scr_slot *s, int large, uint64_t bytes) {
  if (large == 1) return (unsigned char *)s + SCR_LARGE_DATA;
  return bytes <= SCR_INLINE_BYTES ? s->inline_data : (unsigned char *)s + SCR_SMALL_DATA;
}

static inline _Atomic uint64_t *slot_reduced(scr_slot *s) {
  return (_Atomic uint64_t *)(void *)((unsigned char *)s + SCR_LARGE_REDUCED);
}

static inline _Atomic uint64_t *consumed_word(const scr_peer *p, int large) {
  return large == 0 ? &p->shared->consumed0 : &p->shared->consumed1;
}

/* ---- the parts of a chunk ---- */

/* Returns where chunk k begins in the buffer, or in each block. */
static inline uint64_t chunk_at(const scr_run *r, uint64_t k) { return r->coll.base + k * r->coll.program->chunk; }

/* Returns the length of chunk k in a block of `bytes`. */
static inline uint64_t piece_of(const scr_run *r, uint64_t bytes, uint64_t k) {
  uint64_t at = chunk_at(r, k);
  return at >= bytes ? 0 : scr_min(r->coll.program->chunk, bytes - at);
}

/* Returns the length of chunk k of the buffer, or of the longest block. */
static inline uint64_t chunk_bytes(const scr_run *r, uint64_t k) { return piece_of(r, r->coll.longest, k); }

/* Returns the distance between pieces of blocks in a slot. Pieces of 64 bytes or more begin at multiples of 64. */
static inline uint64_t stride_of(uint64_t piece) { return piece < 64 ? piece : (piece + 63) & ~UINT64_C(63); }

/* Returns the same distance for chunk k. In a program with heads it is always that of a full chunk, because the
 * first chunk is published before the longest block of all ranks is known. */
static inline uint64_t pieces_apart(const scr_run *r, uint64_t k) {
  return r->coll.program->n_heads ? r->coll.program->chunk : stride_of(chunk_bytes(r, k));
}

/* Returns the index of the piece for rank `to` in the slot of rank `from`. A slot has no piece for its own rank. */
static inline uint64_t piece_index(const scr_group *g, int32_t from, int32_t to) {
  return (uint64_t)(to > from ? to - from - 1 : to - from - 1 + g->size);
}

/* Share i of a chunk of n bytes: equal pieces, multiples of 64 bytes, the last ones shorter or empty. */
static inline void share_of(uint64_t n, int32_t size, int32_t i, uint64_t *from, uint64_t *len) {
  uint64_t piece = ((n + (uint64_t)size - 1) / (uint64_t)size + 63) & ~UINT64_C(63);
  *from = scr_min((uint64_t)i * piece, n);
  *len = scr_min((uint64_t)(i + 1) * piece, n) - *from;
}

/* ---- stages that heads.c is made of as well (program.c) ----
 *
 * Requires: the drive lock. They have hidden visibility so that program.c can inline its own. */
#pragma GCC visibility push(hidden)

/* Waits until every other rank has consumed what lies in the slot of a ticket. */
int scr_await_consumed(scr_group *g, scr_run *r, int large, uint64_t ticket);
/* Waits until all others have filled their slots for a ticket. */
int scr_await_others(scr_group *g, scr_run *r, int large, uint64_t ticket);
/* Copies [offset, offset + n) of the input to dst, scaled for PREMUL_SUM. */
void scr_copy_in(scr_run *r, uint64_t offset, uint64_t n, unsigned char *dst);
/* Copies src to [offset, offset + n) of the output. */
void scr_copy_out(scr_run *r, uint64_t offset, uint64_t n, const unsigned char *src);
/* Shows the peers that the slot of a ticket is filled. */
void scr_mark_filled(scr_group *g, scr_run *r, int large, scr_slot *s, uint64_t ticket);
/* Copies chunk k of this rank's blocks into the slot of a ticket, where all others have consumed what lay there. */
void scr_publish_blocks(scr_group *g, scr_run *r, uint64_t k, uint64_t ticket);
/* Copies [from, from + n) of this rank's own block from the input straight to the output. */
void scr_copy_across(scr_group *g, scr_run *r, uint64_t from, uint64_t n);

/* The two stages before the pipeline (heads.c): 0, SCR_BLOCKED, or an incident code. */
int scr_publish_heads(scr_group *g, scr_run *r);
int scr_read_heads(scr_group *g, scr_run *r);

#pragma GCC visibility pop

#endif
