/* issue.c: hands calls of one communicator to the core, behind what their streams hold. */
#include <stdlib.h>
#include <string.h>

#include "facade.h"

static facade_result driver_failed(comm_t comm, const char *what, int code) {
  return fail(comm, RESULT_DRIVER, "sagecomm: %s: " FACADE_DRIVER " returned error %d", what, code);
}

/* An operation on host memory happens inside the call. In a process that uses a device it comes behind what its stream
 * holds, because that memory may be pinned. */
static facade_result before_host(comm_t comm, const call *c) {
  if (driver_captures(c->op.stream)) {
    return fail(comm, RESULT_USAGE, "sagecomm: an operation on host memory cannot be captured into a graph");
  }
  int code = driver_synchronize(c->op.stream);
  return code == 0 ? RESULT_OK : driver_failed(comm, "waiting for the stream of an operation on host memory", code);
}

/* NULL and the handle of the default stream are one stream. */
bool same_stream(const void *one, const void *other) {
  bool defaults = (one == NULL || (uintptr_t)one == FACADE_STREAM_DEFAULT) &&
                  (other == NULL || (uintptr_t)other == FACADE_STREAM_DEFAULT);
  return one == other || (defaults && FACADE_STREAM_DEFAULT != 0);
}

/* Makes all streams of a group call one, the first, or lets them go on behind it. */
static facade_result order_streams(comm_t comm, const call *calls, int n, bool before) {
  void *first = calls[0].op.stream;
  for (int i = 1; i < n; i++) {
    void *other = calls[i].op.stream;
    bool done = same_stream(other, first);
    for (int k = 1; k < i && !done; k++) done = same_stream(calls[k].op.stream, other);
    if (done) continue;
    int code = before ? driver_order(other, first) : driver_order(first, other);
    if (code != 0) return driver_failed(comm, "ordering the streams of a group call", code);
  }
  return RESULT_OK;
}

/* What may wait for a stream, for as long as that takes. Nothing touches buffers yet. */
static facade_result await_streams(comm_t comm, call *c) {
  if (c->scalar != NULL) {
    facade_result result = read_factor(comm, c->scalar, c->scalar_type, c->op.stream, &c->op.factor);
    if (result != RESULT_OK) return result;
  }
  return c->op.device_type == SAGECOMM_HOST ? before_host(comm, c) : RESULT_OK;
}

static facade_result prepare(comm_t comm, call *c) {
  bool device = c->op.device_type != SAGECOMM_HOST;
  if (c->copy_from == NULL) return RESULT_OK;
  if (!device) {
    memmove(c->out.data, c->copy_from, c->out.bytes);
    return RESULT_OK;
  }
  int code = driver_copy(c->out.data, c->copy_from, c->out.bytes, c->op.stream);
  return code == 0 ? RESULT_OK : driver_failed(comm, "copying the buffer of a root", code);
}

/* Makes the operations of calls, in `one` if there is one. NULL: no memory, and *err says so. */
static sagecomm_op *list_ops(const call *calls, int n, sagecomm_op *one, sagecomm_error *err) {
  sagecomm_op *ops = n == 1 ? one : malloc((size_t)n * sizeof *ops);
  if (ops == NULL) strcpy(err->message, "sagecomm: out of memory for a group call");
  if (ops == NULL) return NULL;
  for (int i = 0; i < n; i++) {
    ops[i] = calls[i].op;
    if (ops[i].device_type != SAGECOMM_HOST) ops[i].flags |= SAGECOMM_ASYNC;
    const call_lists *lists = calls[i].lists;
    ops[i].in = lists != NULL ? lists->in : &calls[i].in;
    ops[i].out = lists != NULL ? lists->out : &calls[i].out;
    if (lists != NULL) {
      ops[i].in_blocks = lists->in_blocks;
      ops[i].out_blocks = lists->out_blocks;
    }
    ops[i].stream = calls[0].op.stream;
  }
  return ops;
}

facade_result calls_check(comm_t comm, const call *calls, int n) {
  sagecomm_error err = {0};
  sagecomm_op one, *ops = list_ops(calls, n, &one, &err);
  int32_t status = SAGECOMM_SYSTEM;
  if (ops != NULL) status = core()->issue_coalesced(comm_group(comm), ops, (uint32_t)n, NULL, NULL, &err);
  if (ops != &one) free(ops);
  return status < 0 ? failed(comm, status, &err) : RESULT_OK;
}

static int32_t issue(sagecomm_group group, const call *calls, int n, sagecomm_error *err) {
  sagecomm_op one, *ops = list_ops(calls, n, &one, err);
  if (ops == NULL) return SAGECOMM_SYSTEM;
  sagecomm_work work = 0;
  bool alone = n == 1 && !(ops[0].flags & SAGECOMM_PAIRED);
  int32_t status = alone ? core()->issue(group, ops, &work, NULL, err)
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

static facade_result run(comm_t comm, call *calls, int n) {
  for (int i = 0; i < n; i++) {
    facade_result result = prepare(comm, &calls[i]);
    if (result != RESULT_OK) return result;
  }
  bool device = calls[0].op.device_type != SAGECOMM_HOST;
  facade_result result = device ? order_streams(comm, calls, n, true) : RESULT_OK;
  if (result != RESULT_OK) return result;
  sagecomm_error err = {0};
  int32_t status = issue(comm_group(comm), calls, n, &err);
  if (status < 0) return failed(comm, status, &err);
  return device ? order_streams(comm, calls, n, false) : RESULT_OK;
}

facade_result calls_run(comm_t comm, call *calls, int n) {
  for (int i = 0; i < n; i++) {
    facade_result result = await_streams(comm, &calls[i]);
    if (result != RESULT_OK) return result;
  }
  if (!comm_begin(comm)) {
    return fail(comm, RESULT_USAGE, "sagecomm: the communicator was aborted before the call was issued");
  }
  facade_result result = run(comm, calls, n);
  comm_finish(comm);
  return result;
}
