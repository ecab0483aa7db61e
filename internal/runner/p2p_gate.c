/* p2p_gate.c: p2p operations on memory of a device (docs/protocol.md, section 11). They are posted like those on host
 * memory. A send has no payload, and a recv does not end, before the stream of the caller has reached the operation.
 * Until then it is in the list `behind`, at which each pass looks, because a device wakes nobody.
 * Requires: the p2p lock, for every function but scr_p2p_streams_are_late(). */
#include "annotate.h"
#include "p2p.h"
#include "program.h"
#include "run_list.h"

void scr_p2p_stay_behind(scr_group *g, scr_run *r) {
#ifdef SCR_MUTANT_P2P_NOT_BEHIND
  return;
#endif
  atomic_store_explicit(&r->p2p.behind, true, memory_order_relaxed);
  r->p2p.next_behind = NULL;
  if (g->p2p.behind_tail) {
    g->p2p.behind_tail->p2p.next_behind = r;
  } else {
    g->p2p.behind_head = r;
  }
  g->p2p.behind_tail = r;
  atomic_fetch_add_explicit(&g->p2p.behind, 1, memory_order_seq_cst);
  scr_note_released(&r->gate.words->input_taken); /* for threads that have the lock after this one */
}

/* The stream has reached the operation, which waits for it, or for a peer, or is not on its way yet. */
static void go_on(scr_group *g, scr_run *r) {
  if (r->kind == SAGECOMM_SEND && r->p2p.matched) {
    scr_p2p_pair *pair = &g->p2p.pair[r->root];
    scr_keyed_remove(&pair->waiting, &r->p2p.entry);
    scr_list_push(&pair->granted_head, &pair->granted_tail, r);
  }
  if (r->kind == SAGECOMM_RECV && atomic_load_explicit(&r->p2p.arrived, memory_order_relaxed)) {
    scr_keyed_remove(&g->p2p.pair[r->source].receiving, &r->p2p.entry);
    scr_p2p_finish(g, r, false);
  }
}

void scr_p2p_look_at_gates(scr_group *g) {
  scr_run **link = &g->p2p.behind_head, *before = NULL;
  for (scr_run *r; (r = *link) != NULL;) {
    if (atomic_load_explicit(&r->gate.words->input_ready, memory_order_acquire) == 0) {
      before = r;
      link = &r->p2p.next_behind;
      continue;
    }
    *link = r->p2p.next_behind;
    if (g->p2p.behind_tail == r) g->p2p.behind_tail = before;
    atomic_fetch_sub_explicit(&g->p2p.behind, 1, memory_order_relaxed);
    scr_note_acquired(&r->gate.words->input_ready);
    scr_note_released(&r->gate.words->input_taken);
    scr_note_released(&r->gate.words->output_taken);
    atomic_store_explicit(&r->p2p.behind, false, memory_order_release);
    go_on(g, r);
  }
}

bool scr_p2p_streams_are_late(scr_group *g) {
  scr_spin_lock(&g->p2p.lock);
  bool late = g->p2p.behind_head != NULL;
  for (int32_t i = 0; i < scr_n_visited(g) && !late; i++) late = g->p2p.pair[g->visited[i]].receiving.head != NULL;
  scr_spin_unlock(&g->p2p.lock);
  return late;
}

void scr_p2p_note_piece(scr_run *r, uint64_t at, uint64_t bytes) {
  scr_note_acquired(&r->gate.words->input_taken);
  scr_segments *s = r->kind == SAGECOMM_SEND ? &r->in : &r->out;
  for (uint64_t end = at + bytes, n; at < end; at += n) {
    const void *address = scr_span(s, at, end - at, &n);
    if (r->kind == SAGECOMM_SEND) {
      scr_note_reads(address, n, "the library reads the payload of a send");
    } else {
      scr_note_writes(address, n, "the library writes the payload of a recv");
    }
  }
  scr_note_released(&r->gate.words->input_taken);
  scr_note_released(&r->gate.words->output_taken); /* for the caller, who queues the copies back, or uses it again */
}
