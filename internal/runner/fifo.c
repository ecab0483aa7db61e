/* fifo.c: the memory of a fifo: writing, reading and checking frames. The writer's count lies in the fifo, in the
 * writer's arena; the reader's count lies in the reader's shared block.
 * Requires: the p2p lock, for every function. */
#include "p2p.h"

/* Finds the peer's fifo to this rank. Returns false if it does not exist yet. */
bool scr_fifo_open(scr_group *g, int32_t peer) {
  scr_p2p_pair *pair = &g->p2p.pair[peer];
  if (pair->in != NULL) return true;
  const scr_peer *p = &g->peer[peer];
  uint64_t offset =
      atomic_load_explicit(scr_shared_fifo(p->shared, (uint32_t)g->size, (uint32_t)g->rank), memory_order_acquire);
  if (offset == 0) return false;
#ifdef SCR_MUTANT_FIFO_BELIEVED
  pair->broken = false;
#else
  pair->broken = !scr_inside(p, offset, sizeof(scr_fifo) + pair->fifo_bytes);
#endif
  if (pair->broken) return false;
  pair->in = (scr_fifo *)(void *)(p->arena + offset);
  return true;
}

static uint64_t free_bytes(scr_group *g, int32_t peer, uint64_t want) {
  scr_p2p_pair *pair = &g->p2p.pair[peer];
  if (pair->fifo_bytes - (pair->written - pair->reader_seen) < want) {
    const scr_fifo_reader *r = scr_shared_fifo_reader(g->peer[peer].shared, (uint32_t)g->rank);
    uint64_t read = atomic_load_explicit(&r->read, memory_order_acquire);
    if (pair->written - read > pair->fifo_bytes) {
      pair->broken = true;
      return 0;
    }
    pair->reader_seen = read;
  }
  return pair->fifo_bytes - (pair->written - pair->reader_seen);
}

scr_frame *scr_fifo_room(scr_group *g, int32_t peer, uint64_t payload) {
  scr_p2p_pair *pair = &g->p2p.pair[peer];
  uint64_t need = scr_frame_bytes(payload), at = pair->written & (pair->fifo_bytes - 1), rest = pair->fifo_bytes - at;
  uint64_t want = rest < need ? rest + need : need;
  if (free_bytes(g, peer, want) < want) return NULL;
  if (rest < need) {
    scr_frame *wrap = (scr_frame *)(void *)(pair->out->data + at);
    *wrap = (scr_frame){.type = SCR_FRAME_WRAP, .bytes = rest - SCR_FRAME_HEADER};
    pair->written += rest;
    at = 0;
  }
  return (scr_frame *)(void *)(pair->out->data + at);
}

void scr_fifo_put(scr_p2p_pair *pair, uint64_t payload) { pair->written += scr_frame_bytes(payload); }

/* Copies a header, so that the checked values are those that are used, even if the peer overwrites it. */
static void copy_header(scr_frame *to, unsigned char *from) {
  uint64_t word[SCR_FRAME_WORDS];
  for (int i = 0; i < SCR_FRAME_WORDS; i++) {
    word[i] = atomic_load_explicit((_Atomic uint64_t *)(void *)from + i, memory_order_relaxed);
  }
  memcpy(to, word, sizeof word);
}

const unsigned char *scr_fifo_next(scr_group *g, int32_t peer, scr_frame *f) {
  scr_p2p_pair *pair = &g->p2p.pair[peer];
  for (;;) {
    /* Sequentially consistent, because this load may be the last look after a sleeper's word was stored. */
    uint64_t written = atomic_load_explicit(&pair->in->written, memory_order_seq_cst), there = written - pair->read;
    if (there == 0) return NULL;
    uint64_t at = pair->read & (pair->fifo_bytes - 1), rest = pair->fifo_bytes - at;
    copy_header(f, pair->in->data + at);
    pair->broken = !scr_frame_fits(f->type, f->bytes, f->total, there, rest, pair->fifo_bytes);
    if (pair->broken) return NULL;
    if (f->type != SCR_FRAME_WRAP) return pair->in->data + at + SCR_FRAME_HEADER;
    pair->read += rest;
  }
}

void scr_fifo_take(scr_p2p_pair *pair, uint64_t payload) { pair->read += scr_frame_bytes(payload); }

bool scr_fifo_publish(scr_group *g, int32_t peer) {
  scr_p2p_pair *pair = &g->p2p.pair[peer];
  bool news = false;
  if (pair->out != NULL && atomic_load_explicit(&pair->out->written, memory_order_relaxed) != pair->written) {
    scr_store_flag(&pair->out->written, pair->written);
    news = true;
  }
  scr_fifo_reader *r = scr_shared_fifo_reader(g->shared, (uint32_t)peer);
  if (atomic_load_explicit(&r->read, memory_order_relaxed) != pair->read ||
      atomic_load_explicit(&r->eager_released, memory_order_relaxed) != pair->eager_released) {
    atomic_store_explicit(&r->eager_released, pair->eager_released, memory_order_release);
    scr_store_flag(&r->read, pair->read);
    news = true;
  }
  if (news) {
    SCR_FAULT(SCR_FAULT_PUBLISHED);
    const scr_sleeper *s = &g->peer[peer].shared->p2p;
    uint32_t word = atomic_load_explicit(&s->waits_for, memory_order_seq_cst);
    if (word & SCR_SLEEP_ENGINE) scr_wake_engine(&g->peer[peer]);
    if (word & ~SCR_SLEEP_ENGINE) scr_bell_wake((_Atomic uint32_t *)(uintptr_t)&s->bell);
  }
  return news;
}
