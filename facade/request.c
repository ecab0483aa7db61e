/* request.c: collectives, sends and recvs as their user asks for them, which become operations of the core. */
#include <stdlib.h>
#include <string.h>

#include "facade.h"

bool type_known(int type) { return type >= 0 && type < facade_n_types && facade_types[type].bytes > 0; }

facade_result read_factor(comm_t comm, const void *scalar, uint8_t dtype, void *stream, double *factor) {
  sagecomm_error err = {0};
  int32_t status = core()->read_factor(scalar, dtype, stream, factor, &err);
  return status < 0 ? failed(comm, status, &err) : RESULT_OK;
}

bool kind_reduces(sagecomm_kind kind) {
  return kind == SAGECOMM_ALL_REDUCE || kind == SAGECOMM_REDUCE || kind == SAGECOMM_REDUCE_SCATTER;
}

/* Sets how many blocks of `count` elements this rank gives and gets. */
static void blocks(const request *r, comm_t comm, size_t *in, size_t *out) {
  size_t all = (size_t)comm->size;
  bool root = comm->rank == r->root;
  switch (r->kind) {
    case SAGECOMM_ALL_GATHER:
      *in = 1, *out = all;
      break;
    case SAGECOMM_REDUCE_SCATTER:
      *in = all, *out = 1;
      break;
    case SAGECOMM_ALL_TO_ALL:
      *in = *out = all;
      break;
    case SAGECOMM_BROADCAST:
      *in = root, *out = 1;
      break;
    case SAGECOMM_REDUCE:
      *in = 1, *out = root;
      break;
    case SAGECOMM_GATHER:
      *in = 1, *out = root ? all : 0;
      break;
    case SAGECOMM_SCATTER:
      *in = root ? all : 0, *out = 1;
      break;
    case SAGECOMM_SEND:
      *in = 1, *out = 0;
      break;
    case SAGECOMM_RECV:
      *in = 0, *out = 1;
      break;
    case SAGECOMM_BARRIER:
      *in = *out = 0;
      break;
    default:
      *in = *out = 1;
      break;
  }
}

/* Sets the device of a call's buffers, which the core tells. */
static facade_result set_place(const request *r, comm_t comm, call *c) {
  if (r->kind == SAGECOMM_BARRIER) return RESULT_OK; /* it is one of the host, behind the stream */
  const void *buffers[] = {c->op.n_out ? c->out.data : NULL, c->op.n_in ? c->in.data : NULL, c->copy_from};
  if (buffers[0] == NULL && buffers[1] == NULL) { /* blocks of no bytes: peers may have some, in the same place */
    buffers[0] = r->recv;
    buffers[1] = r->send;
  }
  bool first = true;
  for (int i = 0; i < 3; i++) {
    if (buffers[i] == NULL || (i > 0 && buffers[i] == buffers[i - 1])) continue;
    uint8_t type = 0;
    int32_t index = 0;
    sagecomm_error err = {0};
    int32_t status = core()->locate(buffers[i], &type, &index, &err);
    if (status < 0) return failed(comm, status, &err);
    if (first) {
      c->op.device_type = type;
      c->op.device_index = index;
    } else if (type != c->op.device_type || index != c->op.device_index) {
      return fail(comm, RESULT_USAGE,
                  "sagecomm: %s: sendbuff and recvbuff are memory of different devices, or one is of the host",
                  r->function);
    }
    first = false;
  }
  comm_place(comm, !first, &c->op);
  return RESULT_OK;
}

/* Bytes of the blocks of one side, and where they lie. */
typedef struct side {
  void *data;
  const uint64_t *counts, *offsets;
  size_t bytes; /* of all blocks */
} side;

/* Adds up the blocks of a side. Returns false if they are too many bytes. */
static bool measure(side *s, int ranks, size_t width) {
  s->bytes = 0;
  for (int i = 0; i < ranks; i++) {
    uint64_t at = s->offsets == NULL ? 0 : s->offsets[i], most = INT64_MAX / width / (size_t)ranks;
    if (s->counts[i] > most || at > most) return false;
    s->bytes += s->counts[i] * width;
  }
  return true;
}

/* Lists the pieces of a side; returns how many there are. Pieces that follow one another are one. */
static uint32_t list_pieces(const side *s, int ranks, size_t width, sagecomm_segment *pieces, uint64_t *lengths) {
  uint32_t n = 0;
  uint64_t next = 0;
  for (int i = 0; i < ranks; i++) {
    uint64_t bytes = s->counts[i] * width, at = s->offsets == NULL ? next : s->offsets[i] * width;
    lengths[i] = bytes;
    if (bytes == 0) continue;
    if (n > 0 && at == next) {
      pieces[n - 1].bytes += bytes;
    } else {
      pieces[n++] = (sagecomm_segment){(char *)s->data + at, bytes};
    }
    next = at + bytes;
  }
  return n;
}

/* Of a collective with one block of its own, this rank's count stands in the list as well. */
static facade_result check_own_count(const request *r, comm_t comm) {
  const uint64_t *counts = r->kind == SAGECOMM_ALL_GATHER       ? r->recv_counts
                           : r->kind == SAGECOMM_REDUCE_SCATTER ? r->send_counts
                                                                : NULL;
  if (counts == NULL || counts[comm->rank] == r->count) return RESULT_OK;
  return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: the count of this rank, %d, is %zu, and %llu in the list of counts",
              r->function, comm->rank, r->count, (unsigned long long)counts[comm->rank]);
}

/* Gives a call blocks of different lengths. */
static facade_result set_lists(const request *r, comm_t comm, call *c) {
  size_t width = facade_types[r->type].bytes, ranks = (size_t)comm->size;
  side in = {(void *)r->send, r->send_counts, r->send_offsets, 0}, out = {r->recv, r->recv_counts, r->recv_offsets, 0};
  if ((in.counts != NULL && !measure(&in, comm->size, width)) ||
      (out.counts != NULL && !measure(&out, comm->size, width))) {
    return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: a count or an offset of a block is too large", r->function);
  }
  if ((in.counts != NULL && in.bytes > 0 && in.data == NULL) ||
      (out.counts != NULL && out.bytes > 0 && out.data == NULL)) {
    return fail(comm, RESULT_NULL, "sagecomm: %s: %s is NULL", r->function,
                in.counts != NULL && in.bytes > 0 && in.data == NULL ? "sendbuff" : "recvbuff");
  }
  call_lists *l = calloc(1, sizeof *l + 2 * ranks * (sizeof *l->in + sizeof *l->in_blocks));
  if (l == NULL) return out_of_memory(r->function);
  l->in = (sagecomm_segment *)(l + 1);
  l->out = l->in + ranks;
  uint64_t *lengths = (uint64_t *)(l->out + ranks);
  if (in.counts != NULL) {
    l->in_blocks = lengths;
    c->op.n_in = list_pieces(&in, comm->size, width, l->in, l->in_blocks);
    c->in = (sagecomm_segment){c->op.n_in > 0 ? l->in[0].data : NULL, in.bytes};
  } else {
    l->in[0] = c->in;
  }
  if (out.counts != NULL) {
    l->out_blocks = lengths + ranks;
    c->op.n_out = list_pieces(&out, comm->size, width, l->out, l->out_blocks);
    c->out = (sagecomm_segment){c->op.n_out > 0 ? l->out[0].data : NULL, out.bytes};
  } else {
    l->out[0] = c->out;
  }
  c->lists = l;
  return out.counts == NULL ? RESULT_OK : buffers_check_blocks(r, comm, l->out, c->op.n_out);
}

facade_result request_translate(const request *r, comm_t comm, call *c) {
  if (!type_known(r->type)) {
    return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: data type %d, expected 0 to %d", r->function, r->type,
                facade_n_types - 1);
  }
  if (r->root < 0 || r->root >= comm->size) {
    return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: rank %d is outside the communicator, expected 0 to %d",
                r->function, r->root, comm->size - 1);
  }
  size_t in, out, width = facade_types[r->type].bytes;
  if (r->count > INT64_MAX / width / (size_t)comm->size) {
    return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: count %zu is too large", r->function, r->count);
  }
  blocks(r, comm, &in, &out);
  *c = (call){.op = {.kind = r->kind,
                     .dtype = facade_types[r->type].dtype,
                     .root = r->root,
                     .n_in = in > 0,
                     .n_out = out > 0,
                     .stream = r->stream},
              .in = {(void *)r->send, in * r->count * width},
              .out = {r->recv, out * r->count * width}};
  if (kind_reduces(r->kind)) {
    if (facade_types[r->type].only_moves) {
      return fail(comm, RESULT_UNSUPPORTED, "sagecomm: %s: data type %d is moved and cannot be reduced", r->function,
                  r->type);
    }
    facade_result result = facade_reduction(r, comm, c);
    if (result != RESULT_OK) return result;
  }
  bool p2p = r->kind == SAGECOMM_SEND || r->kind == SAGECOMM_RECV;
  if (p2p && r->root == comm->rank) c->op.flags = SAGECOMM_PAIRED;
  bool lists = r->send_counts != NULL || r->recv_counts != NULL;
  if (r->count == 0 && !lists && r->kind != SAGECOMM_BARRIER) { /* as in NCCL, also with pointers that are NULL */
    c->op.kind = SAGECOMM_KIND_COUNT;
    return RESULT_OK;
  }
  if (r->count > 0 && ((in > 0 && r->send == NULL) || (out > 0 && r->recv == NULL))) {
    return fail(comm, RESULT_NULL, "sagecomm: %s: %s is NULL", r->function,
                in > 0 && r->send == NULL ? "sendbuff" : "recvbuff");
  }
  if (r->kind == SAGECOMM_BROADCAST && in > 0) { /* in the core, the root of a broadcast has one buffer */
    if (r->send != r->recv) c->copy_from = r->send;
    c->in = c->out;
  }
  facade_result result = lists ? check_own_count(r, comm) : RESULT_OK;
  if (result == RESULT_OK && lists) result = set_lists(r, comm, c);
  if (result == RESULT_OK) result = buffers_check(r, comm, c);
  if (result == RESULT_OK) result = set_place(r, comm, c);
  if (result != RESULT_OK) {
    free(c->lists);
    c->lists = NULL;
  }
  return result;
}

facade_result request_submit(const request *r, comm_t comm) {
  facade_result result = comm_enter(comm, r->function);
  if (result != RESULT_OK) return refused(result);
  call c;
  result = request_translate(r, comm, &c);
  if (result == RESULT_OK && c.op.kind != SAGECOMM_KIND_COUNT) result = call_submit(comm, r->function, &c);
  comm_release(comm);
  return result == RESULT_OK || result == RESULT_IN_PROGRESS ? result : refused(result);
}
