/* fake_core.h declares the state that fake_core.c (the function table) and its other files share. */
#ifndef FAKE_CORE_H
#define FAKE_CORE_H

#include <pthread.h>

#include "../../export/sagecomm.h"

enum { MAX_WORKS = 256, MAX_SEGMENTS = 16, MAX_GROUPS = 4096, MAX_CLAIMERS = 64 };

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
  sagecomm_op op;
  sagecomm_segment in[MAX_SEGMENTS], out[MAX_SEGMENTS];
  sagecomm_done_fn done;
  void *ctx;
} fake_work;

typedef struct fake_core {
  pthread_mutex_t lock; /* guards the rest, except where one thread runs */
  pthread_cond_t changed;
  int script, script_arg;
  int hold_done; /* wait() reports the end, but done stays queued until fake_run_held() */
  fake_work works[MAX_WORKS];
  uint64_t sequence;
  uint64_t others; /* how many collectives of other threads get their numbers right after that of an operation */
  sagecomm_op last;
  int live_works, waiters, groups, shutdowns, forked, aborted, calls;
  char alive[MAX_GROUPS]; /* by handle; beyond that all groups share the state of one */
  int created;
  int gate, held_there;      /* see fake_close() */
  sagecomm_failed_fn failed; /* called once */
  void *failed_ctx;
  int slices, unsettled, patient,
      stopped; /* calls of group_settle() that wait; as many are not enough; one was FULL; those NOW */
  int32_t group_status, last_status; /* of the group's failure; what group_destroy() has as the cause */
  sagecomm_error fault;              /* what group_fail() was called with; status 0: it was not */
  int64_t timeout_ns;                /* as group_set_timeout() set it last */
  char options[512];
  char wanted_key[64];
  char got[64];
  void (*held_done[MAX_WORKS])(void *, int32_t, const sagecomm_error *);
  void *held_ctx[MAX_WORKS];
  int held;
  int lasts; /* group_create() prepares the lasting store */
  sagecomm_lasting_store lasting;
  void *claimers[MAX_CLAIMERS];
  int n_claimers, claims_begun, claims_ended;
  int preparing;     /* threads inside prepare() */
  char refusal[512]; /* of the last prepare() */
} fake_core;

extern fake_core fake;

/* Places at which fake_close() holds the next thread that comes by, until fake_open(). */
enum { GATE_ERROR = 1, GATE_CREATED = 2, GATE_ABORT = 3, GATE_STATS = 4 };

/* Holds the calling thread if the gate is closed. */
void fake_pass(int gate);
/* Fills in a scripted failure and returns its status. */
int32_t fake_fail(int32_t status, sagecomm_error *err);
/* Reports whether the handle is of no group that exists. */
int fake_stale(sagecomm_group g);
/* Completes a work and calls its done function, without the lock. Requires: the lock; holds it again on return. */
void fake_complete(fake_work *w, int32_t status);
/* Calls the failure callback, with SAGECOMM_OK because the group was destroyed without a failure, on the calling thread. */
void fake_call_failed(int32_t status);

/* Functions of the table. */
int32_t fake_issue(sagecomm_group g, const sagecomm_op *op, sagecomm_work *work, uint64_t *sequence,
                   sagecomm_error *err);
int32_t fake_all_reduce_sparse(sagecomm_group g, const sagecomm_sparse_sum *sum, sagecomm_work *work,
                               uint64_t *sequence, sagecomm_error *err);
int32_t fake_issue_coalesced(sagecomm_group g, const sagecomm_op *ops, uint32_t n, sagecomm_work *work,
                             uint64_t *sequence, sagecomm_error *err);
int32_t fake_wait(sagecomm_work work, int64_t timeout_ns, sagecomm_error *err);
int32_t fake_wait_briefly(sagecomm_work work, sagecomm_error *err);
int32_t fake_test(sagecomm_work work);
int32_t fake_on_done(sagecomm_work work, sagecomm_done_fn done, void *ctx, sagecomm_error *err);
int32_t fake_work_source(sagecomm_work work);
void fake_release(sagecomm_work work);

#endif /* FAKE_CORE_H */
