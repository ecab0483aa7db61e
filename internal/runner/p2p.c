/* p2p.c: matching and moving p2p operations. They match in posted order for each (peer, tag); a recv from any source
 * competes in the same order. Short payloads travel eagerly within a credit, which bounds what lies unmatched at a
 * receiver. Longer ones, and all of them once the credit is used up, are announced and wait until the receiver has a
 * buffer. The receiver always takes announcements and eager payloads out of the fifo, so no order of posting can
 * block a fifo. */
#include "direct.h"
#include "p2p.h"
#include "recorder.h"
#include "run_list.h"

#include <stdlib.h>

void scr_p2p_finish(scr_group *g, scr_run *r, bool failed) {
  scr_run_finish(r, failed, false);
  scr_run_unref(r);
  g->p2p.activity++;
  /* Another thread of this process may sleep on the shared block's bell until this run is done. */
  if (atomic_load_explicit(&g->shared->p2p.waits_for, memory_order_seq_cst) & ~SCR_SLEEP_ENGINE) {
    scr_bell_wake(&g->shared->p2p.bell);
  }
  /* This is the last step: a thread that finds no unfinished run, and no thread inside, may close the group. */
  atomic_fetch_sub_explicit(&g->p2p.unfinished, 1, memory_order_release);
}

/* Copies between a run's buffer, from offset `at` on, and a fifo. The stores are ordinary: received data is often
 * read or sent on next, and up to 64 MiB non-temporal stores were slower (docs/measured.md). */
static void move(const scr_segments *s, uint64_t at, unsigned char *fifo, uint64_t n, bool to_fifo) {
  for (uint32_t i = 0; i < s->n && n > 0; i++) {
    if (at >= s->list[i].bytes) {
      at -= s->list[i].bytes;
      continue;
    }
    uint64_t len = s->list[i].bytes - at;
    if (len > n) len = n;
    unsigned char *mine = (unsigned char *)s->list[i].data + at;
    scr_get_kernels()->copy(to_fifo ? fifo : mine, to_fifo ? mine : fifo, len);
    fifo += len;
    n -= len;
    at = 0;
  }
}

/* ---- receiving ---- */

/* Returns 0, or the incident code for a send that does not fit the recv. */
static int compare(scr_run *r, int32_t from, uint64_t total, uint32_t dtype) {
  r->peer = from;
  r->need = total;
  if (r->bytes != total) return SCR_INCIDENT_LENGTH;
  r->need = dtype;
  return r->dtype == dtype ? 0 : SCR_INCIDENT_TYPE;
}

static bool queue_grant(scr_p2p_pair *pair, uint64_t id) {
  struct scr_grant *gr = malloc(sizeof *gr);
  if (gr == NULL) return false;
  *gr = (struct scr_grant){.id = id};
  if (pair->grant_tail) {
    pair->grant_tail->next = gr;
  } else {
    pair->grant_head = gr;
  }
  pair->grant_tail = gr;
  return true;
}

/* The payload of a recv is there. */
static void arrive(scr_group *g, scr_run *r) {
  if (SCR_UNLIKELY(scr_p2p_is_behind(r))) { /* scr_p2p_look_at_gates() completes it */
    atomic_store_explicit(&r->p2p.arrived, true, memory_order_release);
    return;
  }
  scr_keyed_remove(&g->p2p.pair[r->source].receiving, &r->p2p.entry);
  /* Once all bytes were delivered, no more are expected. */
  if (SCR_UNLIKELY(r->p2p.expected) && r->p2p.delivered != r->bytes) scr_go.forget(g->peer[r->source].pair, g->lane);
  scr_p2p_finish(g, r, false);
}

/* Lets the pieces of a recv come straight to its buffer, from a rank of another host. */
static void expect(const scr_group *g, scr_run *r, int32_t from) {
  if (!scr_passes_directly(g, from, r->bytes) || r->out.n != 1 || r->gate.words != NULL) return;
  scr_payload p = {
      .lane = g->lane, .channel = SCR_PIECE, .number = r->p2p.id, .data = r->out.list[0].data, .bytes = r->bytes};
  r->p2p.expected = scr_go.expect(g->peer[from].pair, &p) != 0;
}

/* Matches a posted recv with a send. Returns 0 or an incident code. */
static int deliver(scr_group *g, scr_run *r, int32_t from, bool announced, uint64_t total, uint64_t id,
                   const unsigned char *data) {
  scr_p2p_pair *pair = &g->p2p.pair[from];
  r->source = from;
  scr_note_met(r);
  if (!announced) {
    move(&r->out, 0, (unsigned char *)(uintptr_t)data, total, false);
    pair->eager_released += total;
    scr_p2p_finish(g, r, false);
    return 0;
  }
  r->p2p.id = id;
  atomic_store_explicit(&r->p2p.matched, true, memory_order_release);
  scr_keyed_add(&pair->receiving, &r->p2p.entry, id);
  expect(g, r, from);
  return queue_grant(pair, id) ? 0 : SCR_INCIDENT_MEMORY;
}

static uint64_t key_of(int32_t source, int32_t tag) { return (uint64_t)(uint32_t)source << 32 | (uint32_t)tag; }

/* Returns the recv that was posted first of those that a send fits. */
static scr_run *posted_for(scr_group *g, int32_t from, int32_t tag) {
  scr_keyed *one = scr_keyed_find(&g->p2p.recvs, key_of(from, tag));
  scr_keyed *any = scr_keyed_find(&g->p2p.recvs, key_of(SAGECOMM_ANY_SOURCE, tag));
  return scr_run_of_entry(any == NULL || (one && one->arrival < any->arrival) ? one : any);
}

static int keep_unexpected(scr_group *g, int32_t from, const scr_frame *f, const unsigned char *data) {
  scr_p2p_pair *pair = &g->p2p.pair[from];
  bool announced = f->type == SCR_FRAME_ANNOUNCE;
  scr_unexpected *u = malloc(sizeof *u + (announced ? 0 : f->bytes));
  if (u == NULL) return SCR_INCIDENT_MEMORY;
  *u = (scr_unexpected){
      .arrival = ++g->p2p.activity, .dtype = f->dtype, .announced = announced, .total = f->total, .id = f->id};
  if (!announced) memcpy(u->data, data, f->bytes);
  scr_keyed_add(&pair->unexpected, &u->entry, (uint32_t)f->tag);
  return 0;
}

/* Handles a frame that scr_frame_fits() has accepted. Returns 0 or an incident code. */
static int take_frame(scr_group *g, int32_t from, const scr_frame *f, const unsigned char *data, scr_run **culprit) {
  scr_p2p_pair *pair = &g->p2p.pair[from];
  scr_run *r;
  int rc;
  switch (f->type) {
    case SCR_FRAME_EAGER:
      if (SCR_UNLIKELY(g->lane == SCR_DEVICE_LANE)) return SCR_INCIDENT_GARBAGE; /* sends at gates are announced */
      pair->eager_received += f->bytes;
      if (pair->eager_received - pair->eager_released > SCR_EAGER_CREDIT) return SCR_INCIDENT_GARBAGE;
      /* fall through */
    case SCR_FRAME_ANNOUNCE:
      if (SCR_UNLIKELY(g->peer[from].pair != 0) && f->type == SCR_FRAME_ANNOUNCE &&
          scr_keyed_find(&pair->receiving, f->id))
        return SCR_INCIDENT_GARBAGE; /* for a second time */
      r = posted_for(g, from, f->tag);
      if (r == NULL) return keep_unexpected(g, from, f, data);
      *culprit = r;
      rc = compare(r, from, f->total, f->dtype);
      if (rc) return rc;
      scr_keyed_remove(&g->p2p.recvs, &r->p2p.entry);
      return deliver(g, r, from, f->type == SCR_FRAME_ANNOUNCE, f->total, f->id, data);
    case SCR_FRAME_GRANT:
      r = scr_run_of_entry(scr_keyed_find(&pair->waiting, f->id));
      if (r == NULL || r->p2p.matched) return SCR_INCIDENT_GARBAGE;
      scr_note_met(r);
      if (scr_p2p_is_behind(r)) { /* scr_p2p_look_at_gates() goes on with it */
        r->p2p.matched = true;
        return 0;
      }
      scr_keyed_remove(&pair->waiting, &r->p2p.entry);
      scr_list_push(&pair->granted_head, &pair->granted_tail, r);
      return 0;
    case SCR_FRAME_DATA:
      r = scr_run_of_entry(scr_keyed_find(&pair->receiving, f->id));
      *culprit = r;
#ifdef SCR_MUTANT_LENGTH_BELIEVED
      if (r == NULL) return SCR_INCIDENT_GARBAGE;
#else
      if (r == NULL || f->bytes > r->bytes - r->p2p.moved) return SCR_INCIDENT_GARBAGE;
      if (f->bytes == 0 && (r->bytes != 0 || r->p2p.arrived)) return SCR_INCIDENT_GARBAGE;
#endif
      if (SCR_UNLIKELY(r->gate.words != NULL)) scr_p2p_note_piece(r, r->p2p.moved, f->bytes);
      if (SCR_UNLIKELY(g->peer[from].pair != 0) && f->tag == SCR_DELIVERED) {
        if (r->p2p.delivered != r->p2p.moved) return SCR_INCIDENT_GARBAGE; /* pieces came before the recv was matched */
        r->p2p.delivered += f->bytes;
      } else {
        move(&r->out, r->p2p.moved, (unsigned char *)(uintptr_t)data, f->bytes, false);
      }
      r->p2p.moved += f->bytes;
      if (r->p2p.moved == r->bytes) arrive(g, r);
      return 0;
    default:
      return SCR_INCIDENT_GARBAGE;
  }
}

/* Matches a recv that was just posted with the earliest send that arrived before it and fits it. */
static int match_unexpected(scr_group *g, scr_run *r, bool *matched) {
  int32_t from = -1;
  scr_unexpected *best = NULL;
  bool any = r->root == SAGECOMM_ANY_SOURCE;
  for (int32_t i = 0, n = any ? scr_n_visited(g) : 1; i < n; i++) {
    int32_t p = any ? g->visited[i] : r->root;
    /* `entry` is the first member. */
    scr_unexpected *u = (scr_unexpected *)scr_keyed_find(&g->p2p.pair[p].unexpected, (uint32_t)r->tag);
    if (u && (best == NULL || u->arrival < best->arrival)) {
      best = u;
      from = p;
    }
  }
  *matched = best != NULL;
  if (best == NULL) return 0;
  int rc = compare(r, from, best->total, best->dtype);
  if (rc) return rc;
  scr_keyed_remove(&g->p2p.pair[from].unexpected, &best->entry);
  rc = deliver(g, r, from, best->announced, best->total, best->id, best->data);
  free(best);
  return rc;
}

/* ---- sending ---- */

/* Sends a piece to a rank of another host straight out of the buffer. Its frame in the fifo has the header alone, and counts as sent. */
static bool send_directly(const scr_group *g, int32_t to, scr_run *r, uint64_t at, uint64_t n) {
  if (!scr_passes_directly(g, to, n) || r->in.n != 1) return false;
  scr_payload p = {.lane = g->lane,
                   .channel = SCR_PIECE,
                   .number = r->p2p.id,
                   .hash = r->bytes,
                   .block = g->p2p.pair[to].written,
                   .data = (unsigned char *)r->in.list[0].data + at,
                   .bytes = n};
  return scr_go.send(g->peer[to].pair, &p) != 0;
}

static bool put(scr_group *g, int32_t to, uint32_t type, scr_run *r, uint64_t at, uint64_t n) {
  scr_frame *f = scr_fifo_room(g, to, n);
  if (f == NULL) return false;
  *f = (scr_frame){.type = type, .dtype = r->dtype, .tag = r->tag, .bytes = n, .total = r->bytes, .id = r->p2p.id};
  if (SCR_UNLIKELY(r->gate.words != NULL) && type == SCR_FRAME_DATA) scr_p2p_note_piece(r, at, n);
  if (type == SCR_FRAME_DATA && send_directly(g, to, r, at, n)) {
    scr_fifo_put(&g->p2p.pair[to], n);
    return true;
  }
  move(&r->in, at, (unsigned char *)f + SCR_FRAME_HEADER, n, true);
  scr_fifo_put(&g->p2p.pair[to], n);
  return true;
}

static bool has_credit(scr_group *g, int32_t to, uint64_t n) {
  scr_p2p_pair *pair = &g->p2p.pair[to];
  if (n > SCR_EAGER_BYTES) return false;
  if (pair->eager_sent + n - pair->eager_seen <= SCR_EAGER_CREDIT) return true;
  const scr_fifo_reader *r = scr_shared_fifo_reader(g->peer[to].shared, (uint32_t)g->rank);
  uint64_t released = atomic_load_explicit(&r->eager_released, memory_order_acquire);
  if (pair->eager_sent - released > SCR_EAGER_CREDIT) {
    pair->broken = true;
    return false;
  }
  pair->eager_seen = released;
  return pair->eager_sent + n - pair->eager_seen <= SCR_EAGER_CREDIT;
}

/* The cost of a frame in bytes of a pass's budget. The budget bounds a pass so that other threads get the lock to
 * post, and callers look at failures and the clock between passes. */
#define FRAME_COST 1024

/* Writes what this rank has for one peer: grants, pieces of granted sends, new sends. Returns true if anything was
 * written. */
static bool push_out(scr_group *g, int32_t to, int64_t *budget) {
  scr_p2p_pair *pair = &g->p2p.pair[to];
  bool moved = false;
  while (pair->grant_head && *budget > 0) {
    struct scr_grant *gr = pair->grant_head;
    scr_frame *f = scr_fifo_room(g, to, 0);
    if (f == NULL) return moved;
    *f = (scr_frame){.type = SCR_FRAME_GRANT, .id = gr->id};
    scr_fifo_put(pair, 0);
    pair->grant_head = gr->next;
    if (pair->grant_head == NULL) pair->grant_tail = NULL;
    free(gr);
    moved = true;
    *budget -= FRAME_COST;
  }
  /* A piece goes straight out of the buffer only when all before it is published and sent. */
  if (SCR_UNLIKELY(g->peer[to].pair != 0) && pair->granted_head) moved |= scr_fifo_publish(g, to);
  while (pair->granted_head && *budget > 0) {
    scr_run *r = pair->granted_head;
    uint64_t most = scr_piece_bytes(pair->fifo_bytes), left = r->bytes - r->p2p.moved, n = left < most ? left : most;
    if (!put(g, to, SCR_FRAME_DATA, r, r->p2p.moved, n)) return moved;
    r->p2p.moved += n;
    moved = true;
    *budget -= (int64_t)n + FRAME_COST;
    if (r->p2p.moved == r->bytes) {
      scr_list_pop(&pair->granted_head, &pair->granted_tail);
      scr_p2p_finish(g, r, false);
    } else {
      scr_fifo_publish(g, to); /* the peer copies this piece while this rank copies the next */
    }
  }
  while (pair->send_head && *budget > 0) {
    scr_run *r = pair->send_head;
    bool eager = SCR_LIKELY(r->gate.words == NULL) && has_credit(g, to, r->bytes);
    r->p2p.id = pair->next_id;
    uint64_t n = eager ? r->bytes : 0;
    if (!put(g, to, eager ? SCR_FRAME_EAGER : SCR_FRAME_ANNOUNCE, r, 0, n)) return moved;
    pair->next_id++;
    moved = true;
    *budget -= (int64_t)n + FRAME_COST;
    scr_list_pop(&pair->send_head, &pair->send_tail);
    if (eager) {
      pair->eager_sent += n;
      scr_p2p_finish(g, r, false);
    } else {
      scr_keyed_add(&pair->waiting, &r->p2p.entry, r->p2p.id);
    }
  }
  return moved;
}

/* The limit of frames taken from one peer in one round, so that it does not starve the others. */
#define FRAMES_PER_ROUND 16

/* Takes the frames of one peer. Returns 0 or an incident code. */
static int take_in(scr_group *g, int32_t p, int64_t *budget, bool *moved, scr_run **culprit) {
  scr_p2p_pair *pair = &g->p2p.pair[p];
  for (int n = 0; n < FRAMES_PER_ROUND && *budget > 0 && scr_fifo_open(g, p); n++) {
    scr_frame f;
    const unsigned char *data = scr_fifo_next(g, p, &f);
    if (data == NULL) break;
    int rc = take_frame(g, p, &f, data, culprit);
    if (rc) return rc;
    *culprit = NULL; /* the run may be complete and its memory reused; the next frame does not concern it */
    scr_fifo_take(pair, f.bytes);
    if (f.type == SCR_FRAME_DATA)
      scr_fifo_publish(g, p); /* the peer refills this room while this rank takes the next frame */
    *budget -= (int64_t)f.bytes + FRAME_COST;
    *moved = true;
  }
  return pair->broken ? SCR_INCIDENT_GARBAGE : 0;
}

int scr_p2p_progress(scr_group *g, int64_t budget, int32_t *peer, scr_run **culprit) {
  if (SCR_UNLIKELY(g->p2p.behind_head != NULL)) scr_p2p_look_at_gates(g);
  bool moved = true;
  while (moved) {
    moved = false;
    int32_t n = scr_n_visited(g);
    for (int32_t i = 0; i < n; i++) {
      int32_t p = *peer = g->visited[g->p2p.turn];
      scr_p2p_pair *pair = &g->p2p.pair[p];
      *culprit = NULL;
      int rc = take_in(g, p, &budget, &moved, culprit);
      if (rc) return rc;
      if (pair->grant_head || pair->granted_head || pair->send_head) {
        if (pair->out == NULL) return SCR_NEEDS_FIFO;
        moved |= push_out(g, p, &budget);
        if (pair->broken) return SCR_INCIDENT_GARBAGE;
      }
      moved |= scr_fifo_publish(g, p);
      g->p2p.turn = g->p2p.turn + 1 < n ? g->p2p.turn + 1 : 0; /* the next pass begins where this one ends */
#ifdef SCR_MUTANT_ENDLESS_PASS
      budget = SCR_PASS_BYTES;
#else
      if (budget <= 0) return SCR_YIELDED;
#endif
    }
  }
  return atomic_load_explicit(&g->p2p.unfinished, memory_order_relaxed) ? SCR_BLOCKED : SCR_IDLE;
}

/* ---- posting ---- */

int scr_p2p_post(scr_group *g, scr_run *r) {
  /* The count is raised before the poster looks for a driver. A thread that stops driving reads the count
   * afterwards, so one of them sees the other. */
  atomic_fetch_add_explicit(&g->p2p.unfinished, 1, memory_order_seq_cst);
  scr_note_started(g, r);
  if (SCR_UNLIKELY(r->gate.words != NULL)) scr_p2p_stay_behind(g, r);
  SCR_FAULT(SCR_FAULT_STARTED);
  if (r->kind == SAGECOMM_SEND) {
    if (SCR_UNLIKELY(g->pairs)) scr_group_visit(g, r->root);
    scr_list_push(&g->p2p.pair[r->root].send_head, &g->p2p.pair[r->root].send_tail, r);
    return 0;
  }
  bool matched;
  int rc = match_unexpected(g, r, &matched);
  if (!matched || rc == SCR_INCIDENT_LENGTH || rc == SCR_INCIDENT_TYPE)
    scr_keyed_add(&g->p2p.recvs, &r->p2p.entry, key_of(r->root, r->tag));
  return rc;
}

void scr_group_set_fifo(scr_group *g, int32_t peer, uint64_t offset) {
  scr_spin_lock(&g->p2p.lock);
  g->p2p.pair[peer].out = (scr_fifo *)(void *)(g->peer[g->rank].arena + offset);
  scr_store_flag(scr_shared_fifo(g->shared, (uint32_t)g->size, (uint32_t)peer), offset);
  scr_spin_unlock(&g->p2p.lock);
}

uint64_t scr_group_fifo_bytes(const scr_group *g, int32_t peer) {
  return sizeof(scr_fifo) + g->p2p.pair[peer].fifo_bytes;
}

bool scr_group_has_fifo(const scr_group *g, int32_t peer) { return g->p2p.pair[peer].out != NULL; }

/* ---- draining ---- */

static void drop(scr_group *g, scr_run *r) { scr_p2p_finish(g, r, true); }

static void drop_all(scr_group *g, scr_run **head, scr_run **tail) {
  while (*head) drop(g, scr_list_pop(head, tail));
}

static void drop_entries(scr_group *g, scr_keyed_list *l) {
  for (scr_keyed *e; (e = l->head) != NULL;) {
    scr_keyed_remove(l, e);
    drop(g, scr_run_of_entry(e));
  }
}

/* Completes all unfinished p2p operations after one pass over what the peers have published. They can end at once
 * because peers touch only fifos, and never buffers, once buffers are forgotten. Incidents of the pass are ignored,
 * because the group has failed already.
 * Requires: the p2p lock; the group is down. */
void scr_p2p_drain(scr_group *g) {
  int32_t peer;
  scr_run *culprit;
  if (atomic_load_explicit(&g->p2p.unfinished, memory_order_relaxed) != 0) {
    scr_p2p_progress(g, SCR_PASS_BYTES, &peer, &culprit);
  }
  scr_forget_buffers(g);
  g->p2p.behind_head = g->p2p.behind_tail = NULL; /* each of them is in one of the other lists, too */
  atomic_store_explicit(&g->p2p.behind, 0, memory_order_relaxed);
  drop_entries(g, &g->p2p.recvs);
  for (int32_t i = 0; i < scr_n_visited(g); i++) {
    scr_p2p_pair *pair = &g->p2p.pair[g->visited[i]];
    drop_all(g, &pair->send_head, &pair->send_tail);
    drop_all(g, &pair->granted_head, &pair->granted_tail);
    drop_entries(g, &pair->waiting);
    drop_entries(g, &pair->receiving);
  }
}

void scr_p2p_free(scr_group *g) {
  for (int32_t i = 0; i < scr_n_visited(g); i++) {
    scr_p2p_pair *pair = &g->p2p.pair[g->visited[i]];
    for (scr_keyed *e; (e = pair->unexpected.head) != NULL;) {
      scr_keyed_remove(&pair->unexpected, e);
      free(e); /* the first member of a scr_unexpected */
    }
    for (struct scr_grant *gr; (gr = pair->grant_head) != NULL;) {
      pair->grant_head = gr->next;
      free(gr);
    }
  }
}
