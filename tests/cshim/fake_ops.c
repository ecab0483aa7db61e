/* fake_ops.c carries out the operations of the fake core as the script says. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_core.h"

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

/* Completes a work and calls its done function, without the lock. Called with the lock, returns with it. */
void fake_complete(fake_work *w, int32_t status) {
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
  fake_fail(status, &err);
  done(ctx, status, &err);
  pthread_mutex_lock(&fake.lock);
}

int32_t fake_issue(sagecomm_group g, const sagecomm_op *op, sagecomm_work *work, uint64_t *sequence,
                   sagecomm_error *err) {
  fake.calls++;
  *work = 0;
  *sequence = 0;
  if (fake.forked) return fake_fail(SAGECOMM_FORKED, err);
  if (fake_stale(g)) return fake_fail(SAGECOMM_INVALID, err);
  if (fake.aborted) return fake_fail(SAGECOMM_ABORTED, err);
  if (fake.fault.status < 0) return fake_fail(fake.fault.status, err);
  pthread_mutex_lock(&fake.lock);
  fake.last = *op;
  int32_t status = SAGECOMM_OK;
  if (op->kind < SAGECOMM_SEND) {
    *sequence = ++fake.sequence;
    fake.sequence += fake.others;
  }
  if (fake.script == SCRIPT_FAIL) {
    status = fake_fail(fake.script_arg, err);
  } else {
    fake_work local = {.op = *op, .status = SAGECOMM_OK}, *w = &local;
    if (fake.script != SCRIPT_OK) {
      int i = 0;
      while (i < MAX_WORKS && fake.works[i].used) i++;
      if (i == MAX_WORKS) abort();
      w = &fake.works[i];
      *w = local;
      w->used = 1;
      w->waits_left = fake.script == SCRIPT_WAITS ? fake.script_arg : -1;
      fake.live_works++;
      *work = (sagecomm_work)i + 1;
      status = SAGECOMM_PENDING;
    }
    memcpy(w->in, op->in, op->n_in * sizeof *op->in);
    memcpy(w->out, op->out, op->n_out * sizeof *op->out);
    if (fake.script == SCRIPT_OK || fake.script == SCRIPT_OK_WORK) {
      fake_complete(w, SAGECOMM_OK);
      status = SAGECOMM_OK;
    }
  }
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
  return status;
}

/* Issues one operation of the kind of the first one, on the segments of all. */
int32_t fake_all_reduce_sparse(sagecomm_group g, const sagecomm_sparse_sum *sum, sagecomm_work *work,
                               uint64_t *sequence, sagecomm_error *err) {
  /* Its elements stay as they are: the fake has no peers to add. */
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE, .flags = SAGECOMM_ASYNC, .timeout_ns = sum->timeout_ns};
  return fake_issue(g, &op, work, sequence, err);
}

int32_t fake_issue_coalesced(sagecomm_group g, const sagecomm_op *ops, uint32_t n, sagecomm_work *work,
                             uint64_t *sequence, sagecomm_error *err) {
  sagecomm_segment in[MAX_SEGMENTS], out[MAX_SEGMENTS];
  sagecomm_op all = ops[0];
  all.in = in;
  all.out = out;
  all.batch_size = n;
  all.n_in = all.n_out = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (all.n_in + ops[i].n_in > MAX_SEGMENTS || all.n_out + ops[i].n_out > MAX_SEGMENTS) abort();
    memcpy(in + all.n_in, ops[i].in, ops[i].n_in * sizeof *in);
    memcpy(out + all.n_out, ops[i].out, ops[i].n_out * sizeof *out);
    all.n_in += ops[i].n_in;
    all.n_out += ops[i].n_out;
  }
  return fake_issue(g, &all, work, sequence, err);
}

int32_t fake_wait(sagecomm_work work, int64_t timeout_ns, sagecomm_error *err) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  int64_t ns = until.tv_nsec + timeout_ns;
  until.tv_sec += ns / 1000000000;
  until.tv_nsec = ns % 1000000000;
  pthread_mutex_lock(&fake.lock);
  fake.waiters++;
  pthread_cond_broadcast(&fake.changed);
  fake_work *w = &fake.works[work - 1];
  if (!w->complete && w->waits_left > 0 && --w->waits_left == 0) fake_complete(w, SAGECOMM_OK);
  while (!w->complete && w->waits_left < 0)
    if (pthread_cond_timedwait(&fake.changed, &fake.lock, &until) == ETIMEDOUT) break;
  int32_t status = w->complete ? w->status : SAGECOMM_PENDING;
  if (status < 0) fake_fail(status, err);
  fake.waiters--;
  pthread_mutex_unlock(&fake.lock);
  return status;
}

/* Short operations only, as the core does. */
int32_t fake_wait_briefly(sagecomm_work work, sagecomm_error *err) {
  const fake_work *w = &fake.works[work - 1];
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < w->op.n_out; i++) bytes += w->out[i].bytes;
  if (bytes > 64 * 1024 && !w->complete) return SAGECOMM_PENDING;
  return fake_wait(work, 20000, err);
}

int32_t fake_test(sagecomm_work work) {
  pthread_mutex_lock(&fake.lock);
  int32_t complete = fake.works[work - 1].complete;
  pthread_mutex_unlock(&fake.lock);
  return complete;
}

int32_t fake_on_done(sagecomm_work work, sagecomm_done_fn done, void *ctx, sagecomm_error *err) {
  pthread_mutex_lock(&fake.lock);
  fake_work *w = &fake.works[work - 1];
  int32_t status = SAGECOMM_PENDING;
  if (w->complete) {
    status = w->status;
    if (status < 0) fake_fail(status, err);
  } else {
    w->done = done;
    w->ctx = ctx;
  }
  pthread_mutex_unlock(&fake.lock);
  return status;
}

int32_t fake_work_source(sagecomm_work work) { return fake.works[work - 1].complete ? 1 : -1; }

void fake_release(sagecomm_work work) {
  pthread_mutex_lock(&fake.lock);
  fake.works[work - 1].used = 0;
  fake.live_works--;
  pthread_cond_broadcast(&fake.changed);
  pthread_mutex_unlock(&fake.lock);
}
