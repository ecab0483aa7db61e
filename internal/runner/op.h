/* op.h: what an operation is, apart from any group that carries it out. */
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
/* Whether all segments have whole elements of so many bytes, a power of two. */
bool scr_op_whole(const sagecomm_op *op, uint64_t elem);
/* The length that an operation is known by, the same on all ranks (coll.Op.Bytes), or UINT64_MAX where in and out do not
 * fit together. */
uint64_t scr_op_bytes(const sagecomm_op *op, int32_t rank, int32_t size);

/* Whether the fast path may take a call of this rank whose program is in the cache. What else Go would refuse has no program
 * under its key. */
bool scr_op_allowed(int32_t rank, const sagecomm_op *op, uint64_t bytes);

#endif
