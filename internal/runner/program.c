/* program.c: the interpreter. A run is a cursor (position of the pipeline, stage) over its program; every stage first
 * waits for the flags it needs, without side effects, and then moves its chunk, so that a blocked stage can simply be
 * entered again. Called under the drive lock; never sleeps. */
#include "recorder.h"

/* ---- addresses ---- */

static inline scr_slot *small_slot(const scr_board *b, uint64_t ticket) {
  return (scr_slot *)(void *)((unsigned char *)(uintptr_t)b->small + (ticket % SCR_SMALL_SLOTS) * SCR_SMALL_STRIDE);
}

/* The peer has stored the lane's offset before it filled the first slot of it; until then there is nothing to see. */
static unsigned char *large_lane(scr_peer *p) {
  if (SCR_UNLIKELY(p->large == NULL)) {
    uint64_t offset = atomic_load_explicit(&p->board->large, memory_order_acquire);
    if (offset == 0 || !scr_inside(p, offset, SCR_LARGE_SLOTS * (uint64_t)SCR_LARGE_STRIDE)) return NULL;
    p->large = p->arena + offset;
  }
  return p->large;
}

static inline scr_slot *slot_of(scr_peer *p, int lane, uint64_t ticket) {
  if (lane == 0) return small_slot(p->board, ticket);
  unsigned char *base = large_lane(p);
  return base ? (scr_slot *)(void *)(base + (ticket % SCR_LARGE_SLOTS) * SCR_LARGE_STRIDE) : NULL;
}

static inline unsigned char *slot_data(scr_slot *s, int lane, uint64_t bytes) {
  if (lane == 1) return (unsigned char *)s + SCR_LARGE_DATA;
  return bytes <= SCR_INLINE_BYTES ? s->inline_data : (unsigned char *)s + SCR_SMALL_DATA;
}

static inline _Atomic uint64_t *slot_reduced(scr_slot *s) {
  return (_Atomic uint64_t *)(void *)((unsigned char *)s + SCR_LARGE_REDUCED);
}

static inline _Atomic uint64_t *consumed_word(const scr_peer *p, int lane) {
  return lane == 0 ? &p->board->consumed0 : &p->board->consumed1;
}

/* Bytes from `offset` on that lie together, at most `want`. */
static inline unsigned char *span(const scr_segments *s, uint64_t offset, uint64_t want, uint64_t *got) {
  uint32_t i = 0;
  while (i + 1 < s->n && offset >= s->list[i].bytes) offset -= s->list[i++].bytes;
  uint64_t left = s->n ? s->list[i].bytes - offset : 0;
  *got = left < want ? left : want;
  return s->n ? (unsigned char *)s->list[i].data + offset : NULL;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- the parts of a chunk ---- */

static inline uint64_t chunk_bytes(const scr_run *r, uint64_t k) {
  uint64_t at = k * r->program->chunk;
  return at >= r->bytes ? 0 : min_u64(r->program->chunk, r->bytes - at);
}

/* Share i of a chunk of n bytes: equal pieces, multiples of 64 bytes, the last ones shorter or empty. */
static inline void share_of(uint64_t n, int32_t size, int32_t i, uint64_t *from, uint64_t *len) {
  uint64_t piece = ((n + (uint64_t)size - 1) / (uint64_t)size + 63) & ~UINT64_C(63);
  *from = min_u64((uint64_t)i * piece, n);
  *len = min_u64((uint64_t)(i + 1) * piece, n) - *from;
}

/* ---- flags ---- */

static inline int await(scr_group *g, scr_run *r, _Atomic uint64_t *flag, uint64_t need, int32_t peer) {
  if (SCR_LIKELY(atomic_load_explicit(flag, memory_order_acquire) >= need)) return 0;
  for (uint32_t n = g->spin_now; n > 0; n--) {
    scr_pause();
    if (atomic_load_explicit(flag, memory_order_acquire) >= need) return 0;
  }
  r->flag = flag;
  r->need = need;
  r->peer = peer;
  return SCR_BLOCKED;
}

/* Waits until rank p has filled its slot for the ticket and compares its calls with ours. */
static int await_filled(scr_group *g, scr_run *r, int32_t p, uint64_t ticket) {
  scr_peer *peer = &g->peer[p];
  scr_slot *s = slot_of(peer, r->program->lane, ticket);
  if (SCR_UNLIKELY(s == NULL)) { /* its first use of the large lane */
    int rc = await(g, r, &peer->board->large, 1, p);
    if (rc) return rc;
    s = slot_of(peer, r->program->lane, ticket);
    if (s == NULL) {
      r->peer = p;
      return SCR_TROUBLE_GARBAGE;
    }
  }
  int rc = await(g, r, &s->filled, ticket + 1, p);
  if (SCR_UNLIKELY(rc)) return rc;
  if (SCR_UNLIKELY(s->hash != r->hash)) {
    r->peer = p;
    return SCR_TROUBLE_MISMATCH;
  }
  if (s->consumed > peer->consumed_seen[r->program->lane]) peer->consumed_seen[r->program->lane] = s->consumed;
  return 0;
}

/* Before a slot is written again, every rank must have consumed what lay in it. */
static int await_consumed(scr_group *g, scr_run *r, uint64_t ticket) {
  int lane = r->program->lane;
  uint64_t slots = lane == 0 ? SCR_SMALL_SLOTS : SCR_LARGE_SLOTS;
  if (ticket < slots) return 0;
  uint64_t need = ticket - slots + 1;
  for (int32_t p = 0; p < g->size; p++) {
    scr_peer *peer = &g->peer[p];
    if (p == g->rank || peer->consumed_seen[lane] >= need) continue;
    int rc = await(g, r, consumed_word(peer, lane), need, p);
    if (rc) return rc;
    /* It may have risen since: what relies on this value later waits for nothing more, so this look acquires as well. */
    peer->consumed_seen[lane] = atomic_load_explicit(consumed_word(peer, lane), memory_order_acquire);
  }
  return 0;
}

/* ---- stages ---- */

/* Copies [offset, offset + n) of the input to dst, scaled for PREMUL_SUM. */
static void copy_in(const scr_run *r, uint64_t offset, uint64_t n, unsigned char *dst) {
  const scr_program *pg = r->program;
  while (n > 0) {
    uint64_t len;
    const unsigned char *src = span(&r->in, offset, n, &len);
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

static void copy_out(const scr_run *r, uint64_t offset, uint64_t n, const unsigned char *src) {
  const scr_program *pg = r->program;
  while (n > 0) {
    uint64_t len;
    unsigned char *dst = span(&r->out, offset, n, &len);
    if (dst != src) (r->stream_out ? pg->kernels->copy_stream : pg->kernels->copy)(dst, src, len);
    offset += len;
    src += len;
    n -= len;
  }
}

static int publish(scr_group *g, scr_run *r, const scr_stage *st, uint64_t k) {
  const scr_program *pg = r->program;
  uint64_t ticket = r->ticket + k, n = chunk_bytes(r, k), at = k * pg->chunk;
  int rc = await_consumed(g, r, ticket);
  if (SCR_UNLIKELY(rc)) return rc;
  scr_slot *s = slot_of(&g->peer[g->rank], pg->lane, ticket);
  unsigned char *data = slot_data(s, pg->lane, n);
  if (st->skip_own) {
    uint64_t from, len;
    share_of(n, g->size, g->rank, &from, &len);
    copy_in(r, at, from, data);
    copy_in(r, at + from + len, n - from - len, data + from + len);
  } else if (n > 0) {
    copy_in(r, at, n, data);
  }
  s->hash = r->hash;
  s->consumed = atomic_load_explicit(consumed_word(&g->peer[g->rank], pg->lane), memory_order_relaxed);
  scr_store_flag(&s->filled, ticket + 1);
  scr_wake_readers(g);
  return 0;
}

#define MAX_SOURCES 512

/* The slots that a fold puts its result back into. */
static int32_t back_slots(scr_group *g, const scr_run *r, const scr_stage *st, uint64_t ticket, unsigned char *to[]) {
  int32_t n = 0;
  for (int32_t i = 1; i < g->size && st->back != SCR_NOBODY; i++) {
    int32_t p = (g->rank + i) % g->size;
    if (st->back == SCR_FROM_ROOT && p != r->root) continue;
    to[n++] = slot_data(slot_of(&g->peer[p], r->program->lane, ticket), r->program->lane, SCR_LARGE_BYTES);
  }
  return n;
}

/* A fold with more than two targets copies to the others while the result is in the first-level cache. */
#define FOLD_BLOCK 8192

static int fold(scr_group *g, scr_run *r, const scr_stage *st, uint64_t k) {
  const scr_program *pg = r->program;
  uint64_t ticket = r->ticket + k, n = chunk_bytes(r, k), at = k * pg->chunk, from = 0, len = n;
  for (int32_t p = 0; p < g->size; p++) {
    int rc = p == g->rank ? 0 : await_filled(g, r, p, ticket);
    if (SCR_UNLIKELY(rc)) return rc;
  }
  if (st->share) share_of(n, g->size, g->rank, &from, &len);
  const void *src[MAX_SOURCES];
  const unsigned char *base[MAX_SOURCES];
  unsigned char *back[MAX_SOURCES];
  for (int32_t p = 0; p < g->size; p++) {
    base[p] = slot_data(slot_of(&g->peer[p], pg->lane, ticket), pg->lane, n);
  }
  int32_t n_back = back_slots(g, r, st, ticket, back);
  while (len > 0) {
    uint64_t part = n_back + st->to_output > 2 ? min_u64(len, FOLD_BLOCK) : len;
    const unsigned char *own = base[g->rank] + from;
    unsigned char *out = NULL;
    if (pg->own_from_input) own = span(&r->in, at + from, part, &part);
    if (st->to_output) out = span(&r->out, at + from, part, &part);
    for (int32_t p = 0; p < g->size; p++) src[p] = base[p] + from;
    src[g->rank] = own;
    int32_t done = 0;
    unsigned char *first = out ? out : back[done++] + from;
    unsigned char *second = done < n_back ? back[done++] + from : NULL;
    pg->fold(first, second, src, g->size, part / pg->elem, pg->divisor);
    while (done < n_back) pg->kernels->copy(back[done++] + from, first, part);
    from += part;
    len -= part;
  }
  if (st->back != SCR_NOBODY) {
    scr_store_flag(slot_reduced(slot_of(&g->peer[g->rank], pg->lane, ticket)), ticket + 1);
    scr_wake_readers(g);
  }
  return 0;
}

static int collect(scr_group *g, scr_run *r, uint64_t k) {
  const scr_program *pg = r->program;
  uint64_t ticket = r->ticket + k, n = chunk_bytes(r, k), at = k * pg->chunk;
  for (int32_t i = 1; i < g->size; i++) { /* all slots were seen by the fold */
    int32_t p = (g->rank + i) % g->size;
    int rc = await(g, r, slot_reduced(slot_of(&g->peer[p], pg->lane, ticket)), ticket + 1, p);
    if (SCR_UNLIKELY(rc)) return rc;
  }
  const unsigned char *mine = slot_data(slot_of(&g->peer[g->rank], pg->lane, ticket), pg->lane, n);
  uint64_t from, len;
  share_of(n, g->size, g->rank, &from, &len);
  copy_out(r, at, from, mine);
  copy_out(r, at + from + len, n - from - len, mine + from + len);
  return 0;
}

static int read_one(scr_group *g, scr_run *r, int32_t p, uint64_t k) {
  const scr_program *pg = r->program;
  uint64_t ticket = r->ticket + k, n = chunk_bytes(r, k), at = k * pg->chunk;
  uint64_t out = pg->output_blocks ? (uint64_t)p * r->bytes + at : at;
  copy_out(r, out, n, slot_data(slot_of(&g->peer[p], pg->lane, ticket), pg->lane, n));
  return 0;
}

/* Input straight to output: a rank alone, or its own block of an all_gather. */
static void copy_own(scr_group *g, scr_run *r, uint64_t k) {
  const scr_program *pg = r->program;
  uint64_t n = chunk_bytes(r, k), at = k * pg->chunk;
  uint64_t out = pg->output_blocks ? (uint64_t)g->rank * r->bytes + at : at;
  while (n > 0) {
    uint64_t len;
    unsigned char *dst = span(&r->out, out, n, &len);
    const unsigned char *src = span(&r->in, at, len, &len);
    if (pg->scale) {
      pg->scale(dst, src, len / pg->elem, r->factor);
    } else if (dst != src) {
      (r->stream_out ? pg->kernels->copy_stream : pg->kernels->copy)(dst, src, len);
    }
    at += len;
    out += len;
    n -= len;
  }
}

static int read_chunks(scr_group *g, scr_run *r, const scr_stage *st, uint64_t k) {
  uint64_t ticket = r->ticket + k;
  if (st->from == SCR_FROM_ROOT) {
    int rc = await_filled(g, r, r->root, ticket);
    return rc ? rc : read_one(g, r, r->root, k);
  }
  for (int32_t i = 1; i < g->size; i++) {
    int rc = await_filled(g, r, (g->rank + i) % g->size, ticket);
    if (SCR_UNLIKELY(rc)) return rc;
  }
  for (int32_t i = 1; i < g->size; i++) read_one(g, r, (g->rank + i) % g->size, k);
  copy_own(g, r, k);
  return 0;
}

static int await_all(scr_group *g, scr_run *r, uint64_t k) {
  for (int32_t p = 0; p < g->size; p++) {
    int rc = p == g->rank ? 0 : await_filled(g, r, p, r->ticket + k);
    if (SCR_UNLIKELY(rc)) return rc;
  }
  return 0;
}

/* ---- a run ---- */

static inline uint64_t mix(uint64_t x) { /* splitmix64's finaliser (Steele, Lea, Flood 2014) */
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

void scr_run_start(scr_group *g, scr_run *r) {
  const scr_program *pg = r->program;
  uint64_t what =
      (uint64_t)r->kind | (uint64_t)r->dtype << 8 | (uint64_t)r->reduce_op << 16 | (uint64_t)(uint32_t)r->root << 32;
  g->hash = mix(g->hash + UINT64_C(0x9e3779b97f4a7c15) + mix(what ^ mix(r->bytes)));
  r->hash = g->hash;
  r->started = 1;
  r->chunks = r->bytes == 0 ? 1 : (r->bytes + pg->chunk - 1) / pg->chunk;
  r->ticket = g->ticket[pg->lane];
  r->head = 0;
  r->stage = 0;
  r->deadline_ns = 0;
  r->stream_out =
      r->bytes >= g->stream_bytes && r->out.n > 0 && (r->in.n == 0 || r->in.list[0].data != r->out.list[0].data);
  if (g->size > 1) g->ticket[pg->lane] += r->chunks;
  scr_note_started(g, r);

  scr_record *rec = &g->board->records[r->seq % SCR_RECORDS];
  atomic_store_explicit(&rec->seq, 0, memory_order_relaxed);
  atomic_store_explicit(&rec->hash, r->hash, memory_order_release); /* not before seq is 0; see read_record() */
  atomic_store_explicit(&rec->bytes, r->bytes, memory_order_release);
  atomic_store_explicit(&rec->what, what, memory_order_release);
  atomic_store_explicit(&rec->seq, r->seq, memory_order_release);
}

static int step(scr_group *g, scr_run *r, const scr_stage *st, uint64_t k) {
  switch (st->action) {
    case SCR_PUBLISH:
      return publish(g, r, st, k);
    case SCR_FOLD:
      return fold(g, r, st, k);
    case SCR_COLLECT:
      return collect(g, r, k);
    case SCR_READ:
      return read_chunks(g, r, st, k);
    case SCR_AWAIT:
      return await_all(g, r, k);
    default:
      copy_own(g, r, k);
      return 0;
  }
}

int scr_run_advance(scr_group *g, scr_run *r, int64_t until_ns) {
  const scr_program *pg = r->program;
  for (; r->head < r->chunks + pg->max_lag; r->head++, r->stage = 0) {
    for (; r->stage < pg->n_stages; r->stage++) {
      const scr_stage *st = &pg->stage[r->stage];
      if (r->head < st->lag || r->head - st->lag >= r->chunks) continue;
      int rc = step(g, r, st, r->head - st->lag);
      if (SCR_UNLIKELY(rc)) return rc;
    }
    /* The chunk at the end of the pipeline is through: its slots may be used again, here and at the peers. */
    if (r->head >= pg->max_lag && g->size > 1) {
      scr_store_flag(consumed_word(&g->peer[g->rank], pg->lane), r->ticket + (r->head - pg->max_lag) + 1);
      scr_wake_readers(g);
    }
    if (until_ns != 0 && r->chunks > 1 && scr_now() >= until_ns) {
      r->head++;
      r->stage = 0;
      return r->head < r->chunks + pg->max_lag ? SCR_YIELDED : SCR_FINISHED;
    }
  }
  return SCR_FINISHED;
}
