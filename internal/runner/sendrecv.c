/* sendrecv.c: the interpreter of sendrecv programs (plan.SendRecvPlan), and the channels that the messages go through. A
 * run is a cursor over the chunks and the steps of its program. A step first waits for room or for a message,
 * without side effects, and then moves its bytes, so a blocked step can be entered again. A send copies its message
 * into the channel, so its source may be overwritten right after. It never sleeps.
 * Requires: the drive lock, for every function. */
#include <stdlib.h>

#include "direct.h"
#include "gates.h"
#include "regions.h"

/* ---- channels ---- */

static inline scr_place *place_of(const scr_group *g, const scr_channel *f, uint64_t number) {
  return (scr_place *)(uintptr_t)(f->places + (number % SCR_CHANNEL_PLACES) * scr_channel_stride(g->message_bytes));
}

static inline unsigned char *data_of(scr_place *p) { return (unsigned char *)p + SCR_CHANNEL_DATA; }

/* Returns the count of messages that rank `to` has taken from a channel of rank `from`. */
static inline _Atomic uint64_t *taken_word(const scr_group *g, int32_t to, int32_t from, uint32_t channel) {
  return &scr_shared_channel_reader(g->peer[to].shared, (uint32_t)g->size, (uint32_t)from)->taken[channel];
}

static inline _Atomic uint64_t *offset_word(const scr_group *g, int32_t from, int32_t to, uint32_t channel) {
  return scr_shared_channel(g->peer[from].shared, (uint32_t)g->size, (uint32_t)to, channel);
}

/* Returns the channel from one rank to another, or NULL if it does not exist yet or its offset is invalid. */
static const scr_channel *channel_between(const scr_group *g, int32_t from, int32_t to, uint32_t channel) {
  uint64_t offset = atomic_load_explicit(offset_word(g, from, to, channel), memory_order_acquire);
  const scr_peer *p = &g->peer[from];
#ifdef SCR_MUTANT_CHANNEL_BELIEVED
  bool inside = true;
#else
  bool inside = scr_inside(p, offset, scr_group_channel_bytes(g));
#endif
  return offset != 0 && inside ? (const scr_channel *)(const void *)(p->arena + offset) : NULL;
}

void scr_group_set_channel(scr_group *g, int32_t peer, int32_t channel, uint64_t offset) {
  g->coll.channels[peer].out[channel] = (scr_channel *)(void *)(g->peer[g->rank].arena + offset);
  scr_store_flag(offset_word(g, g->rank, peer, (uint32_t)channel), offset);
  scr_wake_waiter(g, peer);
}

uint64_t scr_group_message_bytes(const scr_group *g) { return g->message_bytes; }

uint64_t scr_group_channel_bytes(const scr_group *g) {
  return sizeof(scr_channel) + SCR_CHANNEL_PLACES * scr_channel_stride(g->message_bytes);
}

bool scr_group_has_channel(const scr_group *g, int32_t peer, int32_t channel) {
  return g->coll.channels[peer].out[channel] != NULL;
}

bool scr_channel_is_there(const scr_group *g, int32_t rank, int32_t awaited, uint32_t word) {
  uint32_t what = (word & ~SCR_SLEEP_ENGINE) >> 16;
  if (what == 0 || what > 2 * SCR_CHANNELS) return false;
  uint32_t channel = (what - 1) / 2;
  bool room = (what - 1) % 2;
  int32_t from = room ? rank : awaited, to = room ? awaited : rank;
  const scr_channel *f = channel_between(g, from, to, channel);
  if (f == NULL) return false;
  uint64_t taken = atomic_load_explicit(taken_word(g, to, from, channel), memory_order_acquire);
  /* `taken` may be ahead: a message that went straight out of a buffer is published behind that. */
  int64_t there = (int64_t)(atomic_load_explicit(&f->sent, memory_order_acquire) - taken);
  return room ? there < SCR_CHANNEL_PLACES : there > 0;
}

static void wake(scr_group *g, int32_t peer) {
  SCR_FAULT(SCR_FAULT_PUBLISHED);
  scr_wake_waiter(g, peer);
}

/* Returns `code`: the peer wrote an invalid value for that channel. */
static int bad(scr_run *r, int code, int32_t peer, uint32_t channel) {
  r->peer = peer;
  r->need = channel;
  return code;
}

/* Waits until there is room for another message. */
static int await_room(scr_group *g, scr_run *r, int32_t peer, uint32_t channel) {
  scr_channels *e = &g->coll.channels[peer];
  uint64_t sent = e->sent[channel];
#ifdef SCR_MUTANT_PLACE_REUSED
  if (e) return 0;
#else
  if (sent - e->taken_seen[channel] < SCR_CHANNEL_PLACES) return 0;
#endif
  _Atomic uint64_t *taken = taken_word(g, peer, g->rank, channel);
#ifdef SCR_MUTANT_WAITS_FOR_MESSAGE
  r->coll.channel = SCR_SLEEP_CHANNEL(channel, 0);
#else
  r->coll.channel = SCR_SLEEP_CHANNEL(channel, 1);
#endif
  int rc = scr_await(g, r, taken, sent - SCR_CHANNEL_PLACES + 1, peer);
  if (rc) return rc;
  uint64_t seen = atomic_load_explicit(taken, memory_order_acquire);
#ifndef SCR_MUTANT_TAKEN_BELIEVED
  if (SCR_UNLIKELY(seen > sent)) return bad(r, SCR_INCIDENT_BAD_TAKEN, peer, channel);
#endif
  e->taken_seen[channel] = seen;
  return 0;
}

/* Waits for the next message of a rank and compares its header with what must come: `bytes`, of blocks of which the
 * longest has `block`. The peer may overwrite the header at any time, so each field is read once. */
static int await_message(scr_group *g, scr_run *r, int32_t peer, uint32_t channel, uint64_t bytes, uint64_t block,
                         const unsigned char **data) {
  scr_channels *e = &g->coll.channels[peer];
  r->coll.channel = SCR_SLEEP_CHANNEL(channel, 0);
  if (SCR_UNLIKELY(e->in[channel] == NULL)) { /* the peer makes the channel before its first message */
    int rc = scr_await(g, r, offset_word(g, peer, g->rank, channel), 1, peer);
    if (rc) return rc;
    e->in[channel] = channel_between(g, peer, g->rank, channel);
    if (e->in[channel] == NULL) return bad(r, SCR_INCIDENT_BAD_CHANNEL, peer, channel);
  }
  uint64_t number = e->taken[channel] + 1;
  scr_place *p = place_of(g, e->in[channel], number);
  int rc = scr_await(g, r, &p->filled, number, peer);
  if (SCR_UNLIKELY(rc)) return rc;
  const volatile scr_place *header = p;
  uint64_t filled = atomic_load_explicit(&p->filled, memory_order_acquire), theirs = header->block;
  r->peer = peer;
#ifndef SCR_MUTANT_CALLS_NOT_COMPARED
  if (SCR_UNLIKELY(header->hash != r->coll.hash)) return SCR_INCIDENT_MISMATCH;
#endif
  if (SCR_UNLIKELY(theirs != block && r->kind == SAGECOMM_ALL_TO_ALL)) {
    r->need = theirs;
    r->coll.expected = block;
    return SCR_INCIDENT_SPLIT;
  }
#if defined SCR_MUTANT_HEADER_BELIEVED
  if (SCR_UNLIKELY(filled != number)) {
#elif defined SCR_MUTANT_NUMBER_BELIEVED
  if (SCR_UNLIKELY(filled < number || theirs != block || header->bytes != bytes)) {
#else
  if (SCR_UNLIKELY(filled != number || theirs != block || header->bytes != bytes)) {
#endif
    return bad(r, SCR_INCIDENT_BAD_MESSAGE, peer, channel);
  }
  *data = data_of(p);
  return 0;
}

/* Publishes a message. One that was `sent` to another host needs no push. */
static void put(scr_group *g, const scr_run *r, int32_t peer, uint32_t channel, uint64_t bytes, uint64_t block,
                bool sent) {
  scr_channels *e = &g->coll.channels[peer];
  uint64_t number = ++e->sent[channel];
  scr_place *p = place_of(g, e->out[channel], number);
  p->hash = r->coll.hash;
  p->bytes = bytes;
  p->block = block;
  scr_store_flag(&p->filled, number);
  atomic_store_explicit(&e->out[channel]->sent, number, memory_order_release);
  if (SCR_LIKELY(!sent)) wake(g, peer);
}

static void take(scr_group *g, int32_t peer, uint32_t channel) {
  uint64_t number = ++g->coll.channels[peer].taken[channel];
  scr_store_flag(taken_word(g, g->rank, peer, channel), number);
  wake(g, peer);
}

uint64_t scr_sendrecv_longest(const scr_group *g, const scr_run *r) {
  if (r->kind != SAGECOMM_ALL_TO_ALL) return r->bytes;
  uint64_t longest = 0;
  for (int32_t i = 0; i < g->size; i++) {
    uint64_t in = scr_block_bytes(&r->in_blocks, i), out = scr_block_bytes(&r->out_blocks, i);
    if (in > longest) longest = in;
    if (out > longest) longest = out;
  }
  return longest;
}

/* ---- steps ---- */

typedef struct where {
  scr_group *g;
  scr_run *r;
  uint64_t k; /* chunk */
} where;

/* Copies regions into a place of a channel. */
static void gather(const where *w, cursor from, unsigned char *to, uint64_t n) {
  const scr_kernels *kernels = w->r->coll.program->kernels;
  for (uint64_t len; n > 0; n -= len) {
    const unsigned char *src = peek(w->g, w->r, &from, w->k, n, &len);
    kernels->copy(to, src, len);
    skip(&from, len);
    to += len;
  }
}

/* Copies a message to regions. */
static void spread(const where *w, const unsigned char *from, cursor to, uint64_t n) {
  const scr_kernels *kernels = w->r->coll.program->kernels;
  for (uint64_t len; n > 0; n -= len) {
    unsigned char *dst = peek(w->g, w->r, &to, w->k, n, &len);
    kernels->copy(dst, from, len);
    skip(&to, len);
    from += len;
  }
}

static void copy(const where *w, cursor from, cursor to, uint64_t n) {
  const scr_kernels *kernels = w->r->coll.program->kernels;
  for (uint64_t len; n > 0; n -= len) {
    const unsigned char *src = peek(w->g, w->r, &from, w->k, n, &len);
    unsigned char *dst = peek(w->g, w->r, &to, w->k, len, &len);
    if (dst != src) kernels->copy(dst, src, len);
    skip(&from, len);
    skip(&to, len);
  }
}

/* Reduces a message, or without one the regions `from`, with regions. */
static void reduce(const where *w, const unsigned char *message, bool message_first, cursor from, cursor to,
                   uint64_t n) {
  const scr_program *pg = w->r->coll.program;
  for (uint64_t len; n > 0; n -= len) {
    const unsigned char *own = peek(w->g, w->r, &from, w->k, n, &len);
    unsigned char *dst = peek(w->g, w->r, &to, w->k, len, &len);
    const void *src[2] = {message ? own : dst, message ? message : own};
    if (message_first) {
      src[0] = message;
      src[1] = own;
    }
    pg->reduce(dst, NULL, src, 2, len / pg->elem, 1);
    skip(&from, len);
    skip(&to, len);
    if (message) message += len;
  }
}

/* Sends a message to a rank of another host straight out of the buffer, if its bytes are contiguous there. */
static bool send_directly(const where *w, const scr_step *s, const scr_region *from, uint64_t n, uint64_t block) {
  if (!scr_passes_directly(w->g, s->peer, n)) return false;
  cursor c = cursor_at(w->r, from, s->n_from, w->k);
  uint64_t len;
  scr_payload p = {.lane = w->g->lane, .channel = s->channel, .hash = w->r->coll.hash, .block = block, .bytes = n};
  p.number = w->g->coll.channels[s->peer].sent[s->channel] + 1;
  p.data = peek(w->g, w->r, &c, w->k, n, &len);
  return len == n && scr_go.send(w->g->peer[s->peer].pair, &p) != 0;
}

/* Lets the next message, of a rank of another host, come straight to its place in the buffer, if its bytes are contiguous there. */
static void expect(const where *w, const scr_step *s, const scr_region *to, uint64_t n, uint64_t block) {
  scr_channels *e = &w->g->coll.channels[s->peer];
  uint64_t number = e->taken[s->channel] + 1;
  if (!scr_passes_directly(w->g, s->peer, n) || e->expected[s->channel] == number) return;
  const scr_channel *in = e->in[s->channel];
  if (in == NULL || atomic_load_explicit(&place_of(w->g, in, number)->filled, memory_order_acquire) >= number) return;
  e->expected[s->channel] = number;
  cursor c = cursor_at(w->r, to, s->n_to, w->k);
  uint64_t len;
  scr_payload p = {
      .lane = w->g->lane, .channel = s->channel, .number = number, .hash = w->r->coll.hash, .block = block, .bytes = n};
  p.data = peek(w->g, w->r, &c, w->k, n, &len);
  if (len == n) scr_go.expect(w->g->peer[s->peer].pair, &p);
}

/* Whether the message that has come lies in the buffer already. */
static bool is_delivered(const where *w, const scr_step *s) {
  const scr_group *g = w->g;
  const scr_channels *e = &g->coll.channels[s->peer];
  uint64_t number = e->taken[s->channel] + 1;
  return SCR_UNLIKELY(g->peer[s->peer].pair != 0) && place_of(g, e->in[s->channel], number)->delivered == number;
}

static int send(const where *w, const scr_step *s, const scr_region *from, uint64_t n) {
  int rc = await_room(w->g, w->r, s->peer, s->channel);
  if (SCR_UNLIKELY(rc)) return rc;
  const scr_channels *e = &w->g->coll.channels[s->peer];
  unsigned char *to = data_of(place_of(w->g, e->out[s->channel], e->sent[s->channel] + 1));
  uint64_t block = block_of(w->r, from, s->n_from);
  bool sent = send_directly(w, s, from, n, block);
#ifdef SCR_MUTANT_MESSAGE_BEFORE_BYTES
  put(w->g, w->r, s->peer, s->channel, n, block, sent);
  if (n > 0 && !sent) gather(w, cursor_at(w->r, from, s->n_from, w->k), to, n);
#else
  if (n > 0 && !sent) gather(w, cursor_at(w->r, from, s->n_from, w->k), to, n);
  put(w->g, w->r, s->peer, s->channel, n, block, sent);
#endif
  return 0;
}

static int receive(const where *w, const scr_step *s, const scr_region *from, const scr_region *to, uint64_t n) {
  const unsigned char *data;
  uint64_t block = block_of(w->r, to, s->n_to);
  if (s->op == SCR_STEP_RECV) expect(w, s, to, n, block);
  int rc = await_message(w->g, w->r, s->peer, s->channel, n, block, &data);
  if (SCR_UNLIKELY(rc)) return rc;
#ifdef SCR_MUTANT_TAKEN_BEFORE_BYTES
  take(w->g, s->peer, s->channel);
  w->g->coll.channels[s->peer].taken[s->channel]--;
#endif
  if (n > 0 && !is_delivered(w, s)) {
    cursor out = cursor_at(w->r, to, s->n_to, w->k);
    if (s->op == SCR_STEP_RECV) {
      spread(w, data, out, n);
    } else {
      reduce(w, data, s->message_first, cursor_at(w->r, from, s->n_from, w->k), out, n);
    }
  }
  take(w->g, s->peer, s->channel);
  return 0;
}

/* The cost of a step in bytes, to bound the work between two looks at the clock. */
#define STEP_COST 1024
#define LOOK_BYTES (256 * 1024)

/* Carries out a step for one chunk and adds its cost to *moved. In chunk 0 every step exchanges its message, so that
 * ranks compare their calls; in later chunks both sides leave out steps without bytes. */
static int carry_out(const where *w, const scr_step *s, uint64_t *moved) {
  const scr_sendrecv *m = w->r->coll.program->sendrecv;
  const scr_region *from = m->region + s->from, *to = m->region + s->to;
  uint64_t n = s->op == SCR_STEP_SEND ? bytes_of(w->r, from, s->n_from, w->k) : bytes_of(w->r, to, s->n_to, w->k);
  if (n == 0 && (w->k > 0 || s->op > SCR_STEP_RECV_REDUCE)) return 0;
  *moved += n + STEP_COST;
  switch (s->op) {
    case SCR_STEP_SEND:
      return send(w, s, from, n);
    case SCR_STEP_RECV:
    case SCR_STEP_RECV_REDUCE:
      return receive(w, s, from, to, n);
    case SCR_STEP_REDUCE:
      reduce(w, NULL, false, cursor_at(w->r, from, s->n_from, w->k), cursor_at(w->r, to, s->n_to, w->k), n);
      return 0;
    default:
      copy(w, cursor_at(w->r, from, s->n_from, w->k), cursor_at(w->r, to, s->n_to, w->k), n);
      return 0;
  }
}

/* ---- a run ---- */

/* Scales a chunk of the input for PREMUL_SUM. */
static void scale(const where *w) {
  const scr_program *pg = w->r->coll.program;
  for (uint64_t block = 0; block < n_scaled(w->g, pg); block++) {
    scr_region x = {.space = SCR_INPUT, .block = (int32_t)block, .count = pg->sendrecv->pieces};
    extent e = extent_of(w->r, &x, w->k);
    uint64_t at = e.chunk + (pg->input_blocks ? scr_block_at(&w->r->in_blocks, x.block) : 0);
    unsigned char *to = scaled_at(w->g, w->r, x.block, w->k);
    for (uint64_t len; e.bytes > 0; e.bytes -= len) {
      const unsigned char *from = scr_span(&w->r->in, at, e.bytes, &len);
      pg->scale(to, from, len / pg->elem, w->r->factor);
      at += len;
      to += len;
    }
  }
}

/* Copies the root's input to its output: the plan of a broadcast uses one buffer, and the root may pass two. */
static void fill(const where *w) {
  const scr_region in = {.space = SCR_INPUT, .count = w->r->coll.program->sendrecv->pieces};
  scr_region out = in;
  out.space = SCR_OUTPUT;
  copy(w, cursor_at(w->r, &in, 1, w->k), cursor_at(w->r, &out, 1, w->k), extent_of(w->r, &in, w->k).bytes);
}

/* Prepares a chunk before its first step. */
static void prepare(const where *w) {
  if (w->r->coll.program->scale) scale(w);
  if (w->r->kind == SAGECOMM_BROADCAST && w->r->root == w->g->rank) fill(w);
}

/* Divides a chunk of the output for AVG, after the last step. */
static void average(const where *w) {
  const scr_program *pg = w->r->coll.program;
  if (w->r->kind == SAGECOMM_REDUCE && w->r->root != w->g->rank) return;
  scr_region x = {.space = SCR_OUTPUT, .block = w->g->rank, .count = pg->sendrecv->pieces};
  extent e = extent_of(w->r, &x, w->k);
  for (uint64_t len; e.bytes > 0; e.bytes -= len) {
    unsigned char *out = scr_span(&w->r->out, e.chunk, e.bytes, &len);
    pg->sendrecv->average(out, NULL, (const void *const[]){out}, 1, len / pg->elem, pg->divisor);
    e.chunk += len;
  }
}

int scr_sendrecv_advance(scr_group *g, scr_run *r, int64_t until_ns) {
  const scr_sendrecv *m = r->coll.program->sendrecv;
  uint64_t moved = 0;
  if (r->coll.head == 0 && r->coll.stage == 0) {
    r->peer = g->rank;
    if (m->even && r->kind == SAGECOMM_ALL_TO_ALL && !blocks_are_equal(g, r)) return SCR_INCIDENT_UNEVEN;
    if (!make_scratch(g, r)) return SCR_INCIDENT_MEMORY;
  }
  for (; r->coll.head < r->coll.chunks + m->max_lag; r->coll.head++, r->coll.stage = 0) {
    if (r->coll.stage == 0) { /* stage 0 comes before the steps, which are counted from 1 */
      if (r->coll.head < r->coll.chunks) {
        int rc = scr_enter_unit(g, r, r->coll.head);
        if (SCR_UNLIKELY(rc)) return rc;
        prepare(&(where){g, r, r->coll.head});
      }
      r->coll.stage = 1;
    }
    for (; r->coll.stage <= m->n_steps; r->coll.stage++) {
      const scr_step *s = &m->step[r->coll.stage - 1];
      if (r->coll.head < s->lag || r->coll.head - s->lag >= r->coll.chunks) continue;
      const where w = {g, r, r->coll.head - s->lag};
      if (until_ns != 0 && moved >= LOOK_BYTES) {
        if (scr_now() >= until_ns) return SCR_YIELDED;
        moved = 0;
      }
      uint64_t began = scr_trace_clock(g);
      int rc = carry_out(&w, s, &moved);
      scr_trace_step(g, r, s->op, began, w.k, rc);
      if (SCR_UNLIKELY(rc)) return rc;
    }
#ifdef SCR_MUTANT_AVERAGE_LEFT_FIRST
    if (r->coll.head >= m->max_lag) scr_leave_unit(r, r->coll.head - m->max_lag);
    if (m->average && r->coll.head >= m->max_lag) average(&(where){g, r, r->coll.head - m->max_lag});
#else
    if (m->average && r->coll.head >= m->max_lag) average(&(where){g, r, r->coll.head - m->max_lag});
    if (r->coll.head >= m->max_lag) scr_leave_unit(r, r->coll.head - m->max_lag);
#endif
  }
  return SCR_FINISHED;
}

bool scr_program_sendrecv(scr_program *p, uint32_t steps, uint32_t regions) {
  size_t lists = steps * sizeof(scr_step) + regions * sizeof(scr_region);
  scr_sendrecv *m = p->sendrecv = calloc(1, sizeof *m + lists);
  if (m == NULL) return false;
  m->n_steps = steps;
  m->step = (const scr_step *)(const void *)(m + 1);
  m->region = (const scr_region *)(const void *)(m->step + steps);
  return true;
}
