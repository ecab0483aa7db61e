/* collectives.c: collectives, sends and recvs. */
#include <stdlib.h>

#include "hccl.h"

/* ---- types and reductions ---- */

/* Types that the core does not have are moved as bytes. */
const facade_type facade_types[HCCL_TYPES] = {
    [HCCL_INT8] = {SAGECOMM_INT8, 1, false},
    [HCCL_INT16] = {SAGECOMM_INT16, 2, false},
    [HCCL_INT32] = {SAGECOMM_INT32, 4, false},
    [HCCL_FP16] = {SAGECOMM_FLOAT16, 2, false},
    [HCCL_FP32] = {SAGECOMM_FLOAT32, 4, false},
    [HCCL_INT64] = {SAGECOMM_INT64, 8, false},
    [HCCL_UINT64] = {SAGECOMM_UINT64, 8, false},
    [HCCL_UINT8] = {SAGECOMM_UINT8, 1, false},
    [HCCL_UINT16] = {SAGECOMM_UINT16, 2, false},
    [HCCL_UINT32] = {SAGECOMM_UINT32, 4, false},
    [HCCL_FP64] = {SAGECOMM_FLOAT64, 8, false},
    [HCCL_BFP16] = {SAGECOMM_BFLOAT16, 2, false},
    [HCCL_INT128] = {SAGECOMM_UINT8, 16, true},
    [HCCL_HIF8] = {SAGECOMM_UINT8, 1, true},
    [HCCL_FP8E4M3] = {SAGECOMM_FLOAT8_E4M3FN, 1, true},
    [HCCL_FP8E5M2] = {SAGECOMM_FLOAT8_E5M2, 1, true},
    [HCCL_FP8E8M0] = {SAGECOMM_FLOAT8_E8M0FNU, 1, true},
};
const int facade_n_types = HCCL_TYPES;

facade_result facade_reduction(const request *r, comm_t comm, call *c) {
  static const uint8_t reductions[] = {[HCCL_REDUCE_SUM] = SAGECOMM_SUM,
                                       [HCCL_REDUCE_PROD] = SAGECOMM_PRODUCT,
                                       [HCCL_REDUCE_MAX] = SAGECOMM_MAX,
                                       [HCCL_REDUCE_MIN] = SAGECOMM_MIN};
  if (r->op < 0 || r->op > HCCL_REDUCE_MIN) {
    return fail(comm, HCCL_E_PARA, "sagecomm: %s: reduction %d, expected 0 to 3", r->function, r->op);
  }
  c->op.reduce_op = reductions[r->op];
  return HCCL_SUCCESS;
}

/* ---- functions ---- */

/* A rank of HCCL is an uint32_t; one that is too large is outside in any case. */
static int rank_of(uint32_t rank) { return rank > INT32_MAX ? -1 : (int)rank; }

/* Fields beside those that all calls have. */
#define SUBMIT(function_, kind_, send_, recv_, ...)                                                                 \
  request r = {                                                                                                     \
      .function = function_, .kind = kind_, .send = send_, .recv = (void *)(recv_), .stream = stream, __VA_ARGS__}; \
  return request_submit(&r, comm)

HcclResult HcclAllReduce(void *from, void *to, uint64_t count, int32_t type, int32_t op, HcclComm comm,
                         HcclStream stream) {
  SUBMIT("HcclAllReduce", SAGECOMM_ALL_REDUCE, from, to, .count = count, .type = type, .op = op);
}

HcclResult HcclBroadcast(void *buffer, uint64_t count, int32_t type, uint32_t root, HcclComm comm, HcclStream stream) {
  SUBMIT("HcclBroadcast", SAGECOMM_BROADCAST, buffer, buffer, .count = count, .type = type, .root = rank_of(root));
}

HcclResult HcclReduce(void *from, void *to, uint64_t count, int32_t type, int32_t op, uint32_t root, HcclComm comm,
                      HcclStream stream) {
  SUBMIT("HcclReduce", SAGECOMM_REDUCE, from, to, .count = count, .type = type, .op = op, .root = rank_of(root));
}

HcclResult HcclScatter(void *from, void *to, uint64_t count, int32_t type, uint32_t root, HcclComm comm,
                       HcclStream stream) {
  SUBMIT("HcclScatter", SAGECOMM_SCATTER, from, to, .count = count, .type = type, .root = rank_of(root));
}

HcclResult HcclAllGather(void *from, void *to, uint64_t count, int32_t type, HcclComm comm, HcclStream stream) {
  SUBMIT("HcclAllGather", SAGECOMM_ALL_GATHER, from, to, .count = count, .type = type);
}

HcclResult HcclReduceScatter(void *from, void *to, uint64_t count, int32_t type, int32_t op, HcclComm comm,
                             HcclStream stream) {
  SUBMIT("HcclReduceScatter", SAGECOMM_REDUCE_SCATTER, from, to, .count = count, .type = type, .op = op);
}

/* Returns the error of a call whose list of counts is NULL. */
static HcclResult no_counts(const char *function) {
  return refused(fail(NULL, HCCL_E_PTR, "sagecomm: %s: a list of counts is NULL", function));
}

HcclResult HcclAllGatherV(void *from, uint64_t count, void *to, const void *counts, const void *offsets, int32_t type,
                          HcclComm comm, HcclStream stream) {
  if (counts == NULL) return no_counts("HcclAllGatherV");
  SUBMIT("HcclAllGatherV", SAGECOMM_ALL_GATHER, from, to, .count = count, .type = type, .recv_counts = counts,
         .recv_offsets = offsets);
}

HcclResult HcclReduceScatterV(void *from, const void *counts, const void *offsets, void *to, uint64_t count,
                              int32_t type, int32_t op, HcclComm comm, HcclStream stream) {
  if (counts == NULL) return no_counts("HcclReduceScatterV");
  SUBMIT("HcclReduceScatterV", SAGECOMM_REDUCE_SCATTER, from, to, .count = count, .type = type, .op = op,
         .send_counts = counts, .send_offsets = offsets);
}

/* Returns the error of an exchange of different types. */
static HcclResult different(const char *function) {
  return refused(
      fail(NULL, HCCL_E_PARA, "sagecomm: %s: what is sent and what is received differ in type or count", function));
}

HcclResult HcclAlltoAll(const void *from, uint64_t count, int32_t from_type, const void *to, uint64_t to_count,
                        int32_t to_type, HcclComm comm, HcclStream stream) {
  if (from_type != to_type || count != to_count) return different("HcclAlltoAll");
  SUBMIT("HcclAlltoAll", SAGECOMM_ALL_TO_ALL, from, to, .count = count, .type = from_type);
}

HcclResult HcclAlltoAllV(const void *from, const void *counts, const void *offsets, int32_t from_type, const void *to,
                         const void *to_counts, const void *to_offsets, int32_t to_type, HcclComm comm,
                         HcclStream stream) {
  if (counts == NULL || to_counts == NULL) return no_counts("HcclAlltoAllV");
  if (from_type != to_type) return different("HcclAlltoAllV");
  SUBMIT("HcclAlltoAllV", SAGECOMM_ALL_TO_ALL, from, to, .type = from_type, .send_counts = counts,
         .send_offsets = offsets, .recv_counts = to_counts, .recv_offsets = to_offsets);
}

/* Row i of the matrix has what rank i sends to each rank. */
HcclResult HcclAlltoAllVC(const void *from, const void *matrix, int32_t from_type, const void *to, int32_t to_type,
                          HcclComm comm, HcclStream stream) {
  static const char *const function = "HcclAlltoAllVC";
  if (matrix == NULL) return no_counts(function);
  if (from_type != to_type) return different(function);
  HcclResult result = comm_enter(comm, function);
  if (result != HCCL_SUCCESS) return refused(result);
  size_t rank = (size_t)((comm_t)comm)->rank, size = (size_t)((comm_t)comm)->size;
  const uint64_t *all = matrix;
  uint64_t *column = malloc(size * sizeof *column);
  if (column == NULL) {
    comm_release(comm);
    return refused(out_of_memory(function));
  }
  for (size_t i = 0; i < size; i++) column[i] = all[i * size + rank];
  request r = {.function = function,
               .kind = SAGECOMM_ALL_TO_ALL,
               .send = from,
               .recv = (void *)to,
               .type = from_type,
               .stream = stream,
               .send_counts = all + rank * size,
               .recv_counts = column};
  result = request_submit(&r, comm);
  free(column);
  comm_release(comm);
  return result;
}

HcclResult HcclSend(void *from, uint64_t count, int32_t type, uint32_t peer, HcclComm comm, HcclStream stream) {
  SUBMIT("HcclSend", SAGECOMM_SEND, from, NULL, .count = count, .type = type, .root = rank_of(peer));
}

HcclResult HcclRecv(void *to, uint64_t count, int32_t type, uint32_t peer, HcclComm comm, HcclStream stream) {
  SUBMIT("HcclRecv", SAGECOMM_RECV, NULL, to, .count = count, .type = type, .root = rank_of(peer));
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem *items, uint32_t n, HcclComm comm, HcclStream stream) {
  static const char *const function = "HcclBatchSendRecv";
  if (items == NULL) return refused(fail(NULL, HCCL_E_PTR, "sagecomm: %s: sendRecvInfo is NULL", function));
  HcclResult item = comm_enter(comm, function); /* also where there are no items */
  if (item != HCCL_SUCCESS) return refused(item);
  comm_release(comm);
  group_start();
  for (uint32_t i = 0; i < n && item == HCCL_SUCCESS; i++) {
    bool sends = items[i].type == HCCL_SEND;
    if (!sends && items[i].type != HCCL_RECV) {
      item =
          refused(fail(NULL, HCCL_E_PARA, "sagecomm: %s: item %u is neither a send nor a recv", function, (unsigned)i));
      break;
    }
    request r = {.function = function,
                 .kind = sends ? SAGECOMM_SEND : SAGECOMM_RECV,
                 .send = sends ? items[i].buffer : NULL,
                 .recv = sends ? NULL : items[i].buffer,
                 .count = items[i].count,
                 .type = items[i].data_type,
                 .root = rank_of(items[i].peer),
                 .stream = stream};
    item = request_submit(&r, comm);
  }
  HcclResult result = group_end(); /* of the outermost group call, which may be another one */
  return item != HCCL_SUCCESS ? item : result;
}

/* The host waits for what the stream holds, and then for the other ranks. */
HcclResult HcclBarrier(HcclComm comm, HcclStream stream) {
  SUBMIT("HcclBarrier", SAGECOMM_BARRIER, NULL, NULL, .type = HCCL_INT8);
}
