/* calls.c: reads the state of peers from their shared blocks: last collectives, progress, and for whom they wait. A
 * peer may write anything there. What scr_group_consumed(), scr_group_reached() and scr_group_awaits() return goes into
 * texts of errors only; a record, mark or `left` that is wrong can at most fail the group. */
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

static uint64_t last_recorded(const scr_shared_block *b) {
  uint64_t last = 0;
  for (int i = 0; i < SCR_RECORDS; i++) {
    uint64_t seq = atomic_load_explicit(&b->records[i].seq, memory_order_acquire);
    if (seq > last) last = seq;
  }
  return last;
}

uint64_t scr_group_recorded(const scr_group *g, int32_t rank) { return last_recorded(g->peer[rank].shared); }

bool scr_group_last_in(const scr_group *g, int lane, int32_t rank, scr_call *out) {
  const scr_shared_block *b = g->peer[rank].lane[lane];
  for (int tries = 0; tries < 100; tries++) { /* a later call may overwrite the record */
    uint64_t last = last_recorded(b);
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

uint64_t scr_group_consumed(const scr_group *g, int32_t rank) {
  const scr_shared_block *b = g->peer[rank].shared;
  return atomic_load_explicit(&b->consumed0, memory_order_acquire) +
         atomic_load_explicit(&b->consumed1, memory_order_acquire);
}

int32_t scr_group_awaits(const scr_group *g, int32_t rank) {
  uint32_t word = atomic_load_explicit(&g->peer[rank].shared->collective.waits_for, memory_order_acquire);
  uint32_t who = scr_sleeps_for(word);
  if (who < 1 || who > (uint32_t)g->size) return -1;
#ifdef SCR_MUTANT_THERE_COUNTS_AS_WAITING
  return scr_channel_is_there(g, rank, (int32_t)who - 1, 0) ? -1 : (int32_t)who - 1;
#else
  return scr_channel_is_there(g, rank, (int32_t)who - 1, word) ? -1 : (int32_t)who - 1;
#endif
}
