/* fake_script.c holds the functions that a test calls with ctypes to say what the fake core does, and to see what it did. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_core.h"

void fake_reset(void) {
  pthread_mutex_lock(&fake.lock);
  fake.script = fake.script_arg = fake.hold_done = fake.aborted = fake.held = 0;
  fake.others = 0;
  fake.slices = fake.unsettled = fake.patient = fake.stopped = 0;
  fake.group_status = fake.last_status = SAGECOMM_OK;
  fake.fault.status = 0;
  fake.wanted_key[0] = 0;
  fake.lasts = 0;
  pthread_mutex_unlock(&fake.lock);
}

void fake_script(int script, int arg) {
  fake.script = script;
  fake.script_arg = arg;
}

/* After each collective, the numbers of `n` collectives that other threads issue are taken. */
void fake_number_others(uint64_t n) { fake.others = n; }

void fake_hold_done(int hold) { fake.hold_done = hold; }
void fake_want_key(const char *key) { snprintf(fake.wanted_key, sizeof fake.wanted_key, "%s", key); }
void fake_group_status(int status) { fake.group_status = status; }
/* Operations are complete behind so many slices of the wait at the end of a group. */
void fake_settle_after(int slices) {
  fake.slices = fake.patient = fake.stopped = 0;
  fake.unsettled = slices;
}
/* All operations are complete now. */
void fake_settle(void) {
  pthread_mutex_lock(&fake.lock);
  fake.unsettled = 0;
  pthread_mutex_unlock(&fake.lock);
}
/* From now on groups that are destroyed turn out to have failed with that status. */
void fake_last_status(int status) { fake.last_status = status; }

/* Completes everything that is pending. The done functions run on the calling thread. */
void fake_finish(int status) {
  pthread_mutex_lock(&fake.lock);
  for (int i = 0; i < MAX_WORKS; i++)
    if (fake.works[i].used && !fake.works[i].complete) fake_complete(&fake.works[i], status);
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
  fake_call_failed((int)(intptr_t)status);
  return NULL;
}

/* Calls the failure callback on a thread of its own. */
void fake_fail_group_elsewhere(int status) {
  if (pthread_create(&finisher, NULL, fail_group_on_thread, (void *)(intptr_t)status) != 0) abort();
  fake_join();
}

/* Runs the done functions that were held back. */
void fake_run_held(void) {
  sagecomm_error err;
  fake_fail(SAGECOMM_OK, &err);
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

/* Blocks until a thread has waited so many slices for the end of a group. */
void fake_await_slices(int n) {
  pthread_mutex_lock(&fake.lock);
  while (fake.slices < n) pthread_cond_wait(&fake.changed, &fake.lock);
  pthread_mutex_unlock(&fake.lock);
}

/* The next thread that comes to that place is held there; others pass. */
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

/* Blocks until a thread is held. */
void fake_await_held(void) {
  pthread_mutex_lock(&fake.lock);
  while (!fake.held_there) pthread_cond_wait(&fake.changed, &fake.lock);
  pthread_mutex_unlock(&fake.lock);
}

int fake_live_works(void) { return fake.live_works; }
int fake_groups(void) { return fake.groups; }
int fake_slices(void) { return fake.slices; }
int fake_patient(void) { return fake.patient; }
int fake_stopped(void) { return fake.stopped; }
int fake_aborted(void) { return fake.aborted; }
int fake_shutdowns(void) { return fake.shutdowns; }
int fake_calls(void) { return fake.calls; }
int64_t fake_timeout_set(void) { return fake.timeout_ns; }
const char *fake_options(void) { return fake.options; }
const char *fake_got(void) { return fake.got; }
const sagecomm_op *fake_last_op(void) { return &fake.last; }

/* ---- the store that lasts ---- */

/* From now on group_create() prepares it. */
void fake_last(void) { fake.lasts = 1; }

/* Blocks until a thread is inside prepare(). */
void fake_await_preparing(void) {
  pthread_mutex_lock(&fake.lock);
  while (fake.preparing == 0) pthread_cond_wait(&fake.changed, &fake.lock);
  pthread_mutex_unlock(&fake.lock);
}

/* How many were prepared. They are numbered from 0. */
int fake_claimers(void) { return fake.n_claimers; }
const char *fake_refusal(void) { return fake.refusal; }

typedef struct fake_value {
  char *text;
  size_t room;
} fake_value;

static void keep_value(void *ctx, const void *data, size_t n) {
  fake_value *v = ctx;
  snprintf(v->text, v->room, "%.*s", (int)n, (const char *)data);
}

/* Claims; what the key has, or why the claim failed, becomes the text. */
int fake_claim(int claimer, const char *key, const char *value, char *text, size_t room) {
  fake_value got = {text, room};
  pthread_mutex_lock(&fake.lock);
  fake.claims_begun++;
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
  int rc = fake.lasting.claim(fake.claimers[claimer], key, value, strlen(value), &got, keep_value, text, room);
  pthread_mutex_lock(&fake.lock);
  fake.claims_ended++;
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
  return rc;
}

static void *claim_on_thread(void *claimer) {
  static char text[64];
  fake_claim((int)(intptr_t)claimer, "cause", "elsewhere", text, sizeof text);
  return NULL;
}

/* Claims "cause" on a thread that Python does not know, and returns when that thread has begun. */
void fake_claim_elsewhere(int claimer) {
  pthread_t thread;
  pthread_mutex_lock(&fake.lock);
  int begun = fake.claims_begun;
  if (pthread_create(&thread, NULL, claim_on_thread, (void *)(intptr_t)claimer) != 0) abort();
  pthread_detach(thread);
  while (fake.claims_begun == begun) pthread_cond_wait(&fake.changed, &fake.lock);
  pthread_mutex_unlock(&fake.lock);
}

/* How many claims are under way. */
int fake_claiming(void) {
  pthread_mutex_lock(&fake.lock);
  int n = fake.claims_begun - fake.claims_ended;
  pthread_mutex_unlock(&fake.lock);
  return n;
}

/* Blocks until no claim is under way. */
void fake_await_claims(void) {
  pthread_mutex_lock(&fake.lock);
  while (fake.claims_ended < fake.claims_begun) pthread_cond_wait(&fake.changed, &fake.lock);
  pthread_mutex_unlock(&fake.lock);
}

void fake_release_claimer(int claimer) { fake.lasting.release(fake.claimers[claimer]); }
