/* op.h: lengths and properties of an operation that do not depend on the state of a group. */
#ifndef SCR_OP_H
#define SCR_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "../../export/sagecomm.h"

/* coll.Kind.Reduces and coll.Kind.Rooted. */
static inline bool scr_reduces(int kind) {
  return kind == SAGECOMM_ALL_REDUCE || kind == SAGECOMM_REDUCE || kind == SAGECOMM_REDUCE_SCATTER;
}

static inline bool scr_rooted(int kind) {
  return kind == SAGECOMM_BROADCAST || kind == SAGECOMM_REDUCE || kind == SAGECOMM_GATHER || kind == SAGECOMM_SCATTER;
}

/* Bytes of a buffer; UINT64_MAX for more than INT64_MAX. */
uint64_t scr_total(const sagecomm_segment *s, uint32_t n);
/* Whether every segment holds whole elements. Requires: `elem`, the bytes of an element, is a power of two. */
bool scr_op_whole(const sagecomm_op *op, uint64_t elem);
/* Returns the length that identifies an operation, the same on all ranks (coll.Op.Bytes), or UINT64_MAX if the input
 * and the output do not fit together. */
uint64_t scr_op_bytes(const sagecomm_op *op, int32_t rank, int32_t size);

/* Whether the fast path may take this rank's call if its program is in the cache. It checks only what the cache key
 * does not cover: a call that Go refuses for another reason has no program under its key. */
bool scr_op_allowed(int32_t rank, const sagecomm_op *op, uint64_t bytes);

#endif
