/* trace.c: see trace.h. */
#define _GNU_SOURCE
#include "trace.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool make_queue(scr_trace_queue *q) {
  q->events = calloc(SCR_TRACE_EVENTS, sizeof *q->events);
  return q->events != NULL;
}

scr_tracer *scr_tracer_new(void) {
  scr_ticks_begin();
  scr_tracer *t = aligned_alloc(SCR_LINE, (sizeof *t + SCR_LINE - 1) & ~(size_t)(SCR_LINE - 1));
  if (t == NULL) return NULL;
  memset(t, 0, sizeof *t);
  if (make_queue(&t->collectives) && make_queue(&t->p2p)) return t;
  scr_tracer_free(t);
  return NULL;
}

void scr_tracer_free(scr_tracer *t) {
  if (t == NULL) return;
  free(t->collectives.events);
  free(t->p2p.events);
  free(t);
}

static uint32_t thread_id(void) {
  static __thread uint32_t id;
  if (id == 0) id = (uint32_t)syscall(SYS_gettid);
  return id;
}

static void put(scr_trace_queue *q, const scr_trace_event *e) {
  uint64_t n = atomic_load_explicit(&q->written, memory_order_relaxed);
  if (n - atomic_load_explicit(&q->read, memory_order_acquire) >= SCR_TRACE_EVENTS) {
    atomic_fetch_add_explicit(&q->dropped, 1, memory_order_relaxed);
    return;
  }
  q->events[n % SCR_TRACE_EVENTS] = *e;
  atomic_store_explicit(&q->written, n + 1, memory_order_release);
}

/* The longest gap, in ticks, between events that belong together: 5 to 20 us. A thread that has left the library and
 * come back has not slept in between. */
enum { MOST_GAP = 20000 };

/* Returns whether the thread of what is held back goes on with e, for the same operation. */
static bool goes_on(const scr_trace_queue *q, const scr_trace_event *e) {
  const scr_trace_event *last = q->attempts ? &q->attempt[q->attempts - 1] : &q->sleep;
  return last->thread == e->thread && last->number == e->number && last->kind == e->kind &&
         (int64_t)(e->begin - last->end) <= MOST_GAP;
}

/* Returns whether e is held back, or part of what is. */
static bool hold(scr_trace_queue *q, const scr_trace_event *e, bool idle) {
  if (q->sleep.what != 0) {
    bool more = goes_on(q, e);
    if (more && e->what == SCR_TRACE_SLEEP && e->peer == q->sleep.peer) {
      q->sleep.end = e->end;
      q->attempts = 0;
      return true;
    }
    if (more && idle && q->attempts < 2) {
      q->attempt[q->attempts++] = *e;
      return true;
    }
    put(q, &q->sleep);
    for (uint32_t i = 0; i < q->attempts; i++) put(q, &q->attempt[i]);
    q->sleep.what = 0;
  }
  if (e->what != SCR_TRACE_SLEEP) return false;
  q->sleep = *e;
  q->attempts = 0;
  return true;
}

/* The steps of a carrier have the number of the first of its operations. Agreements are no operations of the user. */
static void add(scr_tracer *t, const scr_run *r, int what, uint64_t begin, uint64_t end, int32_t peer, uint64_t chunk,
                bool idle) {
  if (r->agrees) return;
  uint64_t seq = r->members ? r->members->coll.seq : r->coll.seq;
  scr_trace_queue *q = scr_is_p2p(r) ? &t->p2p : &t->collectives;
  scr_trace_event e = {
      .begin = begin,
      .end = end,
      .number = seq ? seq : r->records.entry_position,
      .bytes = r->bytes,
      .chunk = chunk,
      .thread = thread_id(),
      .peer = peer,
      .what = (uint8_t)what,
      .kind = r->kind,
      .dtype = r->dtype,
      .algorithm = r->coll.program ? r->coll.program->algorithm : 0,
  };
  if (!hold(q, &e, idle)) put(q, &e);
}

void scr_trace_add(scr_tracer *t, const scr_run *r, int what, uint64_t begin, int32_t peer, uint64_t chunk, bool idle) {
  add(t, r, what, begin, scr_ticks(), peer, chunk, idle);
}

void scr_trace_op(scr_tracer *t, const scr_run *r) {
  int32_t peer = scr_is_p2p(r) ? (r->source >= 0 ? r->source : r->root) : -1;
  if (r->records.began == 0) return; /* it failed in the queue */
  if (r->records.created) add(t, r, SCR_TRACE_QUEUE, r->records.created, r->records.began, peer, 0, false);
  add(t, r, SCR_TRACE_OP, r->records.began, scr_ticks(), peer, 0, false);
}

static uint32_t take(scr_trace_queue *q, const scr_ticks_scale *scale, scr_trace_event *out, uint32_t most,
                     uint64_t *dropped) {
  uint64_t from = atomic_load_explicit(&q->read, memory_order_relaxed);
  uint64_t to = atomic_load_explicit(&q->written, memory_order_acquire);
  uint32_t n = 0;
  for (; from < to && n < most; from++, n++) {
    out[n] = q->events[from % SCR_TRACE_EVENTS];
    out[n].begin = (uint64_t)scr_ticks_wall(scale, out[n].begin);
    out[n].end = (uint64_t)scr_ticks_wall(scale, out[n].end);
  }
  atomic_store_explicit(&q->read, from, memory_order_release);
  *dropped += atomic_exchange_explicit(&q->dropped, 0, memory_order_relaxed);
  return n;
}

uint32_t scr_group_take_trace(scr_group *g, scr_trace_event *out, uint32_t most, uint64_t *dropped) {
  *dropped = 0;
  if (g->records.tracer == NULL) return 0;
  scr_ticks_scale scale = scr_ticks_now();
  uint32_t n = take(&g->records.tracer->collectives, &scale, out, most, dropped);
  return n + take(&g->records.tracer->p2p, &scale, out + n, most - n, dropped);
}
