/* engine.c: the progress engine, which drives runs that have no waiter, and the list of completed runs whose done
 * functions are still to be called. One thread calls scr_engine_turn(). */
#include <sched.h>

#include "engine.h"
#include "gates.h"
#include "p2p.h"
#include "queue.h"

/* The engine's bells: one in each arena of this process, which usually has one arena. Threads of this process add to
 * all of them; a peer wakes the bell of the arena that it maps. nobodys_bell replaces the bell of an arena that is
 * gone. A replaced bell is woken after the new one is stored: the engine may sleep on the old one, and later wakes
 * reach the new one. */
static _Atomic uint32_t nobodys_bell;
static _Atomic(_Atomic uint32_t *) bells[SCR_MAX_BELLS];
static _Atomic uint32_t n_bells;
static _Atomic uint32_t ringing; /* threads that may have read bells[] */
static _Atomic uint32_t asleep;  /* 0, BRIEFLY or SOUNDLY */
static _Atomic uint32_t control;
static _Atomic uint32_t want_completer;
static scr_engine_config policy; /* set once */

static bool replace_bell(_Atomic uint32_t *old, _Atomic uint32_t *new) {
  uint32_t n = atomic_load_explicit(&n_bells, memory_order_relaxed);
  for (uint32_t i = 0; i < n; i++) {
    if (bells[i] != old) continue;
    atomic_store_explicit(&bells[i], new, memory_order_seq_cst);
    scr_bell_wake(old);
    return true;
  }
  return false;
}

bool scr_engine_add_bell(void *bell) {
  if (replace_bell(&nobodys_bell, bell)) return true;
  uint32_t n = atomic_load_explicit(&n_bells, memory_order_relaxed);
  if (n == SCR_MAX_BELLS) return false;
  atomic_store_explicit(&bells[n], bell, memory_order_seq_cst);
  atomic_store_explicit(&n_bells, n + 1, memory_order_seq_cst);
  return true;
}

void scr_engine_remove_bell(void *bell) {
  replace_bell(bell, &nobodys_bell);
  while (atomic_load_explicit(&ringing, memory_order_seq_cst) != 0) sched_yield();
}

void scr_engine_configure(const scr_engine_config *config) { policy = *config; }

/* It makes no system call while the engine is awake. The engine stores `asleep` before it looks for work a last
 * time, so no wake is lost. */
void scr_engine_wake(void) {
  atomic_fetch_add_explicit(&ringing, 1, memory_order_seq_cst);
  uint32_t n = atomic_load_explicit(&n_bells, memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    _Atomic uint32_t *bell = atomic_load_explicit(&bells[i], memory_order_seq_cst);
    atomic_fetch_add_explicit(bell, 1, memory_order_seq_cst);
  }
  if (atomic_load_explicit(&asleep, memory_order_seq_cst) != 0) {
    for (uint32_t i = 0; i < n; i++) scr_futex_wake(atomic_load_explicit(&bells[i], memory_order_seq_cst));
  }
  atomic_fetch_sub_explicit(&ringing, 1, memory_order_release);
}

/* While there is work, and shortly after, the engine looks again after policy.look_ns; then it sleeps until it is woken. */
enum { BRIEFLY = 1, SOUNDLY = 2 };

/* With several bells, the engine may sleep on one and a peer wake another; so it is woken from a brief sleep as
 * well. */
void scr_engine_watch(void) {
  uint32_t how = atomic_load_explicit(&asleep, memory_order_seq_cst);
#ifdef SCR_MUTANT_ENGINE_SLEEPS_ON
  if (how != 0 && atomic_load_explicit(&n_bells, memory_order_relaxed) > 1) scr_engine_wake();
#else
  if (how == SOUNDLY || (how != 0 && atomic_load_explicit(&n_bells, memory_order_relaxed) > 1)) scr_engine_wake();
#endif
}

void scr_engine_control(void) {
  atomic_store_explicit(&control, 1, memory_order_seq_cst);
  scr_engine_wake();
}

/* ---- one look at one group ---- */

typedef struct look {
  bool active;  /* it has work */
  bool blocked; /* its work waits for a peer */
  bool at_gate; /* its work waits for a device */
  bool busy;    /* another thread holds the lock and may miss what arrives now */
  int code;     /* SCR_ENGINE_INCIDENT, SCR_ENGINE_FIFO or 0 */
} look;

typedef struct round_of {
  int64_t now;
  int64_t lost;  /* length of a stop of this process, by which deadlines move */
  bool check;    /* also look whether the waits can still succeed */
  bool announce; /* store the sleeper words: the engine is about to sleep */
} round_of;

/* Notes a stop of this process; the deadlines of blocked runs move once the lock is taken. */
static void note_stop(scr_stop *stop, const round_of *at) {
  if (at->lost != 0) *stop = (scr_stop){at->now, stop->by + at->lost};
}

static look look_at_collectives(scr_group *g, const round_of *at, scr_incident *incident) {
  look l = {0};
  /* Sequentially consistent, as in scr_drive_leave(): it follows the store of `asleep`. */
  if (!(atomic_load_explicit(&g->word, memory_order_seq_cst) & SCR_QUEUED)) {
    g->coll.stop.by = 0;
    return l;
  }
  note_stop(&g->coll.stop, at);
  l.active = l.blocked = true;
  if (!scr_drive_lock(g)) return l; /* a waiter drives; it wakes the engine when it leaves */
  scr_run *r = NULL;
  g->coll.spin_now = 0;
  scr_note_unattended(g, at->now);
  int rc = scr_drive(g, NULL, at->now + policy.slice_ns, &r);
  if (rc == SCR_BLOCKED) {
    l.blocked = g->coll.engine_run == r && g->coll.engine_flag == r->flag && g->coll.engine_need == r->need;
    g->coll.engine_run = r;
    g->coll.engine_flag = r->flag;
    g->coll.engine_need = r->need;
    scr_extend(r, g->coll.stop);
    l.at_gate = r->at_gate || g->coll.external_head != NULL;
    if (at->check) rc = r->gate.external ? 0 : scr_check_wait(g, r, at->now); /* external ones are on the list */
#ifdef SCR_MUTANT_EXTERNALS_UNSEEN
    if (at->check && r->gate.external) rc = scr_external_check(g, at->now, &r);
#else
    if (at->check && rc == 0 && g->coll.external_head != NULL) rc = scr_external_check(g, at->now, &r);
#endif
    scr_begin_timeout(r, at->now);
    if (at->announce || rc > 0) {
      /* As in scr_relax(), the flag is read again after the word is stored. A peer that stores the flag later finds
       * the word and wakes the engine. */
      uint32_t word = SCR_SLEEP_ENGINE | scr_sleeps_word(r);
      atomic_store_explicit(&g->shared->collective.waits_for, word, memory_order_seq_cst);
      if (atomic_load_explicit(r->flag, memory_order_seq_cst) >= r->need) l.blocked = false;
    }
  } else {
    l.blocked = false;
  }
  if (rc > 0) {
    scr_describe_incident(r, rc, incident);
    l.code = SCR_ENGINE_INCIDENT;
  }
  g->coll.stop.by = 0;
  atomic_store_explicit(&g->coll.looked_ns, at->now, memory_order_relaxed);
  /* Not scr_drive_unlock(): it would wake this engine. */
  atomic_fetch_and_explicit(&g->word, ~SCR_LOCKED, memory_order_acq_rel);
  return l;
}

static look look_at_p2p(scr_group *g, const round_of *at, scr_incident *incident) {
  look l = {0};
  if (atomic_load_explicit(&g->p2p.unfinished, memory_order_seq_cst) == 0) {
    g->p2p.stop.by = 0;
    return l;
  }
  note_stop(&g->p2p.stop, at);
  l.active = l.blocked = true;
  bool driven = atomic_load_explicit(&g->p2p.drivers, memory_order_seq_cst) != 0;
  if (driven && !at->check) return l; /* the last driver sets SCR_SLEEP_ENGINE and looks again */
  if (!driven && at->announce) {
    atomic_fetch_or_explicit(&g->shared->p2p.waits_for, SCR_SLEEP_ENGINE, memory_order_seq_cst);
    atomic_store_explicit(&g->p2p.waits_at_once, false, memory_order_relaxed);
  }
  if (at->check) {
    scr_spin_lock(&g->p2p.lock); /* a driver may hold it most of the time */
  } else if (!scr_try_lock(&g->p2p.lock)) {
    l.busy = true; /* the holder may have read a fifo before a frame arrived: look again before sleeping */
    return l;
  }
  if (atomic_load_explicit(&g->p2p.unfinished, memory_order_relaxed) ==
      0) { /* the last one completed while this thread waited for the lock */
    scr_spin_unlock(&g->p2p.lock);
    return (look){0};
  }
  int32_t peer = -1;
  scr_run *culprit = NULL;
  uint64_t before = g->p2p.activity;
  int rc = SCR_IDLE;
  if (atomic_load_explicit(&g->word, memory_order_acquire) & SCR_DOWN) {
    scr_p2p_drain(g);
  } else {
    rc = scr_p2p_progress(g, SCR_PASS_BYTES, &peer, &culprit);
    if (g->p2p.stop.by != 0) scr_p2p_extend(g, g->p2p.stop);
    g->p2p.stop.by = 0;
    atomic_store_explicit(&g->p2p.looked_ns, at->now, memory_order_relaxed);
    if (rc == SCR_BLOCKED && at->check) rc = scr_p2p_scan(g, at->now, &peer, &culprit);
  }
  l.blocked = rc == SCR_BLOCKED && g->p2p.activity == before;
#ifndef SCR_MUTANT_ENGINE_LEAVES_GATES
  l.at_gate = !driven && atomic_load_explicit(&g->p2p.behind, memory_order_relaxed) != 0;
#endif
  if (driven && rc == SCR_YIELDED) scr_bell_wake(&g->shared->p2p.bell); /* the driver may sleep */
  if (rc > 0) {
    *incident = (scr_incident){.code = rc, .kind = SAGECOMM_RECV};
    if (culprit) scr_describe_incident(culprit, rc, incident);
    l.code = SCR_ENGINE_INCIDENT;
  }
  if (rc == SCR_NEEDS_FIFO) l.code = SCR_ENGINE_FIFO;
  incident->peer = rc > 0 || rc == SCR_NEEDS_FIFO ? peer : incident->peer;
  scr_spin_unlock(&g->p2p.lock);
  return l;
}

/* Whether a peer has declared a failure that is news here, while nothing of the group is on its way: somebody may have
 * asked to be told. The peer has woken this engine. What is on its way may succeed yet, and whoever drives it looks by
 * himself; when that is over, this is looked at again after policy.sound_ns at the latest. */
static bool struck(const scr_group *g) {
  return atomic_load_explicit(g->failure, memory_order_acquire) != 0 &&
         !(atomic_load_explicit(&g->word, memory_order_relaxed) & (SCR_DOWN | SCR_LOCKED | SCR_QUEUED)) &&
         atomic_load_explicit(&g->p2p.unfinished, memory_order_relaxed) == 0;
}

/* Takes the engine's sleeper words back. With in_incident they stay, so that peers see for whom this rank waits
 * (scr_group_awaits). */
static void withdraw(scr_group *g, bool in_incident) {
  uint32_t said = atomic_load_explicit(&g->shared->collective.waits_for, memory_order_relaxed);
  if (!in_incident && (said & SCR_SLEEP_ENGINE)) {
    atomic_compare_exchange_strong(&g->shared->collective.waits_for, &said, 0);
  }
  _Atomic uint32_t *word = &g->shared->p2p.waits_for;
  if (atomic_load_explicit(word, memory_order_relaxed) & SCR_SLEEP_ENGINE) {
    atomic_fetch_and_explicit(word, ~SCR_SLEEP_ENGINE, memory_order_seq_cst);
  }
}

/* ---- a turn ---- */

int scr_engine_turn(scr_group *const *groups, int n, uint64_t *group, scr_incident *incident) {
  uint32_t rounds = 0, idle_looks = policy.idle_looks;
  int64_t blocked_since = 0, looked = scr_now(), last = 0, asked = 0;
  bool announce = false;
  for (;;) {
    _Atomic uint32_t *bell[SCR_MAX_BELLS];
    uint32_t heard[SCR_MAX_BELLS], n_heard = atomic_load_explicit(&n_bells, memory_order_acquire), on = 0;
    for (uint32_t i = 0; i < n_heard; i++) {
      do { /* if the bell was replaced meanwhile, its last wake would be missed, so read again */
        bell[i] = atomic_load_explicit(&bells[i], memory_order_seq_cst);
        heard[i] = atomic_load_explicit(bell[i], memory_order_seq_cst);
      } while (atomic_load_explicit(&bells[i], memory_order_seq_cst) != bell[i]);
    }
    bool soundly = idle_looks >= policy.idle_looks;
    if (announce) atomic_store_explicit(&asleep, soundly ? SOUNDLY : BRIEFLY, memory_order_seq_cst);
    if (atomic_load_explicit(&control, memory_order_seq_cst)) {
      atomic_store_explicit(&control, 0, memory_order_seq_cst);
      atomic_store_explicit(&asleep, 0, memory_order_relaxed);
      for (int i = 0; announce && i < n; i++) withdraw(groups[i], false);
      return SCR_ENGINE_CONTROL;
    }
    int code = atomic_exchange_explicit(&want_completer, 0, memory_order_seq_cst) ? SCR_ENGINE_COMPLETER : 0;
    int64_t now = scr_now();
    bool active = false, moved = false, several = false, busy = false, at_gate = false;
    const round_of at = {now, scr_overrun(&last, now, asked), now - looked >= policy.look_ns, announce};
    asked = 0;
    if (at.check) looked = now;
    for (int i = 0; i < n && code == 0; i++) {
      look a = look_at_collectives(groups[i], &at, incident);
      look b = a.code ? (look){0} : look_at_p2p(groups[i], &at, incident);
      active |= a.active || b.active;
      at_gate |= a.at_gate || b.at_gate;
      moved |= (a.active && !a.blocked) || (b.active && !b.blocked);
      busy |= b.busy;
      code = a.code ? a.code : b.code;
      if (code == 0 && struck(groups[i])) {
        *incident = (scr_incident){.code = SCR_INCIDENT_FAILURE, .peer = -1};
        code = SCR_ENGINE_INCIDENT;
      }
      *group = groups[i]->handle;
      if (a.active || b.active) {
        for (uint32_t j = 0; j < n_heard; j++) {
          if (bell[j] != groups[i]->peer[groups[i]->rank].engine_bell || on == j + 1) continue;
          several |= on != 0;
          on = j + 1;
        }
      }
    }
    bool sleep = announce && !moved && !busy && code == 0 && n_heard > 0;
    /* A thread can sleep on one word only. With work in several arenas the sleep is short, to look at the others. */
    int64_t longest = several ? 2000000 : active || !soundly ? policy.look_ns : policy.sound_ns;
    if (at_gate && longest > policy.gate_ns) longest = policy.gate_ns;
    bool woken = true;
    if (sleep) {
      uint32_t at_bell = on ? on - 1 : 0;
      scr_futex_wait(bell[at_bell], heard[at_bell], longest);
      woken = atomic_load_explicit(bell[at_bell], memory_order_relaxed) != heard[at_bell];
      asked = longest;
    }
    if (announce) {
      for (int i = 0; i < n; i++) withdraw(groups[i], code == SCR_ENGINE_INCIDENT && groups[i]->handle == *group);
      atomic_store_explicit(&asleep, 0, memory_order_relaxed);
    }
    if (code) return code;
    idle_looks = active ? 0 : idle_looks + (idle_looks < policy.idle_looks && sleep ? 1 : 0);
    announce = !active || !woken; /* without work: store the sleeper words, look once more, then sleep */
    if (moved || sleep) {
      rounds = 0;
      blocked_since = 0;
    } else if (active) {
      if (blocked_since == 0) blocked_since = now;
      if (rounds++ < policy.spin) {
        scr_pause();
      } else if (busy || now - blocked_since < (int64_t)policy.yield_us * 1000) {
        sched_yield();
      } else {
        announce = true;
      }
    }
  }
}

/* ---- completions ---- */

static scr_run *first, *last;
static uint32_t waiting, idle;
static _Atomic uint32_t list_lock, list_bell;
static _Atomic uint32_t calling; /* completers that are calling a done function; it rises under list_lock */

static void call_completer(void) {
  atomic_store_explicit(&want_completer, 1, memory_order_seq_cst);
  scr_engine_wake();
}

void scr_push_completed(scr_run *r) {
  scr_run_ref(r);
  scr_spin_lock(&list_lock);
  r->next_completed = NULL;
  if (last) {
    last->next_completed = r;
  } else {
    first = r;
  }
  last = r;
  bool more = ++waiting > idle;
  scr_spin_unlock(&list_lock);
  atomic_fetch_add_explicit(&list_bell, 1, memory_order_seq_cst);
  scr_futex_wake(&list_bell);
  if (more) call_completer();
}

static scr_run *pop(bool was_idle) {
  scr_spin_lock(&list_lock);
  if (was_idle) idle--;
  scr_run *r = first;
  if (r) {
    first = r->next_completed;
    if (first == NULL) last = NULL;
    waiting--;
    atomic_fetch_add_explicit(&calling, 1, memory_order_relaxed);
  } else {
    idle++;
  }
  /* The engine may have merged several requests for a completer into one, and this thread may block in the done
   * function that it is about to call. So it asks again. */
#ifdef SCR_MUTANT_ONE_CALLBACK_THREAD
  bool more = false;
#else
  bool more = r != NULL && waiting > idle;
#endif
  scr_spin_unlock(&list_lock);
  if (more) call_completer();
  return r;
}

bool scr_completing(void) {
  scr_spin_lock(&list_lock);
  bool left = waiting != 0 || atomic_load_explicit(&calling, memory_order_acquire) != 0;
  scr_spin_unlock(&list_lock);
  return left;
}

void scr_completer_run(int64_t idle_ns) {
  bool was_idle = false;
  int64_t since = scr_now();
  for (;;) {
    uint32_t heard = atomic_load_explicit(&list_bell, memory_order_seq_cst);
    scr_run *r = pop(was_idle);
    was_idle = r == NULL;
    if (r) {
      scr_run_complete(r);
      scr_run_unref(r);
      atomic_fetch_sub_explicit(&calling, 1, memory_order_release);
      since = scr_now();
      continue;
    }
    int64_t left = since + idle_ns - scr_now();
    if (left <= 0) {
      scr_spin_lock(&list_lock);
      bool go = waiting == 0; /* else a thread counted this completer as idle and asked for no other */
      if (go) idle--;
      scr_spin_unlock(&list_lock);
      if (go) return;
      continue;
    }
    scr_futex_wait(&list_bell, heard, left);
  }
}
