/* issue.c: hands calls of one communicator to the core, behind what their streams hold. */
#include <stdlib.h>
#include <string.h>

#include "facade.h"

static ncclResult_t driver_failed(ncclComm_t comm, const char *what, int code) {
  return fail(comm, ncclUnhandledCudaError, "sagecomm: %s: CUDA's driver returned error %d", what, code);
}

/* An operation on host memory happens inside the call. In a process that uses CUDA it comes behind what its stream holds, because that
 * memory may be pinned. */
static ncclResult_t before_host(ncclComm_t comm, const call *c) {
  if (driver_captures(c->op.stream)) {
    return fail(comm, ncclInvalidUsage, "sagecomm: an operation on host memory cannot be captured into a graph");
  }
  int code = driver_synchronize(c->op.stream);
  if (code != 0) return driver_failed(comm, "waiting for the stream of an operation on host memory", code);
  if (c->copy_from != NULL) memmove(c->out.data, c->copy_from, c->out.bytes);
  return ncclSuccess;
}

/* Makes all streams of a group call one, the first, or lets them go on behind it. */
static ncclResult_t order_streams(ncclComm_t comm, const call *calls, int n, bool before) {
  cudaStream_t first = calls[0].op.stream;
  for (int i = 1; i < n; i++) {
    cudaStream_t other = calls[i].op.stream;
    bool done = other == first;
    for (int k = 1; k < i && !done; k++) done = calls[k].op.stream == other;
    if (done) continue;
    int code = before ? driver_order(other, first) : driver_order(first, other);
    if (code != 0) return driver_failed(comm, "ordering the streams of a group call", code);
  }
  return ncclSuccess;
}

static ncclResult_t prepare(ncclComm_t comm, call *c) {
  ncclResult_t result = ncclSuccess;
  if (c->scalar != NULL) result = read_factor(comm, c->scalar, c->scalar_type, c->op.stream, &c->op.factor);
  if (result != ncclSuccess) return result;
  if (c->op.device_type == SAGECOMM_HOST) return before_host(comm, c);
  c->op.flags = SAGECOMM_ASYNC;
  if (c->copy_from == NULL) return ncclSuccess;
  int code = driver_copy(c->out.data, c->copy_from, c->out.bytes, c->op.stream);
  return code == 0 ? ncclSuccess : driver_failed(comm, "copying the buffer of a root", code);
}

static int32_t issue(sagecomm_group group, const call *calls, int n, sagecomm_error *err) {
  sagecomm_op one, *ops = n == 1 ? &one : malloc((size_t)n * sizeof *ops);
  if (ops == NULL) {
    strcpy(err->message, "sagecomm: out of memory for a group call");
    return SAGECOMM_SYSTEM;
  }
  for (int i = 0; i < n; i++) {
    ops[i] = calls[i].op;
    ops[i].in = &calls[i].in;
    ops[i].out = &calls[i].out;
    ops[i].stream = calls[0].op.stream;
  }
  sagecomm_work work = 0;
  int32_t status = n == 1 ? core()->issue(group, ops, &work, NULL, err)
                          : core()->issue_coalesced(group, ops, (uint32_t)n, &work, NULL, err);
  if (status == SAGECOMM_PENDING && ops[0].device_type == SAGECOMM_HOST) {
    sagecomm_waits waits;
    core()->waits(&waits);
    while (status == SAGECOMM_PENDING) status = core()->wait(work, waits.slice_ns, err);
  }
  if (work != 0) core()->release(work); /* an operation on a device goes on in its stream */
  if (ops != &one) free(ops);
  return status;
}

ncclResult_t calls_run(ncclComm_t comm, call *calls, int n) {
  pthread_mutex_lock(&comm_lock);
  sagecomm_group group = comm->group;
  pthread_mutex_unlock(&comm_lock);
  for (int i = 0; i < n; i++) {
    ncclResult_t result = prepare(comm, &calls[i]);
    if (result != ncclSuccess) return result;
  }
  bool device = calls[0].op.device_type != SAGECOMM_HOST;
  ncclResult_t result = device ? order_streams(comm, calls, n, true) : ncclSuccess;
  if (result != ncclSuccess) return result;
  sagecomm_error err = {0};
  int32_t status = issue(group, calls, n, &err);
  if (status < 0) return failed(comm, status, &err);
  return device ? order_streams(comm, calls, n, false) : ncclSuccess;
}
