/* recorder.c: see recorder.h. */
#include "recorder.h"

#include <pthread.h>
#include <stdlib.h>

#include "ticks.h"

scr_recorder *scr_recorder_new(uint32_t capacity) {
  scr_ticks_begin();
  scr_recorder *rec = aligned_alloc(SCR_LINE, (sizeof *rec + SCR_LINE - 1) & ~(size_t)(SCR_LINE - 1));
  /* One more than needed, to begin at a cache line. Not touched here: pages are taken as the trails are written. */
  void *memory = calloc(2 * (size_t)capacity + 1, sizeof(struct scr_flight_entry));
  if (rec == NULL || memory == NULL) {
    free(rec);
    free(memory);
    return NULL;
  }
  memset(rec, 0, sizeof *rec);
  rec->capacity = capacity;
  rec->memory = memory;
  uintptr_t line = sizeof(struct scr_flight_entry);
  rec->collectives.entries = (struct scr_flight_entry *)(((uintptr_t)memory + line - 1) & ~(line - 1));
  rec->messages.entries = rec->collectives.entries + capacity;
  return rec;
}

void scr_recorder_free(scr_recorder *rec) {
  if (rec == NULL) return;
  free(rec->memory);
  free(rec);
}

/* ---- writing ---- */

static inline void set(_Atomic uint64_t *word, uint64_t value) {
  /* With release, so that a reader that finds it does not find the old state word afterwards. */
  atomic_store_explicit(word, value, memory_order_release);
}

static inline uint64_t number_word(uint64_t number, int32_t root) { return number << 24 | (uint32_t)(root + 1); }

static void append(scr_recorder *rec, scr_run *r, uint64_t now, uint32_t state) {
  bool message = scr_is_message(r);
  scr_trail *t = message ? &rec->messages : &rec->collectives;
  struct scr_flight_entry *e = &t->entries[t->at];
  uint64_t position = atomic_load_explicit(&t->count, memory_order_relaxed) + 1;
  uint64_t thread = r->created ? r->caller : (uint64_t)pthread_self();
  uint64_t what = r->kind | (uint64_t)r->dtype << 6 | (uint64_t)r->reduce_op << 11 | (uint64_t)r->async << 15;
  uint64_t timeout_ms = (uint64_t)r->timeout_ns / 1000000;
  if (timeout_ms > UINT32_MAX) timeout_ms = UINT32_MAX;
  set(&e->state, position << 3 | SCR_FLIGHT_IN_WRITING);
  set(&e->created, r->created ? r->created : now);
  set(&e->started, state == SCR_FLIGHT_STARTED ? now : 0);
  set(&e->completed, state == SCR_FLIGHT_STARTED ? 0 : now);
  set(&e->bytes, r->bytes);
  set(&e->caller, thread << 16 | what);
  set(&e->number, number_word(message ? position : r->seq, r->root));
  set(&e->limits, timeout_ms << 32 | (uint32_t)r->tag);
  set(&e->state, position << 3 | state);
  set(&t->count, position);
  t->at = t->at + 1 == rec->capacity ? 0 : t->at + 1;
  r->entry = e;
  r->entry_position = position;
}

void scr_recorder_created(scr_run *r) {
  r->created = scr_ticks();
  r->caller = (uint64_t)pthread_self();
}

/* Without inner messages: the user has not called them, and analysers would pair them with what he has. */
void scr_recorder_started(scr_recorder *rec, scr_run *r) {
  if (!scr_is_inner(r)) append(rec, r, scr_ticks(), SCR_FLIGHT_STARTED);
}

void scr_recorder_finished(scr_recorder *rec, scr_run *r, bool ok) {
  if (scr_is_inner(r)) return;
  uint32_t state = ok ? SCR_FLIGHT_COMPLETED : SCR_FLIGHT_FAILED;
  struct scr_flight_entry *e = r->entry;
  uint64_t now = scr_ticks();
  if (e == NULL) {
    append(rec, r, now, state);
  } else if (atomic_load_explicit(&e->state, memory_order_relaxed) >> 3 == r->entry_position) {
    /* Nobody has written over it, and nobody does now: that takes the lock that the caller holds. */
    if (r->source >= 0 && r->kind == SAGECOMM_RECV) set(&e->number, number_word(r->entry_position, r->source));
    set(&e->completed, now);
    set(&e->state, r->entry_position << 3 | state);
  }
}

/* ---- reading ---- */

static void describe(scr_flight *out, uint64_t number, uint64_t limits, uint64_t caller) {
  out->number = number >> 24;
  out->root = (int32_t)(number & 0xffffff) - 1;
  out->tag = (int32_t)(uint32_t)limits;
  out->timeout_ms = (uint32_t)(limits >> 32);
  out->kind = caller & 63;
  out->dtype = caller >> 6 & 31;
  out->reduce_op = caller >> 11 & 15;
  out->async = caller >> 15 & 1;
  out->thread = caller >> 16;
}

/* False: it was written over. */
static bool read_entry(const struct scr_flight_entry *e, uint64_t position, const scr_ticks_scale *scale,
                       scr_flight *out) {
  for (;;) {
    uint64_t state = atomic_load_explicit(&e->state, memory_order_acquire);
    if (state >> 3 != position || (state & 7) == SCR_FLIGHT_IN_WRITING) return false;
    uint64_t created = atomic_load_explicit(&e->created, memory_order_acquire);
    uint64_t started = atomic_load_explicit(&e->started, memory_order_acquire);
    uint64_t completed = atomic_load_explicit(&e->completed, memory_order_acquire);
    uint64_t bytes = atomic_load_explicit(&e->bytes, memory_order_acquire);
    uint64_t caller = atomic_load_explicit(&e->caller, memory_order_acquire);
    uint64_t number = atomic_load_explicit(&e->number, memory_order_acquire);
    uint64_t limits = atomic_load_explicit(&e->limits, memory_order_acquire);
    if (atomic_load_explicit(&e->state, memory_order_relaxed) != state) continue; /* it went on, or was written over */
    *out = (scr_flight){.ticks = created, .bytes = bytes, .state = (uint8_t)(state & 7)};
    out->created_ns = scr_ticks_wall(scale, created);
    out->started_ns = scr_ticks_wall(scale, started);
    /* Stored before the state that makes it count. */
    if (out->state != SCR_FLIGHT_STARTED) out->completed_ns = scr_ticks_wall(scale, completed);
    describe(out, number, limits, caller);
    return true;
  }
}

static uint64_t read_trail(const scr_trail *t, uint32_t capacity, const scr_ticks_scale *scale, scr_flight *out,
                           uint64_t *total) {
  uint64_t count = atomic_load_explicit(&t->count, memory_order_acquire), n = 0;
  *total += count;
  for (uint64_t p = count > capacity ? count - capacity + 1 : 1; p <= count; p++) {
    if (read_entry(&t->entries[(p - 1) % capacity], p, scale, &out[n])) n++;
  }
  return n;
}

/* What is queued, at most `most`, oldest first. Some may have started since. */
static uint64_t read_queue(scr_group *g, const scr_ticks_scale *scale, scr_flight *out, uint64_t most) {
  uint64_t n = 0;
  scr_spin_lock(&g->queue_lock);
  for (const scr_run *r = g->queue_head; r && n < most; r = r->next) {
    if (r->created == 0) continue; /* begun by the fast path */
    out[n] = (scr_flight){.ticks = r->created, .number = r->seq, .bytes = r->bytes, .state = SCR_FLIGHT_SCHEDULED};
    out[n].created_ns = scr_ticks_wall(scale, r->created);
    out[n].thread = r->caller;
    out[n].kind = r->kind;
    out[n].dtype = r->dtype;
    out[n].reduce_op = r->reduce_op;
    out[n].async = r->async;
    out[n].root = r->root;
    out[n].tag = r->tag;
    out[n].timeout_ms = (uint32_t)(r->timeout_ns / 1000000);
    n++;
  }
  scr_spin_unlock(&g->queue_lock);
  return n;
}

uint32_t scr_group_flight_capacity(const scr_group *g) { return g->recorder ? g->recorder->capacity : 0; }

uint64_t scr_group_read_flight(scr_group *g, scr_flight *out, uint64_t *total) {
  const scr_recorder *rec = g->recorder;
  *total = 0;
  if (rec == NULL) return 0;
  scr_ticks_scale scale = scr_ticks_now();
  /* The queue first: what starts meanwhile is then met twice, not missed. */
  uint64_t queued = read_queue(g, &scale, out, rec->capacity);
  scr_flight *trail = out + queued;
  uint64_t n = read_trail(&rec->collectives, rec->capacity, &scale, trail, total);
  uint64_t last = n ? trail[n - 1].number : 0, waiting = 0;
  for (uint64_t i = 0; i < queued; i++) {
    if (out[i].number > last) out[waiting++] = out[i];
  }
  memmove(out + waiting, trail, n * sizeof *out);
  n += waiting;
  *total += waiting;
  return n + read_trail(&rec->messages, rec->capacity, &scale, out + n, total);
}
