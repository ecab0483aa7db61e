/* fake_core.c: a core of one process that does what a test tells it, to try the shim's Work without peers.
 *
 * A test opens it twice: through the shim (load_core) and with ctypes, to script it with the fake_*() functions. Both
 * see the same library. What an operation computes is fixed: all_reduce and reduce of fp32 double the input (two equal
 * ranks that sum), everything else moves the input; it happens when the operation completes, not when it is issued. */
#include "../../export/sagecomm.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_WORKS = 256, MAX_SEGMENTS = 16, MAX_GROUPS = 4096 };

/* What issue() does. */
enum {
  SCRIPT_OK = 0,      /* completes inside issue() */
  SCRIPT_WAITS = 1,   /* completes inside the arg-th wait() */
  SCRIPT_MANUAL = 2,  /* completes when fake_finish() is called */
  SCRIPT_FAIL = 3,    /* fails inside issue() with status arg */
  SCRIPT_OK_WORK = 4, /* completes inside issue() and hands out a work nevertheless */
};

typedef struct fake_work {
  int used, complete;
  int32_t status;
  int waits_left; /* -1: manual */
  uint64_t sequence;
  sagecomm_op op;
  sagecomm_segment in[MAX_SEGMENTS], out[MAX_SEGMENTS];
  sagecomm_done_fn done;
  void *ctx;
} fake_work;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int script, script_arg;
  int hold_done; /* wait() reports the end, but done stays queued until fake_run_held() */
  fake_work works[MAX_WORKS];
  uint64_t sequence;
  sagecomm_op last;
  int live_works, waiters, groups, shutdowns, forked, aborted, calls;
  char alive[MAX_GROUPS]; /* by handle; beyond that all groups share the state of one */
  int created;
  int gate, held_there;      /* see fake_close() */
  sagecomm_failed_fn failed; /* called once */
  void *failed_ctx;
  int32_t group_status;
  char options[512];
  char wanted_key[64];
  char got[64];
  void (*held_done[MAX_WORKS])(void *, int32_t, const sagecomm_error *);
  void *held_ctx[MAX_WORKS];
  int held;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void in_child(void) { fake.forked = 1; }

/* Places where fake_close() holds who comes by next, until fake_open(). */
enum { GATE_ERROR = 1, GATE_CREATED = 2, GATE_ABORT = 3, GATE_STATS = 4 };

static void pass(int gate) {
  pthread_mutex_lock(&fake.lock);
  if (fake.gate == gate && !fake.held_there) {
    fake.held_there = 1;
    pthread_cond_broadcast(&fake.changed);
    while (fake.gate == gate) pthread_cond_wait(&fake.changed, &fake.lock);
  }
  pthread_mutex_unlock(&fake.lock);
}

static int32_t fail(int32_t status, sagecomm_error *err) {
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
  }
  return status;
}

static void carry_out(const fake_work *w) {
  if (w->op.n_in == 0 || w->op.n_out == 0) return;
  for (uint32_t k = 0; k < w->op.n_out; k++) {
    const sagecomm_segment *from = &w->in[0], *to = &w->out[k];
    uint64_t n = to->bytes < from->bytes ? to->bytes : from->bytes;
    int doubled =
        w->op.dtype == SAGECOMM_FLOAT32 && (w->op.kind == SAGECOMM_ALL_REDUCE || w->op.kind == SAGECOMM_REDUCE);
    if (doubled) {
      for (uint64_t i = 0; i < n / 4; i++) ((float *)to->data)[i] = 2 * ((const float *)from->data)[i];
    } else if (n > 0) {
      memmove(to->data, from->data, n);
    }
  }
}

static int stale(sagecomm_group g) { return g == 0 || g >= MAX_GROUPS || !fake.alive[g]; }

/* Completes a work and calls its done function, without the lock. Called with the lock, returns with it. */
static void complete(fake_work *w, int32_t status) {
  if (w->complete) return;
  if (status == SAGECOMM_OK) carry_out(w);
  w->complete = 1;
  w->status = status;
  pthread_cond_broadcast(&fake.changed);
  sagecomm_done_fn done = w->done;
  void *ctx = w->ctx;
  if (done == NULL) return;
  if (fake.hold_done) {
    fake.held_done[fake.held] = done;
    fake.held_ctx[fake.held++] = ctx;
    return;
  }
  pthread_mutex_unlock(&fake.lock);
  sagecomm_error err;
  fail(status, &err);
  done(ctx, status, &err);
  pthread_mutex_lock(&fake.lock);
}

static const char *version(void) { return "0.0.0-fake"; }

static void keep(void *ctx, const void *data, size_t n) {
  (void)ctx;
  snprintf(fake.got, sizeof fake.got, "%.*s", (int)n, (const char *)data);
}

static int32_t group_create(const sagecomm_group_config *c, sagecomm_group *out, sagecomm_error *err) {
  if (fake.forked) return fail(SAGECOMM_FORKED, err);
  char why[128] = "";
  fake.options[0] = 0;
  for (uint32_t i = 0; i < c->n_options; i++) {
    size_t at = strlen(fake.options);
    snprintf(fake.options + at, sizeof fake.options - at, "%s=%s;", c->options[i].name, c->options[i].value);
  }
  int32_t rc = c->store->set(c->store->ctx, "fake/hello", "world", 5, why, sizeof why);
  if (rc == 0 && fake.wanted_key[0] != 0)
    rc = c->store->get(c->store->ctx, fake.wanted_key, c->timeout_ns, NULL, keep, why, sizeof why);
  if (rc != 0) {
    fail(SAGECOMM_SYSTEM, err);
    snprintf(err->message, sizeof err->message, "sagecomm: init: the store failed: %s", why);
    return SAGECOMM_SYSTEM;
  }
  pthread_mutex_lock(&fake.lock);
  fake.groups++;
  fake.aborted = 0;
  fake.group_status = SAGECOMM_OK;
  fake.sequence = 0;
  if (++fake.created == MAX_GROUPS) abort();
  *out = (sagecomm_group)fake.created;
  fake.alive[fake.created] = 1;
  pthread_mutex_unlock(&fake.lock);
  pass(GATE_CREATED);
  return SAGECOMM_OK;
}

/* Tells the group's end, or with SAGECOMM_OK that it will not fail, on the calling thread. */
static void tell_failed(int32_t status) {
  pthread_mutex_lock(&fake.lock);
  sagecomm_failed_fn failed = fake.failed;
  void *ctx = fake.failed_ctx;
  fake.failed = NULL;
  pthread_mutex_unlock(&fake.lock);
  if (failed == NULL) return;
  sagecomm_error cause;
  fail(status, &cause);
  failed(ctx, status == SAGECOMM_OK ? NULL : &cause);
}

static int32_t group_on_failure(sagecomm_group g, sagecomm_failed_fn failed, void *ctx, sagecomm_error *err) {
  if (stale(g)) return fail(SAGECOMM_INVALID, err);
  if (fake.group_status < 0) return fail(fake.group_status, err);
  fake.failed = failed;
  fake.failed_ctx = ctx;
  return SAGECOMM_OK;
}

static int32_t group_destroy(sagecomm_group g, sagecomm_error *err) {
  fake.calls++;
  if (fake.forked) return SAGECOMM_FORKED;
  pthread_mutex_lock(&fake.lock);
  int gone = stale(g);
  if (!gone) {
    fake.alive[g] = 0;
    fake.groups--;
  }
  pthread_mutex_unlock(&fake.lock);
  if (gone) return fail(SAGECOMM_INVALID, err);
  tell_failed(SAGECOMM_OK);
  return SAGECOMM_OK;
}

static int32_t group_abort(sagecomm_group g, const char *reason, sagecomm_error *err) {
  (void)reason;
  if (fake.forked) return fail(SAGECOMM_FORKED, err);
  pass(GATE_ABORT);
  if (stale(g)) return fail(SAGECOMM_INVALID, err);
  tell_failed(SAGECOMM_ABORTED);
  pthread_mutex_lock(&fake.lock);
  fake.aborted = 1;
  fake.group_status = SAGECOMM_ABORTED;
  for (int i = 0; i < MAX_WORKS; i++)
    if (fake.works[i].used && !fake.works[i].complete) complete(&fake.works[i], SAGECOMM_ABORTED);
  pthread_mutex_unlock(&fake.lock);
  return SAGECOMM_OK;
}

static int32_t group_fail(sagecomm_group g, const sagecomm_error *cause, sagecomm_error *err) {
  return group_abort(g, cause->message, err);
}

static int32_t group_hold(sagecomm_group g, int32_t by, sagecomm_error *err) {
  (void)g, (void)by, (void)err;
  return SAGECOMM_OK;
}

static int32_t group_error(sagecomm_group g, sagecomm_error *err) {
  if (fake.forked) return fail(SAGECOMM_FORKED, err);
  pass(GATE_ERROR);
  if (stale(g)) return fail(SAGECOMM_INVALID, err);
  return fake.group_status < 0 ? fail(fake.group_status, err) : SAGECOMM_OK;
}

static uint64_t group_sequence(sagecomm_group g) { return stale(g) ? 0 : fake.sequence; }

static int64_t timeout_set;
static int32_t group_set_timeout(sagecomm_group g, int64_t ns, sagecomm_error *err) {
  if (stale(g)) return fail(SAGECOMM_INVALID, err);
  timeout_set = ns;
  return SAGECOMM_OK;
}

static int32_t issue(sagecomm_group g, const sagecomm_op *op, sagecomm_work *work, sagecomm_error *err) {
  fake.calls++;
  *work = 0;
  if (fake.forked) return fail(SAGECOMM_FORKED, err);
  if (stale(g)) return fail(SAGECOMM_INVALID, err);
  if (fake.aborted) return fail(SAGECOMM_ABORTED, err);
  pthread_mutex_lock(&fake.lock);
  fake.last = *op;
  int32_t status = SAGECOMM_OK;
  if (op->kind < SAGECOMM_SEND) fake.sequence++;
  if (fake.script == SCRIPT_FAIL) {
    status = fail(fake.script_arg, err);
  } else {
    fake_work local = {.op = *op, .status = SAGECOMM_OK}, *w = &local;
    if (fake.script != SCRIPT_OK) {
      int i = 0;
      while (i < MAX_WORKS && fake.works[i].used) i++;
      if (i == MAX_WORKS) abort();
      w = &fake.works[i];
      *w = local;
      w->used = 1;
      w->sequence = op->kind < SAGECOMM_SEND ? fake.sequence : 0;
      w->waits_left = fake.script == SCRIPT_WAITS ? fake.script_arg : -1;
      fake.live_works++;
      *work = (sagecomm_work)i + 1;
      status = SAGECOMM_PENDING;
    }
    memcpy(w->in, op->in, op->n_in * sizeof *op->in);
    memcpy(w->out, op->out, op->n_out * sizeof *op->out);
    if (fake.script == SCRIPT_OK || fake.script == SCRIPT_OK_WORK) {
      complete(w, SAGECOMM_OK);
      status = SAGECOMM_OK;
    }
  }
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
  return status;
}

/* As if all were of the first one's kind: one operation on everybody's segments. */
static int32_t issue_coalesced(sagecomm_group g, const sagecomm_op *ops, uint32_t n, sagecomm_work *work,
                               sagecomm_error *err) {
  sagecomm_segment in[MAX_SEGMENTS], out[MAX_SEGMENTS];
  sagecomm_op all = ops[0];
  all.in = in;
  all.out = out;
  all.n_parts = n;
  all.n_in = all.n_out = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (all.n_in + ops[i].n_in > MAX_SEGMENTS || all.n_out + ops[i].n_out > MAX_SEGMENTS) abort();
    memcpy(in + all.n_in, ops[i].in, ops[i].n_in * sizeof *in);
    memcpy(out + all.n_out, ops[i].out, ops[i].n_out * sizeof *out);
    all.n_in += ops[i].n_in;
    all.n_out += ops[i].n_out;
  }
  return issue(g, &all, work, err);
}

static int32_t wait_for(sagecomm_work work, int64_t timeout_ns, sagecomm_error *err) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  int64_t ns = until.tv_nsec + timeout_ns;
  until.tv_sec += ns / 1000000000;
  until.tv_nsec = ns % 1000000000;
  pthread_mutex_lock(&fake.lock);
  fake.waiters++;
  pthread_cond_broadcast(&fake.changed);
  fake_work *w = &fake.works[work - 1];
  if (!w->complete && w->waits_left > 0 && --w->waits_left == 0) complete(w, SAGECOMM_OK);
  while (!w->complete && w->waits_left < 0)
    if (pthread_cond_timedwait(&fake.changed, &fake.lock, &until) == ETIMEDOUT) break;
  int32_t status = w->complete ? w->status : SAGECOMM_PENDING;
  if (status < 0) fail(status, err);
  fake.waiters--;
  pthread_mutex_unlock(&fake.lock);
  return status;
}

static int32_t on_done(sagecomm_work work, sagecomm_done_fn done, void *ctx, sagecomm_error *err) {
  pthread_mutex_lock(&fake.lock);
  fake_work *w = &fake.works[work - 1];
  int32_t status = SAGECOMM_PENDING;
  if (w->complete) {
    status = w->status;
    if (status < 0) fail(status, err);
  } else {
    w->done = done;
    w->ctx = ctx;
  }
  pthread_mutex_unlock(&fake.lock);
  return status;
}

static uint64_t work_sequence(sagecomm_work work) { return fake.works[work - 1].sequence; }
static int32_t work_source(sagecomm_work work) { return fake.works[work - 1].complete ? 1 : -1; }

static void release_work(sagecomm_work work) {
  pthread_mutex_lock(&fake.lock);
  fake.works[work - 1].used = 0;
  fake.live_works--;
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
}

static int64_t describe(char *json, size_t n, const char *text) {
  if (n > strlen(text)) memcpy(json, text, strlen(text) + 1);
  return (int64_t)strlen(text) + 1;
}
static int64_t group_stats(sagecomm_group g, char *json, size_t n) {
  pass(GATE_STATS);
  if (stale(g)) return SAGECOMM_INVALID;
  static char big[8000];
  memset(big, ' ', sizeof big - 1);
  memcpy(big, "{}", 2);
  return describe(json, n, big);
}
static uint64_t go_entries(void) { return 42; }
static int64_t describe_environment(char *json, size_t n) { return describe(json, n, "[]"); }
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

static const sagecomm_api api = {SAGECOMM_ABI_VERSION,
                                 sizeof(sagecomm_api),
                                 version,
                                 group_create,
                                 group_destroy,
                                 group_abort,
                                 group_error,
                                 group_sequence,
                                 group_set_timeout,
                                 issue,
                                 wait_for,
                                 on_done,
                                 work_sequence,
                                 work_source,
                                 release_work,
                                 group_stats,
                                 go_entries,
                                 describe_environment,
                                 shutdown_all,
                                 flight_records,
                                 issue_coalesced,
                                 group_fail,
                                 group_hold,
                                 group_describe,
                                 group_stack,
                                 flight_dump,
                                 metrics,
                                 status,
                                 group_on_failure,
                                 topology,
                                 monitored_error,
                                 simulate,
                                 explain,
                                 tune};

const sagecomm_api *sagecomm_get_api(uint32_t abi_version) {
  static int once;
  if (!once++) pthread_atfork(NULL, NULL, in_child);
  return abi_version == SAGECOMM_ABI_VERSION ? &api : NULL;
}

/* ---- the script ---- */

void fake_reset(void) {
  pthread_mutex_lock(&fake.lock);
  fake.script = fake.script_arg = fake.hold_done = fake.aborted = fake.held = 0;
  fake.group_status = SAGECOMM_OK;
  fake.wanted_key[0] = 0;
  pthread_mutex_unlock(&fake.lock);
}

void fake_script(int script, int arg) {
  fake.script = script;
  fake.script_arg = arg;
}

void fake_hold_done(int hold) { fake.hold_done = hold; }
void fake_want_key(const char *key) { snprintf(fake.wanted_key, sizeof fake.wanted_key, "%s", key); }
void fake_group_status(int status) { fake.group_status = status; }

/* Completes everything that is pending. The done functions run on the calling thread. */
void fake_finish(int status) {
  pthread_mutex_lock(&fake.lock);
  for (int i = 0; i < MAX_WORKS; i++)
    if (fake.works[i].used && !fake.works[i].complete) complete(&fake.works[i], status);
  pthread_mutex_unlock(&fake.lock);
}

static void *finish_on_thread(void *status) {
  fake_finish((int)(intptr_t)status);
  return NULL;
}

static pthread_t finisher;

void fake_join(void) { pthread_join(finisher, NULL); }

/* The same on a thread that Python does not know; the caller must fake_join() unless `join` is set. */
void fake_finish_elsewhere(int status, int join) {
  if (pthread_create(&finisher, NULL, finish_on_thread, (void *)(intptr_t)status) != 0) abort();
  if (join) fake_join();
}

static void *fail_group_on_thread(void *status) {
  tell_failed((int)(intptr_t)status);
  return NULL;
}

/* Tells on a thread of its own that the group has failed. */
void fake_fail_group_elsewhere(int status) {
  if (pthread_create(&finisher, NULL, fail_group_on_thread, (void *)(intptr_t)status) != 0) abort();
  fake_join();
}

/* Runs the done functions that were held back. */
void fake_run_held(void) {
  sagecomm_error err;
  fail(SAGECOMM_OK, &err);
  while (fake.held > 0) {
    fake.held--;
    fake.held_done[fake.held](fake.held_ctx[fake.held], SAGECOMM_OK, &err);
  }
}

/* Blocks until `n` works are live and at least `sequence` collectives have been issued. */
void fake_await(int n, uint64_t sequence) {
  pthread_mutex_lock(&fake.lock);
  while (fake.live_works != n || fake.sequence < sequence) pthread_cond_wait(&fake.changed, &fake.lock);
  pthread_mutex_unlock(&fake.lock);
}

/* Blocks until a thread is inside wait(). */
void fake_await_waiter(void) {
  pthread_mutex_lock(&fake.lock);
  while (fake.waiters == 0) pthread_cond_wait(&fake.changed, &fake.lock);
  pthread_mutex_unlock(&fake.lock);
}

/* The next one who comes to that place is held there; others pass. */
void fake_close(int gate) {
  pthread_mutex_lock(&fake.lock);
  fake.gate = gate;
  fake.held_there = 0;
  pthread_mutex_unlock(&fake.lock);
}

void fake_open(void) {
  pthread_mutex_lock(&fake.lock);
  fake.gate = 0;
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
}

/* Blocks until somebody is held. */
void fake_await_held(void) {
  pthread_mutex_lock(&fake.lock);
  while (!fake.held_there) pthread_cond_wait(&fake.changed, &fake.lock);
  pthread_mutex_unlock(&fake.lock);
}

int fake_live_works(void) { return fake.live_works; }
int fake_groups(void) { return fake.groups; }
int fake_shutdowns(void) { return fake.shutdowns; }
int fake_calls(void) { return fake.calls; }
int64_t fake_timeout_set(void) { return timeout_set; }
const char *fake_options(void) { return fake.options; }
const char *fake_got(void) { return fake.got; }
const sagecomm_op *fake_last_op(void) { return &fake.last; }
