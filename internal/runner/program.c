/* program.c: the interpreter of slot programs. A run is a cursor (position of the pipeline, stage) over its program.
 * Every stage first waits for its flags, without side effects, and then moves its chunk, so a blocked stage can be
 * entered again. It never sleeps.
 * Requires: the drive lock, for every function. */
#include "gates.h"
#include "slots.h"

/* ---- flags ---- */

/* Waits until rank p has filled its slot for the ticket, and compares its hash of calls with this rank's. */
static int await_filled(scr_group *g, scr_run *r, int large, int32_t p, uint64_t ticket) {
  scr_peer *peer = &g->peer[p];
  scr_slot *s = slot_of(peer, large, ticket);
  if (SCR_UNLIKELY(s == NULL)) { /* the peer has not stored the offset of its large slots yet */
    int rc = scr_await(g, r, &peer->shared->large, 1, p);
    if (rc) return rc;
    s = slot_of(peer, large, ticket);
    if (s == NULL) {
      r->peer = p;
      return SCR_INCIDENT_GARBAGE;
    }
  }
  int rc = scr_await(g, r, &s->filled, ticket + 1, p);
  if (SCR_UNLIKELY(rc)) return rc;
  if (SCR_UNLIKELY(s->hash != r->coll.hash)) {
    r->peer = p;
    return SCR_INCIDENT_MISMATCH;
  }
  if (s->consumed > peer->consumed_seen[large]) peer->consumed_seen[large] = s->consumed;
  return 0;
}

/* A slot may be overwritten only after every rank has consumed its last chunk. */
int scr_await_consumed(scr_group *g, scr_run *r, int large, uint64_t ticket) {
  uint64_t slots = large == 0 ? SCR_SMALL_SLOTS : SCR_LARGE_SLOTS;
#ifdef SCR_MUTANT_SLOT_REUSED
  return 0;
#else
  if (ticket < slots) return 0;
#endif
  uint64_t need = ticket - slots + 1;
  for (int32_t p = 0; p < g->size; p++) {
    scr_peer *peer = &g->peer[p];
    if (p == g->rank || peer->consumed_seen[large] >= need) continue;
    int rc = scr_await(g, r, consumed_word(peer, large), need, p);
    if (rc) return rc;
    /* The word may have risen since, and later stages rely on the value without a wait of their own, so this load
     * acquires as well. */
    peer->consumed_seen[large] = atomic_load_explicit(consumed_word(peer, large), memory_order_acquire);
  }
  return 0;
}

/* ---- stages ---- */

void scr_copy_in(scr_run *r, uint64_t offset, uint64_t n, unsigned char *dst) {
  const scr_program *pg = r->coll.program;
  while (n > 0) {
    uint64_t len;
    const unsigned char *src = scr_span(&r->in, offset, n, &len);
    if (pg->scale) {
      pg->scale(dst, src, len / pg->elem, r->factor);
    } else {
      pg->kernels->copy(dst, src, len);
    }
    offset += len;
    dst += len;
    n -= len;
  }
}

void scr_copy_out(scr_run *r, uint64_t offset, uint64_t n, const unsigned char *src) {
  const scr_program *pg = r->coll.program;
  while (n > 0) {
    uint64_t len;
    unsigned char *dst = scr_span(&r->out, offset, n, &len);
    if (dst != src) (r->coll.stream_out ? pg->kernels->copy_stream : pg->kernels->copy)(dst, src, len);
    offset += len;
    src += len;
    n -= len;
  }
}

void scr_mark_filled(scr_group *g, scr_run *r, int large, scr_slot *s, uint64_t ticket) {
  s->hash = r->coll.hash;
  s->consumed = atomic_load_explicit(consumed_word(&g->peer[g->rank], large), memory_order_relaxed);
  scr_store_flag(&s->filled, ticket + 1);
  SCR_FAULT(SCR_FAULT_PUBLISHED);
  scr_wake_readers(g);
}

/* Requires: all others have consumed the last chunk of that slot. */
void scr_publish_blocks(scr_group *g, scr_run *r, uint64_t k, uint64_t ticket) {
  const scr_program *pg = r->coll.program;
  scr_slot *s = slot_of(&g->peer[g->rank], pg->large, ticket);
  uint64_t stride = pieces_apart(r, k), at = chunk_at(r, k);
  unsigned char *data = slot_data(s, pg->large, (uint64_t)(g->size - 1) * stride);
  for (int32_t i = 1; i < g->size; i++, data += stride) {
    int32_t to = (g->rank + i) % g->size;
    scr_copy_in(r, scr_block_at(&r->in_blocks, to) + at, piece_of(r, scr_block_bytes(&r->in_blocks, to), k), data);
  }
  scr_mark_filled(g, r, pg->large, s, ticket);
}

static int publish(scr_group *g, scr_run *r, const scr_stage *st, uint64_t k) {
  const scr_program *pg = r->coll.program;
  if (r->coll.ahead && k == 0) return 0;
  uint64_t ticket = r->coll.ticket + k, n = chunk_bytes(r, k), at = chunk_at(r, k);
  int rc = scr_await_consumed(g, r, pg->large, ticket);
  if (SCR_UNLIKELY(rc)) return rc;
  if (pg->input_blocks) {
    scr_publish_blocks(g, r, k, ticket);
    return 0;
  }
  scr_slot *s = slot_of(&g->peer[g->rank], pg->large, ticket);
  if (r->coll.uneven) n = piece_of(r, scr_block_bytes(&r->out_blocks, g->rank), k);
  unsigned char *data = slot_data(s, pg->large, n);
  if (st->skip_own) {
    uint64_t from, len;
    share_of(n, g->size, g->rank, &from, &len);
    scr_copy_in(r, at, from, data);
    scr_copy_in(r, at + from + len, n - from - len, data + from + len);
  } else if (n > 0) {
    scr_copy_in(r, at, n, data);
  }
  scr_mark_filled(g, r, pg->large, s, ticket);
  return 0;
}

#define MAX_SOURCES 512

/* The slots that a reduce puts its result back into. */
static int32_t back_slots(scr_group *g, const scr_run *r, const scr_stage *st, uint64_t ticket, unsigned char *to[]) {
  int32_t n = 0;
  for (int32_t i = 1; i < g->size && st->back != SCR_NOBODY; i++) {
    int32_t p = (g->rank + i) % g->size;
    if (st->back == SCR_FROM_ROOT && p != r->root) continue;
    to[n++] = slot_data(slot_of(&g->peer[p], r->coll.program->large, ticket), r->coll.program->large, SCR_LARGE_BYTES);
  }
  return n;
}

/* A reduce with more than two targets copies to the others while the result is in the first-level cache. */
#define REDUCE_BLOCK 8192

/* Reduces chunk k of this rank's block. This rank's own contribution comes from the input, because it is not in its
 * slot. */
static void reduce_block(scr_group *g, scr_run *r, uint64_t k) {
  const scr_program *pg = r->coll.program;
  uint64_t stride = pieces_apart(r, k), slot_bytes = (uint64_t)(g->size - 1) * stride;
  uint64_t own_at = scr_block_at(&r->in_blocks, g->rank) + chunk_at(r, k), out_at = chunk_at(r, k);
  const void *src[MAX_SOURCES];
  for (int32_t p = 0; p < g->size; p++) {
    if (p == g->rank) continue;
    unsigned char *data = slot_data(slot_of(&g->peer[p], pg->large, r->coll.ticket + k), pg->large, slot_bytes);
    src[p] = data + piece_index(g, p, g->rank) * stride;
  }
  for (uint64_t len = piece_of(r, scr_block_bytes(&r->in_blocks, g->rank), k), part; len > 0; len -= part) {
    const unsigned char *own = scr_span(&r->in, own_at, len, &part);
    unsigned char *out = scr_span(&r->out, out_at, part, &part);
    if (pg->scale) {
      pg->scale(out, own, part / pg->elem, r->factor);
      own = out;
    }
    src[g->rank] = own;
    pg->reduce(out, NULL, src, g->size, part / pg->elem, pg->divisor);
    for (int32_t p = 0; p < g->size; p++) {
      if (p != g->rank) src[p] = (const unsigned char *)src[p] + part;
    }
    own_at += part;
    out_at += part;
  }
}

int scr_await_others(scr_group *g, scr_run *r, int large, uint64_t ticket) {
  for (int32_t i = 1; i < g->size; i++) {
    int rc = await_filled(g, r, large, (g->rank + i) % g->size, ticket);
    if (SCR_UNLIKELY(rc)) return rc;
  }
  return 0;
}

static int reduce(scr_group *g, scr_run *r, const scr_stage *st, uint64_t k) {
  const scr_program *pg = r->coll.program;
  uint64_t ticket = r->coll.ticket + k, n = chunk_bytes(r, k), at = chunk_at(r, k), from = 0, len = n;
  int rc = scr_await_others(g, r, pg->large, ticket);
  if (SCR_UNLIKELY(rc)) return rc;
  if (pg->input_blocks) {
    reduce_block(g, r, k);
    return 0;
  }
  if (st->share) share_of(n, g->size, g->rank, &from, &len);
  const void *src[MAX_SOURCES];
  const unsigned char *base[MAX_SOURCES];
  unsigned char *back[MAX_SOURCES];
  for (int32_t p = 0; p < g->size; p++) {
    base[p] = slot_data(slot_of(&g->peer[p], pg->large, ticket), pg->large, n);
  }
  int32_t n_back = back_slots(g, r, st, ticket, back);
  while (len > 0) {
    uint64_t part = n_back + st->to_output > 2 ? scr_min(len, REDUCE_BLOCK) : len;
    const unsigned char *own = base[g->rank] + from;
    unsigned char *out = NULL;
    if (pg->own_from_input) own = scr_span(&r->in, at + from, part, &part);
    if (st->to_output) out = scr_span(&r->out, at + from, part, &part);
    for (int32_t p = 0; p < g->size; p++) src[p] = base[p] + from;
    src[g->rank] = own;
    int32_t done = 0;
    unsigned char *first = out ? out : back[done++] + from;
    unsigned char *second = done < n_back ? back[done++] + from : NULL;
    pg->reduce(first, second, src, g->size, part / pg->elem, pg->divisor);
    while (done < n_back) pg->kernels->copy(back[done++] + from, first, part);
    from += part;
    len -= part;
  }
  if (st->back != SCR_NOBODY) {
    scr_store_flag(slot_reduced(slot_of(&g->peer[g->rank], pg->large, ticket)), ticket + 1);
    SCR_FAULT(SCR_FAULT_PUBLISHED);
    scr_wake_readers(g);
  }
  return 0;
}

static int collect(scr_group *g, scr_run *r, uint64_t k) {
  const scr_program *pg = r->coll.program;
  uint64_t ticket = r->coll.ticket + k, n = chunk_bytes(r, k), at = chunk_at(r, k);
  for (int32_t i = 1; i < g->size; i++) { /* the reduction has waited for all slots */
    int32_t p = (g->rank + i) % g->size;
    int rc = scr_await(g, r, slot_reduced(slot_of(&g->peer[p], pg->large, ticket)), ticket + 1, p);
    if (SCR_UNLIKELY(rc)) return rc;
  }
  const unsigned char *mine = slot_data(slot_of(&g->peer[g->rank], pg->large, ticket), pg->large, n);
  uint64_t from, len;
  share_of(n, g->size, g->rank, &from, &len);
  scr_copy_out(r, at, from, mine);
  scr_copy_out(r, at + from + len, n - from - len, mine + from + len);
  return 0;
}

static void read_one(scr_group *g, scr_run *r, int32_t p, uint64_t k) {
  const scr_program *pg = r->coll.program;
  uint64_t n = chunk_bytes(r, k), out = chunk_at(r, k);
  if (pg->output_blocks) {
    n = piece_of(r, scr_block_bytes(&r->out_blocks, p), k);
    out += scr_block_at(&r->out_blocks, p);
  }
  scr_slot *s = slot_of(&g->peer[p], pg->large, r->coll.ticket + k);
  const unsigned char *data;
  if (pg->input_blocks) {
    uint64_t stride = pieces_apart(r, k);
    data = slot_data(s, pg->large, (uint64_t)(g->size - 1) * stride) + piece_index(g, p, g->rank) * stride;
  } else {
    data = slot_data(s, pg->large, n);
  }
  scr_copy_out(r, out, n, data);
}

void scr_copy_across(scr_group *g, scr_run *r, uint64_t from, uint64_t n) {
  const scr_program *pg = r->coll.program;
  uint64_t at = pg->input_blocks ? scr_block_at(&r->in_blocks, g->rank) + from : from;
  uint64_t out = pg->output_blocks ? scr_block_at(&r->out_blocks, g->rank) + from : from;
  while (n > 0) {
    uint64_t len;
    unsigned char *dst = scr_span(&r->out, out, n, &len);
    const unsigned char *src = scr_span(&r->in, at, len, &len);
    if (pg->scale) {
      pg->scale(dst, src, len / pg->elem, r->factor);
    } else if (dst != src) {
      (r->coll.stream_out ? pg->kernels->copy_stream : pg->kernels->copy)(dst, src, len);
    }
    at += len;
    out += len;
    n -= len;
  }
}

static void copy_own(scr_group *g, scr_run *r, uint64_t k) {
  const scr_program *pg = r->coll.program;
  uint64_t mine = pg->output_blocks ? scr_block_bytes(&r->out_blocks, g->rank) : r->coll.longest;
  scr_copy_across(g, r, chunk_at(r, k), piece_of(r, mine, k));
}

static int read_chunks(scr_group *g, scr_run *r, const scr_stage *st, uint64_t k) {
  uint64_t ticket = r->coll.ticket + k;
  if (st->from == SCR_FROM_ROOT) {
    int rc = await_filled(g, r, r->coll.program->large, r->root, ticket);
    if (SCR_UNLIKELY(rc)) return rc;
    read_one(g, r, r->root, k);
    return 0;
  }
  int rc = scr_await_others(g, r, r->coll.program->large, ticket);
  if (SCR_UNLIKELY(rc)) return rc;
  for (int32_t i = 1; i < g->size; i++) read_one(g, r, (g->rank + i) % g->size, k);
  copy_own(g, r, k);
  return 0;
}

/* ---- a run ---- */

static int step(scr_group *g, scr_run *r, const scr_stage *st, uint64_t k) {
  switch (st->action) {
    case SCR_PUBLISH:
      return publish(g, r, st, k);
    case SCR_REDUCE:
      return reduce(g, r, st, k);
    case SCR_COLLECT:
      return collect(g, r, k);
    case SCR_READ:
      return read_chunks(g, r, st, k);
    case SCR_AWAIT:
      return scr_await_others(g, r, r->coll.program->large, r->coll.ticket + k);
    default:
      copy_own(g, r, k);
      return 0;
  }
}

/* Where every rank fills a slot and reads those of the others, none can be far ahead, so a run that only reads any more holds nobody
 * up. A rank whose program fills none reads what others may go on to publish: they would wait for its `consumed`. (The others of a
 * reduce of one shot read nothing, and may wait for the root.) */
bool scr_run_owes(const scr_run *r) {
  const scr_program *pg = r->coll.program;
  if (pg->sendrecv || r->coll.chunks != 1) return true; /* before its heads are read it has no chunks */
  bool fills = false;
  for (uint32_t i = pg->n_heads; i < pg->n_stages; i++) {
    const scr_stage *st = &pg->stage[i];
    fills = fills || st->action == SCR_PUBLISH;
    bool done = st->lag < r->coll.head || (st->lag == r->coll.head && i < r->coll.stage);
    if (!done && (st->action == SCR_PUBLISH || st->back != SCR_NOBODY)) return true;
  }
  return !fills;
}

int scr_run_advance(scr_group *g, scr_run *r, int64_t until_ns) {
  const scr_program *pg = r->coll.program;
  if (pg->sendrecv) return scr_sendrecv_advance(g, r, until_ns);
  for (; SCR_UNLIKELY(r->coll.stage < pg->n_heads); r->coll.stage++) {
    int rc = pg->stage[r->coll.stage].action == SCR_PUBLISH ? scr_publish_heads(g, r) : scr_read_heads(g, r);
    if (rc) return rc;
  }
  for (; r->coll.head < r->coll.chunks + pg->max_lag; r->coll.head++, r->coll.stage = pg->n_heads) {
    if (r->coll.stage == pg->n_heads && r->coll.head < r->coll.chunks) {
      int rc = scr_enter_unit(g, r, scr_unit_of(r, r->coll.head));
      if (SCR_UNLIKELY(rc)) return rc;
    }
    for (; r->coll.stage < pg->n_stages; r->coll.stage++) {
      const scr_stage *st = &pg->stage[r->coll.stage];
      if (r->coll.head < st->lag || r->coll.head - st->lag >= r->coll.chunks) continue;
      uint64_t began = scr_trace_clock(g);
      int rc = step(g, r, st, r->coll.head - st->lag);
      scr_trace_step(g, r, st->action, began, r->coll.head - st->lag, rc);
      if (SCR_UNLIKELY(rc)) return rc;
    }
    /* The last stage of a chunk is done: its slots may be used again, here and at the peers. */
    if (r->coll.head >= pg->max_lag) scr_leave_unit(r, scr_unit_of(r, r->coll.head - pg->max_lag));
    if (r->coll.head >= pg->max_lag && g->size > 1) {
      scr_store_flag(consumed_word(&g->peer[g->rank], pg->large), r->coll.ticket + (r->coll.head - pg->max_lag) + 1);
      SCR_FAULT(SCR_FAULT_PUBLISHED);
      scr_wake_readers(g);
    }
    if (until_ns != 0 && r->coll.chunks > 1 && scr_now() >= until_ns) {
      r->coll.head++;
      r->coll.stage = pg->n_heads;
      return r->coll.head < r->coll.chunks + pg->max_lag ? SCR_YIELDED : SCR_FINISHED;
    }
  }
  return SCR_FINISHED;
}
