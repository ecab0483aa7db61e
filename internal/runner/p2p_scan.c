/* p2p_scan.c: whether the unfinished p2p operations can still complete: timeouts, and peers that have left. */
#include "p2p.h"

int32_t scr_p2p_departed(const scr_group *g, const scr_run *r) {
  if (r->root == g->rank) return -1;
  if (r->root != SAGECOMM_ANY_SOURCE) return scr_has_left(g, r->root) ? r->root : -1;
  for (int32_t p = 0; p < g->size; p++) {
    if (p != g->rank && !scr_has_left(g, p)) return -1;
  }
  return g->rank == 0 ? g->size - 1 : 0;
}

void scr_p2p_begin_timeout(scr_run *r, int64_t now) {
  if (r->deadline_ns == 0 && !scr_p2p_is_behind(r)) r->deadline_ns = now + r->timeout_ns;
}

bool scr_p2p_has_timed_out(const scr_run *r, int64_t now) {
  int64_t deadline = r->deadline_ns;
  return deadline != 0 && now >= deadline;
}

bool scr_p2p_needs_peer(const scr_group *g, const scr_run *r) {
#ifdef SCR_MUTANT_ARRIVED_NEEDS_PEER
  return g->size > 1;
#else
  return g->size > 1 && !atomic_load_explicit(&r->p2p.arrived, memory_order_acquire);
#endif
}

/* One of the lists that together hold the unfinished p2p operations. */
typedef struct posted_list {
  scr_run *head;
  bool keyed;
} posted_list;

enum { PAIR_LISTS = 4 };

static posted_list recvs_of(const scr_group *g) { return (posted_list){scr_run_of_entry(g->p2p.recvs.head), true}; }

static void lists_of_pair(const scr_p2p_pair *pair, posted_list lists[PAIR_LISTS]) {
  lists[0] = (posted_list){pair->send_head, false};
  lists[1] = (posted_list){pair->granted_head, false};
  lists[2] = (posted_list){scr_run_of_entry(pair->waiting.head), true};
  lists[3] = (posted_list){scr_run_of_entry(pair->receiving.head), true};
}

static scr_run *after(posted_list l, const scr_run *r) {
  return l.keyed ? scr_run_of_entry(r->p2p.entry.after) : r->next;
}

static int scan(scr_group *g, posted_list l, int64_t now, int32_t *peer, scr_run **culprit) {
  for (scr_run *r = l.head; r; r = after(l, r)) {
    *culprit = r;
    *peer = r->root != SAGECOMM_ANY_SOURCE ? r->root : r->source;
    scr_p2p_begin_timeout(r, now);
    if (scr_p2p_has_timed_out(r, now)) return SCR_INCIDENT_TIMEOUT;
    int32_t gone = scr_p2p_needs_peer(g, r) ? scr_p2p_departed(g, r) : -1;
    if (gone >= 0) {
      *peer = gone;
      return SCR_INCIDENT_LEFT;
    }
  }
  return 0;
}

static void extend(posted_list l, scr_stop stop) {
  for (scr_run *r = l.head; r; r = after(l, r)) scr_extend(r, stop);
}

void scr_p2p_extend(scr_group *g, scr_stop stop) {
  extend(recvs_of(g), stop);
  for (int32_t p = 0; p < scr_n_visited(g); p++) {
    posted_list lists[PAIR_LISTS];
    lists_of_pair(&g->p2p.pair[g->visited[p]], lists);
    for (int i = 0; i < PAIR_LISTS; i++) extend(lists[i], stop);
  }
}

/* The engine calls it after a pass that moved nothing, to look whether the unfinished p2p operations can still
 * complete. */
int scr_p2p_scan(scr_group *g, int64_t now, int32_t *peer, scr_run **culprit) {
  if (atomic_load_explicit(g->failure, memory_order_acquire) != 0) return SCR_INCIDENT_FAILURE;
  for (int again = 0;; again = 1) {
    int code = scan(g, recvs_of(g), now, peer, culprit);
    for (int32_t p = 0; p < scr_n_visited(g) && code == 0; p++) {
      posted_list lists[PAIR_LISTS];
      lists_of_pair(&g->p2p.pair[g->visited[p]], lists);
      for (int i = 0; i < PAIR_LISTS && code == 0; i++) code = scan(g, lists[i], now, peer, culprit);
    }
    if (code == 0) return SCR_BLOCKED;
    if (code != SCR_INCIDENT_LEFT || again) return code;
    /* Frames that the peer sent before it left are still valid, and may have arrived since the last pass. */
    int rc = scr_p2p_progress(g, SCR_PASS_BYTES, peer, culprit);
    if (rc != SCR_BLOCKED) return rc;
  }
}

bool scr_p2p_oldest(scr_group *g, scr_incident *out) {
  scr_spin_lock(&g->p2p.lock);
  const scr_run *r = recvs_of(g).head;
  for (int32_t i = 0; i < scr_n_visited(g) && r == NULL; i++) {
    posted_list lists[PAIR_LISTS];
    lists_of_pair(&g->p2p.pair[g->visited[i]], lists);
    for (int list = 0; list < PAIR_LISTS && r == NULL; list++) r = lists[list].head;
  }
  if (r) {
    scr_describe_incident(r, SCR_INCIDENT_TIMEOUT, out);
    out->peer = r->root != SAGECOMM_ANY_SOURCE ? r->root : r->source;
  }
  scr_spin_unlock(&g->p2p.lock);
  return r != NULL;
}
