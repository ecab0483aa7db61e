/* buffers.c: what memory a call may be given. An operation that writes where it still has to read gives wrong results
 * on some ranks and right ones on others, depending on the algorithm, so it is refused before anything is sent. */
#include <stdlib.h>
#include <string.h>

#include "facade.h"

static int by_address(const void *a, const void *b) {
  const char *x = ((const sagecomm_segment *)a)->data, *y = ((const sagecomm_segment *)b)->data;
  return x < y ? -1 : x > y;
}

/* Whether two pieces of one buffer overlap. It sorts them, so they are a copy. */
static bool pieces_overlap(sagecomm_segment *pieces, uint32_t n) {
  qsort(pieces, n, sizeof *pieces, by_address);
  for (uint32_t i = 1; i < n; i++) {
    if ((char *)pieces[i - 1].data + pieces[i - 1].bytes > (char *)pieces[i].data) return true;
  }
  return false;
}

/* The pieces of one side of a call. */
typedef struct pieces {
  const sagecomm_segment *list;
  uint32_t n;
} pieces;

static uint64_t bytes_of(pieces p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p.n; i++) bytes += p.list[i].bytes;
  return bytes;
}

/* Returns the range from the lowest byte of all pieces to the highest one: no bytes, if there are no pieces. */
static sagecomm_segment range_of(pieces p) {
  uintptr_t from = UINTPTR_MAX, to = 0;
  for (uint32_t i = 0; i < p.n; i++) {
    uintptr_t at = (uintptr_t)p.list[i].data, end = at + p.list[i].bytes;
    if (at < from) from = at;
    if (end > to) to = end;
  }
  return (sagecomm_segment){(void *)from, to > from ? to - from : 0};
}

/* Returns how many bytes two pieces share. */
static uint64_t common(const sagecomm_segment *a, const sagecomm_segment *b) {
  uintptr_t at = (uintptr_t)a->data, other = (uintptr_t)b->data, from = at > other ? at : other;
  uintptr_t end = at + a->bytes, other_end = other + b->bytes, to = end < other_end ? end : other_end;
  return to > from ? to - from : 0;
}

static uintptr_t end_of(const sagecomm_segment *piece) { return (uintptr_t)piece->data + piece->bytes; }

/* Whether each piece begins behind the one before it, as nearly all lists have it. */
static bool rises(pieces p) {
  for (uint32_t i = 1; i < p.n; i++) {
    if (end_of(&p.list[i - 1]) > (uintptr_t)p.list[i].data) return false;
  }
  return true;
}

facade_result buffers_check_blocks(const request *r, comm_t comm, const sagecomm_segment *list, uint32_t n) {
  if (rises((pieces){list, n})) return RESULT_OK;
  sagecomm_segment *copy = malloc(n * sizeof *copy);
  if (copy == NULL) return out_of_memory(r->function);
  memcpy(copy, list, n * sizeof *copy);
  bool overlap = pieces_overlap(copy, n);
  free(copy);
  if (!overlap) return RESULT_OK;
  return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: blocks of recvbuff overlap: give each an offset of its own",
              r->function);
}

/* Returns how many bytes both sides share. Bytes that two blocks of an input have count twice. */
static uint64_t shared(pieces in, pieces out) {
  sagecomm_segment all_in = range_of(in), all_out = range_of(out);
  uint64_t bytes = 0;
  if (common(&all_in, &all_out) == 0) return 0;
  if (rises(in) && rises(out)) { /* 1,000 ranks have 1,000 pieces on each side */
    /* The piece that ends first shares nothing with what comes behind the other one. */
    for (uint32_t i = 0, k = 0; i < in.n && k < out.n;) {
      bytes += common(&in.list[i], &out.list[k]);
      if (end_of(&in.list[i]) < end_of(&out.list[k])) {
        i++;
      } else {
        k++;
      }
    }
    return bytes;
  }
  for (uint32_t i = 0; i < in.n; i++) {
    for (uint32_t k = 0; k < out.n; k++) bytes += common(&in.list[i], &out.list[k]);
  }
  return bytes;
}

/* Returns where the block of a rank begins, in elements. Blocks without offsets follow one another. */
static uint64_t place_of(int rank, const uint64_t *counts, const uint64_t *offsets, uint64_t count) {
  if (offsets != NULL) return offsets[rank];
  if (counts == NULL) return (uint64_t)rank * count;
  uint64_t at = 0;
  for (int i = 0; i < rank; i++) at += counts[i];
  return at;
}

static pieces inputs(const call *c) { return (pieces){c->lists != NULL ? c->lists->in : &c->in, c->op.n_in}; }
static pieces outputs(const call *c) { return (pieces){c->lists != NULL ? c->lists->out : &c->out, c->op.n_out}; }

/* Whether the vendors call an operation one in place: both buffers are one, or that of one block is the block of this
 * rank in the other buffer. */
static bool in_place(const request *r, comm_t comm) {
  uintptr_t send = (uintptr_t)r->send, recv = (uintptr_t)r->recv;
  size_t width = facade_types[r->type].bytes;
  switch (r->kind) {
    case SAGECOMM_ALL_GATHER:
    case SAGECOMM_GATHER:
      return send == recv + place_of(comm->rank, r->recv_counts, r->recv_offsets, r->count) * width;
    case SAGECOMM_REDUCE_SCATTER:
    case SAGECOMM_SCATTER:
      return recv == send + place_of(comm->rank, r->send_counts, r->send_offsets, r->count) * width;
    case SAGECOMM_ALL_TO_ALL:
      return comm->size == 1 && send + place_of(0, r->send_counts, r->send_offsets, 0) * width ==
                                    recv + place_of(0, r->recv_counts, r->recv_offsets, 0) * width;
    default:
      return send == recv;
  }
}

/* Returns what a user can do about buffers that overlap. */
static const char *remedy(sagecomm_kind kind) {
  switch (kind) {
    case SAGECOMM_ALL_GATHER:
    case SAGECOMM_GATHER:
      return "give them memory apart, or this rank's block of recvbuff as sendbuff";
    case SAGECOMM_REDUCE_SCATTER:
    case SAGECOMM_SCATTER:
      return "give them memory apart, or this rank's block of sendbuff as recvbuff";
    case SAGECOMM_ALL_TO_ALL:
      return "give them memory apart: it cannot be done in place";
    default:
      return "give them memory apart, or the same address";
  }
}

/* The bytes that both sides share in place are those of the shorter one, which is one block, and no others. */
static facade_result check_overlap(const request *r, comm_t comm, const call *c) {
  const sagecomm_segment source = {(void *)c->copy_from, c->out.bytes};
  pieces in = inputs(c), out = outputs(c);
  if (r->kind == SAGECOMM_BROADCAST) in = (pieces){&source, c->copy_from != NULL};
  uint64_t bytes = shared(in, out), in_bytes = bytes_of(in), out_bytes = bytes_of(out);
  if (bytes == 0 || (in_place(r, comm) && bytes == (in_bytes < out_bytes ? in_bytes : out_bytes))) return RESULT_OK;
  return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: sendbuff and recvbuff overlap: %s", r->function, remedy(r->kind));
}

/* A device reduces elements, and takes no address that is none of an element. Data that only move are bytes. */
static facade_result check_alignment(const request *r, comm_t comm, const call *c) {
  size_t width = facade_types[r->type].bytes;
  bool send = bytes_of(inputs(c)) > 0 && (uintptr_t)r->send % width != 0;
  bool recv = bytes_of(outputs(c)) > 0 && (uintptr_t)r->recv % width != 0;
  if (!send && !recv) return RESULT_OK;
  return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: %s is %p, expected a multiple of %zu, the bytes of an element",
              r->function, send ? "sendbuff" : "recvbuff", send ? r->send : r->recv, width);
}

facade_result buffers_check(const request *r, comm_t comm, const call *c) {
  facade_result result = kind_reduces(r->kind) ? check_alignment(r, comm, c) : RESULT_OK;
  return result == RESULT_OK ? check_overlap(r, comm, c) : result;
}
