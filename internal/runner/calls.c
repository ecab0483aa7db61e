/* calls.c: reads the state of peers from their shared blocks: last collectives, progress, and for whom they wait. A
 * peer may write anything there, so these values go only into the texts of errors. */
#include "program.h"

/* The owner stores 0 to seq before it stores the fields of a later call with release. So a reader that reads a field
 * of a later call finds that seq has changed. */
static bool read_record(const scr_group *g, int32_t rank, uint64_t sequence, scr_call *out) {
  const scr_record *rec = &g->peer[rank].shared->records[sequence % SCR_RECORDS];
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
  return sequence != 0 && read_record(g, rank, sequence, out);
}

uint64_t scr_group_last_call(const scr_group *g, int32_t rank, bool *left) {
  const scr_shared_block *b = g->peer[rank].shared;
  uint64_t last = 0;
  for (int i = 0; i < SCR_RECORDS; i++) {
    uint64_t seq = atomic_load_explicit(&b->records[i].seq, memory_order_acquire);
    if (seq > last) last = seq;
  }
  *left = atomic_load_explicit(&b->left, memory_order_acquire) != 0;
  return last;
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
