/* p2p_issue.c: issues p2p operations and waits for them. Unlike collectives (issue.c) they have no number: they are
 * not ordered with collectives and never wait behind one. */
#include <sched.h>

#include "engine.h"
#include "p2p.h"

static bool down(const scr_group *g) { return atomic_load_explicit(&g->word, memory_order_acquire) & SCR_DOWN; }

/* Whether operations of the group wait for their streams, at which who drives has to look often. */
static bool polls(const scr_group *g) {
#ifdef SCR_MUTANT_GATES_NOT_POLLED
  return false;
#else
  return SCR_UNLIKELY(atomic_load_explicit(&g->p2p.behind, memory_order_seq_cst) != 0);
#endif
}

static bool done(const scr_run *r) { return atomic_load_explicit(&r->state, memory_order_acquire) & SCR_DONE; }

/* An incident with `peer`, of an operation or of none (NULL). */
static scr_incident incident_with(const scr_run *r, int code, int32_t peer) {
  scr_incident t = {.code = code, .kind = SAGECOMM_RECV, .root = peer};
  if (r) scr_describe_incident(r, code, &t);
  t.peer = peer < 0 && t.announced ? r->source : peer; /* of a recv from any source */
  return t;
}

/* Holds: nothing. */
static void report(scr_group *g, scr_incident t) {
  scr_entering_go();
  scr_go.incident(g->handle, &t);
}

/* Makes one pass over about `budget` bytes. Returns true if the caller must look again: there may be more to move,
 * or the pass made a fifo or met an incident. If another thread holds the p2p lock, that thread makes the pass; with
 * `surely`, this thread waits for the lock and makes one more.
 * Holds: nothing when it is called; it takes the p2p lock. */
static bool pass(scr_group *g, int64_t budget, bool surely) {
  if (surely) {
    scr_spin_lock(&g->p2p.lock);
  } else if (!scr_try_lock(&g->p2p.lock)) {
    sched_yield();
    return false;
  }
  int32_t peer = -1;
  scr_run *culprit = NULL;
  int rc;
  if (down(g)) {
    scr_p2p_drain(g);
    rc = SCR_IDLE;
  } else {
    rc = scr_p2p_progress(g, budget, &peer, &culprit);
  }
  scr_incident t;
  if (rc > 0) t = incident_with(culprit, rc, peer);
  scr_spin_unlock(&g->p2p.lock);
  if (rc == SCR_NEEDS_FIFO) {
    scr_entering_go();
    scr_go.fifo(g->handle, peer);
    return true;
  }
  if (rc > 0) report(g, t);
  return rc > 0 || rc == SCR_YIELDED;
}

/* Looks whether the wait can still succeed. Returns 0, an incident code, or SCR_YIELDED if it made a pass and the
 * caller must look again. */
static int p2p_check_wait(scr_group *g, scr_run *r, int64_t now, int32_t *peer) {
  *peer = r->root;
  if (atomic_load_explicit(g->failure, memory_order_acquire) != 0 || down(g)) return SCR_INCIDENT_FAILURE;
  int32_t gone = scr_p2p_needs_peer(g, r) ? scr_p2p_departed(g, r) : -1;
  if (gone >= 0) {
    /* Frames that the peer sent before it left are still valid. */
    bool again = pass(g, SCR_PASS_BYTES, true);
    *peer = gone;
    if (!again && !done(r) && scr_p2p_needs_peer(g, r)) return SCR_INCIDENT_LEFT;
  }
  scr_p2p_begin_timeout(r, now);
  if (scr_p2p_has_timed_out(r, now) && !done(r)) return SCR_INCIDENT_TIMEOUT;
  return gone >= 0 ? SCR_YIELDED : 0;
}

/* ---- who drives ----
 *
 * A thread that waits drives all p2p operations of the group. Without such a thread, SCR_SLEEP_ENGINE is set in
 * waits_for as long as any p2p operation is unfinished, so that peers wake the engine when they publish. The thread that
 * sets the bit, because it stops waiting or has posted without waiting, makes one more pass: frames that arrived before
 * the bit was set woke nobody (docs/protocol.md, section 8). */

static bool driven(const scr_group *g) { return atomic_load_explicit(&g->p2p.drivers, memory_order_seq_cst) != 0; }

static void begin_driving(scr_group *g) {
  atomic_fetch_add_explicit(&g->p2p.drivers, 1, memory_order_seq_cst);
  _Atomic uint32_t *word = &g->shared->p2p.waits_for;
  if (atomic_load_explicit(word, memory_order_relaxed) & SCR_SLEEP_ENGINE) {
    atomic_fetch_and_explicit(word, ~SCR_SLEEP_ENGINE, memory_order_seq_cst);
  }
}

static void leave_to_engine(scr_group *g) {
  atomic_fetch_or_explicit(&g->shared->p2p.waits_for, SCR_SLEEP_ENGINE, memory_order_seq_cst);
  if (pass(g, (int64_t)g->policy.begin_bytes, true) || polls(g)) {
    scr_engine_wake();
  } else {
    scr_engine_watch();
  }
}

static void end_driving(scr_group *g) {
  bool last = atomic_fetch_sub_explicit(&g->p2p.drivers, 1, memory_order_seq_cst) == 1;
  if (last && atomic_load_explicit(&g->p2p.unfinished, memory_order_seq_cst) != 0) leave_to_engine(g);
}

/* dist.recv() waits about 1 us after it has posted. A frame that arrives in between should cost neither the peer a
 * system call nor this rank a switch to the engine, and a short recv gains nothing from an early pass. So if the
 * last short recv was waited for within AT_ONCE_NS, the next one does not set the bit: a waiter is expected, and the
 * engine looks within 20 ms in any case. Inner p2p operations always set it, because they have no waiter. */
static void leave_posted(scr_group *g, scr_run *r, bool more) {
  bool brief =
      r->kind == SAGECOMM_RECV && r->bytes <= SCR_EAGER_BYTES && !more && !scr_is_inner(r) && r->gate.words == NULL;
  if (brief) atomic_store_explicit(&r->p2p.posted_ns, scr_now(), memory_order_relaxed);
  if (brief && atomic_load_explicit(&g->p2p.waits_at_once, memory_order_relaxed)) {
    scr_engine_watch();
  } else {
    leave_to_engine(g);
  }
}

static void learn_from(scr_group *g, scr_run *r) {
  int64_t posted = atomic_load_explicit(&r->p2p.posted_ns, memory_order_relaxed);
  if (posted == 0) return;
  atomic_store_explicit(&r->p2p.posted_ns, 0, memory_order_relaxed);
  atomic_store_explicit(&g->p2p.waits_at_once, scr_now() - posted < g->policy.at_once_ns, memory_order_relaxed);
}

/* Whether bytes to or from a rank of another host have moved since the last look. They come piece by piece, and who waits for the
 * next one begins to wait anew. */
static bool moves(const scr_group *g, int32_t peer, uint64_t *moved) {
  if (peer < 0 || g->peer[peer].pair == 0) return false;
  uint64_t before = *moved;
  *moved = atomic_load_explicit(&scr_shared_fifo_reader(g->peer[peer].shared, (uint32_t)g->rank)->read,
                                memory_order_relaxed) +
           atomic_load_explicit(&scr_shared_fifo_reader(g->shared, (uint32_t)peer)->read, memory_order_relaxed);
  return *moved != before;
}

static int drive_until(scr_group *g, scr_run *r, int64_t slice_end, uint64_t *attended) {
  scr_backoff backoff = {0};
  uint64_t moved = 0;
  uint32_t spins = 0;
  while (!done(r)) {
    bool again = pass(g, SCR_PASS_BYTES, false);
    if (done(r)) break;
    if (!again && spins++ < g->spin) {
      scr_pause();
      continue;
    }
    int64_t now = scr_look_at_clock(r, &backoff, 0);
    if (backoff.began == 0) {
      backoff.began = backoff.looked = now;
      scr_p2p_begin_timeout(r, now);
      atomic_fetch_add_explicit(&g->blocked, 1, memory_order_relaxed);
    }
    if (now - backoff.looked > 1000000 || now >= slice_end || scr_p2p_has_timed_out(r, now)) {
      backoff.looked = now;
      int32_t peer;
      int code = p2p_check_wait(g, r, now, &peer);
      if (code > 0) {
        if (g->pairs) scr_stop_polling(g, attended);
        report(g, incident_with(r, code, peer));
        /* Of a group over several hosts the failure may not be decided yet: the caller looks for signals meanwhile. */
        if (scr_now() >= slice_end && !done(r)) return SCR_YIELDED;
        continue;
      }
      again |= code == SCR_YIELDED;
    }
    if (now >= slice_end && !done(r)) return SCR_YIELDED;
    if (again) continue;
    if (g->pairs && moves(g, r->root, &moved)) backoff.began = now;
    if (now - backoff.began < (int64_t)g->yield_us * 1000) {
      if (scr_poll_or_yield(g, r->root, now - backoff.began, attended)) backoff.began = now;
      continue;
    }
    if (g->pairs) scr_stop_polling(g, attended);
    uint32_t bell = atomic_load_explicit(&g->shared->p2p.bell, memory_order_seq_cst);
    /* waits_for counts the threads that sleep; peers look only whether it is 0. */
    atomic_fetch_add_explicit(&g->shared->p2p.waits_for, 1, memory_order_seq_cst);
    int32_t peer;
#ifdef SCR_MUTANT_LOOK_GIVES_WAY
    again = pass(g, SCR_PASS_BYTES, false);
#else
    again = pass(g, SCR_PASS_BYTES, true); /* the holder of the lock may have read the fifos before a frame arrived */
#endif
    int code = again || done(r) ? 0 : p2p_check_wait(g, r, now, &peer);
    if (code > 0) report(g, incident_with(r, code, peer));
    if (!again && code == 0 && !done(r) && atomic_load_explicit(&g->shared->p2p.bell, memory_order_seq_cst) == bell) {
      int64_t deadline = r->deadline_ns, ns = polls(g) ? g->policy.gate_ns : g->policy.sleep_ns;
      if (ns > slice_end - now) ns = slice_end - now;
      if (deadline != 0 && ns > deadline - now) ns = deadline - now;
      atomic_fetch_add_explicit(&g->sleeps, 1, memory_order_relaxed);
      scr_futex_wait(&g->shared->p2p.bell, bell, ns < 1000 ? 1000 : ns);
      scr_look_at_clock(r, &backoff, ns);
    }
    atomic_fetch_sub_explicit(&g->shared->p2p.waits_for, 1, memory_order_relaxed);
  }
  return SCR_FINISHED;
}

static int wait_for(scr_group *g, scr_run *r, int64_t slice_end) {
  begin_driving(g);
  uint64_t attended = 0;
  int rc = drive_until(g, r, slice_end, &attended);
  if (g->pairs) scr_stop_polling(g, &attended);
  end_driving(g);
  return rc;
}

int scr_p2p_wait(scr_group *g, scr_run *r, int64_t slice_end) {
  /* The unfinished operation and this thread both keep the group open, so the shared block on which it sleeps stays
   * mapped. */
  atomic_fetch_add_explicit(&g->inside, 1, memory_order_seq_cst);
  atomic_fetch_add_explicit(&r->p2p.waiters, 1, memory_order_seq_cst);
  /* If the run is complete by now, it keeps nothing open, and the group may have been closed before this thread was
   * counted. */
  int rc = SCR_FINISHED;
  if (!(atomic_load_explicit(&r->state, memory_order_seq_cst) & SCR_DONE)) { /* see scr_group_unfinished() */
    learn_from(g, r);
    rc = wait_for(g, r, slice_end);
  }
  atomic_fetch_sub_explicit(&r->p2p.waiters, 1, memory_order_seq_cst);
  scr_group_exit(g);
  return rc;
}

/* Returns a run for the operation with the references of the caller and of the list, or NULL without memory. */
static scr_run *new_run(scr_group *g, const sagecomm_op *op, uint64_t bytes) {
  scr_run *r = scr_run_new();
  if (r == NULL || !scr_run_operands(r, op, g->size, NULL)) {
    if (r) scr_run_unref(r);
    return NULL;
  }
  r->group = g;
  r->group_handle = g->handle;
  r->bytes = bytes;
  r->timeout_ns = scr_op_timeout(g, op);
  scr_run_ref(r); /* the list's */
  return r;
}

static void post(scr_group *g, scr_run *r) {
  scr_spin_lock(&g->p2p.lock);
  int rc = scr_p2p_post(g, r);
  if (SCR_UNLIKELY(rc > 0)) r->p2p.incident = rc;
  scr_spin_unlock(&g->p2p.lock);
}

scr_run *scr_p2p_submit(scr_group *g, const sagecomm_op *op, const scr_gate *gate, bool *down) {
  *down = !scr_group_enter(g, g->handle);
  if (*down) return NULL;
  scr_run *r = new_run(g, op, scr_op_bytes(op, 0, 1));
  if (r != NULL) {
    r->gate = *gate;
    post(g, r);
  }
  scr_group_exit(g);
  return r;
}

/* Goes on with an operation that was posted. `waits`: the caller waits for it.
 * Requires: the caller counts in `inside`. */
static void go_on(scr_group *g, scr_run *r, bool waits) {
  if (SCR_UNLIKELY(r->p2p.incident > 0)) report(g, incident_with(r, r->p2p.incident, r->peer));
  bool more = pass(g, (int64_t)g->policy.begin_bytes, false);
  if (done(r)) return;
  if (waits) {
    wait_for(g, r, scr_now() + g->policy.sync_ns);
  } else if (!driven(g)) {
    leave_posted(g, r, more);
  } else if (more || polls(g)) {
    scr_bell_wake(&g->shared->p2p.bell); /* who drives may sleep, or sleep for too long */
  }
}

/* Returns what scr_issue() returns for an operation to `peer`, and takes over the caller's reference. */
static int32_t result(scr_run *r, int32_t peer, sagecomm_work *work, sagecomm_error *err) {
  int32_t status = done(r) ? r->status : SAGECOMM_PENDING;
  if (status == SAGECOMM_PENDING || (status == SAGECOMM_OK && peer == SAGECOMM_ANY_SOURCE)) {
    *work = scr_run_handle(r); /* of a recv from any source, the work has the source */
    return status;
  }
  if (status < 0) scr_cause_copy(r->cause, err);
  scr_run_unref(r);
  return status;
}

int32_t scr_p2p_begin(scr_run *r, const sagecomm_op *op, sagecomm_work *work, sagecomm_error *err) {
  scr_group *g = r->group;
  atomic_fetch_add_explicit(&g->inside, 1, memory_order_seq_cst);
  /* As in scr_p2p_wait(): if it is complete by now, it keeps nothing open. */
  if (!(atomic_load_explicit(&r->state, memory_order_seq_cst) & SCR_DONE)) go_on(g, r, false);
  scr_group_exit(g);
  return result(r, op->root, work, err);
}

int32_t scr_p2p_issue(scr_group *g, uint64_t handle, const sagecomm_op *op, sagecomm_work *work, sagecomm_error *err) {
  uint64_t bytes = scr_op_bytes(op, 0, 1);
  bool valid = bytes != UINT64_MAX && op->timeout_ns >= 0 && op->root < g->size &&
               (op->root >= 0 || (op->root == SAGECOMM_ANY_SOURCE && op->kind == SAGECOMM_RECV));
  if (!valid || !scr_group_enter(g, handle)) {
    scr_run *none;
    scr_entering_go();
    return scr_go.issue(handle, op, &none, err); /* Go words the error */
  }
  scr_run *r = new_run(g, op, bytes);
  if (r == NULL) {
    scr_group_exit(g);
    return scr_plain_error(err, SAGECOMM_SYSTEM, "sagecomm: no memory for another send or recv");
  }
  post(g, r);
  go_on(g, r, !(op->flags & SAGECOMM_ASYNC));
  scr_group_exit(g);
  return result(r, op->root, work, err);
}
