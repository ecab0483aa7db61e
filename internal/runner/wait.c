/* wait.c: how a driver waits for a peer: it spins (program.h), then yields, then sleeps. In between it looks whether
 * the wait can still succeed. */
#include <sched.h>

#include "engine.h"
#include "gates.h"
#include "wait.h"

void scr_wake_engine(const scr_peer *p) {
  if (p->pair != 0) {
    scr_go.push(p->pair);
  } else {
    scr_bell_wake(p->engine_bell);
  }
}

void scr_wake_peer(const scr_peer *p, const scr_sleeper *s, uint32_t word) {
  if (word & SCR_SLEEP_ENGINE) {
    scr_wake_engine(p);
  } else {
    scr_bell_wake((_Atomic uint32_t *)&s->bell);
  }
}

/* Whoever polls for so long, and nothing comes, lets others run in between. */
#define POLL_NS 500000

/* The peers for which a thread says that it polls; for others it polls without saying so. */
#define MOST_ATTENDED 63

static bool is_attended(uint64_t attended, int32_t rank) { return rank < MOST_ATTENDED && (attended >> rank & 1) != 0; }

void scr_stop_polling(const scr_group *g, uint64_t *attended) {
  for (int32_t i = 0; *attended >> i != 0; i++) {
    if (is_attended(*attended, i)) scr_go.attend(g->peer[i].pair, 0);
  }
  *attended = 0;
}

static bool poll(const scr_group *g, int32_t rank, uint64_t *attended) {
  uint64_t pair = g->peer[rank].pair;
  if (rank < MOST_ATTENDED && !is_attended(*attended, rank)) {
    *attended |= UINT64_C(1) << rank;
    scr_go.attend(pair, 1);
  }
  return scr_go.poll(pair);
}

/* Polls for a rank, or for all (-1), and for those that are attended. */
static bool poll_all(const scr_group *g, int32_t rank, uint64_t *attended) {
  bool came = false;
  if (rank < 0) {
    for (int32_t i = g->n_near; i < scr_n_visited(g); i++) came = poll(g, g->visited[i], attended) || came;
    return came;
  }
  if (g->peer[rank].pair != 0) came = poll(g, rank, attended);
  for (uint64_t rest = *attended; rest != 0; rest &= rest - 1) {
    int32_t other = __builtin_ctzll(rest);
    if (other != rank) came = poll(g, other, attended) || came;
  }
  return came;
}

bool scr_poll_or_yield(const scr_group *g, int32_t rank, int64_t waited_ns, uint64_t *attended) {
  if (g->pairs && poll_all(g, rank, attended)) return true;
  bool polled = g->pairs && (rank < 0 ? scr_n_visited(g) > g->n_near : g->peer[rank].pair != 0 || *attended != 0);
  if (polled && g->spin != 0 && waited_ns < POLL_NS) {
    scr_pause();
  } else {
    sched_yield();
  }
  return false;
}

/* Whether the flag has not risen. It is read again after a reason to give up was found, because a chunk that was
 * published before a failure or a goodbye still counts. */
static bool still_blocked(const scr_run *r) { return atomic_load_explicit(r->flag, memory_order_acquire) < r->need; }

void scr_begin_timeout(scr_run *r, int64_t now) {
  bool behind = r->gate.words != NULL && !r->reached;
  if (r->deadline_ns == 0 && !behind) r->deadline_ns = now + r->timeout_ns;
}

/* Whether the deadline has passed. A run without one gets it, unless its stream is behind. */
static bool has_timed_out(scr_run *r, int64_t now) {
  scr_begin_timeout(r, now);
  int64_t deadline = r->deadline_ns;
  return deadline != 0 && now >= deadline;
}

/* The goodbye is read first: what a rank has called before is recorded then. */
scr_leaver scr_first_to_leave(const scr_group *g) {
  scr_leaver first = {.rank = -1};
  for (int32_t i = 0; i < g->size; i++) {
    if (i == g->rank || !scr_has_left(g, i)) continue;
    uint64_t last = scr_group_recorded(g, i);
    if (first.rank < 0 || last < first.last) first = (scr_leaver){i, last};
  }
  return first;
}

static bool has_failed(const scr_group *g) {
  return atomic_load_explicit(g->failure, memory_order_acquire) != 0 ||
         (atomic_load_explicit(&g->word, memory_order_relaxed) & SCR_DOWN) != 0;
}

/* Every rank takes part in an external run. One whose stream goes on behind a failure is complete only where a peer would have voided
 * it. */
int scr_check_external(scr_group *g, scr_run *r, int64_t now, bool compare, const scr_leaver *left) {
  if (has_failed(g)) return r->gate.voided == NULL || r->flag == NULL || still_blocked(r) ? SCR_INCIDENT_FAILURE : 0;
  int code = compare ? scr_external_compare(g, r) : 0;
  if (code) return code;
  if (left != NULL && left->rank >= 0 && left->last < r->coll.seq && still_blocked(r)) {
    r->peer = left->rank;
    return SCR_INCIDENT_LEFT;
  }
  return has_timed_out(r, now) ? SCR_INCIDENT_TIMEOUT : 0;
}

int scr_check_wait(scr_group *g, scr_run *r, int64_t now) {
  if (r->gate.external) {
    scr_leaver left = scr_first_to_leave(g);
    return scr_check_external(g, r, now, true, &left);
  }
  if (has_failed(g)) return r->flag == NULL || still_blocked(r) ? SCR_INCIDENT_FAILURE : 0;
  if (r->coll.seq != 0) {
    for (int32_t i = 0; i < scr_n_visited(g); i++) {
      scr_call call;
      int32_t p = g->visited[i];
      if (p != g->rank && scr_group_call(g, p, r->coll.seq, &call) && call.hash != r->coll.hash) {
        r->peer = p;
        return SCR_INCIDENT_MISMATCH;
      }
    }
  }
  if (r->flag != NULL && r->peer != g->rank && scr_has_left(g, r->peer) && still_blocked(r)) return SCR_INCIDENT_LEFT;
  return has_timed_out(r, now) ? SCR_INCIDENT_TIMEOUT : 0;
}

/* A wait that takes this much longer than asked shows that the process was stopped or the machine paused. The
 * deadlines move by the time that was lost, because peers may have been stopped as well. */
#define OVERRUN_NS (500 * 1000000LL)

int64_t scr_overrun(int64_t *last, int64_t now, int64_t asked) {
  int64_t over = *last ? now - *last - asked : 0;
  *last = now;
  return over > OVERRUN_NS ? over : 0;
}

void scr_extend(scr_run *r, scr_stop stop) {
  int64_t deadline = r->deadline_ns, last = r->extended_ns;
  if (stop.by == 0 || deadline == 0) return;
  if (last == 0 && deadline - r->timeout_ns >= stop.at) return; /* the wait began after the stop */
  /* Another thread has counted this stop. */
  if (last > stop.at - stop.by || !atomic_compare_exchange_strong(&r->extended_ns, &last, stop.at)) return;
  r->deadline_ns += stop.by;
}

int64_t scr_look_at_clock(scr_run *r, scr_backoff *p, int64_t asked) {
  int64_t now = scr_now();
  bool p2p = r->kind == SAGECOMM_SEND || r->kind == SAGECOMM_RECV;
  _Atomic int64_t *looked = p2p ? &r->group->p2p.looked_ns : &r->group->coll.looked_ns;
  if (p->last == 0) p->last = atomic_load_explicit(looked, memory_order_relaxed);
  scr_extend(r, (scr_stop){now, scr_overrun(&p->last, now, asked)});
  atomic_store_explicit(looked, now, memory_order_relaxed);
  return now;
}

/* Leaves the sleeper word set, so that peers that diagnose the same incident see for whom this rank waits
 * (scr_group_awaits). */
static int in_incident(scr_sleeper *s, const scr_run *r, int code) {
  atomic_store_explicit(&s->waits_for, scr_sleeps_word(r), memory_order_relaxed);
  return code;
}

/* The look before a sleep. No rank wakes the driver of an external run, which sleeps at a gate and so not for long. The look above,
 * which comes each millisecond, visits the ranks for it. */
static int check_again(scr_group *g, scr_run *r, int64_t now) {
  return r->gate.external ? scr_check_external(g, r, now, false, NULL) : scr_check_wait(g, r, now);
}

int scr_relax(scr_group *g, scr_run *r, scr_backoff *p, scr_sleeper *s, int64_t slice_end) {
  int64_t now = scr_look_at_clock(r, p, 0);
  if (p->began == 0) {
    p->began = p->looked = now;
    scr_begin_timeout(r, now);
    atomic_fetch_add_explicit(&g->blocked, 1, memory_order_relaxed);
  }
  bool give_up = now >= slice_end;
  if (now - p->looked > 1000000 || give_up || has_timed_out(r, now)) {
    p->looked = now;
    int code = scr_check_wait(g, r, now);
    if (code) return in_incident(s, r, code);
  }
  if (give_up) return SCR_YIELDED;
  g->coll.spin_now = g->spin < 50 ? g->spin : 50;
  if (now - p->began < (int64_t)g->yield_us * 1000) {
    if (scr_poll_or_yield(g, r->peer, now - p->began, &g->coll.attended)) p->began = now;
    return 0;
  }
  if (g->pairs) scr_stop_polling(g, &g->coll.attended);
  /* Sleep. The sleeper word is stored before the flag, the failure word and the goodbyes are read again. So a peer
   * that publishes later finds the word and wakes this rank. */
  uint32_t bell = atomic_load_explicit(&s->bell, memory_order_seq_cst);
  atomic_store_explicit(&s->waits_for, scr_sleeps_word(r), memory_order_seq_cst);
  int code = 0;
  if (atomic_load_explicit(r->flag, memory_order_seq_cst) < r->need && (code = check_again(g, r, now)) == 0) {
    int64_t ns = slice_end - now, most = r->at_gate ? g->policy.gate_ns : g->policy.sleep_ns;
    if (ns > most) ns = most;
    if (r->deadline_ns != 0 && ns > r->deadline_ns - now) ns = r->deadline_ns - now;
    if (ns < 1000) ns = 1000;
    atomic_fetch_add_explicit(&g->sleeps, 1, memory_order_relaxed);
    scr_futex_wait(&s->bell, bell, ns);
    scr_look_at_clock(r, p, ns);
  }
  if (code) return in_incident(s, r, code);
  atomic_store_explicit(&s->waits_for, 0, memory_order_relaxed);
  return 0;
}

void scr_describe_incident(const scr_run *r, int code, scr_incident *out) {
  int64_t now = scr_now();
  *out = (scr_incident){.code = code,
                        .peer = r->peer,
                        .sequence = r->coll.seq,
                        .kind = r->kind,
                        .dtype = r->dtype,
                        .reduce_op = r->reduce_op,
                        .root = r->root,
                        .tag = r->tag,
                        .announced = r->kind == SAGECOMM_RECV && r->p2p.matched,
                        .bytes = code == SCR_INCIDENT_SPLIT ? r->coll.expected : r->bytes,
                        .parts = r->coll.batch,
                        .got = r->need,
                        .waited_ns = r->deadline_ns ? now - (r->deadline_ns - r->timeout_ns) : 0,
                        .timeout_ns = r->timeout_ns};
}
