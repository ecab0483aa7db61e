/* calls.c: reads the state of peers from their shared blocks: last collectives, progress, and for whom they wait. A
 * peer may write anything there. What scr_group_consumed(), scr_group_reached() and scr_group_awaits() return goes into
 * texts of errors only; a record, mark or `left` that is wrong can at most fail the group. */
#include <string.h>

#include "program.h"

/* The owner stores 0 to seq before it stores the fields of a later call with release. So a reader that reads a field
 * of a later call finds that seq has changed. */
static bool read_record(const scr_shared_block *b, uint64_t sequence, scr_call *out) {
  const scr_record *rec = &b->records[sequence % SCR_RECORDS];
  if (atomic_load_explicit(&rec->seq, memory_order_acquire) != sequence) return false;
  uint64_t what = atomic_load_explicit(&rec->what, memory_order_acquire);
  out->sequence = sequence;
  out->hash = atomic_load_explicit(&rec->hash, memory_order_acquire);
  out->bytes = atomic_load_explicit(&rec->bytes, memory_order_acquire);
  out->kind = (uint8_t)what;
  out->dtype = (uint8_t)(what >> 8);
  out->reduce_op = (uint8_t)(what >> 16);
  out->uneven = (what >> 24) & 1;
  out->parts = (what >> 25) & SCR_MANY_PARTS;
  out->root = (int32_t)(what >> 32);
  return atomic_load_explicit(&rec->seq, memory_order_relaxed) == sequence;
}

bool scr_group_call(const scr_group *g, int32_t rank, uint64_t sequence, scr_call *out) {
  return sequence != 0 && read_record(g->peer[rank].shared, sequence, out);
}

uint64_t scr_shared_recorded(const void *shared) {
  const scr_shared_block *b = shared;
  uint64_t last = 0;
  for (int i = 0; i < SCR_RECORDS; i++) {
    uint64_t seq = atomic_load_explicit(&b->records[i].seq, memory_order_acquire);
    if (seq > last) last = seq;
  }
  return last;
}

uint64_t scr_group_recorded(const scr_group *g, int32_t rank) { return scr_shared_recorded(g->peer[rank].shared); }

bool scr_group_last_in(const scr_group *g, int lane, int32_t rank, scr_call *out) {
  const scr_shared_block *b = g->peer[rank].lane[lane];
  for (int tries = 0; tries < 100; tries++) { /* a later call may overwrite the record */
    uint64_t last = scr_shared_recorded(b);
    if (last == 0) return false;
    if (read_record(b, last, out)) return true;
  }
  return false;
}

uint64_t scr_group_last_call(const scr_group *g, int32_t rank, bool *left) {
  uint64_t last = scr_group_recorded(g, rank);
  *left = atomic_load_explicit(&g->peer[rank].lane[SCR_HOST_LANE]->left, memory_order_acquire) != 0;
  return last;
}

uint64_t scr_group_reached(const scr_group *g, int32_t rank) {
  return atomic_load_explicit(&g->peer[rank].lane[SCR_DEVICE_LANE]->reached, memory_order_acquire);
}

void scr_group_mark(scr_group *g, uint64_t seq, uint64_t hash) {
  if (seq % SCR_MARK_EVERY != 0) return;
  scr_mark *m = &g->shared->marks[seq / SCR_MARK_EVERY % SCR_MARKS];
  atomic_store_explicit(&m->seq, 0, memory_order_relaxed);
  atomic_store_explicit(&m->hash, hash, memory_order_release); /* release, so that seq is 0 before: see read_mark() */
  atomic_store_explicit(&m->seq, seq, memory_order_release);
}

/* Reads the hash that a rank has marked for a collective. Returns false if the mark is not there or was overwritten. */
static bool read_mark(const scr_group *g, int32_t rank, uint64_t seq, uint64_t *hash) {
  const scr_mark *m = &g->peer[rank].shared->marks[seq / SCR_MARK_EVERY % SCR_MARKS];
  if (atomic_load_explicit(&m->seq, memory_order_acquire) != seq) return false;
  *hash = atomic_load_explicit(&m->hash, memory_order_acquire);
  return atomic_load_explicit(&m->seq, memory_order_relaxed) == seq;
}

bool scr_group_marks_agree(const scr_group *g, int32_t peer, uint64_t seq) {
  uint64_t mine, theirs, at = seq / SCR_MARK_EVERY * SCR_MARK_EVERY;
  if (at == 0 || !read_mark(g, g->rank, at, &mine) || !read_mark(g, peer, at, &theirs)) return true;
  return mine == theirs;
}

/* Reads what a rank has told of the n-th external all_to_all between it and another one. Returns false if that is not there or was
 * overwritten. */
static bool read_split(const scr_group *g, int32_t rank, int32_t with, uint64_t n, scr_unfit *out, uint64_t *hash) {
  scr_split *s = scr_shared_split(g->peer[rank].shared, (uint32_t)g->size, (uint32_t)with, n);
  out->sequence = atomic_load_explicit(&s->seq, memory_order_acquire);
  out->sent = atomic_load_explicit(&s->sent, memory_order_acquire);
  out->expected = atomic_load_explicit(&s->expected, memory_order_acquire);
  *hash = atomic_load_explicit(&s->hash, memory_order_acquire);
  return out->sequence != 0 && atomic_load_explicit(&s->seq, memory_order_relaxed) == out->sequence;
}

uint64_t scr_group_splits(const scr_group *g, int32_t rank) {
  return atomic_load_explicit(&g->peer[rank].shared->splits, memory_order_acquire);
}

/* Compares the blocks of the external all_to_alls behind number *fits. Returns whether they fit, and then up to which number in *fits. Where
 * the other rank has made another call with that number, their records differ. */
static bool fit_behind(const scr_group *g, int32_t peer, uint64_t *fits, scr_unfit *out) {
  uint64_t mine = scr_group_splits(g, g->rank), theirs = scr_group_splits(g, peer), both = scr_min(mine, theirs);
  uint64_t newest = mine > theirs ? mine : theirs, kept = newest > SCR_SPLITS ? newest - SCR_SPLITS : 0;
  for (uint64_t n = *fits > kept ? *fits : kept; n++ < both;) {
    scr_unfit other;
    uint64_t hash, other_hash;
    if (!read_split(g, g->rank, peer, n, out, &hash) || !read_split(g, peer, g->rank, n, &other, &other_hash)) continue;
    if (out->sequence != other.sequence || hash == other_hash) continue;
    out->peer_sent = other.sent;
    out->peer_expected = other.expected;
    return false;
  }
  *fits = both > *fits ? both : *fits;
  return true;
}

bool scr_splits_fit(scr_group *g, int32_t peer) {
  scr_peer *p = &g->peer[peer];
  scr_unfit unfit;
  return p->fits == g->coll.splits || fit_behind(g, peer, &p->fits, &unfit);
}

bool scr_group_unfit(const scr_group *g, int32_t peer, scr_unfit *out) {
  uint64_t fits = 0;
  return g->lane == SCR_DEVICE_LANE && !fit_behind(g, peer, &fits, out);
}

uint64_t scr_group_consumed(const scr_group *g, int32_t rank) {
  const scr_shared_block *b = g->peer[rank].shared;
  return atomic_load_explicit(&b->consumed0, memory_order_acquire) +
         atomic_load_explicit(&b->consumed1, memory_order_acquire);
}

int32_t scr_group_awaits(const scr_group *g, int32_t rank) {
  scr_sleeper *s = &g->peer[rank].shared->collective;
  uint32_t word = atomic_load_explicit(g->peer[rank].pair != 0 ? &s->told : &s->waits_for, memory_order_acquire);
  uint32_t who = scr_sleeps_for(word);
  if (who < 1 || who > (uint32_t)g->size) return -1;
  /* A shadow has the words of the pair that it makes with this rank, and no others: whether something is there between a
   * remote rank and a third one is not known here. */
  bool third = rank != g->rank && (int32_t)who - 1 != g->rank;
  if (third && (g->peer[rank].pair != 0 || g->peer[who - 1].pair != 0)) return (int32_t)who - 1;
#ifdef SCR_MUTANT_THERE_COUNTS_AS_WAITING
  return scr_channel_is_there(g, rank, (int32_t)who - 1, 0) ? -1 : (int32_t)who - 1;
#else
  return scr_channel_is_there(g, rank, (int32_t)who - 1, word) ? -1 : (int32_t)who - 1;
#endif
}

/* ---- the state of a rank on its way to another host ---- */

_Static_assert(SCR_STATE_RECORDS == SCR_RECORDS && SCR_STATE_MARKS == SCR_MARKS && SCR_STATE_SPLITS == SCR_SPLITS,
               "a state has all of them");

enum { RECORD_WORDS = 4, MARK_WORDS = 2, SPLIT_WORDS = 4, HEAD_WORDS = 4 };
enum { LANE_WORDS = HEAD_WORDS + RECORD_WORDS * SCR_RECORDS };

static void copy_record(const scr_record *r, uint64_t *out) {
  uint64_t seq = atomic_load_explicit(&r->seq, memory_order_acquire);
#ifdef SCR_MUTANT_RECORD_COPIED_AT_ONCE
  extern int sched_yield(void);
  sched_yield(); /* the mutant matters if the owner writes the record meanwhile */
#endif
  out[1] = atomic_load_explicit(&r->hash, memory_order_acquire);
  out[2] = atomic_load_explicit(&r->bytes, memory_order_acquire);
  out[3] = atomic_load_explicit(&r->what, memory_order_acquire);
#ifdef SCR_MUTANT_RECORD_COPIED_AT_ONCE
  out[0] = seq;
#else
  out[0] = atomic_load_explicit(&r->seq, memory_order_relaxed) == seq ? seq : 0;
#endif
}

static void copy_mark(const scr_mark *m, uint64_t *out) {
  uint64_t seq = atomic_load_explicit(&m->seq, memory_order_acquire);
  out[1] = atomic_load_explicit(&m->hash, memory_order_acquire);
  out[0] = atomic_load_explicit(&m->seq, memory_order_relaxed) == seq ? seq : 0;
}

static void copy_split(const scr_split *s, uint64_t *out) {
  uint64_t seq = atomic_load_explicit(&s->seq, memory_order_acquire);
  out[1] = atomic_load_explicit(&s->sent, memory_order_acquire);
  out[2] = atomic_load_explicit(&s->expected, memory_order_acquire);
  out[3] = atomic_load_explicit(&s->hash, memory_order_acquire);
  out[0] = atomic_load_explicit(&s->seq, memory_order_relaxed) == seq ? seq : 0;
}

void scr_shared_copy_state(void *const shared[SCR_LANES], int32_t size, int32_t with, uint64_t out[SCR_STATE_WORDS]) {
  for (int lane = 0; lane < SCR_LANES; lane++, out += LANE_WORDS) {
    scr_shared_block *b = shared[lane];
    out[0] = atomic_load_explicit(&b->consumed0, memory_order_acquire);
    out[1] = atomic_load_explicit(&b->consumed1, memory_order_acquire);
    out[2] = atomic_load_explicit(&b->reached, memory_order_acquire);
    out[3] = atomic_load_explicit(&b->collective.waits_for, memory_order_acquire);
    for (int i = 0; i < SCR_RECORDS; i++) copy_record(&b->records[i], &out[HEAD_WORDS + RECORD_WORDS * i]);
  }
  scr_shared_block *device = shared[SCR_DEVICE_LANE];
  for (int i = 0; i < SCR_MARKS; i++, out += MARK_WORDS) copy_mark(&device->marks[i], out);
  uint64_t splits = atomic_load_explicit(&device->splits, memory_order_acquire);
  *out++ = splits; /* first: those that it counts are there then */
  if (splits == 0) memset(out, 0, SCR_SPLITS * SPLIT_WORDS * sizeof *out); /* to read a page may allocate it */
  for (uint64_t i = 0; splits != 0 && i < SCR_SPLITS; i++, out += SPLIT_WORDS) {
    copy_split(scr_shared_split(device, (uint32_t)size, (uint32_t)with, i), out);
  }
}

/* Whether a rank writes such a state. */
static bool is_state(const uint64_t *in) {
  for (int lane = 0; lane < SCR_LANES; lane++, in += LANE_WORDS) {
    if (in[3] > UINT32_MAX) return false;
    for (uint64_t i = 0; i < SCR_RECORDS; i++) {
      uint64_t seq = in[HEAD_WORDS + RECORD_WORDS * i];
      if (seq > SCR_SEQ_MASK || (seq != 0 && seq % SCR_RECORDS != i)) return false;
    }
  }
  for (uint64_t i = 0; i < SCR_MARKS; i++, in += MARK_WORDS) {
    uint64_t seq = in[0];
    if (seq > SCR_SEQ_MASK || seq % SCR_MARK_EVERY != 0) return false;
    if (seq != 0 && seq / SCR_MARK_EVERY % SCR_MARKS != i) return false;
  }
  if (*in++ > SCR_SEQ_MASK) return false;
  for (uint64_t i = 0; i < SCR_SPLITS; i++, in += SPLIT_WORDS) {
    if (in[0] > SCR_SEQ_MASK) return false;
  }
  return true;
}

/* Only the caller of scr_shared_put_state() writes these words. */
static void raise(_Atomic uint64_t *word, uint64_t to) {
  if (to > atomic_load_explicit(word, memory_order_relaxed)) atomic_store_explicit(word, to, memory_order_release);
}

/* As the owner of a record does: readers see whole records. */
static void put_record(scr_record *r, const uint64_t *in) {
  if (in[0] <= atomic_load_explicit(&r->seq, memory_order_relaxed)) return;
  atomic_store_explicit(&r->seq, 0, memory_order_relaxed);
  atomic_store_explicit(&r->hash, in[1], memory_order_release);
  atomic_store_explicit(&r->bytes, in[2], memory_order_release);
  atomic_store_explicit(&r->what, in[3], memory_order_release);
  atomic_store_explicit(&r->seq, in[0], memory_order_release);
}

static void put_mark(scr_mark *m, const uint64_t *in) {
  if (in[0] <= atomic_load_explicit(&m->seq, memory_order_relaxed)) return;
  atomic_store_explicit(&m->seq, 0, memory_order_relaxed);
  atomic_store_explicit(&m->hash, in[1], memory_order_release);
  atomic_store_explicit(&m->seq, in[0], memory_order_release);
}

static void put_split(scr_split *s, const uint64_t *in) {
  if (in[0] <= atomic_load_explicit(&s->seq, memory_order_relaxed)) return;
  atomic_store_explicit(&s->seq, 0, memory_order_relaxed);
  atomic_store_explicit(&s->sent, in[1], memory_order_release);
  atomic_store_explicit(&s->expected, in[2], memory_order_release);
  atomic_store_explicit(&s->hash, in[3], memory_order_release);
  atomic_store_explicit(&s->seq, in[0], memory_order_release);
}

bool scr_shared_put_state(void *const shared[SCR_LANES], int32_t size, int32_t with,
                          const uint64_t in[SCR_STATE_WORDS]) {
  if (!is_state(in)) return false;
  for (int lane = 0; lane < SCR_LANES; lane++, in += LANE_WORDS) {
    scr_shared_block *b = shared[lane];
    raise(&b->consumed0, in[0]);
    raise(&b->consumed1, in[1]);
    raise(&b->reached, in[2]);
    atomic_store_explicit(&b->collective.told, (uint32_t)in[3], memory_order_release);
    for (int i = 0; i < SCR_RECORDS; i++) put_record(&b->records[i], &in[HEAD_WORDS + RECORD_WORDS * i]);
  }
  scr_shared_block *device = shared[SCR_DEVICE_LANE];
  for (int i = 0; i < SCR_MARKS; i++, in += MARK_WORDS) put_mark(&device->marks[i], in);
  uint64_t told_of = *in++;
  for (uint64_t i = 0; told_of != 0 && i < SCR_SPLITS; i++, in += SPLIT_WORDS) {
    put_split(scr_shared_split(device, (uint32_t)size, (uint32_t)with, i), in);
  }
  raise(&device->splits, told_of);
  return true;
}
