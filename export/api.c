/* api.c holds the function table of sagecomm.h. Functions that operations need stay in C, in the runner. The rest enter
 * Go, except in a forked child, where Go's threads do not exist: there they return SAGECOMM_FORKED. */
#include "../internal/runner/runner.h"
#include "sagecomm.h"

int32_t sagecommGroupCreate(sagecomm_group_config *, sagecomm_group *, sagecomm_error *);
int32_t sagecommGroupDestroy(sagecomm_group, sagecomm_error *);
int32_t sagecommAllReduceSparse(sagecomm_group, sagecomm_sparse_sum *, sagecomm_work *, uint64_t *, sagecomm_error *);
int32_t sagecommGroupAbort(sagecomm_group, char *, sagecomm_error *);
int32_t sagecommGroupLeave(sagecomm_group, char *, sagecomm_error *);
int32_t sagecommGroupShrunk(sagecomm_group, sagecomm_error *);
int32_t sagecommGroupOutstanding(sagecomm_group, sagecomm_error *);
int32_t sagecommGroupFail(sagecomm_group, sagecomm_error *, uint8_t, sagecomm_error *);
int32_t sagecommGroupOnFailure(sagecomm_group, sagecomm_failed_fn, void *, sagecomm_error *);
int32_t sagecommMonitoredError(sagecomm_group, int64_t, int32_t, sagecomm_error *);
int32_t sagecommGroupSetTimeout(sagecomm_group, int64_t, sagecomm_error *);
int64_t sagecommGroupStats(sagecomm_group, char *, size_t);
int64_t sagecommDescribeEnvironment(char *, size_t);
int64_t sagecommDescribeDevices(char *, size_t);
int64_t sagecommFlightRecords(char *, size_t);
int32_t sagecommFlightDump(char *, sagecomm_error *);
int32_t sagecommGroupDescribe(sagecomm_group, char *, sagecomm_error *);
uint64_t sagecommGroupStack(sagecomm_group, char *);
int32_t sagecommGroupBlockingWait(sagecomm_group);
int64_t sagecommMetrics(char *, size_t);
int64_t sagecommStatus(char *, size_t);
int64_t sagecommTopology(char *, size_t);
int64_t sagecommSimulate(char *, char *, size_t);
int64_t sagecommExplain(char *, char *, size_t);
int64_t sagecommTune(char *, char *, size_t);
int32_t sagecommUniqueID(uint8_t *, sagecomm_error *);
int32_t sagecommGroupJoin(sagecomm_join *, uint32_t, sagecomm_group *, sagecomm_error *);
int32_t sagecommGroupSplit(sagecomm_child *, uint32_t, sagecomm_group *, sagecomm_error *);
int32_t sagecommGroupShrink(sagecomm_child *, uint32_t, sagecomm_group *, sagecomm_error *);
int32_t sagecommGroupPlace(sagecomm_group, int32_t *, int32_t *, sagecomm_error *);
int32_t sagecommGroupFinish(sagecomm_group, sagecomm_error *);
int32_t sagecommGroupSettle(sagecomm_group, int64_t, int32_t, sagecomm_error *);
int32_t sagecommLocate(void *, uint8_t *, int32_t *, sagecomm_error *);
int32_t sagecommReadFactor(void *, uint8_t, void *, double *, sagecomm_error *);
void sagecommShutdown(void);
void sagecommWaits(sagecomm_waits *);

void sagecommSink(void *, void *, size_t);

/* Go cannot call a C function pointer, so these functions call it for Go. They are hidden, like everything except
 * sagecomm_get_api(). */
__attribute__((visibility("hidden"))) int32_t sagecomm_store_set(const sagecomm_store *s, const char *key,
                                                                 const void *data, size_t n, char *why, size_t why_n) {
  return s->set(s->ctx, key, data, n, why, why_n);
}

static void sink_into_go(void *ctx, const void *data, size_t n) { sagecommSink(ctx, (void *)(uintptr_t)data, n); }

__attribute__((visibility("hidden"))) int32_t sagecomm_store_get(const sagecomm_store *s, const char *key,
                                                                 int64_t timeout_ns, uintptr_t sink, char *why,
                                                                 size_t why_n) {
  return s->get(s->ctx, key, timeout_ns, (void *)sink, sink_into_go, why, why_n);
}

__attribute__((visibility("hidden"))) int32_t sagecomm_store_get_many(const sagecomm_store *s, const char *const *keys,
                                                                      size_t n, int64_t timeout_ns, uintptr_t sink,
                                                                      char *why, size_t why_n) {
  return s->get_many(s->ctx, keys, n, timeout_ns, (void *)sink, sink_into_go, why, why_n);
}

__attribute__((visibility("hidden"))) int32_t sagecomm_store_prepare(const sagecomm_lasting_store *s, void **claimer,
                                                                     char *why, size_t why_n) {
  return s->prepare(s->ctx, claimer, why, why_n);
}

__attribute__((visibility("hidden"))) int32_t sagecomm_store_claim(const sagecomm_lasting_store *s, void *claimer,
                                                                   const char *key, const void *data, size_t n,
                                                                   uintptr_t sink, char *why, size_t why_n) {
  return s->claim(claimer, key, data, n, (void *)sink, sink_into_go, why, why_n);
}

__attribute__((visibility("hidden"))) void sagecomm_store_release(const sagecomm_lasting_store *s, void *claimer) {
  s->release(claimer);
}

__attribute__((visibility("hidden"))) void sagecomm_call_failed(sagecomm_failed_fn failed, void *ctx,
                                                                const sagecomm_error *cause) {
  failed(ctx, cause);
}

__attribute__((visibility("hidden"))) int32_t sagecomm_sparse_allocate(const sagecomm_sparse_sum *s, int32_t rank,
                                                                       int64_t elements, sagecomm_segment *indices,
                                                                       sagecomm_segment *values, char *why,
                                                                       size_t why_n) {
  return s->allocate(s->ctx, rank, elements, indices, values, why, why_n);
}

__attribute__((visibility("hidden"))) int32_t sagecomm_sparse_add(const sagecomm_sparse_sum *s, int32_t *culprit,
                                                                  char *why, size_t why_n) {
  return s->add(s->ctx, culprit, why, why_n);
}

static const char *version(void) { return SAGECOMM_VERSION; }

static int32_t group_create(const sagecomm_group_config *config, sagecomm_group *out, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupCreate((sagecomm_group_config *)(uintptr_t)config, out, err);
}

static int32_t group_destroy(sagecomm_group group, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupDestroy(group, err);
}

static int32_t group_abort(sagecomm_group group, const char *reason, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupAbort(group, (char *)(uintptr_t)reason, err);
}

static int32_t group_leave(sagecomm_group group, const char *reason, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupLeave(group, (char *)(uintptr_t)reason, err);
}

static int32_t group_shrunk(sagecomm_group group, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupShrunk(group, err);
}

static int32_t group_outstanding(sagecomm_group group, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupOutstanding(group, err);
}

static int32_t group_fail(sagecomm_group group, const sagecomm_error *fault, uint8_t device_type, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupFail(group, (sagecomm_error *)(uintptr_t)fault, device_type, err);
}

static int32_t all_reduce_sparse(sagecomm_group group, const sagecomm_sparse_sum *sum, sagecomm_work *work,
                                 uint64_t *sequence, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommAllReduceSparse(group, (sagecomm_sparse_sum *)(uintptr_t)sum, work, sequence, err);
}

static int32_t group_on_failure(sagecomm_group group, sagecomm_failed_fn failed, void *ctx, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupOnFailure(group, failed, ctx, err);
}

static uint64_t group_sequence(sagecomm_group group) {
  scr_group *g = scr_group_of(group);
  return g && !scr_in_child() ? scr_group_issued(g) + scr_group_device_sequence(g) : 0;
}

static uint64_t lane_sequence(sagecomm_group group, uint8_t device_type) {
  scr_group *g = scr_group_of(group);
  if (g == NULL || scr_in_child()) return 0;
  return device_type == SAGECOMM_HOST ? scr_group_issued(g) : scr_group_device_sequence(g);
}

static int32_t group_set_timeout(sagecomm_group group, int64_t timeout_ns, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupSetTimeout(group, timeout_ns, err);
}

static int64_t group_stats(sagecomm_group group, char *json, size_t n) {
  return scr_in_child() ? SAGECOMM_FORKED : sagecommGroupStats(group, json, n);
}

static int64_t describe_environment(char *json, size_t n) {
  return scr_in_child() ? SAGECOMM_FORKED : sagecommDescribeEnvironment(json, n);
}

static int64_t describe_devices(char *json, size_t n) {
  return scr_in_child() ? SAGECOMM_FORKED : sagecommDescribeDevices(json, n);
}

static int64_t flight_records(char *json, size_t n) {
  return scr_in_child() ? SAGECOMM_FORKED : sagecommFlightRecords(json, n);
}

static int32_t group_describe(sagecomm_group group, const char *text, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupDescribe(group, (char *)(uintptr_t)text, err);
}

static uint64_t group_stack(sagecomm_group group, const char *frames) {
  return scr_in_child() ? 0 : sagecommGroupStack(group, (char *)(uintptr_t)frames);
}

static int32_t group_blocking_wait(sagecomm_group group) {
  return scr_in_child() ? 0 : sagecommGroupBlockingWait(group);
}

static int32_t flight_dump(const char *prefix, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommFlightDump((char *)(uintptr_t)prefix, err);
}

static int64_t metrics(char *text, size_t n) { return scr_in_child() ? SAGECOMM_FORKED : sagecommMetrics(text, n); }

static int64_t status(char *json, size_t n) { return scr_in_child() ? SAGECOMM_FORKED : sagecommStatus(json, n); }

static int64_t topology(char *json, size_t n) { return scr_in_child() ? SAGECOMM_FORKED : sagecommTopology(json, n); }

static int64_t simulate(const char *question, char *json, size_t n) {
  return scr_in_child() ? SAGECOMM_FORKED : sagecommSimulate((char *)(uintptr_t)question, json, n);
}

static int64_t explain(const char *question, char *json, size_t n) {
  return scr_in_child() ? SAGECOMM_FORKED : sagecommExplain((char *)(uintptr_t)question, json, n);
}

static int64_t tune(const char *measurements, char *json, size_t n) {
  return scr_in_child() ? SAGECOMM_FORKED : sagecommTune((char *)(uintptr_t)measurements, json, n);
}

static int32_t monitored_error(sagecomm_group group, int64_t timeout_ns, int32_t all, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommMonitoredError(group, timeout_ns, all, err);
}

static int32_t unique_id(uint8_t *id, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommUniqueID(id, err);
}

static int32_t group_join(const sagecomm_join *joins, uint32_t n, sagecomm_group *groups, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupJoin((sagecomm_join *)(uintptr_t)joins, n, groups, err);
}

static int32_t group_split(const sagecomm_child *children, uint32_t n, sagecomm_group *groups, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupSplit((sagecomm_child *)(uintptr_t)children, n, groups, err);
}

static int32_t group_shrink(const sagecomm_child *children, uint32_t n, sagecomm_group *groups, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupShrink((sagecomm_child *)(uintptr_t)children, n, groups, err);
}

static int32_t group_place(sagecomm_group group, int32_t *rank, int32_t *size, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupPlace(group, rank, size, err);
}

static int32_t group_finish(sagecomm_group group, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupFinish(group, err);
}

static int32_t group_settle(sagecomm_group group, int64_t slice_ns, int32_t how, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommGroupSettle(group, slice_ns, how, err);
}

static int32_t locate(const void *pointer, uint8_t *device_type, int32_t *device_index, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommLocate((void *)(uintptr_t)pointer, device_type, device_index, err);
}

static int32_t read_factor(const void *pointer, uint8_t dtype, void *stream, double *factor, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  return sagecommReadFactor((void *)(uintptr_t)pointer, dtype, stream, factor, err);
}

static void shutdown(void) {
  if (!scr_in_child()) sagecommShutdown();
}

static void waits(sagecomm_waits *out) {
  *out = (sagecomm_waits){0};
  if (!scr_in_child()) sagecommWaits(out);
}

const sagecomm_api *sagecomm_get_api(uint32_t abi_version) {
  scr_watch_fork(); /* a forked child will lack the threads that the caller starts */
  static const sagecomm_api api = {
      .abi_version = SAGECOMM_ABI_VERSION,
      .struct_size = sizeof(sagecomm_api),
      .op_size = sizeof(sagecomm_op),
      .version = version,
      .group_create = group_create,
      .group_destroy = group_destroy,
      .group_abort = group_abort,
      .group_error = scr_group_error,
      .group_sequence = group_sequence,
      .group_set_timeout = group_set_timeout,
      .issue = scr_issue,
      .wait = scr_wait,
      .wait_briefly = scr_wait_briefly,
      .on_done = scr_on_done,
      .work_source = scr_work_source,
      .release = scr_release,
      .group_stats = group_stats,
      .go_entries = scr_go_entries,
      .describe_environment = describe_environment,
      .shutdown = shutdown,
      .flight_records = flight_records,
      .issue_coalesced = scr_issue_coalesced,
      .all_reduce_sparse = all_reduce_sparse,
      .group_describe = group_describe,
      .group_stack = group_stack,
      .flight_dump = flight_dump,
      .metrics = metrics,
      .status = status,
      .group_on_failure = group_on_failure,
      .topology = topology,
      .monitored_error = monitored_error,
      .simulate = simulate,
      .explain = explain,
      .tune = tune,
      .waits = waits,
      .lane_sequence = lane_sequence,
      .describe_devices = describe_devices,
      .unique_id = unique_id,
      .group_join = group_join,
      .group_split = group_split,
      .group_shrink = group_shrink,
      .locate = locate,
      .read_factor = read_factor,
      .group_place = group_place,
      .group_finish = group_finish,
      .group_fail = group_fail,
      .group_leave = group_leave,
      .group_blocking_wait = group_blocking_wait,
      .group_shrunk = group_shrunk,
      .group_settle = group_settle,
      .group_outstanding = group_outstanding,
      .test = scr_test,
  };
  return abi_version == SAGECOMM_ABI_VERSION ? &api : NULL;
}
