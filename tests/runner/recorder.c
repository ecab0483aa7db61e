/* recorder.c: the flight recorder while ranks work: readers see whole operations only, and in the end all of them. */
#include <pthread.h>
#include <sched.h>

#include "scenarios.h"

enum { ROUNDS = 150, COLLECTIVES = 3, P2P = 2 };

static int size;
static _Atomic int working;

/* The length and the tag identify the operation of an entry. */
static void check(const scr_flight *f) {
  CHECK(f->number >= 1 && f->thread != 0 && f->ticks != 0);
  CHECK(f->created_ns != 0 || f->state == SCR_FLIGHT_STARTED); /* a short collective that has just begun */
  CHECK(f->started_ns >= f->created_ns || f->state == SCR_FLIGHT_SCHEDULED);
  CHECK((f->state == SCR_FLIGHT_COMPLETED) == (f->completed_ns != 0));
  CHECK(f->completed_ns == 0 || f->completed_ns >= f->started_ns);
  if (f->kind == SAGECOMM_ALL_REDUCE) CHECK(f->bytes == 4 * (f->number % 7) && f->dtype == SAGECOMM_INT32);
  if (f->kind == SAGECOMM_SEND) CHECK(f->bytes == 4 * (uint64_t)f->tag && f->root >= 0);
}

static void *reader(void *arg) {
  rank *r = arg;
  uint32_t capacity = scr_group_flights(r->group, r->rank).capacity;
  scr_flight *list = calloc(3 * capacity, sizeof *list);
  uint64_t total, before = 0;
  do {
    uint64_t n = scr_group_read_flights(r->group, list, &total);
    CHECK(n <= 3 * capacity && total >= before);
    for (uint64_t i = 0; i < n; i++) check(&list[i]);
    before = total;
    sched_yield();
  } while (atomic_load(&working) != 0);
  free(list);
  return NULL;
}

static void work(rank *r, void *arg) {
  (void)arg;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, reader, r) == 0);
  uint64_t collective = 0, p2p = 0;
  sagecomm_error err;
  int32_t in[8] = {0}, out[8];
  for (int round = 0; round < ROUNDS; round++) {
    sagecomm_work pending[COLLECTIVES];
    int32_t data[COLLECTIVES][8] = {{0}};
    for (int i = 0; i < COLLECTIVES; i++) {
      sagecomm_segment s = {data[i], 4 * (++collective % 7)};
      sagecomm_op op = {
          .kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = 1, .in = &s, .out = &s};
      op.flags = (round + i) % 2 ? SAGECOMM_ASYNC : 0;
      pending[i] = 0;
      int32_t status = scr_issue(r->handle, &op, &pending[i], NULL, &err);
      CHECK(status >= 0);
      if (status == SAGECOMM_PENDING && !(op.flags & SAGECOMM_ASYNC)) {
        CHECK(complete(pending[i], &err) == SAGECOMM_OK);
        pending[i] = 0;
      }
    }
    for (int i = 0; i < P2P; i++) {
      int32_t tag = (int32_t)(++p2p % 8);
      sagecomm_segment from = {in, 4 * (uint64_t)tag}, to = {out, 4 * (uint64_t)tag};
      sagecomm_op send = {.kind = SAGECOMM_SEND, .root = (r->rank + 1) % size, .tag = tag, .n_in = 1, .in = &from};
      sagecomm_op recv = {
          .kind = SAGECOMM_RECV, .root = (r->rank + size - 1) % size, .tag = tag, .n_out = 1, .out = &to};
      send.flags = SAGECOMM_ASYNC;
      sagecomm_work sent = 0;
      CHECK(scr_issue(r->handle, &send, &sent, NULL, &err) >= 0);
      CHECK(call(r, &recv, &err) == SAGECOMM_OK);
      if (sent) CHECK(complete(sent, &err) == SAGECOMM_OK);
    }
    for (int i = 0; i < COLLECTIVES; i++) {
      if (pending[i]) CHECK(complete(pending[i], &err) == SAGECOMM_OK);
    }
  }
  meet();
  atomic_fetch_sub(&working, 1);
  CHECK(pthread_join(thread, NULL) == 0);

  scr_flight *list = calloc(3 * scr_group_flights(r->group, r->rank).capacity, sizeof *list);
  uint64_t total, newest = 0, n = scr_group_read_flights(r->group, list, &total);
  CHECK(total == ROUNDS * (COLLECTIVES + 2 * P2P));
  for (uint64_t i = 0; i < n; i++) {
    CHECK(list[i].state == SCR_FLIGHT_COMPLETED);
    if (list[i].kind == SAGECOMM_ALL_REDUCE && list[i].number > newest) newest = list[i].number;
  }
  CHECK(newest == ROUNDS * COLLECTIVES);
  free(list);
}

void test_recorder(int n, waiting w, uint64_t seed) {
  size = n;
  atomic_store(&working, n);
  run_ranks(n, w.spin, w.yield_us, seed, work, NULL);
}
