/* group.c: opening and closing groups, their handles, their shared memory, and failure. */
#include <sched.h>
#include <stdlib.h>

#include "bucket.h"
#include "engine.h"
#include "p2p.h"
#include "queue.h"
#include "recorder.h"
#include "wait.h"

/* The memory of groups is reused but never freed, so a thread with a stale handle can still read the word, which
 * carries another generation. */
#define MAX_GROUPS 4096
static scr_group *groups[MAX_GROUPS];
static _Atomic uint32_t groups_lock;
static bool in_use[MAX_GROUPS];

scr_group *scr_group_of(uint64_t handle) {
  uint32_t index = (uint32_t)handle - 1;
  if (index >= MAX_GROUPS) return NULL;
  scr_group *g = __atomic_load_n(&groups[index], __ATOMIC_ACQUIRE);
  if (g == NULL) return NULL;
  uint64_t generation = atomic_load_explicit(&g->word, memory_order_relaxed) >> SCR_GEN_SHIFT;
  return generation == handle >> 32 ? g : NULL;
}

uint64_t scr_shared_bytes(int lane, int32_t size) {
  uint64_t n = sizeof(scr_shared_block) + scr_shared_variable_bytes((uint64_t)size, lane == SCR_DEVICE_LANE);
  return (n + 4095) & ~UINT64_C(4095);
}

void scr_shared_format(void *shared, int lane, int32_t rank, int32_t size, uint64_t engine_bell) {
  scr_shared_block *b = shared;
  b->rank = (uint32_t)rank;
  b->size = (uint32_t)size;
  b->engine_bell = engine_bell;
  b->bytes = scr_shared_bytes(lane, size);
  b->magic = SCR_SHARED_BLOCK_MAGIC;
}

int scr_shared_check(scr_peer_config *p, int32_t rank, int32_t size) {
  const scr_shared_block *b = NULL;
  for (int lane = SCR_LANES; lane-- > 0;) {
    uint64_t at = p->shared[lane], n = scr_shared_bytes(lane, size);
    if (n > p->arena_bytes || at > p->arena_bytes - n || at % SCR_LINE != 0) return -1;
    b = (const scr_shared_block *)(const void *)((const unsigned char *)p->arena + at);
    if (b->magic != SCR_SHARED_BLOCK_MAGIC || b->rank != (uint32_t)rank || b->size != (uint32_t)size || b->bytes != n)
      return -1;
  }
  p->engine_bell = __atomic_load_n(&b->engine_bell, __ATOMIC_RELAXED);
  bool ok = p->engine_bell % sizeof(uint32_t) == 0 && p->engine_bell <= p->arena_bytes - sizeof(uint32_t);
  return ok ? 0 : -1;
}

static void *zeroed(size_t n) {
  void *p = aligned_alloc(SCR_LINE, (n + SCR_LINE - 1) & ~(size_t)(SCR_LINE - 1));
  if (p) memset(p, 0, n);
  return p;
}

static int take_index(void) {
  scr_spin_lock(&groups_lock);
  int index = -1;
  for (int i = 0; i < MAX_GROUPS && index < 0; i++) {
    if (!in_use[i]) index = i;
  }
  if (index >= 0) in_use[index] = true;
  scr_spin_unlock(&groups_lock);
  return index;
}

static void give_index(int index) {
  scr_spin_lock(&groups_lock);
  in_use[index] = false;
  scr_spin_unlock(&groups_lock);
}

uint64_t scr_group_open(const scr_group_config *config, scr_group **out) {
  int index = take_index();
  if (index < 0) return 0;
  scr_group *g = groups[index];
  uint64_t generation = 1;
  if (g == NULL) {
    g = zeroed(sizeof *g);
  } else {
    generation = ((atomic_load_explicit(&g->word, memory_order_relaxed) >> SCR_GEN_SHIFT) + 1) & 0xffff;
    if (generation == 0) generation = 1;
    memset(&g->handle, 0, sizeof *g - offsetof(scr_group, handle));
    atomic_store_explicit(&g->waited_soon, false, memory_order_relaxed);
  }
  size_t n = (size_t)config->size;
  scr_peer *peer = g ? zeroed(n * sizeof *peer) : NULL;
  uint64_t *offsets = peer ? zeroed(2 * (n + 1) * sizeof *offsets) : NULL;
  scr_channels *channels = offsets ? zeroed(n * sizeof *channels) : NULL;
  int32_t *visited = channels ? zeroed(n * sizeof *visited) : NULL;
  scr_p2p_pair *pair = visited ? zeroed(n * sizeof *pair) : NULL;
  const scr_peer_config *mine = &config->peers[config->rank];
  void *area = mine->flight ? (unsigned char *)mine->arena + mine->flight : NULL;
  scr_recorder *recorder =
      pair && config->flight_entries ? scr_recorder_new(config->flight_entries, config->flight_stacks, area) : NULL;
  scr_stats *stats = pair ? scr_stats_new() : NULL;
  scr_tracer *tracer = pair && config->timeline ? scr_tracer_new() : NULL;
  if (stats == NULL || (recorder == NULL && config->flight_entries) || (tracer == NULL && config->timeline)) {
    scr_tracer_free(tracer);
    scr_stats_free(stats);
    scr_recorder_free(recorder);
    free(pair);
    free(visited);
    free(channels);
    free(offsets);
    free(peer);
    if (g != NULL && groups[index] == NULL) free(g);
    give_index(index);
    return 0;
  }
  g->rank = config->rank;
  g->size = config->size;
  g->lane = (uint8_t)config->lane;
  g->host = config->lane == SCR_HOST_LANE ? g : config->host;
  g->peer = peer;
  g->visited = visited;
  g->coll.fast_offsets = offsets;
  g->p2p.pair = pair;
  g->coll.channels = channels;
  g->records.recorder = recorder;
  g->records.stats = stats;
  g->records.tracer = tracer;
  g->spin = config->spin;
  g->yield_us = config->yield_us;
  g->stream_bytes = config->stream_bytes;
  g->policy = config->policy;
  g->trace = config->trace;
  g->message_bytes = config->message_bytes ? config->message_bytes : SCR_CHANNEL_BYTES;
  g->handle = generation << 32 | (uint64_t)(index + 1);
  atomic_store_explicit(&g->timeout_ns, config->timeout_ns, memory_order_relaxed);
  for (int32_t i = 0; i < g->size; i++) {
    const scr_peer_config *c = &config->peers[i];
    peer[i].arena = c->arena;
    peer[i].arena_bytes = c->arena_bytes;
    for (int lane = 0; lane < SCR_LANES; lane++) {
      peer[i].lane[lane] = (scr_shared_block *)(void *)((unsigned char *)c->arena + c->shared[lane]);
    }
    peer[i].shared = peer[i].lane[config->lane];
    peer[i].engine_bell = (_Atomic uint32_t *)(void *)((unsigned char *)c->arena + c->engine_bell);
    peer[i].pair = c->pair;
    pair[i].fifo_bytes = c->pair != 0 && config->fifo_bytes ? config->fifo_bytes : SCR_FIFO_BYTES;
    g->pairs = g->pairs || c->pair != 0;
    if (c->pair == 0) {
      visited[g->n_near++] = i;
      atomic_store_explicit(&peer[i].is_visited, true, memory_order_relaxed);
    }
    if (c->flight && scr_inside(&peer[i], c->flight, scr_flight_bytes(c->flight_entries, c->flight_stacks))) {
      peer[i].flight = (const scr_flight_area *)(void *)(peer[i].arena + c->flight);
      peer[i].flight_entries = c->flight_entries;
      peer[i].flight_stacks = c->flight_stacks;
    }
  }
  atomic_store_explicit(&g->n_visited, (uint32_t)g->n_near, memory_order_release);
  g->shared = peer[g->rank].shared;
  g->failure = g->host != g ? g->host->failure : &peer[config->failure_rank].lane[SCR_HOST_LANE]->failure;
  atomic_store_explicit(&g->word, generation << SCR_GEN_SHIFT | (config->fuses ? SCR_FUSES : 0), memory_order_release);
  __atomic_store_n(&groups[index], g, __ATOMIC_RELEASE);
  if (g->host != g) atomic_store_explicit(&g->host->device, g, memory_order_release);
  *out = g;
  return g->handle;
}

void scr_group_close(scr_group *g) {
  if (g->host != g) atomic_store_explicit(&g->host->device, NULL, memory_order_release);
  while (!scr_drive_lock(g)) sched_yield();
  scr_spin_lock(&g->p2p.lock);
  scr_p2p_free(g);
  for (uint32_t i = 0; i < SCR_CACHE_ENTRIES; i++) {
    if (g->cache[i].program) scr_program_free(g->cache[i].program);
  }
  free(g->peer);
  free(g->visited);
  free(g->coll.fast_offsets);
  free(g->p2p.pair);
  free(g->coll.channels);
  free(g->coll.scratch);
  scr_recorder_free(g->records.recorder);
  g->records.recorder = NULL;
  scr_stats_free(g->records.stats);
  g->records.stats = NULL;
  scr_tracer_free(g->records.tracer);
  g->records.tracer = NULL;
  g->peer = NULL;
  g->visited = NULL;
  g->p2p.pair = NULL;
  g->coll.channels = NULL;
  g->coll.scratch = NULL;
  uint32_t index = (uint32_t)g->handle - 1;
  /* The next generation, locked and down, makes every use of the old handle fail. */
  uint64_t next = ((g->handle >> 32) + 1) & 0xffff;
  atomic_store_explicit(&g->word, next << SCR_GEN_SHIFT | SCR_LOCKED | SCR_DOWN, memory_order_seq_cst);
  while (atomic_load_explicit(&g->inside, memory_order_seq_cst) != 0)
    sched_yield(); /* those threads may read the cause */
  scr_cause_unref(atomic_exchange(&g->cause, NULL));
  for (scr_cause *c; (c = g->replaced) != NULL;) {
    g->replaced = c->next;
    scr_cause_unref(c);
  }
  give_index((int)index);
}

void scr_group_set_timeout(scr_group *g, int64_t timeout_ns) {
  atomic_store_explicit(&g->timeout_ns, timeout_ns, memory_order_relaxed);
}

int64_t scr_op_timeout(const scr_group *g, const sagecomm_op *op) {
  int64_t ns = op->timeout_ns > 0 ? op->timeout_ns : atomic_load_explicit(&g->timeout_ns, memory_order_relaxed);
  return ns < SCR_LONGEST_NS ? ns : SCR_LONGEST_NS;
}

/* A thread raises `inside` before it reads the word. A thread that closes the group sets SCR_DOWN before it reads
 * `inside`. So at least one of them sees the other. */
bool scr_group_enter(scr_group *g, uint64_t handle) {
  atomic_fetch_add_explicit(&g->inside, 1, memory_order_seq_cst);
  uint64_t w = atomic_load_explicit(&g->word, memory_order_seq_cst);
  if (w >> SCR_GEN_SHIFT == handle >> 32 && !(w & SCR_DOWN)) return true;
  scr_group_exit(g);
  return false;
}

void scr_group_exit(scr_group *g) { atomic_fetch_sub_explicit(&g->inside, 1, memory_order_release); }

bool scr_group_has_large(const scr_group *g) { return g->peer[g->rank].large != NULL; }

void scr_group_set_large(scr_group *g, uint64_t offset) {
  g->peer[g->rank].large = g->peer[g->rank].arena + offset;
  scr_store_flag(&g->shared->large, offset);
  scr_wake_readers(g);
}

void scr_group_set_classes(scr_group *g, int kind, const uint64_t *boundaries, int n) {
  memcpy(g->boundary[kind], boundaries, (size_t)n * sizeof *boundaries);
  atomic_store_explicit(&g->boundaries[kind], (uint32_t)n, memory_order_release);
}

int scr_group_class(const scr_group *g, int kind, uint64_t bytes) {
  uint32_t c = 0, n = atomic_load_explicit(&g->boundaries[kind], memory_order_acquire);
  while (c < n && bytes >= g->boundary[kind][c]) c++;
  return (int)c;
}

uint64_t scr_group_sequence(const scr_group *g) {
  return scr_word_seq(atomic_load_explicit(&g->word, memory_order_relaxed));
}

uint64_t scr_group_issued(const scr_group *g) {
  uint64_t w = atomic_load_explicit(&g->word, memory_order_relaxed);
  return w & SCR_FUSES ? atomic_load_explicit(&g->numbered, memory_order_relaxed) : scr_word_seq(w);
}

uint64_t scr_group_device_sequence(const scr_group *g) {
  const scr_group *device = atomic_load_explicit(&g->device, memory_order_acquire);
  return device ? scr_group_sequence(device) : 0;
}

void scr_group_visit(scr_group *g, int32_t rank) {
  if (atomic_load_explicit(&g->peer[rank].is_visited, memory_order_acquire)) return;
  scr_spin_lock(&g->visit_lock);
  if (!atomic_load_explicit(&g->peer[rank].is_visited, memory_order_relaxed)) {
    int32_t n = scr_n_visited(g);
    g->visited[n] = rank;
    atomic_store_explicit(&g->n_visited, (uint32_t)n + 1, memory_order_seq_cst);
    atomic_store_explicit(&g->peer[rank].is_visited, true, memory_order_release);
  }
  scr_spin_unlock(&g->visit_lock);
}

/* Lets those who tell ranks of other hosts know of what this rank has stored about itself, or that it detaches. */
static void tell(const scr_group *g, void (*hook)(uint64_t pair)) {
  for (int32_t i = 0; g->pairs && i < g->size; i++) {
    if (g->peer[i].pair != 0) hook(g->peer[i].pair);
  }
}

void scr_group_goodbye(scr_group *g) {
  SCR_FAULT(SCR_FAULT_GOODBYE);
  scr_store_flag(&g->shared->left, scr_group_sequence(g) + 1);
  SCR_FAULT(SCR_FAULT_LEFT);
  scr_group_wake_all(g);
  tell(g, scr_go.wake);
}

void scr_group_detach(scr_group *g) {
  for (int32_t i = 0; i < g->n_near; i++) {
    scr_shared_block *b = g->peer[g->visited[i]].shared;
    atomic_store_explicit(scr_shared_detached(b, (uint32_t)g->size, (uint32_t)g->rank), 1, memory_order_release);
  }
  tell(g, scr_go.detach);
}

bool scr_shared_detached_by(const void *shared, int32_t size, int32_t rank) {
  scr_shared_block *b = (scr_shared_block *)(uintptr_t)shared;
  return atomic_load_explicit(scr_shared_detached(b, (uint32_t)size, (uint32_t)rank), memory_order_acquire) != 0;
}

void scr_shared_give_up(void *shared, const void *record, size_t n) {
  scr_shared_block *b = shared;
  memcpy(b->failure_record, record, n < SCR_FAILURE_BYTES ? n : SCR_FAILURE_BYTES);
  atomic_store_explicit(&b->left, SCR_GAVE_UP, memory_order_release);
}

bool scr_shared_gave_up(const void *shared) {
  scr_shared_block *b = (scr_shared_block *)(uintptr_t)shared;
  return atomic_load_explicit(&b->left, memory_order_acquire) == SCR_GAVE_UP;
}

bool scr_group_gave_up(const scr_group *g, int32_t rank, void *record, size_t n) {
  const scr_shared_block *b = g->peer[rank].lane[SCR_HOST_LANE];
  if (!scr_shared_gave_up(b)) return false;
  memcpy(record, b->failure_record, n < SCR_FAILURE_BYTES ? n : SCR_FAILURE_BYTES);
  return true;
}

/* The thread that closes the group has taken it down, so only threads that were inside before can still post. Their
 * count, `inside`, is read twice, because each order alone misses a case:
 * - A thread that posts a p2p operation is inside, counts the operation, and leaves. Read after `unfinished`, the
 *   count of threads may be 0 already while the operation was not there yet. So it is read before.
 * - A thread that waits comes inside while its operation is unfinished, and looks whether it is. Read before, the
 *   count may miss the thread, and the operation may be complete by the time that `unfinished` is read. So it is
 *   read after as well: the waiter counted itself before it saw the operation unfinished, and that was before
 *   `unfinished` fell. */
uint64_t scr_group_unfinished(const scr_group *g) {
  /* Operations go from the held ones to a carrier and from there to the queue, so they are looked for in this order. */
  bool held = atomic_load_explicit(&g->held, memory_order_seq_cst) != 0;
  held = scr_group_carrying(g) || held;
  uint64_t w = atomic_load_explicit(&g->word, memory_order_seq_cst);
  uint64_t before = atomic_load_explicit(&g->inside, memory_order_seq_cst);
  uint64_t p2p = atomic_load_explicit(&g->p2p.unfinished, memory_order_acquire);
  uint64_t after = atomic_load_explicit(&g->inside, memory_order_seq_cst);
  return (w & (SCR_QUEUED | SCR_LOCKED) || held ? 1 : 0) + before + p2p + after;
}

bool scr_group_has_failed(const scr_group *g) { return atomic_load_explicit(&g->has_failed, memory_order_acquire); }

/* ---- failure ---- */

/* Several threads of this rank may declare a failure at once. The lock, and the look at the failure word under it,
 * make sure that the record does not change once the word may point to it. */
int32_t scr_group_set_failure(scr_group *g, const void *record, size_t n) {
  uint64_t me = 1 + (uint64_t)g->rank;
  g = g->host; /* both lanes have one record and one lock for it */
  scr_spin_lock(&g->queue_lock);
  uint64_t who = atomic_load_explicit(g->failure, memory_order_acquire);
#ifdef SCR_MUTANT_FAILURE_OVERWRITTEN
  who = 0;
#endif
  if (who == 0) {
    memcpy(g->shared->failure_record, record, n < SCR_FAILURE_BYTES ? n : SCR_FAILURE_BYTES);
    bool won =
        atomic_compare_exchange_strong_explicit(g->failure, &who, me, memory_order_seq_cst, memory_order_seq_cst);
    if (won) who = me;
  }
  scr_spin_unlock(&g->queue_lock);
  scr_group_wake_all(g);
  return (int32_t)(who - 1);
}

int32_t scr_group_get_failure(const scr_group *g, void *record, size_t n) {
  uint64_t who = atomic_load_explicit(g->failure, memory_order_acquire);
  if (who == 0 || who > (uint64_t)g->size) return 0;
  if (n > 0)
    memcpy(record, g->peer[who - 1].lane[SCR_HOST_LANE]->failure_record, n < SCR_FAILURE_BYTES ? n : SCR_FAILURE_BYTES);
  return (int32_t)who;
}

/* Nobody sleeps on the bells of a shadow. */
void scr_group_wake_all(scr_group *g) {
  for (int32_t i = 0; i < g->n_near; i++) {
    const scr_peer *p = &g->peer[g->visited[i]];
    for (int lane = 0; lane < SCR_LANES; lane++) {
      scr_bell_wake(&p->lane[lane]->collective.bell);
      scr_bell_wake(&p->lane[lane]->p2p.bell);
    }
    scr_bell_wake(p->engine_bell);
  }
}

void scr_group_down(scr_group *g, const sagecomm_error *error) {
#ifndef SCR_MUTANT_DOWN_LOOKS_AT_NO_STREAM
  scr_complete_externals(g);
#endif
  scr_cause *none = NULL,
            *cause =
                scr_cause_new(error); /* without memory there is no cause, and errors read as for a destroyed group */
  if (!atomic_compare_exchange_strong(&g->cause, &none, cause)) scr_cause_unref(cause);
  atomic_fetch_or_explicit(&g->word, SCR_DOWN, memory_order_seq_cst);
  scr_spin_lock(&g->queue_lock);
  scr_queue_held(g);
  scr_spin_unlock(&g->queue_lock);
  scr_bell_wake(&g->shared->collective.bell);
  scr_bell_wake(&g->shared->p2p.bell);
  if (scr_drive_lock(g)) {
    scr_drain(g);
    scr_drive_unlock(g);
  }
  if (scr_try_lock(&g->p2p.lock)) {
    scr_p2p_drain(g);
    scr_spin_unlock(&g->p2p.lock);
  }
  scr_group_claim(g);
  scr_engine_wake();
}

/* A thread that has read the old cause may not hold a reference to it yet, so the group keeps its own until it is closed. */
bool scr_group_recause(scr_group *g, const sagecomm_error *error) {
  scr_cause *cause = scr_cause_new(error);
  if (cause == NULL) return false;
  scr_spin_lock(&g->queue_lock);
  scr_cause *old = atomic_exchange_explicit(&g->cause, cause, memory_order_acq_rel);
#ifdef SCR_MUTANT_CAUSE_FREED
  scr_cause_unref(old);
#else
  if (old != NULL) {
    old->next = g->replaced;
    g->replaced = old;
  }
#endif
  scr_spin_unlock(&g->queue_lock);
  return true;
}

int32_t scr_group_error(sagecomm_group group, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  scr_group *g = scr_group_of(group);
  if (g == NULL) return scr_plain_error(err, SAGECOMM_INVALID, "sagecomm: group handle is not valid");
  if (scr_group_enter(g, group)) {
    bool failed = atomic_load_explicit(g->failure, memory_order_acquire) != 0;
    scr_group_exit(g);
    if (!failed) return SAGECOMM_OK;
    scr_incident t = {.code = SCR_INCIDENT_FAILURE, .peer = -1};
    scr_entering_go();
    scr_go.incident(group, &t);
  }
  /* The group is down. scr_group_close() frees its memory when no thread is inside. */
  atomic_fetch_add_explicit(&g->inside, 1, memory_order_seq_cst);
  uint64_t w = atomic_load_explicit(&g->word, memory_order_seq_cst);
  int32_t status = w >> SCR_GEN_SHIFT == group >> 32 ? scr_copy_error(g, err) : scr_cause_copy(NULL, err);
  scr_group_exit(g);
  return status;
}

void scr_group_counters(const scr_group *g, scr_counters *out) {
  out->sleeps = atomic_load_explicit(&g->sleeps, memory_order_relaxed);
  out->blocked = atomic_load_explicit(&g->blocked, memory_order_relaxed);
}
