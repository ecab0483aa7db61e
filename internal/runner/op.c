/* op.c: the length of an operation, whether its buffers fit its kind, and whether the fast path may take it.
 * internal/coll has the same rules in Go; op_test.go compares the two over all kinds, types and reductions. */
#include "op.h"

uint64_t scr_total(const sagecomm_segment *s, uint32_t n) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (s[i].bytes > INT64_MAX - bytes) return UINT64_MAX;
    bytes += s[i].bytes;
  }
  return bytes;
}

bool scr_op_whole(const sagecomm_op *op, uint64_t elem) {
  uint64_t bits = 0;
  for (uint32_t i = 0; i < op->n_in; i++) bits |= op->in[i].bytes;
  for (uint32_t i = 0; i < op->n_out; i++) bits |= op->out[i].bytes;
  return (bits & (elem - 1)) == 0;
}

/* Returns the length of the longest block, or UINT64_MAX if the blocks do not add up to the buffer or do not hold
 * whole elements. */
static uint64_t longest_block(const uint64_t *blocks, int32_t size, uint64_t total, uint64_t elem) {
  uint64_t longest = 0, left = total, bits = 0;
  for (int32_t i = 0; i < size; i++) {
    if (blocks[i] > left) return UINT64_MAX;
    left -= blocks[i];
    bits |= blocks[i];
    if (blocks[i] > longest) longest = blocks[i];
  }
  return left == 0 && (bits & (elem - 1)) == 0 ? longest : UINT64_MAX;
}

/* Returns the length of an operation whose one buffer holds the blocks of all ranks (`all` bytes) and whose other
 * one holds this rank's block (`one` bytes); UINT64_MAX if they do not fit together. */
static uint64_t block_bytes(const uint64_t *blocks, uint64_t all, uint64_t one, int32_t rank, int32_t size,
                            uint64_t elem) {
  if (blocks == NULL) return all % (uint64_t)size == 0 && all / (uint64_t)size == one ? one : UINT64_MAX;
  return one == blocks[rank] ? longest_block(blocks, size, all, elem) : UINT64_MAX;
}

/* Bytes of an element, in sagecomm_dtype's order. */
static const uint8_t elem_bytes[SAGECOMM_DTYPE_COUNT] = {1, 2, 4, 8,  1, 2, 4, 8, 1, 2, 2,
                                                         4, 8, 8, 16, 1, 1, 1, 1, 1, 8};

/* Whether both buffers hold blocks and this rank's own block has the same length in both. */
static bool exchanges(const sagecomm_op *op, uint64_t in, uint64_t out, int32_t rank, int32_t size, uint64_t elem) {
  if (in == UINT64_MAX || out == UINT64_MAX) return false;
  if (op->in_blocks ? longest_block(op->in_blocks, size, in, elem) == UINT64_MAX : in % (uint64_t)size != 0)
    return false;
  if (op->out_blocks ? longest_block(op->out_blocks, size, out, elem) == UINT64_MAX : out % (uint64_t)size != 0) {
    return false;
  }
  uint64_t mine = op->in_blocks ? op->in_blocks[rank] : in / (uint64_t)size;
  return mine == (op->out_blocks ? op->out_blocks[rank] : out / (uint64_t)size);
}

uint64_t scr_op_bytes(const sagecomm_op *op, int32_t rank, int32_t size) {
  uint64_t in = scr_total(op->in, op->n_in), out = scr_total(op->out, op->n_out);
  uint64_t elem = op->dtype < SAGECOMM_DTYPE_COUNT ? elem_bytes[op->dtype] : 1;
  switch (op->kind) {
    case SAGECOMM_ALL_REDUCE:
      return in == out ? in : UINT64_MAX;
    case SAGECOMM_REDUCE: /* only the root needs an output */
      return in == out || op->n_out == 0 ? in : UINT64_MAX;
    case SAGECOMM_BROADCAST:
      return op->n_in == 0 || in == out ? out : UINT64_MAX;
    case SAGECOMM_ALL_GATHER:
      return op->in_blocks ? UINT64_MAX : block_bytes(op->out_blocks, out, in, rank, size, elem);
    case SAGECOMM_REDUCE_SCATTER:
      return op->out_blocks ? UINT64_MAX : block_bytes(op->in_blocks, in, out, rank, size, elem);
    case SAGECOMM_ALL_TO_ALL:
      return exchanges(op, in, out, rank, size, elem) ? 0 : UINT64_MAX;
    case SAGECOMM_GATHER:
      if (rank != op->root) return out == 0 ? in : UINT64_MAX;
      return block_bytes(NULL, out, in, rank, size, elem);
    case SAGECOMM_SCATTER:
      if (rank != op->root) return in == 0 ? out : UINT64_MAX;
      return block_bytes(NULL, in, out, rank, size, elem);
    case SAGECOMM_SEND:
      return in;
    case SAGECOMM_RECV:
      return out;
    default:
      return in == 0 && out == 0 ? 0 : UINT64_MAX;
  }
}

bool scr_op_allowed(int32_t rank, const sagecomm_op *op, uint64_t bytes) {
  bool whole = op->dtype < SAGECOMM_DTYPE_COUNT && scr_op_whole(op, elem_bytes[op->dtype]);
  bool rooted = scr_rooted(op->kind);
  return whole && bytes != UINT64_MAX && op->timeout_ns >= 0 && op->reduce_op < SAGECOMM_REDUCE_OP_COUNT &&
         (!rooted || op->root != rank || (op->n_in != 0 && op->n_out != 0));
}
