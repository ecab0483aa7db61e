/* ranks.c: see ranks.h. */
#include "fusing.h"
#include "ranks.h"

#include <pthread.h>
#include <unistd.h>

#include "plans.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/* The guard behind each arena, which no rank may touch. It is longer than any length of the protocol. */
#define GAP_BYTES (UINT64_C(2) << 20)
#define MAX_COMPLETERS 64

static unsigned char *memory; /* the arenas of all ranks, then the engine's bell */
static _Atomic uint64_t arena_used[MAX_RANKS];
static struct {
  uint64_t handle;
  scr_group *group;
  int rank;
} table[2 * MAX_RANKS];
static int n_ranks, n_entries;
bool two_groups, device_lanes, fusing, own_words, seldom;
scr_gate next_gate[MAX_RANKS];

uint64_t next_random(uint64_t *state) { /* xorshift64*, Vigna 2016 */
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * UINT64_C(2685821657736338717);
}

static unsigned char *arena_of(int rank) { return memory + (uint64_t)rank * (ARENA_BYTES + GAP_BYTES); }

uint64_t take_memory(int rank, uint64_t n) {
  uint64_t at = atomic_fetch_add(&arena_used[rank], (n + 4095) & ~UINT64_C(4095));
  CHECK(at + n <= ARENA_BYTES);
  return at;
}

static unsigned char *make_memory(void) {
  unsigned char *m = aligned_alloc(4096, MAX_RANKS * (ARENA_BYTES + GAP_BYTES) + 4096);
  CHECK(m != NULL);
#ifdef __SANITIZE_ADDRESS__
  for (int i = 1; i <= MAX_RANKS; i++) {
    ASAN_POISON_MEMORY_REGION(m + (uint64_t)i * (ARENA_BYTES + GAP_BYTES) - GAP_BYTES, GAP_BYTES);
  }
#endif
  return m;
}

static int index_of(uint64_t handle) {
  for (int i = 0; i < n_entries; i++) {
    if (table[i].handle == handle) return i;
  }
  abort();
}

/* ---- what Go does ---- */

static pthread_mutex_t go = PTHREAD_MUTEX_INITIALIZER;
_Atomic int no_memory_on = -1;
_Atomic bool garbled;

/* Requires: `go`. */
static const scr_program *program_for(scr_group *g, const sagecomm_op *op, uint64_t bytes) {
  uint64_t key = scr_cache_key(g, op, bytes);
  scr_program *p = (scr_program *)(uintptr_t)scr_cache_find(g, key);
  if (p == NULL) {
    const plan *by_messages = chosen_plan(op, scr_group_class(g, op->kind, bytes), g->size, g->rank);
    p = by_messages ? compile_messages(g, op, by_messages) : compile_slots(g, op, bytes);
    CHECK(scr_cache_insert(g, key, p));
  }
  return p;
}

const scr_program *program_of(scr_group *g, const sagecomm_op *op, uint64_t bytes) {
  pthread_mutex_lock(&go);
  const scr_program *p = program_for(g, op, bytes);
  pthread_mutex_unlock(&go);
  return p;
}

static int32_t issue(uint64_t handle, const sagecomm_op *op, scr_run **out, sagecomm_error *err) {
  int i = index_of(handle);
  bool on_device = op->device_type != SAGECOMM_HOST;
  const scr_gate *gate = on_device ? &next_gate[table[i].rank] : NULL;
  if (on_device) i += n_ranks;
  scr_group *g = table[i].group;
  if (op->kind >= SAGECOMM_SEND) {
    bool down = true;
    *out = on_device ? scr_p2p_submit(g, op, gate, &down) : NULL;
    return *out ? SAGECOMM_OK : scr_copy_error(g, err); /* a p2p operation that a group which is down refuses */
  }
  if (op->kind == SAGECOMM_BROADCAST && table[i].rank == atomic_load(&no_memory_on)) return scr_no_memory(err);
  if (fusing && !on_device) return hold(g, op, out, err);
  pthread_mutex_lock(&go);
  uint64_t bytes = scr_op_bytes(op, g->rank, n_ranks);
  bool down;
  *out = scr_submit(g, op, bytes, program_for(g, op, bytes), false, gate, &down);
  pthread_mutex_unlock(&go);
  return *out ? SAGECOMM_OK : scr_copy_error(g, err);
}

/* Neighbours of one kind and type share a batch. */
static int32_t fuse(uint64_t handle, const sagecomm_op *ops, uint32_t n, uint32_t *batch, sagecomm_error *err) {
  (void)handle, (void)err;
  for (uint32_t i = 0; i < n; i++) {
    bool joins = i > 0 && ops[i].kind == ops[i - 1].kind && ops[i].dtype == ops[i - 1].dtype &&
                 ops[i].kind != SAGECOMM_BARRIER && ops[i].kind < SAGECOMM_SEND;
    batch[i] = i == 0 ? 0 : batch[i - 1] + !joins;
  }
  return SAGECOMM_OK;
}

static sagecomm_error go_down(scr_group *g, const sagecomm_error *mine) {
  if (mine) scr_group_set_failure(g, mine, sizeof *mine);
  unsigned char record[SCR_FAILURE_BYTES];
  sagecomm_error first;
  int32_t winner = scr_group_get_failure(g, record, sizeof record);
  CHECK(winner != 0 || atomic_load(&garbled));
  if (winner != 0) memcpy(&first, record, sizeof first);
  if (winner == 0 || first.status > SAGECOMM_INVALID || first.status < SAGECOMM_FORKED) {
    CHECK(atomic_load(&garbled));
    first = (sagecomm_error){.status = SAGECOMM_INTERNAL, .rank = winner - 1};
  }
  for (int i = 0; i < n_entries; i++) {
    if (table[i].group == g || (device_lanes && table[i].rank == g->rank)) scr_group_down(table[i].group, &first);
  }
  return first;
}

static void incident(uint64_t handle, const scr_incident *t) {
  scr_group *g = table[index_of(handle)].group;
  sagecomm_error e = {0};
  if (t->code != SCR_INCIDENT_FAILURE) {
    static const int32_t status[] = {
        [SCR_INCIDENT_MISMATCH] = SAGECOMM_MISMATCH,    [SCR_INCIDENT_LENGTH] = SAGECOMM_MISMATCH,
        [SCR_INCIDENT_SPLIT] = SAGECOMM_MISMATCH,       [SCR_INCIDENT_GARBAGE] = SAGECOMM_INTERNAL,
        [SCR_INCIDENT_BAD_LONGEST] = SAGECOMM_INTERNAL, [SCR_INCIDENT_BAD_CHANNEL] = SAGECOMM_INTERNAL,
        [SCR_INCIDENT_BAD_MESSAGE] = SAGECOMM_INTERNAL, [SCR_INCIDENT_BAD_TAKEN] = SAGECOMM_INTERNAL,
        [SCR_INCIDENT_TIMEOUT] = SAGECOMM_TIMEOUT,      [SCR_INCIDENT_UNEVEN] = SAGECOMM_SYSTEM,
        [SCR_INCIDENT_LEFT] = SAGECOMM_PEER_FAILURE,    [SCR_INCIDENT_TYPE] = SAGECOMM_MISMATCH,
        [SCR_INCIDENT_MEMORY] = SAGECOMM_SYSTEM,        [SCR_INCIDENT_UNFIT] = SAGECOMM_MISMATCH};
    CHECK((size_t)t->code < sizeof status / sizeof *status && status[t->code] != SAGECOMM_OK);
    e.status = status[t->code];
    e.rank = t->peer;
  }
  go_down(g, e.status ? &e : NULL);
}

static void fail(uint64_t handle, const sagecomm_error *cause) {
  sagecomm_error e = *cause;
  go_down(table[index_of(handle)].group, &e);
}

sagecomm_error declare(const rank *r, int32_t status, int32_t culprit, const char *message) {
  sagecomm_error e = {.status = status, .rank = culprit};
  snprintf(e.message, sizeof e.message, "%s", message);
  return go_down(r->group, &e);
}

static int32_t fifo(uint64_t handle, int32_t peer) {
  scr_group *g = table[index_of(handle)].group;
  pthread_mutex_lock(&go);
  if (!scr_group_has_fifo(g, peer))
    scr_group_set_fifo(g, peer, take_memory(g->rank, sizeof(scr_fifo) + SCR_FIFO_BYTES));
  pthread_mutex_unlock(&go);
  return SAGECOMM_OK;
}

/* ---- ranks ---- */

int32_t complete(sagecomm_work work, sagecomm_error *err) {
  while (scr_wait(work, 10 * 1000000, err) == SAGECOMM_PENDING) continue;
  int32_t status = scr_wait(work, 0, err);
  scr_release(work);
  return status;
}

int32_t call(const rank *r, const sagecomm_op *op, sagecomm_error *err) {
  sagecomm_work work;
  int32_t status = scr_issue(r->handle, op, &work, NULL, err);
  return status == SAGECOMM_PENDING ? complete(work, err) : status;
}

int32_t begin_sum(const rank *r, int32_t *data, int64_t timeout_ns, sagecomm_work *work, sagecomm_error *err) {
  sagecomm_segment s = {data, 4};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .n_in = 1,
                    .n_out = 1,
                    .in = &s,
                    .out = &s,
                    .timeout_ns = timeout_ns};
  return scr_issue(r->handle, &op, work, NULL, err);
}

void note_end(void *p, int32_t status, const sagecomm_error *err) {
  (void)err;
  ending *e = p;
  e->status = status;
  atomic_store(&e->at, scr_now());
}

int64_t sleep_until_end(const ending *e) {
  while (atomic_load(&e->at) == 0) usleep(100);
  return atomic_load(&e->at);
}

uint32_t rings(void) { return atomic_load((_Atomic uint32_t *)(void *)arena_of(MAX_RANKS)); }

static pthread_barrier_t meeting;

void meet(void) { pthread_barrier_wait(&meeting); }

static pthread_t engine_thread, completers[MAX_COMPLETERS];
static int n_completers;
static _Atomic bool stop;

static void *completer(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) scr_completer_run(20 * 1000000);
  return NULL;
}

static void *engine(void *unused) {
  (void)unused;
  scr_group *groups[2 * MAX_RANKS];
  for (int i = 0; i < n_entries; i++) groups[i] = table[i].group;
  while (!atomic_load(&stop)) {
    uint64_t handle;
    scr_incident t;
    int reason = scr_engine_turn(groups, n_entries, &handle, &t);
    if (reason == SCR_ENGINE_INCIDENT) incident(handle, &t);
    if (reason == SCR_ENGINE_FIFO) fifo(handle, t.peer);
    if (reason == SCR_ENGINE_COMPLETER) {
      CHECK(n_completers < MAX_COMPLETERS);
      CHECK(pthread_create(&completers[n_completers++], NULL, completer, NULL) == 0);
    }
  }
  return NULL;
}

/* The timeout of operations. It is shorter where an operation is expected to hang. */
static int64_t timeout_ns(void) {
  const char *seconds = getenv("RANKS_TIMEOUT");
  return (seconds ? atoi(seconds) : 60) * INT64_C(1000000000);
}

typedef struct start {
  rank r;
  rank_fn *fn;
  void *arg;
} start;

static void *begin(void *p) {
  start *s = p;
  s->fn(&s->r, s->arg);
  return NULL;
}

/* Makes the shared blocks of a group and describes them in peers[]. */
static void make_shared_blocks(int n, scr_peer_config peers[]) {
  for (int i = 0; i < n; i++) {
    peers[i] = (scr_peer_config){.arena = arena_of(i), .arena_bytes = ARENA_BYTES};
    for (int lane = 0; lane < SCR_LANES; lane++) {
      peers[i].shared[lane] = take_memory(i, scr_shared_bytes(lane, n));
      scr_shared_format(arena_of(i) + peers[i].shared[lane], lane, i, n, 0);
    }
    CHECK(scr_shared_check(&peers[i], i, n) == 0);
    peers[i].engine_bell = (uint64_t)(arena_of(MAX_RANKS) - arena_of(i)); /* one process, one engine */
  }
}

static void open_lane(int n, uint32_t spin, uint32_t yield_us, uint32_t lane, const scr_peer_config peers[]) {
  for (int i = 0; i < n; i++) {
    scr_group_config c = {.rank = i,
                          .size = n,
                          .lane = lane,
                          .host = lane == SCR_DEVICE_LANE ? table[i].group : NULL,
                          .timeout_ns = timeout_ns(),
                          .fuses = fusing && lane == SCR_HOST_LANE,
                          .failure_rank = own_words && lane == SCR_HOST_LANE ? i : 0,
                          .spin = spin,
                          .yield_us = yield_us,
                          .stream_bytes = UINT64_MAX,
                          .flight_entries = 16,
                          .policy = {.sync_ns = 50 * 1000000,
                                     .sleep_ns = seldom ? SELDOM_NS : SLEEP_NS,
                                     .begin_bytes = 64 * 1024,
                                     .begin_ns = 200 * 1000,
                                     .brief_ns = 20 * 1000,
                                     .drain_ns = 10 * 1000000,
                                     .gate_ns = 100 * 1000,
                                     .at_once_ns = 50 * 1000,
                                     .soon_ns = 200 * 1000},
                          .peers = peers};
    int e = n_entries++;
    table[e].handle = scr_group_open(&c, &table[e].group);
    table[e].rank = i;
    CHECK(table[e].handle != 0);
    for (int kind = 0; kind < SAGECOMM_SEND; kind++) scr_group_set_classes(table[e].group, kind, (uint64_t[]){4097}, 1);
  }
}

static void open_group(int n, uint32_t spin, uint32_t yield_us) {
  scr_peer_config peers[MAX_RANKS];
  make_shared_blocks(n, peers);
  open_lane(n, spin, yield_us, SCR_HOST_LANE, peers);
  if (device_lanes) open_lane(n, spin, yield_us, SCR_DEVICE_LANE, peers);
}

static void prepare(void) {
  static const scr_hooks hooks = {
      .issue = issue, .incident = incident, .fifo = fifo, .fuse = fuse, .fail = fail, .want = want};
  scr_set_hooks(&hooks);
  memory = make_memory();
  memset(arena_of(MAX_RANKS), 0, 4096);
  scr_engine_add_bell(arena_of(MAX_RANKS));
  for (int i = 0; i < MAX_RANKS; i++) atomic_store(&arena_used[i], ARENA_BYTES);
}

/* With `seldom`, each sleep of the engine is one from which new work wakes it. */
static void configure_engine(void) {
  scr_engine_configure(&(scr_engine_config){.spin = 20,
                                            .yield_us = 50,
                                            .slice_ns = 200 * 1000,
                                            .look_ns = seldom ? SELDOM_NS : 20 * 1000000,
                                            .gate_ns = 100 * 1000,
                                            .sound_ns = 1000000000,
                                            .idle_looks = seldom ? 0 : 10});
}

void run_ranks(int n, uint32_t spin, uint32_t yield_us, uint64_t seed, rank_fn *fn, void *arg) {
  if (memory == NULL) prepare();
  configure_engine();
  n_ranks = n;
  n_entries = 0;
  atomic_store(&garbled, false);
  for (int i = 0; i < n; i++) {
    memset(arena_of(i), 0, atomic_load(&arena_used[i]));
    atomic_store(&arena_used[i], 4096);
  }
  for (int k = 0; k <= (int)two_groups; k++) open_group(n, spin, yield_us);
  start s[MAX_RANKS];
  rank beside[MAX_RANKS];
  pthread_t threads[MAX_RANKS];
  for (int i = 0; i < n; i++) {
    s[i] = (start){{i, table[i].handle, table[i].group, seed, NULL}, fn, arg};
    if (!two_groups && !device_lanes) continue;
    beside[i] = (rank){i, table[n + i].handle, table[n + i].group, seed, &s[i].r};
    s[i].r.beside = &beside[i];
  }
  atomic_store(&stop, false);
  n_completers = 0;
  pthread_barrier_init(&meeting, NULL, (unsigned)n);
  pthread_create(&engine_thread, NULL, engine, NULL);
  for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, begin, &s[i]);
  for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
  atomic_store(&stop, true);
  scr_engine_control();
  pthread_join(engine_thread, NULL);
  for (int i = 0; i < n_completers; i++) pthread_join(completers[i], NULL);
  pthread_barrier_destroy(&meeting);
  sagecomm_error over = {.status = SAGECOMM_ABORTED};
  for (int i = 0; i < n_entries; i++) {
    scr_group_down(table[i].group, &over);
  }
  for (int i = n_entries; i-- > 0;) scr_group_close(table[i].group); /* the device lanes before the host lanes */
}
