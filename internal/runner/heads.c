/* heads.c: the first round of an all_to_all on slots, in which ranks tell each other the lengths of their blocks.
 *
 * A small slot holds the length of this rank's longest block, the lengths of all its blocks, and the heads of the
 * blocks for other ranks. The longest block of all ranks gives the number of chunks. A rank with a block longer than
 * a head knows that there is at least one chunk and publishes its first chunk with the heads, so that both take one
 * round. */
#include "gates.h"
#include "slots.h"

static inline uint64_t heads_at(const scr_group *g) { return (8 * ((uint64_t)g->size + 1) + 63) & ~UINT64_C(63); }

static unsigned char *head_data(scr_slot *s) { return (unsigned char *)s + SCR_SMALL_DATA; }

int scr_publish_heads(scr_group *g, scr_run *r) {
  const scr_program *pg = r->coll.program;
  uint64_t longest = 0;
  for (int32_t i = 0; i < g->size; i++) {
    uint64_t n = scr_block_bytes(&r->in_blocks, i);
    if (n > longest) longest = n;
  }
  bool ahead = longest > pg->head;
  int rc = scr_enter_unit(g, r, ahead ? 1 : 0);
  if (rc == 0) rc = scr_await_consumed(g, r, 0, r->coll.ticket);
  if (rc == 0 && ahead) rc = scr_await_consumed(g, r, pg->large, g->coll.ticket[pg->large]);
  if (SCR_UNLIKELY(rc)) return rc;
  scr_slot *s = slot_of(&g->peer[g->rank], 0, r->coll.ticket);
  unsigned char *data = head_data(s);
  uint64_t *lengths = (uint64_t *)(void *)data;
  for (int32_t i = 0; i < g->size; i++) lengths[1 + i] = scr_block_bytes(&r->in_blocks, i);
  lengths[0] = r->coll.longest = longest;
  r->coll.base = pg->head;
  r->coll.ahead = ahead;
  uint64_t stride = stride_of(scr_min(longest, pg->head));
  data += heads_at(g);
  for (int32_t i = 1; i < g->size; i++, data += stride) {
    int32_t to = (g->rank + i) % g->size;
    scr_copy_in(r, scr_block_at(&r->in_blocks, to), scr_min(lengths[1 + to], pg->head), data);
  }
  scr_mark_filled(g, r, 0, s, r->coll.ticket);
  if (ahead) scr_publish_blocks(g, r, 0, g->coll.ticket[pg->large]);
  return 0;
}

/* Reads the heads. The owner of a slot may overwrite it at any time, so each value is read once. */
int scr_read_heads(scr_group *g, scr_run *r) {
  const scr_program *pg = r->coll.program;
  int rc = scr_await_others(g, r, 0, r->coll.ticket);
  if (SCR_UNLIKELY(rc)) return rc;
  uint64_t all = r->coll.longest;
  for (int32_t i = 1; i < g->size; i++) {
    int32_t p = (g->rank + i) % g->size;
    const unsigned char *data = head_data(slot_of(&g->peer[p], 0, r->coll.ticket));
    const volatile uint64_t *lengths = (const volatile uint64_t *)(const void *)data;
    uint64_t longest = lengths[0], theirs = lengths[1 + g->rank], mine = scr_block_bytes(&r->out_blocks, p);
    r->peer = p;
    if (SCR_UNLIKELY(theirs != mine)) {
      r->need = theirs;
      r->coll.expected = mine;
      return SCR_INCIDENT_SPLIT;
    }
    if (SCR_UNLIKELY(longest < theirs || longest > INT64_MAX)) return SCR_INCIDENT_BAD_LONGEST;
    if (longest > all) all = longest;
    uint64_t stride = stride_of(scr_min(longest, pg->head));
    scr_copy_out(r, scr_block_at(&r->out_blocks, p), scr_min(mine, pg->head),
                 data + heads_at(g) + piece_index(g, p, g->rank) * stride);
  }
  scr_copy_across(g, r, 0, scr_min(scr_block_bytes(&r->in_blocks, g->rank), pg->head));
  scr_leave_unit(r, 0);
  scr_store_flag(consumed_word(&g->peer[g->rank], 0), r->coll.ticket + 1);
  SCR_FAULT(SCR_FAULT_PUBLISHED);
  scr_wake_readers(g);
  /* All ranks compute the same number. */
  r->coll.longest = all;
  r->coll.stream_out = all >= g->stream_bytes;
  r->coll.chunks = all <= pg->head ? 0 : (all - pg->head + pg->chunk - 1) / pg->chunk;
  r->coll.ticket = g->coll.ticket[pg->large];
  g->coll.ticket[pg->large] += r->coll.chunks;
  return 0;
}
