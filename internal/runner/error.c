/* error.c: errors that the runner words itself, the cause of a failed group, and the refusal of forked children. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "group.h"

int32_t scr_plain_error(sagecomm_error *err, int32_t status, const char *message) {
  if (err) {
    memset(err, 0, sizeof *err);
    err->status = status;
    err->rank = -1;
    snprintf(err->message, sizeof err->message, "%s", message);
  }
  return status;
}

int32_t scr_no_memory(sagecomm_error *err) {
  return scr_plain_error(err, SAGECOMM_SYSTEM, "sagecomm: no memory for another operation");
}

static bool forked;

/* Descriptors that a forked child closes, a bit each. Where the child kept the connections of links, peers would not notice that
 * its parent was killed. Higher descriptors are kept. */
#define CHILD_FDS 65536
static _Atomic uint64_t child_closes[CHILD_FDS / 64];

static void in_child(void) {
  forked = true;
  for (int w = 0; w < CHILD_FDS / 64; w++) {
    uint64_t fds = atomic_load_explicit(&child_closes[w], memory_order_relaxed);
    if (fds == 0) continue; /* a store would make the child copy the page */
    atomic_store_explicit(&child_closes[w], 0, memory_order_relaxed);
    for (; fds != 0; fds &= fds - 1) close(64 * w + __builtin_ctzll(fds));
  }
}

static void register_fork(void) { pthread_atfork(NULL, NULL, in_child); }

void scr_watch_fork(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_fork);
}

void scr_close_in_child(int32_t fd, bool closes) {
  if (fd < 0 || fd >= CHILD_FDS) return;
  const uint64_t bit = UINT64_C(1) << (fd % 64);
  if (closes) {
    scr_watch_fork();
    atomic_fetch_or_explicit(&child_closes[fd / 64], bit, memory_order_relaxed);
  } else {
    atomic_fetch_and_explicit(&child_closes[fd / 64], ~bit, memory_order_relaxed);
  }
}

bool scr_in_child(void) { return SCR_UNLIKELY(forked); }

int32_t scr_refuse_child(sagecomm_error *err) {
  return scr_plain_error(
      err, SAGECOMM_FORKED,
      "sagecomm: this process was forked from one that uses sagecomm; the group cannot be used here. "
      "Use it in the parent, or start workers with spawn or forkserver and init_process_group there");
}

/* ---- the cause of a failed group ---- */

scr_cause *scr_cause_new(const sagecomm_error *error) {
  scr_cause *c = malloc(sizeof *c);
  if (c != NULL) {
    atomic_init(&c->refs, 1);
    c->next = NULL;
    c->error = *error;
  }
  return c;
}

scr_cause *scr_cause_ref(scr_cause *c) {
  if (c != NULL) atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
  return c;
}

void scr_cause_unref(scr_cause *c) {
  if (c != NULL && atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) free(c);
}

int32_t scr_cause_copy(const scr_cause *c, sagecomm_error *err) {
  if (c == NULL) return scr_plain_error(err, SAGECOMM_ABORTED, "sagecomm: the group was destroyed");
  if (err) *err = c->error;
  return c->error.status;
}

int32_t scr_copy_error(const scr_group *g, sagecomm_error *err) {
  return scr_cause_copy(atomic_load_explicit(&g->cause, memory_order_acquire), err);
}
