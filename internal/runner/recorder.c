/* recorder.c: see recorder.h. */
#include "recorder.h"

#include <pthread.h>
#include <stdlib.h>

#include "ticks.h"

/* Returns the offset of the end of the entries in the area. */
static uint64_t entries_end(uint32_t capacity) {
  return sizeof(scr_flight_area) + 2 * (uint64_t)capacity * sizeof(struct scr_flight_entry);
}

uint64_t scr_flight_bytes(uint32_t capacity, bool stacks) {
  uint64_t n = entries_end(capacity) + (stacks ? 2 * (uint64_t)capacity * sizeof(uint32_t) + SCR_STACK_BYTES : 0);
  return (n + 4095) & ~UINT64_C(4095);
}

static _Atomic uint32_t *stacks_of(const scr_flight_area *area, uint32_t capacity) {
  return (_Atomic uint32_t *)(void *)((unsigned char *)(uintptr_t)area + entries_end(capacity));
}

static unsigned char *texts_of(const scr_flight_area *area, uint32_t capacity) {
  return (unsigned char *)(uintptr_t)(stacks_of(area, capacity) + 2 * (uint64_t)capacity);
}

/* One trail of a recorder of this process or of a peer. */
typedef struct view {
  const struct scr_flight_entry *entries;
  const _Atomic uint32_t *stacks;
  const _Atomic uint64_t *count;
  uint32_t capacity;
} view;

static view view_of(const scr_flights *f, bool p2p) {
  const scr_flight_area *area = f->area;
  uint32_t from = p2p ? f->capacity : 0;
  return (view){area->entries + from, f->stacks ? stacks_of(area, f->capacity) + from : NULL,
                p2p ? &area->p2p : &area->collectives, f->capacity};
}

scr_recorder *scr_recorder_new(uint32_t capacity, bool stacks, void *area) {
  scr_ticks_begin();
  scr_recorder *rec = aligned_alloc(SCR_LINE, (sizeof *rec + SCR_LINE - 1) & ~(size_t)(SCR_LINE - 1));
  /* One line more than needed, to align the area to a line. calloc() does not touch the pages, so memory is used
   * only as the trails are written. */
  void *owned = area ? NULL : calloc(1, scr_flight_bytes(capacity, stacks) + SCR_LINE);
  if (rec == NULL || (area == NULL && owned == NULL)) {
    free(rec);
    free(owned);
    return NULL;
  }
  memset(rec, 0, sizeof *rec);
  rec->capacity = capacity;
  rec->owned = owned;
  rec->area = area ? area : (void *)(((uintptr_t)owned + SCR_LINE - 1) & ~(uintptr_t)(SCR_LINE - 1));
  rec->area->clock = scr_ticks_clock();
  rec->collectives.entries = rec->area->entries;
  rec->collectives.count = &rec->area->collectives;
  rec->p2p.entries = rec->area->entries + capacity;
  rec->p2p.count = &rec->area->p2p;
  rec->stacks = stacks;
  if (stacks) {
    rec->collectives.stacks = stacks_of(rec->area, capacity);
    rec->p2p.stacks = rec->collectives.stacks + capacity;
  }
  return rec;
}

void scr_recorder_free(scr_recorder *rec) {
  if (rec == NULL) return;
  free(rec->owned);
  free(rec);
}

/* ---- writing ---- */

static inline void set(_Atomic uint64_t *word, uint64_t value) {
  /* A release store: a reader that loads this value does not load the old state word afterwards. */
  atomic_store_explicit(word, value, memory_order_release);
}

static inline uint64_t number_word(uint64_t number, int32_t root) { return number << 24 | (uint32_t)(root + 1); }

static void append(scr_recorder *rec, scr_run *r, uint64_t now, uint32_t state) {
  bool p2p = scr_is_p2p(r);
  scr_trail *t = p2p ? &rec->p2p : &rec->collectives;
  struct scr_flight_entry *e = &t->entries[t->at];
  uint64_t position = atomic_load_explicit(t->count, memory_order_relaxed) + 1;
  uint64_t thread = r->records.created ? r->records.caller : (uint64_t)pthread_self();
  uint64_t what = r->kind | (uint64_t)r->dtype << 6 | (uint64_t)r->reduce_op << 11 | (uint64_t)r->async << 15;
  uint64_t timeout_ms = (uint64_t)r->timeout_ns / 1000000;
  if (timeout_ms > UINT32_MAX) timeout_ms = UINT32_MAX;
#ifdef SCR_MUTANT_ENTRY_OVERWRITTEN
  extern int sched_yield(void);
  set(&e->created, r->records.created ? r->records.created : now);
  sched_yield();
#else
  set(&e->state, position << 3 | SCR_FLIGHT_IN_WRITING);
  set(&e->created, r->records.created ? r->records.created : now);
#endif
  set(&e->started, state == SCR_FLIGHT_STARTED ? now : 0);
  set(&e->completed, state == SCR_FLIGHT_STARTED ? 0 : now);
  set(&e->bytes, r->bytes);
  set(&e->caller, thread << 16 | what);
  set(&e->number, number_word(p2p ? position : r->coll.seq, r->root));
  set(&e->limits, timeout_ms << 32 | (uint32_t)r->tag);
  if (t->stacks) atomic_store_explicit(&t->stacks[t->at], r->records.stack, memory_order_release);
  set(&e->state, position << 3 | state);
  set(t->count, position);
  t->at = t->at + 1 == rec->capacity ? 0 : t->at + 1;
  r->records.entry = e;
  r->records.entry_position = position;
}

void scr_recorder_created(scr_run *r) {
  r->records.created = scr_ticks();
  r->records.caller = (uint64_t)pthread_self();
}

void scr_recorder_stamp(scr_run *r) {
  struct scr_flight_entry *e = r->records.entry;
  if (e == NULL || atomic_load_explicit(&e->state, memory_order_relaxed) >> 3 != r->records.entry_position) return;
  set(&e->created, r->records.began);
  set(&e->started, r->records.began);
}

/* It leaves out inner p2p operations: the user did not call them, and analysers would pair them with the user's. */
void scr_recorder_started(scr_recorder *rec, scr_run *r) {
  if (!scr_is_inner(r)) append(rec, r, r->records.began, SCR_FLIGHT_STARTED);
}

void scr_recorder_finished(scr_recorder *rec, scr_run *r, uint64_t now, bool ok) {
  if (scr_is_inner(r)) return;
  uint32_t state = ok ? SCR_FLIGHT_COMPLETED : SCR_FLIGHT_FAILED;
  struct scr_flight_entry *e = r->records.entry;
  if (e == NULL) {
    append(rec, r, now, state);
  } else if (atomic_load_explicit(&e->state, memory_order_relaxed) >> 3 == r->records.entry_position) {
    /* The entry is not overwritten, and cannot be now: that takes the lock that the caller holds. */
    if (r->source >= 0 && r->kind == SAGECOMM_RECV) set(&e->number, number_word(r->records.entry_position, r->source));
    if (!r->records.stamped) {
      set(&e->created, r->records.began ? r->records.began : now);
      set(&e->started, r->records.began ? r->records.began : now);
    }
    set(&e->completed, now);
    set(&e->state, r->records.entry_position << 3 | state);
  }
}

/* ---- reading ---- */

/* Unpacks the words of an entry. A peer may write anything there, so every enumeration is cut to its range. */
static void describe(scr_flight *out, uint64_t number, uint64_t limits, uint64_t caller) {
  out->number = number >> 24;
  out->root = (int32_t)(number & 0xffffff) - 1;
  out->tag = (int32_t)(uint32_t)limits;
  out->timeout_ms = (uint32_t)(limits >> 32);
  out->kind = (caller & 63) % SAGECOMM_KIND_COUNT;
  out->dtype = (caller >> 6 & 31) % SAGECOMM_DTYPE_COUNT;
  out->reduce_op = (caller >> 11 & 15) % SAGECOMM_REDUCE_OP_COUNT;
  out->async = caller >> 15 & 1;
  out->thread = caller >> 16;
}

/* Returns false if the entry was overwritten, or changes with every attempt, which only a corrupted entry of a peer
 * does. */
static bool read_entry(const struct scr_flight_entry *e, const _Atomic uint32_t *stack, uint64_t position,
                       const scr_ticks_scale *scale, scr_flight *out) {
  for (int tries = 0; tries < 1000; tries++) {
    uint64_t state = atomic_load_explicit(&e->state, memory_order_acquire);
    if (state >> 3 != position || (state & 7) == SCR_FLIGHT_IN_WRITING || (state & 7) > SCR_FLIGHT_FAILED) return false;
    uint64_t created = atomic_load_explicit(&e->created, memory_order_acquire);
    uint64_t started = atomic_load_explicit(&e->started, memory_order_acquire);
    uint64_t completed = atomic_load_explicit(&e->completed, memory_order_acquire);
    uint64_t bytes = atomic_load_explicit(&e->bytes, memory_order_acquire);
    uint64_t caller = atomic_load_explicit(&e->caller, memory_order_acquire);
    uint64_t number = atomic_load_explicit(&e->number, memory_order_acquire);
    uint64_t limits = atomic_load_explicit(&e->limits, memory_order_acquire);
    uint32_t called_by = stack ? atomic_load_explicit(stack, memory_order_acquire) : 0;
    if (atomic_load_explicit(&e->state, memory_order_relaxed) != state) continue; /* it changed meanwhile */
    *out = (scr_flight){
        .ticks = created ? created : scale->ticks, .bytes = bytes, .stack = called_by, .state = (uint8_t)(state & 7)};
    out->created_ns = scr_ticks_wall(scale, created);
    out->started_ns = scr_ticks_wall(scale, started);
    /* completed_ns counts only from SCR_FLIGHT_COMPLETED on; it is stored before that state. */
    if (out->state != SCR_FLIGHT_STARTED) out->completed_ns = scr_ticks_wall(scale, completed);
    describe(out, number, limits, caller);
    return true;
  }
  return false;
}

static bool read_position(const view *v, uint64_t position, const scr_ticks_scale *scale, scr_flight *out) {
  uint64_t at = (position - 1) % v->capacity;
  return read_entry(&v->entries[at], v->stacks ? &v->stacks[at] : NULL, position, scale, out);
}

static uint64_t read_trail(view v, const scr_ticks_scale *scale, scr_flight *out, uint64_t *total) {
  uint64_t count = atomic_load_explicit(v.count, memory_order_acquire) & SCR_SEQ_MASK, n = 0;
  *total += count;
  for (uint64_t p = count > v.capacity ? count - v.capacity + 1 : 1; p <= count; p++) {
    if (!read_position(&v, p, scale, &out[n])) continue;
    if (out[n].created_ns == 0 && n > 0) { /* it has just begun: place it after the entry before */
      const scr_flight *before = &out[n - 1];
      out[n].ticks = before->ticks + 1;
      out[n].created_ns = before->completed_ns ? before->completed_ns : before->started_ns;
    }
    if (out[n].created_ns == 0) out[n].created_ns = scale->wall_ns;
    if (out[n].started_ns == 0 && out[n].state == SCR_FLIGHT_STARTED) out[n].started_ns = out[n].created_ns;
    n++;
  }
  return n;
}

static scr_flight scheduled(const scr_run *r, const scr_ticks_scale *scale) {
  scr_flight f = {.ticks = r->records.created,
                  .number = r->coll.seq,
                  .bytes = r->bytes,
                  .stack = r->records.stack,
                  .state = SCR_FLIGHT_SCHEDULED};
  f.created_ns = scr_ticks_wall(scale, r->records.created);
  f.thread = r->records.caller;
  f.kind = r->kind;
  f.dtype = r->dtype;
  f.reduce_op = r->reduce_op;
  f.async = r->async;
  f.root = r->root;
  f.tag = r->tag;
  f.timeout_ms = (uint32_t)(r->timeout_ns / 1000000);
  return f;
}

/* Copies the queued and the held collectives, oldest first, at most `most`. Some may have started since. */
static uint64_t read_queue(scr_group *g, const scr_ticks_scale *scale, scr_flight *out, uint64_t most) {
  uint64_t n = 0;
  scr_spin_lock(&g->queue_lock);
  for (const scr_run *r = g->queue_head; r && n < most; r = r->next) {
    if (r->records.created == 0 || r->agrees) continue; /* the fast path has started it, so the trail has it */
    if (r->members == NULL) {
      out[n++] = scheduled(r, scale);
      continue;
    }
    for (const scr_run *m = r->members; m && n < most; m = m->next) out[n++] = scheduled(m, scale);
  }
  for (const scr_run *r = g->held_head; r && n < most; r = r->next) out[n++] = scheduled(r, scale);
  scr_spin_unlock(&g->queue_lock);
  return n;
}

scr_flights scr_flights_at(const void *area, uint32_t capacity, bool stacks) {
  const scr_flight_area *a = area;
  if (capacity == 0 || a->clock != scr_ticks_clock()) return (scr_flights){0};
  return (scr_flights){a, capacity, stacks};
}

scr_flights scr_group_flights(const scr_group *g, int32_t rank) {
  const scr_recorder *own = g->records.recorder;
  if (rank == g->rank) return own ? (scr_flights){own->area, own->capacity, own->stacks} : (scr_flights){0};
  const scr_peer *p = &g->peer[rank];
  return scr_flights_at(p->flight, p->flight_entries, p->flight_stacks);
}

uint64_t scr_flights_read(const scr_flights *f, scr_flight *out, uint64_t *total) {
  *total = 0;
  if (f->capacity == 0) return 0;
  scr_ticks_scale scale = scr_ticks_now();
  uint64_t n = read_trail(view_of(f, false), &scale, out, total);
  return n + read_trail(view_of(f, true), &scale, out + n, total);
}

uint64_t scr_group_read_flights(scr_group *g, scr_flight *out, uint64_t *total) {
  *total = 0;
  if (g->records.recorder == NULL) return 0;
  scr_flights own = scr_group_flights(g, g->rank);
  scr_ticks_scale scale = scr_ticks_now();
  /* The queue is read first: a run that starts meanwhile is then read twice instead of missed. */
  uint64_t queued = read_queue(g, &scale, out, own.capacity);
  scr_flight *trail = out + queued;
  uint64_t n = read_trail(view_of(&own, false), &scale, trail, total);
  uint64_t last = n ? trail[n - 1].number : 0, waiting = 0;
  for (uint64_t i = 0; i < queued; i++) {
    if (out[i].number > last) out[waiting++] = out[i];
  }
  memmove(out + waiting, trail, n * sizeof *out);
  n += waiting;
  *total += waiting;
  return n + read_trail(view_of(&own, true), &scale, out + n, total);
}

bool scr_flights_last(const scr_flights *f, bool p2p, scr_flight *out) {
  if (f->capacity == 0) return false;
  view v = view_of(f, p2p);
  scr_ticks_scale scale = scr_ticks_now();
  for (int tries = 0; tries < 100; tries++) { /* the next operation may overwrite it */
    uint64_t count = atomic_load_explicit(v.count, memory_order_acquire) & SCR_SEQ_MASK;
    if (count == 0) return false;
    if (read_position(&v, count, &scale, out)) return true;
  }
  return false;
}

/* ---- stacks ---- */

/* A text is stored as its length in 4 bytes, followed by its bytes. */
bool scr_group_put_stack(scr_group *g, uint32_t at, const void *text, uint32_t n) {
  const scr_recorder *rec = g->records.recorder;
  if (rec == NULL || !rec->stacks || at > SCR_STACK_BYTES || n + 4 > SCR_STACK_BYTES - at) return false;
  unsigned char *to = texts_of(rec->area, rec->capacity) + at;
  memcpy(to, &n, 4);
  memcpy(to + 4, text, n);
  return true;
}

uint32_t scr_flights_stack(const scr_flights *f, uint32_t number, void *text, uint32_t most) {
  uint32_t n, at = number - 1;
  if (f->capacity == 0 || !f->stacks || number == 0 || at > SCR_STACK_BYTES - 4) return 0;
  const unsigned char *from = texts_of(f->area, f->capacity) + at;
  memcpy(&n, from, 4);
  if (n > most || n > SCR_STACK_BYTES - 4 - at) return 0;
  memcpy(text, from + 4, n);
  return n;
}
