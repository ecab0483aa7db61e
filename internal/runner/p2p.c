/* p2p.c: matching and moving p2p operations. They match in posted order for each (peer, tag); a recv from any source
 * competes in the same order. Short payloads travel eagerly within a credit, which bounds what lies unmatched at a
 * receiver. Longer ones, and all of them once the credit is used up, are announced and wait until the receiver has a
 * buffer. The receiver always takes announcements and eager payloads out of the fifo, so no order of posting can
 * block a fifo. */
#include "p2p.h"
#include "recorder.h"
#include "run_list.h"

#include <stdlib.h>

static void finish(scr_group *g, scr_run *r, int32_t status) {
  scr_run_finish(r, status, false);
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

static bool queue_grant(scr_p2p_pair *ch, uint64_t id) {
  struct scr_grant *gr = malloc(sizeof *gr);
  if (gr == NULL) return false;
  *gr = (struct scr_grant){.id = id};
  if (ch->grant_tail) {
    ch->grant_tail->next = gr;
  } else {
    ch->grant_head = gr;
  }
  ch->grant_tail = gr;
  return true;
}

/* Matches a posted recv with a send. Returns 0 or an incident code. */
static int deliver(scr_group *g, scr_run *r, int32_t from, bool announced, uint64_t total, uint64_t id,
                   const unsigned char *data) {
  scr_p2p_pair *ch = &g->p2p.pair[from];
  r->source = from;
  scr_note_met(r);
  if (!announced) {
    move(&r->out, 0, (unsigned char *)(uintptr_t)data, total, false);
    ch->eager_released += total;
    finish(g, r, SAGECOMM_OK);
    return 0;
  }
  r->p2p.id = id;
  r->p2p.matched = true;
  scr_list_push(&ch->receiving, &ch->receiving_tail, r);
  return queue_grant(ch, id) ? 0 : SCR_INCIDENT_MEMORY;
}

static scr_run *posted_for(scr_group *g, int32_t from, int32_t tag) {
  scr_run *r = g->p2p.recv_head;
  for (; r && !((r->root == from || r->root == SAGECOMM_ANY_SOURCE) && r->tag == tag); r = r->next) SCR_STEP();
  return r;
}

static int keep_unexpected(scr_group *g, int32_t from, const scr_frame *f, const unsigned char *data) {
  scr_p2p_pair *ch = &g->p2p.pair[from];
  bool announced = f->type == SCR_FRAME_ANNOUNCE;
  scr_unexpected *u = malloc(sizeof *u + (announced ? 0 : f->bytes));
  if (u == NULL) return SCR_INCIDENT_MEMORY;
  *u = (scr_unexpected){.arrival = ++g->p2p.activity,
                        .tag = f->tag,
                        .dtype = f->dtype,
                        .announced = announced,
                        .total = f->total,
                        .id = f->id};
  if (!announced) memcpy(u->data, data, f->bytes);
  if (ch->unexpected_tail) {
    ch->unexpected_tail->next = u;
  } else {
    ch->unexpected_head = u;
  }
  ch->unexpected_tail = u;
  return 0;
}

/* Handles a frame that well_formed() has accepted. Returns 0 or an incident code. */
static int take_frame(scr_group *g, int32_t from, const scr_frame *f, const unsigned char *data, scr_run **culprit) {
  scr_p2p_pair *ch = &g->p2p.pair[from];
  scr_run *r;
  int rc;
  switch (f->type) {
    case SCR_FRAME_EAGER:
      ch->eager_received += f->bytes;
      if (ch->eager_received - ch->eager_released > SCR_EAGER_CREDIT) return SCR_INCIDENT_GARBAGE;
      /* fall through */
    case SCR_FRAME_ANNOUNCE:
      r = posted_for(g, from, f->tag);
      if (r == NULL) return keep_unexpected(g, from, f, data);
      *culprit = r;
      rc = compare(r, from, f->total, f->dtype);
      if (rc) return rc;
      scr_list_unlink(&g->p2p.recv_head, &g->p2p.recv_tail, r);
      return deliver(g, r, from, f->type == SCR_FRAME_ANNOUNCE, f->total, f->id, data);
    case SCR_FRAME_GRANT:
      r = scr_list_find(ch->waiting, f->id);
      if (r == NULL) return SCR_INCIDENT_GARBAGE;
      scr_list_unlink(&ch->waiting, &ch->waiting_tail, r);
      scr_note_met(r);
      scr_list_push(&ch->granted_head, &ch->granted_tail, r);
      return 0;
    case SCR_FRAME_DATA:
      r = scr_list_find(ch->receiving, f->id);
      *culprit = r;
#ifdef SCR_MUTANT_LENGTH_BELIEVED
      if (r == NULL) return SCR_INCIDENT_GARBAGE;
#else
      if (r == NULL || f->bytes > r->bytes - r->p2p.moved) return SCR_INCIDENT_GARBAGE;
#endif
      move(&r->out, r->p2p.moved, (unsigned char *)(uintptr_t)data, f->bytes, false);
      r->p2p.moved += f->bytes;
      if (r->p2p.moved == r->bytes) {
        scr_list_unlink(&ch->receiving, &ch->receiving_tail, r);
        finish(g, r, SAGECOMM_OK);
      }
      return 0;
    default:
      return SCR_INCIDENT_GARBAGE;
  }
}

/* Matches a recv that was just posted with the earliest send that arrived before it and fits it. */
static int match_unexpected(scr_group *g, scr_run *r, bool *matched) {
  int32_t from = -1;
  scr_unexpected *best = NULL;
  for (int32_t p = 0; p < g->size; p++) {
    if (r->root != SAGECOMM_ANY_SOURCE && r->root != p) continue;
    scr_unexpected *u = g->p2p.pair[p].unexpected_head;
    while (u && u->tag != r->tag) u = u->next;
    if (u && (best == NULL || u->arrival < best->arrival)) {
      best = u;
      from = p;
    }
  }
  *matched = best != NULL;
  if (best == NULL) return 0;
  int rc = compare(r, from, best->total, best->dtype);
  if (rc) return rc;
  scr_p2p_pair *ch = &g->p2p.pair[from];
  scr_unexpected *before = NULL;
  for (scr_unexpected *u = ch->unexpected_head; u != best; u = u->next) before = u;
  if (before) {
    before->next = best->next;
  } else {
    ch->unexpected_head = best->next;
  }
  if (ch->unexpected_tail == best) ch->unexpected_tail = before;
  rc = deliver(g, r, from, best->announced, best->total, best->id, best->data);
  free(best);
  return rc;
}

/* ---- sending ---- */

static bool put(scr_group *g, int32_t to, uint32_t type, scr_run *r, uint64_t at, uint64_t n) {
  scr_frame *f = scr_fifo_room(g, to, n);
  if (f == NULL) return false;
  *f = (scr_frame){.type = type, .dtype = r->dtype, .tag = r->tag, .bytes = n, .total = r->bytes, .id = r->p2p.id};
  move(&r->in, at, (unsigned char *)f + SCR_FRAME_HEADER, n, true);
  scr_fifo_put(&g->p2p.pair[to], n);
  return true;
}

static bool has_credit(scr_group *g, int32_t to, uint64_t n) {
  scr_p2p_pair *ch = &g->p2p.pair[to];
  if (n > SCR_EAGER_BYTES) return false;
  if (ch->eager_sent + n - ch->eager_seen <= SCR_EAGER_CREDIT) return true;
  const scr_fifo_reader *r = scr_shared_fifo_reader(g->peer[to].shared, (uint32_t)g->rank);
  uint64_t released = atomic_load_explicit(&r->eager_released, memory_order_acquire);
  if (ch->eager_sent - released > SCR_EAGER_CREDIT) {
    ch->broken = true;
    return false;
  }
  ch->eager_seen = released;
  return ch->eager_sent + n - ch->eager_seen <= SCR_EAGER_CREDIT;
}

/* The cost of a frame in bytes of a pass's budget. The budget bounds a pass so that other threads get the lock to
 * post, and callers look at failures and the clock between passes. */
#define FRAME_COST 1024

/* Writes what this rank has for one peer: grants, pieces of granted sends, new sends. Returns true if anything was
 * written. */
static bool push_out(scr_group *g, int32_t to, int64_t *budget) {
  scr_p2p_pair *ch = &g->p2p.pair[to];
  bool moved = false;
  while (ch->grant_head && *budget > 0) {
    struct scr_grant *gr = ch->grant_head;
    scr_frame *f = scr_fifo_room(g, to, 0);
    if (f == NULL) return moved;
    *f = (scr_frame){.type = SCR_FRAME_GRANT, .id = gr->id};
    scr_fifo_put(ch, 0);
    ch->grant_head = gr->next;
    if (ch->grant_head == NULL) ch->grant_tail = NULL;
    free(gr);
    moved = true;
    *budget -= FRAME_COST;
  }
  while (ch->granted_head && *budget > 0) {
    scr_run *r = ch->granted_head;
    uint64_t n = r->bytes - r->p2p.moved < SCR_PIECE_BYTES ? r->bytes - r->p2p.moved : SCR_PIECE_BYTES;
    if (!put(g, to, SCR_FRAME_DATA, r, r->p2p.moved, n)) return moved;
    r->p2p.moved += n;
    moved = true;
    *budget -= (int64_t)n + FRAME_COST;
    if (r->p2p.moved == r->bytes) {
      scr_list_unlink(&ch->granted_head, &ch->granted_tail, r);
      finish(g, r, SAGECOMM_OK);
    } else {
      scr_fifo_publish(g, to); /* the peer copies this piece while this rank copies the next */
    }
  }
  while (ch->send_head && *budget > 0) {
    scr_run *r = ch->send_head;
    bool eager = has_credit(g, to, r->bytes);
    r->p2p.id = ch->next_id;
    uint64_t n = eager ? r->bytes : 0;
    if (!put(g, to, eager ? SCR_FRAME_EAGER : SCR_FRAME_ANNOUNCE, r, 0, n)) return moved;
    ch->next_id++;
    moved = true;
    *budget -= (int64_t)n + FRAME_COST;
    scr_list_unlink(&ch->send_head, &ch->send_tail, r);
    if (eager) {
      ch->eager_sent += n;
      finish(g, r, SAGECOMM_OK);
    } else {
      scr_list_push(&ch->waiting, &ch->waiting_tail, r);
    }
  }
  return moved;
}

/* The limit of frames taken from one peer in one round, so that it does not starve the others. */
#define FRAMES_PER_ROUND 16

/* Takes the frames of one peer. Returns 0 or an incident code. */
static int take_in(scr_group *g, int32_t p, int64_t *budget, bool *moved, scr_run **culprit) {
  scr_p2p_pair *ch = &g->p2p.pair[p];
  for (int n = 0; n < FRAMES_PER_ROUND && *budget > 0 && scr_fifo_open(g, p); n++) {
    scr_frame f;
    const unsigned char *data = scr_fifo_next(g, p, &f);
    if (data == NULL) break;
    int rc = take_frame(g, p, &f, data, culprit);
    if (rc) return rc;
    *culprit = NULL; /* the run may be complete and its memory reused; the next frame does not concern it */
    scr_fifo_take(ch, f.bytes);
    if (f.type == SCR_FRAME_DATA)
      scr_fifo_publish(g, p); /* the peer refills this room while this rank takes the next frame */
    *budget -= (int64_t)f.bytes + FRAME_COST;
    *moved = true;
  }
  return ch->broken ? SCR_INCIDENT_GARBAGE : 0;
}

int scr_p2p_progress(scr_group *g, int64_t budget, int32_t *peer, scr_run **culprit) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (int32_t i = 0; i < g->size; i++) {
      int32_t p = *peer = g->p2p.turn;
      scr_p2p_pair *ch = &g->p2p.pair[p];
      *culprit = NULL;
      int rc = take_in(g, p, &budget, &moved, culprit);
      if (rc) return rc;
      if (ch->grant_head || ch->granted_head || ch->send_head) {
        if (ch->out == NULL) return SCR_NEEDS_FIFO;
        moved |= push_out(g, p, &budget);
        if (ch->broken) return SCR_INCIDENT_GARBAGE;
      }
      moved |= scr_fifo_publish(g, p);
      g->p2p.turn = p + 1 < g->size ? p + 1 : 0; /* the next pass starts with the peer that this one did not reach */
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
  SCR_FAULT(SCR_FAULT_STARTED);
  if (r->kind == SAGECOMM_SEND) {
    scr_list_push(&g->p2p.pair[r->root].send_head, &g->p2p.pair[r->root].send_tail, r);
    return 0;
  }
  bool matched;
  int rc = match_unexpected(g, r, &matched);
  if (!matched || rc == SCR_INCIDENT_LENGTH || rc == SCR_INCIDENT_TYPE)
    scr_list_push(&g->p2p.recv_head, &g->p2p.recv_tail, r);
  return rc;
}

void scr_group_set_fifo(scr_group *g, int32_t peer, uint64_t offset) {
  scr_spin_lock(&g->p2p.lock);
  g->p2p.pair[peer].out = (scr_fifo *)(void *)(g->peer[g->rank].arena + offset);
  scr_store_flag(scr_shared_fifo(g->shared, (uint32_t)g->size, (uint32_t)peer), offset);
  scr_spin_unlock(&g->p2p.lock);
}

bool scr_group_has_fifo(const scr_group *g, int32_t peer) { return g->p2p.pair[peer].out != NULL; }

/* ---- draining ---- */

static void drop_all(scr_group *g, scr_run **head, scr_run **tail) {
  for (scr_run *r; (r = *head) != NULL;) {
    *head = r->next;
    finish(g, r, scr_copy_error(g, NULL));
  }
  *tail = NULL;
}

/* Completes all unfinished p2p operations after one pass over what the peers have published. They can end at once
 * because peers touch only fifos, never buffers. Incidents of the pass are ignored, because the group has failed
 * already.
 * Requires: the p2p lock; the group is down. */
void scr_p2p_drain(scr_group *g) {
  int32_t peer;
  scr_run *culprit;
  if (atomic_load_explicit(&g->p2p.unfinished, memory_order_relaxed) != 0) {
    scr_p2p_progress(g, SCR_PASS_BYTES, &peer, &culprit);
  }
  drop_all(g, &g->p2p.recv_head, &g->p2p.recv_tail);
  for (int32_t p = 0; p < g->size; p++) {
    scr_p2p_pair *ch = &g->p2p.pair[p];
    drop_all(g, &ch->send_head, &ch->send_tail);
    drop_all(g, &ch->granted_head, &ch->granted_tail);
    drop_all(g, &ch->waiting, &ch->waiting_tail);
    drop_all(g, &ch->receiving, &ch->receiving_tail);
  }
}

void scr_p2p_free(scr_group *g) {
  for (int32_t p = 0; p < g->size; p++) {
    scr_p2p_pair *ch = &g->p2p.pair[p];
    for (scr_unexpected *u; (u = ch->unexpected_head) != NULL;) {
      ch->unexpected_head = u->next;
      free(u);
    }
    for (struct scr_grant *gr; (gr = ch->grant_head) != NULL;) {
      ch->grant_head = gr->next;
      free(gr);
    }
  }
}
