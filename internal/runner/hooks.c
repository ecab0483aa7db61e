/* hooks.c: the runner's calls into Go, which are the exported functions of hooks.go. */
#include "runner.h"

int32_t scrGoIssue(uint64_t group, sagecomm_op *op, scr_run **out, sagecomm_error *err);
int32_t scrGoFuse(uint64_t group, sagecomm_op *ops, uint32_t n, uint32_t *batch, sagecomm_error *err);
void scrGoIncident(uint64_t group, scr_incident *incident);
int32_t scrGoFifo(uint64_t group, int32_t peer);
void scrGoFail(uint64_t group, sagecomm_error *cause);
void scrGoTrace(uint64_t group, sagecomm_op *op);
void scrGoWant(uint64_t group, scr_run **agreement);
void scrGoPush(uint64_t pair);
void scrGoWake(uint64_t pair);
void scrGoDetach(uint64_t pair);
int32_t scrGoPoll(uint64_t pair);
void scrGoAttend(uint64_t pair, int32_t on);
int32_t scrGoSend(uint64_t pair, scr_payload *p);
int32_t scrGoExpect(uint64_t pair, scr_payload *p);
void scrGoForget(uint64_t pair, int32_t lane);
void scrGoDone(uintptr_t ctx, int32_t status, sagecomm_error *err);

static int32_t issue(uint64_t group, const sagecomm_op *op, scr_run **out, sagecomm_error *err) {
  return scrGoIssue(group, (sagecomm_op *)(uintptr_t)op, out, err);
}

static int32_t fuse(uint64_t group, const sagecomm_op *ops, uint32_t n, uint32_t *batch, sagecomm_error *err) {
  return scrGoFuse(group, (sagecomm_op *)(uintptr_t)ops, n, batch, err);
}

static void incident(uint64_t group, const scr_incident *t) { scrGoIncident(group, (scr_incident *)(uintptr_t)t); }

static void fail(uint64_t group, const sagecomm_error *cause) { scrGoFail(group, (sagecomm_error *)(uintptr_t)cause); }

static void trace(uint64_t group, const sagecomm_op *op) { scrGoTrace(group, (sagecomm_op *)(uintptr_t)op); }

static int32_t send(uint64_t pair, const scr_payload *p) { return scrGoSend(pair, (scr_payload *)(uintptr_t)p); }

static int32_t expect(uint64_t pair, const scr_payload *p) { return scrGoExpect(pair, (scr_payload *)(uintptr_t)p); }

static void done(void *ctx, int32_t status, const sagecomm_error *err) {
  scrGoDone((uintptr_t)ctx, status, (sagecomm_error *)(uintptr_t)err);
}

/* Go may not pass a number as a pointer, so ctx arrives as uintptr_t. */
int32_t scr_on_done_go(sagecomm_work work, uintptr_t ctx, sagecomm_error *err) {
  return scr_on_done(work, done, (void *)ctx, err);
}

void scr_call_go(void) {
  static const scr_hooks hooks = {issue,     incident,    scrGoFifo, fuse,        fail, trace,  scrGoWant,  scrGoPush,
                                  scrGoWake, scrGoDetach, scrGoPoll, scrGoAttend, send, expect, scrGoForget};
  scr_set_hooks(&hooks);
  scr_watch_fork();
}
