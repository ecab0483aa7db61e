/* fake_core.c is a core of one process that does what a test tells it, to try the shim's Work without peers. This file holds
 * the function table and the groups; fake_ops.c carries operations out, fake_script.c is what tests call.
 *
 * A test opens the library twice: through the shim (load_core), and with ctypes to script it with the functions of
 * fake_script.c. Both see the same library. What an operation computes is fixed: all_reduce and reduce of fp32 double the
 * input (two equal ranks that sum), everything else moves the input. The result appears when the operation completes, not
 * when it is issued. */
#include "fake_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fake_core fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void in_child(void) { fake.forked = 1; }

void fake_pass(int gate) {
  pthread_mutex_lock(&fake.lock);
  if (fake.gate == gate && !fake.held_there) {
    fake.held_there = 1;
    pthread_cond_broadcast(&fake.changed);
    while (fake.gate == gate) pthread_cond_wait(&fake.changed, &fake.lock);
  }
  pthread_mutex_unlock(&fake.lock);
}

int32_t fake_fail(int32_t status, sagecomm_error *err) {
  if (err != NULL) {
    memset(err, 0, sizeof *err);
    err->status = status;
    err->rank = status == SAGECOMM_PEER_FAILURE ? 3 : -1;
    err->pid = status == SAGECOMM_PEER_FAILURE ? 4711 : 0;
    err->sequence = fake.sequence;
    snprintf(err->op, sizeof err->op, "all_reduce");
    snprintf(err->group, sizeof err->group, "fake");
    snprintf(err->host, sizeof err->host, "%s", status == SAGECOMM_PEER_FAILURE ? "node7" : "");
    snprintf(err->message, sizeof err->message, "sagecomm: all_reduce: scripted failure %d", status);
    if (status < 0 && status == fake.fault.status) {
      *err = fake.fault;
      snprintf(err->message, sizeof err->message, "sagecomm: rank 0 has failed the group in %s #%d: %.1000s", err->op,
               (int)err->sequence, fake.fault.message);
    }
  }
  return status;
}

int fake_stale(sagecomm_group g) { return g == 0 || g >= MAX_GROUPS || !fake.alive[g]; }

static const char *version(void) { return "0.0.0-fake"; }

static void keep(void *ctx, const void *data, size_t n) {
  (void)ctx;
  snprintf(fake.got, sizeof fake.got, "%.*s", (int)n, (const char *)data);
}

static int32_t group_create(const sagecomm_group_config *c, sagecomm_group *out, sagecomm_error *err) {
  if (fake.forked) return fake_fail(SAGECOMM_FORKED, err);
  char why[128] = "";
  fake.options[0] = 0;
  for (uint32_t i = 0; i < c->n_options; i++) {
    size_t at = strlen(fake.options);
    snprintf(fake.options + at, sizeof fake.options - at, "%s=%s;", c->options[i].name, c->options[i].value);
  }
  /* A group that makes its store last leaves the store itself alone, which may be locked. */
  int32_t rc = fake.lasts ? 0 : c->store->set(c->store->ctx, "fake/hello", "world", 5, why, sizeof why);
  if (rc == 0 && fake.wanted_key[0] != 0)
    rc = c->store->get(c->store->ctx, fake.wanted_key, c->timeout_ns, NULL, keep, why, sizeof why);
  if (rc != 0) {
    fake_fail(SAGECOMM_SYSTEM, err);
    snprintf(err->message, sizeof err->message, "sagecomm: init: the store failed: %s", why);
    return SAGECOMM_SYSTEM;
  }
  if (fake.lasts) {
    void *claimer = NULL;
    fake.refusal[0] = 0;
    fake.lasting = *c->lasting;
    pthread_mutex_lock(&fake.lock);
    fake.preparing++;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    rc = c->lasting->prepare(c->lasting->ctx, &claimer, fake.refusal, sizeof fake.refusal);
    pthread_mutex_lock(&fake.lock);
    fake.preparing--;
    if (rc == 0 && fake.n_claimers == MAX_CLAIMERS) abort();
    if (rc == 0) fake.claimers[fake.n_claimers++] = claimer;
    pthread_mutex_unlock(&fake.lock);
  }
  pthread_mutex_lock(&fake.lock);
  fake.groups++;
  fake.aborted = 0;
  fake.fault.status = SAGECOMM_OK;
  fake.group_status = SAGECOMM_OK;
  fake.sequence = 0;
  if (++fake.created == MAX_GROUPS) abort();
  *out = (sagecomm_group)fake.created;
  fake.alive[fake.created] = 1;
  pthread_mutex_unlock(&fake.lock);
  fake_pass(GATE_CREATED);
  return SAGECOMM_OK;
}

/* Calls the failure callback on the calling thread: with the failure, or with SAGECOMM_OK if the group will not fail. */
void fake_call_failed(int32_t status) {
  pthread_mutex_lock(&fake.lock);
  sagecomm_failed_fn failed = fake.failed;
  void *ctx = fake.failed_ctx;
  fake.failed = NULL;
  pthread_mutex_unlock(&fake.lock);
  if (failed == NULL) return;
  sagecomm_error cause;
  fake_fail(status, &cause);
  failed(ctx, status == SAGECOMM_OK ? NULL : &cause);
}

static int32_t group_on_failure(sagecomm_group g, sagecomm_failed_fn failed, void *ctx, sagecomm_error *err) {
  if (fake_stale(g)) return fake_fail(SAGECOMM_INVALID, err);
  if (fake.group_status < 0) return fake_fail(fake.group_status, err);
  fake.failed = failed;
  fake.failed_ctx = ctx;
  return SAGECOMM_OK;
}

static int32_t group_destroy(sagecomm_group g, sagecomm_error *err) {
  fake.calls++;
  if (fake.forked) return SAGECOMM_FORKED;
  pthread_mutex_lock(&fake.lock);
  int gone = fake_stale(g);
  if (!gone) {
    fake.alive[g] = 0;
    fake.groups--;
  }
  pthread_mutex_unlock(&fake.lock);
  if (gone) return fake_fail(SAGECOMM_INVALID, err);
  fake_call_failed(SAGECOMM_OK);
  if (fake.last_status < 0) {
    fake_fail(fake.last_status, err);
  } else if (err != NULL) {
    err->status = SAGECOMM_OK;
  }
  return SAGECOMM_OK;
}

/* A wait of one slice that ends at once. The wait is over when it is given up or the group is aborted. */
static int32_t group_settle(sagecomm_group g, int64_t slice_ns, int32_t how, sagecomm_error *err) {
  (void)slice_ns;
  if (fake.forked) return fake_fail(SAGECOMM_FORKED, err);
  if (fake_stale(g)) return fake_fail(SAGECOMM_INVALID, err);
  pthread_mutex_lock(&fake.lock);
  if (how == SAGECOMM_SETTLE_NOW) {
    fake.stopped++;
  } else {
    fake.slices++;
  }
  fake.patient = fake.patient || how == SAGECOMM_SETTLE_FULL;
  int pending = how != SAGECOMM_SETTLE_NOW && fake.slices <= fake.unsettled;
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
  return pending ? SAGECOMM_PENDING : SAGECOMM_OK;
}

static int32_t group_abort(sagecomm_group g, const char *reason, sagecomm_error *err) {
  (void)reason;
  if (fake.forked) return fake_fail(SAGECOMM_FORKED, err);
  fake_pass(GATE_ABORT);
  if (fake_stale(g)) return fake_fail(SAGECOMM_INVALID, err);
  fake_call_failed(SAGECOMM_ABORTED);
  pthread_mutex_lock(&fake.lock);
  fake.aborted = 1;
  fake.unsettled = 0;
  fake.group_status = SAGECOMM_ABORTED;
  for (int i = 0; i < MAX_WORKS; i++)
    if (fake.works[i].used && !fake.works[i].complete) fake_complete(&fake.works[i], SAGECOMM_ABORTED);
  pthread_mutex_unlock(&fake.lock);
  return SAGECOMM_OK;
}

static int32_t group_fail(sagecomm_group g, const sagecomm_error *fault, uint8_t device_type, sagecomm_error *err) {
  (void)device_type;
  if (fake_stale(g)) return fake_fail(SAGECOMM_INVALID, err);
  if (fake.group_status < 0) return SAGECOMM_OK; /* the first cause stays */
  pthread_mutex_lock(&fake.lock);
  fake.fault = *fault;
  fake.group_status = fault->status;
  for (int i = 0; i < MAX_WORKS; i++)
    if (fake.works[i].used && !fake.works[i].complete) fake_complete(&fake.works[i], fault->status);
  pthread_mutex_unlock(&fake.lock);
  return SAGECOMM_OK;
}

static int32_t group_error(sagecomm_group g, sagecomm_error *err) {
  if (fake.forked) return fake_fail(SAGECOMM_FORKED, err);
  fake_pass(GATE_ERROR);
  if (fake_stale(g)) return fake_fail(SAGECOMM_INVALID, err);
  return fake.group_status < 0 ? fake_fail(fake.group_status, err) : SAGECOMM_OK;
}

static uint64_t group_sequence(sagecomm_group g) { return fake_stale(g) ? 0 : fake.sequence; }
static uint64_t lane_sequence(sagecomm_group g, uint8_t device_type) {
  return device_type == SAGECOMM_HOST ? group_sequence(g) : 0;
}

static int32_t group_set_timeout(sagecomm_group g, int64_t ns, sagecomm_error *err) {
  if (fake_stale(g)) return fake_fail(SAGECOMM_INVALID, err);
  fake.timeout_ns = ns;
  return SAGECOMM_OK;
}

static int64_t describe(char *json, size_t n, const char *text) {
  if (n > strlen(text)) memcpy(json, text, strlen(text) + 1);
  return (int64_t)strlen(text) + 1;
}
static int64_t group_stats(sagecomm_group g, char *json, size_t n) {
  fake_pass(GATE_STATS);
  if (fake_stale(g)) return SAGECOMM_INVALID;
  static char big[8000];
  memset(big, ' ', sizeof big - 1);
  memcpy(big, "{}", 2);
  return describe(json, n, big);
}
static uint64_t go_entries(void) { return 42; }
static int64_t describe_environment(char *json, size_t n) { return describe(json, n, "[]"); }
static int64_t describe_devices(char *json, size_t n) { return describe(json, n, "[{}]"); }
static int64_t flight_records(char *json, size_t n) { return describe(json, n, "{\"groups\": []}"); }
static int32_t group_describe(sagecomm_group g, const char *text, sagecomm_error *err) {
  (void)g;
  (void)text;
  (void)err;
  return SAGECOMM_OK;
}
static uint64_t group_stack(sagecomm_group g, const char *frames) {
  (void)g;
  (void)frames;
  return 0;
}
static int32_t group_blocking_wait(sagecomm_group g) {
  (void)g;
  return 0;
}
static int32_t flight_dump(const char *prefix, sagecomm_error *err) {
  (void)prefix;
  (void)err;
  return SAGECOMM_OK;
}
static int64_t metrics(char *text, size_t n) { return describe(text, n, ""); }
static int64_t status(char *json, size_t n) { return describe(json, n, "{\"groups\": []}"); }
static int64_t topology(char *json, size_t n) { return describe(json, n, "{\"host\": {}, \"process\": {}}"); }
static int64_t simulate(const char *question, char *json, size_t n) {
  (void)question;
  return describe(json, n, "{\"error\": \"\"}");
}
static int64_t explain(const char *question, char *json, size_t n) {
  (void)question;
  return describe(json, n, "{\"error\": \"\"}");
}
static int64_t tune(const char *measurements, char *json, size_t n) {
  (void)measurements;
  return describe(json, n, "{\"error\": \"\"}");
}
static int32_t monitored_error(sagecomm_group group, int64_t timeout_ns, int32_t all, sagecomm_error *err) {
  (void)timeout_ns, (void)all;
  return group_error(group, err);
}
static void shutdown_all(void) { fake.shutdowns++; }

static void waits(sagecomm_waits *out) { *out = (sagecomm_waits){.slice_ns = 100000000, .hooks_ns = 2000000000}; }

static const sagecomm_api api = {
    .abi_version = SAGECOMM_ABI_VERSION,
    .struct_size = sizeof(sagecomm_api),
    .op_size = sizeof(sagecomm_op),
    .version = version,
    .group_create = group_create,
    .group_destroy = group_destroy,
    .group_abort = group_abort,
    .group_error = group_error,
    .group_sequence = group_sequence,
    .group_set_timeout = group_set_timeout,
    .issue = fake_issue,
    .wait = fake_wait,
    .wait_briefly = fake_wait_briefly,
    .test = fake_test,
    .on_done = fake_on_done,
    .work_source = fake_work_source,
    .release = fake_release,
    .group_stats = group_stats,
    .go_entries = go_entries,
    .describe_environment = describe_environment,
    .describe_devices = describe_devices,
    .shutdown = shutdown_all,
    .flight_records = flight_records,
    .issue_coalesced = fake_issue_coalesced,
    .all_reduce_sparse = fake_all_reduce_sparse,
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
    .group_fail = group_fail,
    .group_blocking_wait = group_blocking_wait,
    .group_settle = group_settle,
};

const sagecomm_api *sagecomm_get_api(uint32_t abi_version) {
  static int once;
  if (!once++) pthread_atfork(NULL, NULL, in_child);
  return abi_version == SAGECOMM_ABI_VERSION ? &api : NULL;
}
