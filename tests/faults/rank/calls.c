/* calls.c: every operation of the ABI once, on data from which each rank can tell what must come out. */
#include "rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Element i of what a rank puts in. */
static int32_t value(int rank, uint64_t i, uint32_t round) {
  return (rank + 1) * 1000 + (int32_t)(i % 911) + (int32_t)(round % 1000) * 7;
}

static int32_t reduced(const place *at, sagecomm_reduce_op op, uint64_t i) {
  int32_t first = value(0, i, at->round), last = value(at->size - 1, i, at->round);
  return op == SAGECOMM_MAX ? last : (first + last) * at->size / 2;
}

/* ---- buffers: kept, so that a call touches no fresh memory ---- */

enum { TENSORS = 3 };

static int32_t *buffer(int which, uint64_t count) {
  static int32_t *memory[2 * TENSORS];
  static uint64_t room[2 * TENSORS];
  if (room[which] < count) {
    free(memory[which]);
    memory[which] = malloc(count * sizeof(int32_t));
    room[which] = count;
    if (memory[which] == NULL) abort();
  }
  return memory[which];
}

static uint64_t blocks_in(const place *at, const call *c) {
  bool many = c->kind == SAGECOMM_REDUCE_SCATTER || c->kind == SAGECOMM_ALL_TO_ALL || c->kind == SAGECOMM_SCATTER;
  return many ? (uint64_t)at->size : 1;
}

static uint64_t blocks_out(const place *at, const call *c) {
  bool many = c->kind == SAGECOMM_ALL_GATHER || c->kind == SAGECOMM_ALL_TO_ALL || c->kind == SAGECOMM_GATHER;
  return many ? (uint64_t)at->size : 1;
}

static bool has_in(const place *at, const call *c) {
  bool of_root = c->kind == SAGECOMM_BROADCAST || c->kind == SAGECOMM_SCATTER;
  return c->kind != SAGECOMM_BARRIER && (!of_root || c->root == at->rank);
}

static bool has_out(const place *at, const call *c) {
  bool of_root = c->kind == SAGECOMM_REDUCE || c->kind == SAGECOMM_GATHER;
  return c->kind != SAGECOMM_BARRIER && (!of_root || c->root == at->rank);
}

/* ---- one collective ---- */

/* `slot` tells the tensors of a coalesced call apart. */
static void prepare(const place *at, const call *c, int slot, sagecomm_op *op, sagecomm_segment piece[2]) {
  *op = (sagecomm_op){.kind = (uint8_t)c->kind,
                      .dtype = (uint8_t)c->dtype,
                      .reduce_op = (uint8_t)c->reduce,
                      .flags = c->async ? SAGECOMM_ASYNC : 0,
                      .root = c->root,
                      .timeout_ns = c->timeout_ns};
  uint64_t n_in = c->count * blocks_in(at, c), n_out = c->count * blocks_out(at, c);
  int32_t *in = buffer(2 * slot, n_in), *out = buffer(2 * slot + 1, n_out);
  if (has_in(at, c)) {
    for (uint64_t i = 0; i < n_in; i++) in[i] = value(at->rank, i, at->round);
    piece[0] = (sagecomm_segment){in, n_in * sizeof *in};
    op->in = &piece[0];
    op->n_in = 1;
  }
  if (has_out(at, c)) {
    bool in_place = c->kind == SAGECOMM_BROADCAST && has_in(at, c);
    piece[1] = (sagecomm_segment){in_place ? in : out, n_out * sizeof *out};
    if (!in_place) memset(out, 0, n_out * sizeof *out);
    op->out = &piece[1];
    op->n_out = 1;
  }
}

static int32_t expected(const place *at, const call *c, uint64_t block, uint64_t i) {
  uint64_t mine = (uint64_t)at->rank * c->count + i;
  switch (c->kind) {
    case SAGECOMM_ALL_GATHER:
    case SAGECOMM_GATHER:
      return value((int)block, i, at->round);
    case SAGECOMM_ALL_TO_ALL:
      return value((int)block, mine, at->round);
    case SAGECOMM_SCATTER:
      return value(c->root, mine, at->round);
    case SAGECOMM_BROADCAST:
      return value(c->root, i, at->round);
    case SAGECOMM_REDUCE_SCATTER:
      return reduced(at, c->reduce, mine);
    default:
      return reduced(at, c->reduce, i);
  }
}

static int32_t wrong(sagecomm_error *err, const char *what, uint64_t i, int32_t got, int32_t want) {
  err->status = SAGECOMM_INTERNAL;
  err->rank = -1;
  snprintf(err->message, sizeof err->message, "%s succeeded with %d as element %llu, expected %d", what, got,
           (unsigned long long)i, want);
  return SAGECOMM_INTERNAL;
}

static int32_t check(const place *at, const call *c, const sagecomm_op *op, sagecomm_error *err) {
  const int32_t *out = op->n_out ? op->out->data : NULL;
  for (uint64_t b = 0; out && b < blocks_out(at, c); b++) {
    for (uint64_t i = 0; i < c->count; i++) {
      int32_t want = expected(at, c, b, i), got = out[b * c->count + i];
      if (got != want && c->dtype == SAGECOMM_INT32) return wrong(err, "a collective", b * c->count + i, got, want);
    }
  }
  return SAGECOMM_OK;
}

/* Waits for what issue() has returned. */
static int32_t finish(int32_t status, const sagecomm_work *work, sagecomm_error *err) {
  bool pending = status == SAGECOMM_PENDING;
  while (status == SAGECOMM_PENDING) status = api->wait(*work, 100 * MILLISECOND, err);
  if (pending) api->release(*work);
  return status;
}

static int32_t single(place *at, const call *c, sagecomm_error *err) {
  sagecomm_op op;
  sagecomm_segment piece[2];
  prepare(at, c, 0, &op, piece);
  sagecomm_work work = 0;
  int32_t status = finish(api->issue(at->group, &op, &work, NULL, err), &work, err);
  return status == SAGECOMM_OK ? check(at, c, &op, err) : status;
}

/* Three collectives in one call, the second shorter and the third short. */
static int32_t fused(place *at, const call *c, sagecomm_error *err) {
  sagecomm_op op[TENSORS];
  sagecomm_segment piece[TENSORS][2];
  call part[TENSORS] = {*c, *c, *c};
  part[1].count = c->count / 2 + 1;
  part[2].count = 3;
  for (int i = 0; i < TENSORS; i++) prepare(at, &part[i], i, &op[i], piece[i]);
  sagecomm_work work = 0;
  int32_t status = finish(api->issue_coalesced(at->group, op, TENSORS, &work, NULL, err), &work, err);
  for (int i = 0; i < TENSORS && status == SAGECOMM_OK; i++) status = check(at, &part[i], &op[i], err);
  return status;
}

/* Sends to the next rank and receives from the one before: by two calls or by one coalesced call. */
static int32_t p2p(place *at, const call *c, bool together, sagecomm_error *err) {
  int32_t *in = buffer(0, c->count), *out = buffer(1, c->count);
  int from = (at->rank + at->size - 1) % at->size;
  for (uint64_t i = 0; i < c->count; i++) in[i] = value(at->rank, i, at->round);
  memset(out, 0, c->count * sizeof *out);
  sagecomm_segment piece[2] = {{in, c->count * sizeof *in}, {out, c->count * sizeof *out}};
  sagecomm_op op[2] = {{.kind = SAGECOMM_SEND,
                        .dtype = (uint8_t)c->dtype,
                        .flags = SAGECOMM_ASYNC,
                        .root = (at->rank + 1) % at->size,
                        .n_in = 1,
                        .in = &piece[0],
                        .timeout_ns = c->timeout_ns},
                       {.kind = SAGECOMM_RECV,
                        .dtype = (uint8_t)c->dtype,
                        .flags = c->async || together ? SAGECOMM_ASYNC : 0,
                        .root = from,
                        .n_out = 1,
                        .out = &piece[1],
                        .timeout_ns = c->timeout_ns}};
  sagecomm_work work[2] = {0, 0};
  int32_t status;
  if (together) {
    status = finish(api->issue_coalesced(at->group, op, 2, &work[0], NULL, err), &work[0], err);
  } else {
    status = api->issue(at->group, &op[0], &work[0], NULL, err);
    if (status < 0) return status;
    sagecomm_error other;
    int32_t received = finish(api->issue(at->group, &op[1], &work[1], NULL, err), &work[1], err);
    int32_t sent = finish(status, &work[0], received == SAGECOMM_OK ? err : &other);
    status = received == SAGECOMM_OK ? sent : received;
  }
  for (uint64_t i = 0; status == SAGECOMM_OK && c->dtype == SAGECOMM_INT32 && i < c->count; i++) {
    int32_t want = value(from, i, at->round);
    if (out[i] != want) status = wrong(err, "a recv", i, out[i], want);
  }
  return status;
}

int32_t make_call(place *at, const call *c, sagecomm_error *err) {
  int32_t status;
  switch (c->form) {
    case SINGLE:
      status = single(at, c, err);
      break;
    case FUSED:
      status = fused(at, c, err);
      break;
    default:
      status = p2p(at, c, c->form == FUSED_P2P, err);
  }
  at->round++;
  return status;
}
