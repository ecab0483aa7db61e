/* cache.c: the program cache of a group: an open-addressed table that threads read without a lock. */
#include <stdlib.h>

#include "group.h"

scr_program *scr_program_new(void) { return calloc(1, sizeof(scr_program)); }

void scr_program_free(scr_program *p) {
  if (p) free(p->sendrecv);
  free(p);
}

/* kind (4 bits) | dtype (5) | reduce op (4) | class (8) | root + 1 (32), never 0. Fields on which a kind does not
 * depend stay 0, so a broadcast has one program for all types. */
_Static_assert(SAGECOMM_KIND_COUNT <= 16 && SAGECOMM_DTYPE_COUNT <= 32 && SAGECOMM_REDUCE_OP_COUNT <= 16,
               "each fits into its field of the key");
uint64_t scr_cache_key(const scr_group *g, const sagecomm_op *op, uint64_t bytes) {
  uint64_t key = UINT64_C(1) << 63 | (uint64_t)op->kind << 53 | (uint64_t)scr_group_class(g, op->kind, bytes) << 41;
  if (scr_reduces(op->kind)) key |= (uint64_t)op->dtype << 36 | (uint64_t)op->reduce_op << 32;
  if (scr_rooted(op->kind)) key |= (uint64_t)((uint32_t)op->root + 1);
  return key;
}

static inline uint32_t cache_index(uint64_t key) {
  return (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 40) & (SCR_CACHE_ENTRIES - 1);
}

const scr_program *scr_cache_find(const scr_group *g, uint64_t key) {
  for (uint32_t i = cache_index(key);; i = (i + 1) & (SCR_CACHE_ENTRIES - 1)) {
    uint64_t k = atomic_load_explicit(&g->cache[i].key, memory_order_acquire);
    if (k == key) return g->cache[i].program;
    if (k == 0) return NULL;
  }
}

/* Requires: Go's mutex of the group, so one thread inserts at a time. */
bool scr_cache_insert(scr_group *g, uint64_t key, scr_program *p) {
  if (atomic_load_explicit(&g->cached, memory_order_relaxed) >= SCR_CACHE_ENTRIES / 4 * 3) return false;
  uint32_t i = cache_index(key);
  while (atomic_load_explicit(&g->cache[i].key, memory_order_relaxed) != 0) i = (i + 1) & (SCR_CACHE_ENTRIES - 1);
  g->cache[i].program = p;
  atomic_store_explicit(&g->cache[i].key, key, memory_order_release);
  atomic_fetch_add_explicit(&g->cached, 1, memory_order_relaxed);
  return true;
}

uint32_t scr_cache_entries(const scr_group *g) { return atomic_load_explicit(&g->cached, memory_order_relaxed); }
