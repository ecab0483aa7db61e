/* collectives.c: collectives, sends, recvs, and reductions that multiply first. */
#include <stdlib.h>
#include <string.h>

#include "../facade/facade.h"

/* ---- types and reductions ---- */

const facade_type facade_types[ncclNumTypes] = {
    [ncclInt8] = {SAGECOMM_INT8, 1, false},
    [ncclUint8] = {SAGECOMM_UINT8, 1, false},
    [ncclInt32] = {SAGECOMM_INT32, 4, false},
    [ncclUint32] = {SAGECOMM_UINT32, 4, false},
    [ncclInt64] = {SAGECOMM_INT64, 8, false},
    [ncclUint64] = {SAGECOMM_UINT64, 8, false},
    [ncclFloat16] = {SAGECOMM_FLOAT16, 2, false},
    [ncclFloat32] = {SAGECOMM_FLOAT32, 4, false},
    [ncclFloat64] = {SAGECOMM_FLOAT64, 8, false},
    [ncclBfloat16] = {SAGECOMM_BFLOAT16, 2, false},
    [ncclFloat8e4m3] = {SAGECOMM_FLOAT8_E4M3FN, 1, false},
    [ncclFloat8e5m2] = {SAGECOMM_FLOAT8_E5M2, 1, false},
};
const int facade_n_types = ncclNumTypes;

static const uint8_t reductions[ncclNumOps] = {
    [ncclSum] = SAGECOMM_SUM, [ncclProd] = SAGECOMM_PRODUCT, [ncclMax] = SAGECOMM_MAX,
    [ncclMin] = SAGECOMM_MIN, [ncclAvg] = SAGECOMM_AVG,
};

static bool is_floating(ncclDataType_t type) {
  return type == ncclFloat16 || type == ncclFloat32 || type == ncclFloat64 || type == ncclBfloat16;
}

/* Requires: the lock. */
static int next_number(void) {
  static int last = ncclNumOps - 1;
  last = last == ncclMaxRedOp ? ncclNumOps : last + 1;
  return last;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  static const char *const function = "ncclRedOpCreatePreMulSum";
  if (op == NULL || scalar == NULL) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: %s: %s is NULL", function, op == NULL ? "op" : "scalar");
  }
  ncclResult_t result = comm_enter(comm, function);
  if (result != ncclSuccess) return result;
  reduction made = {.type = (int)type};
  if (!type_known((int)type)) {
    result = fail(comm, ncclInvalidArgument, "sagecomm: %s: data type %d, expected 0 to %d", function, (int)type,
                  ncclNumTypes - 1);
  } else if (!is_floating(type)) {
    result = fail(comm, ncclInvalidUsage,
                  "sagecomm: %s: data type %d: PREMUL_SUM is not defined for it, but for floats of 16 bits and more",
                  function, (int)type);
  } else if (residence == ncclScalarDevice) {
    made.scalar = scalar; /* read when an operation is issued */
  } else if (residence != ncclScalarHostImmediate) {
    result = fail(comm, ncclInvalidArgument, "sagecomm: %s: residence %d, expected 0 or 1", function, (int)residence);
  } else {
    result = read_factor(comm, scalar, facade_types[type].dtype, NULL, &made.factor);
  }
  if (result != ncclSuccess) {
    comm_release(comm);
    return result;
  }
  pthread_mutex_lock(&comm_lock);
  int at = 0;
  while (at < comm->n_reductions && comm->reductions[at].number != 0) at++;
  if (at == comm->n_reductions) {
    reduction *more = realloc(comm->reductions, (size_t)(at + 1) * sizeof *more);
    if (more == NULL) {
      at = -1;
    } else {
      comm->reductions = more;
      comm->n_reductions++;
    }
  }
  if (at >= 0) {
    made.number = next_number();
    comm->reductions[at] = made;
  }
  pthread_mutex_unlock(&comm_lock);
  if (at >= 0) {
    *op = (ncclRedOp_t)made.number;
  } else {
    result = out_of_memory(function);
  }
  comm_release(comm);
  return result;
}
EXPORTED(RedOpCreatePreMulSum);

/* Finds a reduction that a user has made. Calls that were given it before have a copy. */
static bool find_reduction(ncclComm_t comm, ncclRedOp_t op, reduction *found, bool destroy) {
  pthread_mutex_lock(&comm_lock);
  int at = 0;
  while (at < comm->n_reductions && comm->reductions[at].number != (int)op) at++;
  bool here = (int)op >= ncclNumOps && at < comm->n_reductions;
  if (here) *found = comm->reductions[at];
  if (here && destroy) comm->reductions[at].number = 0;
  pthread_mutex_unlock(&comm_lock);
  return here;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  ncclResult_t result = comm_hold(comm, "ncclRedOpDestroy");
  if (result != ncclSuccess) return result;
  reduction gone;
  if (!find_reduction(comm, op, &gone, true)) {
    result = fail(comm, ncclInvalidArgument, "sagecomm: ncclRedOpDestroy: op %d was not made for this communicator",
                  (int)op);
  }
  comm_release(comm);
  return result;
}
EXPORTED(RedOpDestroy);

facade_result facade_reduction(const request *r, comm_t comm, call *c) {
  if (r->op >= 0 && r->op < ncclNumOps) {
    c->op.reduce_op = reductions[r->op];
    return ncclSuccess;
  }
  reduction made;
  if (!find_reduction(comm, (ncclRedOp_t)r->op, &made, false)) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: op %d was not made for this communicator", r->function,
                r->op);
  }
  if (made.type != r->type) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: op %d was made for data type %d, and the data have type %d",
                r->function, r->op, made.type, r->type);
  }
  c->op.reduce_op = SAGECOMM_PREMUL_SUM;
  c->op.factor = made.factor;
  c->scalar = made.scalar;
  c->scalar_type = facade_types[made.type].dtype;
  return ncclSuccess;
}

/* ---- functions ---- */

#define SUBMIT(function_, kind_, send_, recv_, op_, root_) \
  request r = {.function = function_,                      \
               .kind = kind_,                              \
               .send = send_,                              \
               .recv = recv_,                              \
               .count = count,                             \
               .type = (int)type,                          \
               .op = (int)(op_),                           \
               .root = root_,                              \
               .stream = stream};                          \
  return request_submit(&r, comm)

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  SUBMIT("ncclAllReduce", SAGECOMM_ALL_REDUCE, from, to, op, 0);
}
EXPORTED(AllReduce);

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  SUBMIT("ncclReduce", SAGECOMM_REDUCE, from, to, op, root);
}
EXPORTED(Reduce);

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  SUBMIT("ncclBroadcast", SAGECOMM_BROADCAST, from, to, ncclSum, root);
}
EXPORTED(Broadcast);

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  SUBMIT("ncclBcast", SAGECOMM_BROADCAST, buffer, buffer, ncclSum, root);
}
EXPORTED(Bcast);

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  SUBMIT("ncclAllGather", SAGECOMM_ALL_GATHER, from, to, ncclSum, 0);
}
EXPORTED(AllGather);

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  SUBMIT("ncclReduceScatter", SAGECOMM_REDUCE_SCATTER, from, to, op, 0);
}
EXPORTED(ReduceScatter);

ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  SUBMIT("ncclAlltoAll", SAGECOMM_ALL_TO_ALL, from, to, ncclSum, 0);
}
EXPORTED(AlltoAll);

ncclResult_t ncclGather(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  SUBMIT("ncclGather", SAGECOMM_GATHER, from, to, ncclSum, root);
}
EXPORTED(Gather);

ncclResult_t ncclScatter(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  SUBMIT("ncclScatter", SAGECOMM_SCATTER, from, to, ncclSum, root);
}
EXPORTED(Scatter);

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  SUBMIT("ncclSend", SAGECOMM_SEND, from, NULL, ncclSum, peer);
}
EXPORTED(Send);

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  SUBMIT("ncclRecv", SAGECOMM_RECV, NULL, to, ncclSum, peer);
}
EXPORTED(Recv);
