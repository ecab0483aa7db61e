/* external_orders.c: external runs whose streams end them in any order, as runs on several devices do (docs/protocol.md,
 * section 12). The test plays the streams. externals.c has more of external runs. */
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../internal/runner/gates.h"
#include "on_devices.h"

static int size;

typedef struct external {
  scr_gate_words words;
  sagecomm_work work;
} external;

static external *new_externals(int n) {
  external *e = aligned_alloc(SCR_LINE, (size_t)n * sizeof *e);
  CHECK(e != NULL);
  memset(e, 0, (size_t)n * sizeof *e);
  return e;
}

static int64_t timeout_ns; /* of the next operation; 0: that of the group */

/* Issues an operation without data at a gate. */
static int32_t issue_at(const rank *r, scr_gate_words *words, bool is_external, int kind, sagecomm_work *work) {
  next_gate[r->rank] = (scr_gate){.words = words, .inputs = 1, .outputs = 1, .external = is_external};
  sagecomm_op op = {.kind = (uint8_t)kind, .dtype = SAGECOMM_INT32, .device_type = 1, .timeout_ns = timeout_ns};
  sagecomm_error err;
  return scr_issue(r->handle, &op, work, NULL, &err);
}

static void issue(const rank *r, external *e, int kind) {
  CHECK(issue_at(r, &e->words, true, kind, &e->work) == SAGECOMM_PENDING);
}

static void carry_out(external *e) {
  atomic_store_explicit(&e->words.input_ready, 1, memory_order_release);
  atomic_store_explicit(&e->words.output_taken, 1, memory_order_release);
}

static int32_t end(external *e) {
  sagecomm_error err;
  return complete(e->work, &err);
}

static bool is_pending(external *e) {
  sagecomm_error err;
  return scr_wait(e->work, 0, &err) == SAGECOMM_PENDING;
}

static void run(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg) {
  size = n;
  run_on_devices(n, w, seed, fn, arg);
}

static void await_the_end(const rank *r) {
  meet();
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield(); /* the engine may be looking */
  meet();
}

/* ---- streams end runs in any order, and further ones are issued between ---- */

#define RUNS 150
#define UNDER_WAY 6

static void of_streams(rank *r, void *arg) {
  (void)arg;
  uint64_t own = (r->random + (uint64_t)r->rank) | 1;
  external *all = new_externals(RUNS);
  int open[UNDER_WAY], n = 0;
  for (int issued = 0; issued < RUNS || n > 0;) {
    if (issued < RUNS && (n == 0 || (n < UNDER_WAY && next_random(&own) % 2))) {
      issue(r, &all[issued], SAGECOMM_ALL_REDUCE);
      open[n++] = issued++;
      continue;
    }
    int k = (int)(next_random(&own) % (uint64_t)n);
    for (int i = 0; i < n; i++) CHECK(is_pending(&all[open[i]]));
    carry_out(&all[open[k]]);
    CHECK(end(&all[open[k]]) == SAGECOMM_OK);
    open[k] = open[--n];
  }
  await_the_end(r);
  free(all);
}

void test_externals_of_streams(int n, waiting w, uint64_t seed) { run(n, w, seed, of_streams, NULL); }

/* ---- the calls of each run that is done are compared before it is complete, not those of the first one alone ---- */

static void behind_another(rank *r, void *arg) {
  (void)arg;
  external *e = new_externals(2);
  const scr_group *g = r->beside->group;
  issue(r, &e[0], SAGECOMM_ALL_REDUCE); /* its stream does not come */
  if (r->rank != 0) issue(r, &e[1], SAGECOMM_ALL_REDUCE);
  if (r->rank == 0) {
    while (scr_group_recorded(g, 1) < 2) sched_yield();
    carry_out(&e[1]);
    int32_t status = issue_at(r, &e[1].words, true, SAGECOMM_BARRIER, &e[1].work);
    if (status == SAGECOMM_PENDING) status = end(&e[1]);
    CHECK(status == SAGECOMM_MISMATCH);
  } else {
    CHECK(end(&e[1]) == SAGECOMM_MISMATCH);
  }
  CHECK(end(&e[0]) == SAGECOMM_MISMATCH);
  meet();
  free(e);
}

void test_external_behind_another(int n, waiting w, uint64_t seed) {
  if (n == 2) run(n, w, seed, behind_another, NULL);
}

/* ---- a stream that ends behind the look at calls does not complete its run ---- */

static void done_behind_the_look(rank *r, void *arg) {
  (void)arg;
  external *e = new_externals(1);
  scr_group *g = r->beside->group;
  scr_run *culprit = NULL;
  if (r->rank == 1) meet();                 /* rank 0 calls and drives first, and finds nothing */
  while (!scr_drive_lock(g)) sched_yield(); /* nobody else looks */
  issue(r, &e[0], r->rank == 0 ? SAGECOMM_ALL_REDUCE : SAGECOMM_BARRIER);
  CHECK(scr_drive(g, NULL, 0, &culprit) == SCR_BLOCKED);
  if (r->rank == 0) meet();
  meet();
  if (r->rank == 0) {
    CHECK(scr_external_met(g, &culprit) == 0);
    carry_out(&e[0]);
    CHECK(!scr_external_sweep(g, NULL, false) && scr_run_of(e[0].work)->listed);
    CHECK(scr_external_met(g, &culprit) == SCR_INCIDENT_MISMATCH && culprit == scr_run_of(e[0].work));
  }
  meet();
  scr_drive_unlock(g);
  CHECK(end(&e[0]) == SAGECOMM_MISMATCH);
  meet();
  free(e);
}

void test_external_done_behind_the_look(int n, waiting w, uint64_t seed) {
  if (n == 2) run(n, w, seed, done_behind_the_look, NULL);
}

/* ---- a group goes down, and its library is aborted, while a driver asks whether the stream is done ---- */

/* The driver reads output_taken on a page that it may not read: meanwhile the group goes down, and then the stream goes on. */
static struct {
  unsigned char *page;
  scr_gate_words *words;
  scr_group *group;
  volatile bool met;
} trap;

__attribute__((no_sanitize("thread"))) static void while_it_is_read(int signal) {
  (void)signal;
  mprotect(trap.page, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE);
  *(volatile uint64_t *)&trap.group->word |= SCR_DOWN;
  *(volatile uint64_t *)&trap.words->output_taken = 1;
  trap.met = true;
}

static void cut_while_asked(rank *r, void *arg) {
  (void)arg;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  unsigned char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  scr_gate_words *words = (scr_gate_words *)(void *)(memory + page - SCR_LINE); /* input_ready in front of the page */
  scr_group *g = r->beside->group;
  sagecomm_work work;
  sagecomm_error err;
  CHECK(issue_at(r, words, true, SAGECOMM_ALL_REDUCE, &work) == SAGECOMM_PENDING);
  while (!scr_drive_lock(g)) sched_yield(); /* nobody else looks */
  atomic_store_explicit(&words->input_ready, 1, memory_order_release);
  trap.page = memory + page;
  trap.words = words;
  trap.group = g;
  trap.met = false;
  struct sigaction catches = {.sa_handler = while_it_is_read}, before;
  CHECK(sigaction(SIGSEGV, &catches, &before) == 0);
  CHECK(mprotect(trap.page, page, PROT_NONE) == 0);
  scr_run *culprit = NULL;
  CHECK(scr_external_met(g, &culprit) == 0);
  bool all_done = scr_external_sweep(g, NULL, false);
  CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
  CHECK(trap.met);
  CHECK(!all_done && !(atomic_load(&scr_run_of(work)->state) & SCR_DONE));
  declare(r, SAGECOMM_ABORTED, 0, "the user aborts");
  scr_drive_unlock(g);
  CHECK(complete(work, &err) == SAGECOMM_ABORTED);
  while (scr_group_unfinished(g) != 0) sched_yield();
  munmap(memory, 2 * page);
}

void test_external_cut_while_asked(int n, waiting w, uint64_t seed) {
  if (n == 1) run(n, w, seed, cut_while_asked, NULL);
}

/* ---- who waits for an external run that is done does not wait for what is behind it ---- */

#define TRIALS 20
#define SLICE_NS (20 * 1000000000LL)

static void beside_a_gate(rank *r, void *arg) {
  (void)arg;
  external *e = new_externals(2 * TRIALS);
  sagecomm_error err;
  for (int i = 0; i < TRIALS; i++) {
    external *done = &e[2 * i], *late = &e[2 * i + 1];
    issue(r, done, SAGECOMM_ALL_REDUCE);
    CHECK(issue_at(r, &late->words, false, SAGECOMM_ALL_REDUCE, &late->work) == SAGECOMM_PENDING);
    carry_out(done);
    int64_t began = scr_now();
    CHECK(scr_wait(done->work, SLICE_NS, &err) == SAGECOMM_OK);
    CHECK(scr_now() - began < SLICE_NS / 2);
    scr_release(done->work);
    CHECK(is_pending(late));
    atomic_store_explicit(&late->words.input_ready, 1, memory_order_release);
    CHECK(end(late) == SAGECOMM_OK);
  }
  await_the_end(r);
  free(e);
}

void test_external_beside_a_gate(int n, waiting w, uint64_t seed) {
  if (n == 1) run(n, w, seed, beside_a_gate, NULL);
}

/* ---- the engine looks at all of them ---- */

static void note_status(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  atomic_store((_Atomic int32_t *)ctx, status);
}

/* The stream of the first run does not come, so that has no deadline. */
static void late_behind_another(rank *r, void *arg) {
  (void)arg;
  external *e = new_externals(2);
  sagecomm_error err;
  issue(r, &e[0], SAGECOMM_ALL_REDUCE);
  timeout_ns = 100 * 1000000;
  issue(r, &e[1], SAGECOMM_ALL_REDUCE);
  timeout_ns = 0;
  _Atomic int32_t status = SAGECOMM_PENDING;
  CHECK(scr_on_done(e[1].work, note_status, (void *)&status, &err) == SAGECOMM_PENDING);
  atomic_store_explicit(&e[1].words.input_ready, 1, memory_order_release);
  for (int64_t begun = scr_now(); atomic_load(&status) == SAGECOMM_PENDING; sched_yield()) {
    CHECK(scr_now() - begun < 20 * 1000000000LL);
  }
  CHECK(atomic_load(&status) == SAGECOMM_TIMEOUT);
  scr_release(e[1].work);
  CHECK(end(&e[0]) == SAGECOMM_TIMEOUT);
  while (scr_group_unfinished(r->beside->group) != 0) sched_yield();
  free(e);
}

void test_external_late_behind_another(int n, waiting w, uint64_t seed) {
  if (n == 1) run(n, w, seed, late_behind_another, NULL);
}

/* ---- marks ---- */

static int compare(scr_group *g) {
  g->peer[1].agreed = 0;
  return scr_external_compare(g, g->coll.external_head);
}

/* Where a peer keeps no record of a call any more, marks tell of a difference before it. */
static void compare_marks(scr_group *g, uint64_t last) {
  scr_record *newest = &g->peer[1].shared->records[last % SCR_RECORDS];
  scr_mark *mark = &g->peer[1].shared->marks[last / SCR_MARK_EVERY % SCR_MARKS];
  CHECK(atomic_load(&mark->seq) == last / SCR_MARK_EVERY * SCR_MARK_EVERY);
  CHECK(compare(g) == 0);
  atomic_fetch_add(&mark->hash, 1);
  CHECK(compare(g) == 0); /* the record is newer */
  atomic_store(&newest->seq, last + SCR_RECORDS);
  CHECK(compare(g) == SCR_INCIDENT_MISMATCH && g->coll.external_head->peer == 1);
  uint64_t seq = atomic_exchange(&mark->seq, 0); /* its owner writes it */
  CHECK(compare(g) == 0);
  atomic_store(&mark->seq, seq);
  atomic_fetch_sub(&mark->hash, 1);
  CHECK(compare(g) == 0);
  atomic_store(&newest->seq, last);
}

/* A driver compares calls when it starts one whose number has a mark, though no stream has ended. */
static void marks(rank *r, void *arg) {
  (void)arg;
  const int last = 2 * SCR_MARK_EVERY;
  external *e = new_externals(last);
  scr_group *g = r->beside->group;
  for (int i = 0; i < last - 1; i++) issue(r, &e[i], SAGECOMM_ALL_REDUCE);
  scr_run *culprit = NULL;
  while (!scr_drive_lock(g)) sched_yield();
  CHECK(scr_drive(g, NULL, 0, &culprit) == SCR_BLOCKED); /* all of them are recorded */
  meet();
  if (r->rank == 0) compare_marks(g, (uint64_t)last - 1);
  meet();
  if (r->rank == 1) scr_drive_unlock(g);
  if (r->rank == 1) issue(r, &e[last - 1], SAGECOMM_BARRIER);
  if (r->rank == 0) {
    while (scr_group_recorded(g, 1) < (uint64_t)last) sched_yield();
    issue(r, &e[last - 1], SAGECOMM_ALL_REDUCE);
    CHECK(scr_drive(g, NULL, 0, &culprit) == SCR_INCIDENT_MISMATCH && culprit->coll.seq == (uint64_t)last);
    scr_drive_unlock(g);
  }
  for (int i = 0; i < last; i++) CHECK(end(&e[i]) == SAGECOMM_MISMATCH);
  meet();
  free(e);
}

void test_marks(int n, waiting w, uint64_t seed) {
  if (n == 2) run(n, w, seed, marks, NULL);
}
