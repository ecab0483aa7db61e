/* start.c: how a run of a collective starts: the hash and the record of its call, its chunks and its tickets. The caller
 * notes the start for the flight recorder and the statistics.
 * Requires: the drive lock. */
#include "program.h"

/* Returns a call without its lengths: the fields that peers compare. */
static uint64_t fields_of(const scr_run *r) {
  return (uint64_t)r->kind | (uint64_t)r->dtype << 8 | (uint64_t)r->reduce_op << 16 | (uint64_t)r->coll.uneven << 24 |
         (uint64_t)r->coll.batch << 25 | (uint64_t)(uint32_t)r->root << 32;
}

/* Adds the call to the running hash of all calls. */
static void hash_call(scr_group *g, scr_run *r, uint64_t fields) {
  uint64_t h = scr_mix(g->coll.hash + UINT64_C(0x9e3779b97f4a7c15) + scr_mix(fields ^ scr_mix(r->bytes)));
  if (SCR_UNLIKELY(r->coll.uneven)) {
    const scr_blocks *blocks = r->in_blocks.at ? &r->in_blocks : &r->out_blocks;
    for (int32_t i = 0; i < g->size; i++) h = scr_mix(h + scr_block_bytes(blocks, i));
  }
  if (SCR_UNLIKELY(r->coll.batch)) h = scr_mix(h + r->coll.batch_hash);
  g->coll.hash = r->coll.hash = h;
}

/* Writes the record that peers read with read_record() (calls.c). */
static void record_call(scr_group *g, const scr_run *r, uint64_t fields) {
  scr_record *rec = &g->shared->records[r->coll.seq % SCR_RECORDS];
  atomic_store_explicit(&rec->seq, 0, memory_order_relaxed);
  /* Release, so that seq is 0 before. */
  atomic_store_explicit(&rec->hash, r->coll.hash, memory_order_release);
  atomic_store_explicit(&rec->bytes, r->bytes, memory_order_release);
  atomic_store_explicit(&rec->what, fields, memory_order_release);
  atomic_store_explicit(&rec->seq, r->coll.seq, memory_order_release);
}

/* Tells each peer the lengths of the blocks between it and this rank, which peers read with read_split() (calls.c). The count comes
 * last, so a reader that sees it finds them. */
static void record_splits(scr_group *g, const scr_run *r) {
  uint64_t n = ++g->coll.splits;
  for (int32_t i = 0; i < g->size; i++) {
    if (i == g->rank) continue;
    scr_peer *p = &g->peer[i];
    uint64_t sent = scr_block_bytes(&r->in_blocks, i), expected = scr_block_bytes(&r->out_blocks, i);
    bool first = g->rank < i;
    p->split_hash = scr_batch_hash(p->split_hash, first ? sent : expected);
    p->split_hash = scr_batch_hash(p->split_hash, first ? expected : sent);
    scr_split *s = scr_shared_split(g->shared, (uint32_t)g->size, (uint32_t)i, n);
    atomic_store_explicit(&s->seq, 0, memory_order_relaxed);
    atomic_store_explicit(&s->sent, sent, memory_order_release); /* release, so that seq is 0 before */
    atomic_store_explicit(&s->expected, expected, memory_order_release);
    atomic_store_explicit(&s->hash, p->split_hash, memory_order_release);
    atomic_store_explicit(&s->seq, r->coll.seq, memory_order_release);
  }
  atomic_store_explicit(&g->shared->splits, n, memory_order_release);
}

static uint64_t chunks_of(const scr_run *r) {
  uint32_t chunk = r->coll.program->chunk;
  return r->coll.longest == 0 ? 1 : (r->coll.longest + chunk - 1) / chunk;
}

void scr_run_start(scr_group *g, scr_run *r) {
  const scr_program *pg = r->coll.program;
  uint64_t fields = fields_of(r);
  hash_call(g, r, fields);
  r->coll.started = 1;
  r->coll.longest = r->bytes;
  r->coll.base = 0;
  r->coll.channel = 0;
  int large = pg->n_heads ? 0 : pg->large;
  uint64_t tickets = 1;
  if (r->gate.external) {
    r->coll.chunks = tickets = 0; /* no rank fills or reads a slot */
  } else if (pg->n_heads) {
    r->coll.chunks = 0; /* until the heads are read */
  } else if (pg->sendrecv) {
    r->coll.longest = scr_sendrecv_longest(g, r);
    r->coll.chunks = chunks_of(r);
    tickets = 0;
  } else {
    if (pg->input_blocks && pg->output_blocks)
      r->coll.longest = scr_block_bytes(&r->in_blocks, g->rank); /* a group of one */
    tickets = r->coll.chunks = chunks_of(r);
  }
  r->coll.ticket = g->coll.ticket[large];
  r->coll.head = 0;
  r->coll.stage = 0;
  r->coll.ahead = false;
  /* The fast run still has the values of the last operation. */
  atomic_store_explicit(&r->deadline_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&r->extended_ns, 0, memory_order_relaxed);
  r->coll.stream_out =
      r->bytes >= g->stream_bytes && r->out.n > 0 && (r->in.n == 0 || r->in.list[0].data != r->out.list[0].data);
  if (g->size > 1) g->coll.ticket[large] += tickets;
  if (SCR_UNLIKELY(g->lane == SCR_DEVICE_LANE)) {
    scr_group_mark(g, r->coll.seq, r->coll.hash);
    if (r->gate.external && r->kind == SAGECOMM_ALL_TO_ALL) record_splits(g, r);
  }
  record_call(g, r, fields);
  SCR_FAULT(SCR_FAULT_STARTED);
}
