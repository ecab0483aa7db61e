/* collectives.c: collectives, sends, recvs, and reductions that multiply first. */
#include <stdlib.h>
#include <string.h>

#include "facade.h"

/* ---- types and reductions ---- */

static const struct {
  uint8_t dtype, bytes;
} types[ncclNumTypes] = {
    [ncclInt8] = {SAGECOMM_INT8, 1},
    [ncclUint8] = {SAGECOMM_UINT8, 1},
    [ncclInt32] = {SAGECOMM_INT32, 4},
    [ncclUint32] = {SAGECOMM_UINT32, 4},
    [ncclInt64] = {SAGECOMM_INT64, 8},
    [ncclUint64] = {SAGECOMM_UINT64, 8},
    [ncclFloat16] = {SAGECOMM_FLOAT16, 2},
    [ncclFloat32] = {SAGECOMM_FLOAT32, 4},
    [ncclFloat64] = {SAGECOMM_FLOAT64, 8},
    [ncclBfloat16] = {SAGECOMM_BFLOAT16, 2},
    [ncclFloat8e4m3] = {SAGECOMM_FLOAT8_E4M3FN, 1},
    [ncclFloat8e5m2] = {SAGECOMM_FLOAT8_E5M2, 1},
};

static const uint8_t reductions[ncclNumOps] = {
    [ncclSum] = SAGECOMM_SUM, [ncclProd] = SAGECOMM_PRODUCT, [ncclMax] = SAGECOMM_MAX,
    [ncclMin] = SAGECOMM_MIN, [ncclAvg] = SAGECOMM_AVG,
};

static bool known(ncclDataType_t type) { return (int)type >= 0 && type < ncclNumTypes; }

ncclResult_t read_factor(ncclComm_t comm, const void *scalar, ncclDataType_t type, cudaStream_t stream,
                         double *factor) {
  sagecomm_error err = {0};
  int32_t status = core()->read_factor(scalar, types[type].dtype, stream, factor, &err);
  return status < 0 ? failed(comm, status, &err) : ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  static const char *const function = "ncclRedOpCreatePreMulSum";
  if (op == NULL || scalar == NULL) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: %s: %s is NULL", function, op == NULL ? "op" : "scalar");
  }
  ncclResult_t result = comm_enter(comm, function);
  if (result != ncclSuccess) return result;
  reduction made = {.exists = true, .type = type};
  if (!known(type)) {
    result = fail(comm, ncclInvalidArgument, "sagecomm: %s: data type %d, expected 0 to %d", function, (int)type,
                  ncclNumTypes - 1);
  } else if (residence == ncclScalarDevice) {
    made.scalar = scalar; /* read when an operation is issued */
  } else {
    result = read_factor(comm, scalar, type, NULL, &made.factor);
  }
  if (result != ncclSuccess) {
    comm_release(comm);
    return result;
  }
  pthread_mutex_lock(&comm_lock);
  int at = 0;
  while (at < comm->n_reductions && comm->reductions[at].exists) at++;
  if (at == comm->n_reductions) {
    reduction *more = realloc(comm->reductions, (size_t)(at + 1) * sizeof *more);
    if (more == NULL) {
      at = -1;
    } else {
      comm->reductions = more;
      comm->n_reductions++;
    }
  }
  if (at >= 0) comm->reductions[at] = made;
  pthread_mutex_unlock(&comm_lock);
  if (at >= 0) {
    *op = (ncclRedOp_t)(ncclNumOps + at);
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
  int at = (int)op - ncclNumOps;
  bool here = at >= 0 && at < comm->n_reductions && comm->reductions[at].exists;
  if (here) *found = comm->reductions[at];
  if (here && destroy) comm->reductions[at].exists = false;
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

/* ---- a call ---- */

/* A call as its user makes it. Counts are of elements. */
typedef struct request {
  const char *function;
  sagecomm_kind kind;
  const void *send;
  void *recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  cudaStream_t stream;
} request;

static bool reduces(sagecomm_kind kind) {
  return kind == SAGECOMM_ALL_REDUCE || kind == SAGECOMM_REDUCE || kind == SAGECOMM_REDUCE_SCATTER;
}

/* Sets how many blocks of `count` elements this rank gives and gets. */
static void blocks(const request *r, ncclComm_t comm, size_t *in, size_t *out) {
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
    default:
      *in = *out = 1;
      break;
  }
}

static ncclResult_t set_reduction(const request *r, ncclComm_t comm, call *c) {
  if ((int)r->op >= 0 && r->op < ncclNumOps) {
    c->op.reduce_op = reductions[r->op];
    return ncclSuccess;
  }
  reduction made;
  if (!find_reduction(comm, r->op, &made, false)) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: op %d was not made for this communicator", r->function,
                (int)r->op);
  }
  if (made.type != r->type) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: op %d was made for data type %d, and the data have type %d",
                r->function, (int)r->op, (int)made.type, (int)r->type);
  }
  c->op.reduce_op = SAGECOMM_PREMUL_SUM;
  c->op.factor = made.factor;
  c->scalar = made.scalar;
  c->scalar_type = made.type;
  return ncclSuccess;
}

/* Sets the device of a call's buffers, which the core tells. */
static ncclResult_t set_place(const request *r, ncclComm_t comm, call *c) {
  const void *buffers[] = {c->op.n_out ? c->out.data : NULL, c->op.n_in ? c->in.data : NULL, c->copy_from};
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
      return fail(comm, ncclInvalidUsage,
                  "sagecomm: %s: sendbuff and recvbuff are memory of different devices, or one is of the host",
                  r->function);
    }
    first = false;
  }
  return ncclSuccess;
}

/* Checks what the core cannot see, and fills in a call. Leaves `kind` SAGECOMM_KIND_COUNT where there is nothing to do. */
static ncclResult_t translate(const request *r, ncclComm_t comm, call *c) {
  if (!known(r->type)) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: data type %d, expected 0 to %d", r->function, (int)r->type,
                ncclNumTypes - 1);
  }
  if (r->root < 0 || r->root >= comm->size) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: rank %d is outside the communicator, expected 0 to %d",
                r->function, r->root, comm->size - 1);
  }
  size_t in, out, width = types[r->type].bytes;
  if (r->count > INT64_MAX / width / (size_t)comm->size) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: count %zu is too large", r->function, r->count);
  }
  blocks(r, comm, &in, &out);
  *c = (call){.op = {.kind = r->kind,
                     .dtype = types[r->type].dtype,
                     .root = r->root,
                     .n_in = in > 0,
                     .n_out = out > 0,
                     .stream = r->stream},
              .in = {(void *)r->send, in * r->count * width},
              .out = {r->recv, out * r->count * width}};
  if (reduces(r->kind)) {
    ncclResult_t result = set_reduction(r, comm, c);
    if (result != ncclSuccess) return result;
  }
  if (r->count == 0) { /* as in NCCL, also with pointers that are NULL */
    c->op.kind = SAGECOMM_KIND_COUNT;
    return ncclSuccess;
  }
  if ((in > 0 && r->send == NULL) || (out > 0 && r->recv == NULL)) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: %s is NULL", r->function,
                in > 0 && r->send == NULL ? "sendbuff" : "recvbuff");
  }
  if (r->kind == SAGECOMM_BROADCAST && in > 0) { /* in the core, the root of a broadcast has one buffer */
    if (r->send != r->recv) c->copy_from = r->send;
    c->in = c->out;
  }
  return set_place(r, comm, c);
}

static ncclResult_t submit(const request *r, ncclComm_t comm) {
  ncclResult_t result = comm_enter(comm, r->function);
  if (result != ncclSuccess) return refused(result);
  call c;
  result = translate(r, comm, &c);
  if (result == ncclSuccess && c.op.kind != SAGECOMM_KIND_COUNT) {
    result = call_submit(comm, r->function, &c);
    if (result == ncclInProgress) {
      comm_release(comm);
      return result;
    }
  }
  comm_release(comm);
  return result == ncclSuccess ? result : refused(result);
}

/* ---- functions ---- */

#define SUBMIT(function_, kind_, send_, recv_, op_, root_) \
  request r = {.function = function_,                      \
               .kind = kind_,                              \
               .send = send_,                              \
               .recv = recv_,                              \
               .count = count,                             \
               .type = type,                               \
               .op = op_,                                  \
               .root = root_,                              \
               .stream = stream};                          \
  return submit(&r, comm)

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
