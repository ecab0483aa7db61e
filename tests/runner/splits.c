/* splits.c: external all_to_alls, of whose blocks only the two ranks of a pair know the lengths (docs/protocol.md, section 12). The test
 * plays the streams. */
#include <pthread.h>
#include <sched.h>

#include "../../internal/runner/gates.h"
#include "on_devices.h"

static int size;

enum { CALLS = 3 * SCR_SPLITS, ODD = 5 }; /* call number ODD is the one that does not fit */

typedef struct call_at_gate {
  scr_gate_words words;
  sagecomm_work work;
} call_at_gate;

/* Returns how many elements a rank sends to another one in call i, from 0. */
static uint64_t elements(int i, int from, int to) { return (uint64_t)(i * 7 + from * 3 + to) % 5; }

/* Issues an all_to_all to which the stream has come, so that its timeout counts. `more` elements are expected from rank 0 beyond what it sends, by the last rank. */
static int32_t issue(const rank *r, call_at_gate *c, int i, uint64_t more) {
  static int32_t data[64 * MAX_RANKS]; /* nobody reads or writes it */
  uint64_t in[MAX_RANKS], out[MAX_RANKS], ins = 0, outs = 0;
  for (int p = 0; p < size; p++) {
    in[p] = 4 * elements(i, r->rank, p);
    out[p] = 4 * elements(i, p, r->rank);
    if (p == 0 && r->rank == size - 1) out[p] += 4 * more;
    ins += in[p];
    outs += out[p];
  }
  sagecomm_segment from = {data, ins}, to = {data, outs};
  sagecomm_op op = {.kind = SAGECOMM_ALL_TO_ALL, .dtype = SAGECOMM_INT32, .device_type = 1, .n_in = 1, .n_out = 1};
  op.in = &from;
  op.out = &to;
  op.in_blocks = in;
  op.out_blocks = out;
  atomic_store_explicit(&c->words.input_ready, 1, memory_order_release);
  next_gate[r->rank] = (scr_gate){.words = &c->words, .inputs = 1, .outputs = 1, .external = true};
  sagecomm_error err;
  return scr_issue(r->handle, &op, &c->work, NULL, &err);
}

static call_at_gate *new_calls(void) {
  call_at_gate *c = aligned_alloc(SCR_LINE, CALLS * sizeof *c);
  CHECK(c != NULL);
  memset(c, 0, CALLS * sizeof *c);
  return c;
}

static int32_t end(call_at_gate *c) {
  sagecomm_error err;
  return complete(c->work, &err);
}

static void drive(scr_group *g) {
  scr_run *blocked = NULL;
  while (!scr_drive_lock(g)) sched_yield();
  CHECK(scr_drive(g, NULL, 0, &blocked) == SCR_BLOCKED);
}

/* Blocks that fit go on, however many calls there are, and are compared in the end. Then one does not fit, and no stream ends. */
static void that_fit(rank *r, void *arg) {
  (void)arg;
  scr_group *g = r->beside->group;
  call_at_gate *c = new_calls();
  for (int i = 0; i < CALLS - 1; i++) {
    CHECK(issue(r, &c[i], i, 0) == SAGECOMM_PENDING);
    atomic_store_explicit(&c[i].words.output_taken, 1, memory_order_release);
    CHECK(end(&c[i]) == SAGECOMM_OK);
    if (i % (SCR_SPLITS / 2) == 0) meet(); /* no rank is as many calls ahead as are kept */
  }
  meet();
  scr_unfit unfit;
  for (int32_t p = 0; p < size; p++) CHECK(p == r->rank || !scr_group_unfit(g, p, &unfit));
  meet();
  int32_t status = issue(r, &c[CALLS - 1], CALLS - 1, 2);
  CHECK(status == SAGECOMM_PENDING || (status == SAGECOMM_MISMATCH && size > 1));
  if (size == 1) {
    atomic_store_explicit(&c[CALLS - 1].words.output_taken, 1, memory_order_release);
    CHECK(end(&c[CALLS - 1]) == SAGECOMM_OK);
  } else if (status == SAGECOMM_PENDING) {
    CHECK(end(&c[CALLS - 1]) == SAGECOMM_MISMATCH);
  }
  meet();
  if (size > 1 && (r->rank == 0 || r->rank == size - 1)) {
    uint64_t bytes = 4 * elements(CALLS - 1, 0, size - 1);
    CHECK(scr_group_unfit(g, r->rank == 0 ? size - 1 : 0, &unfit) && unfit.sequence == CALLS);
    CHECK((r->rank == 0 ? unfit.sent : unfit.peer_sent) == bytes);
    CHECK((r->rank == 0 ? unfit.peer_expected : unfit.expected) == bytes + 8);
  }
  meet();
  free(c);
}

void test_splits(int n, waiting w, uint64_t seed) {
  size = n;
  if (n != 1) run_on_devices(n, w, seed, that_fit, NULL);
}

/* A rank that finds the peer more calls ahead than are kept compares none of these, and finds the difference when it comes near, without the
 * lengths. Before that both have compared what was there. */
static void far_ahead(rank *r, void *arg) {
  (void)arg;
  scr_group *g = r->beside->group;
  call_at_gate *c = new_calls();
  const int ahead = ODD + SCR_SPLITS + 10, near = ODD + 12;
  scr_unfit unfit;
  if (r->rank == 0) {
    for (int i = 0; i < ahead; i++) CHECK(issue(r, &c[i], i, 0) == SAGECOMM_PENDING);
    drive(g);
  }
  meet();
  int issued = 0;
  if (r->rank == 1) {
    for (; issued < near; issued++) {
      uint64_t more = issued == ODD - 1 ? 1 : 0;
      int32_t status = issue(r, &c[issued], issued, more);
      CHECK(status == SAGECOMM_PENDING || (status == SAGECOMM_MISMATCH && issued > ODD + 9));
      if (status < 0) break;
      if (issued < ODD + 9) { /* all of these were overwritten by the peer */
        drive(g);
        CHECK(!scr_group_unfit(g, 0, &unfit));
        scr_drive_unlock(g);
      }
    }
    for (int i = 0; i < issued; i++) CHECK(end(&c[i]) == SAGECOMM_MISMATCH);
    CHECK(scr_group_unfit(g, 0, &unfit) && unfit.sequence > ODD + 10);
    CHECK(unfit.sent == unfit.peer_expected && unfit.expected == unfit.peer_sent);
  }
  meet();
  if (r->rank == 0) {
    scr_drive_unlock(g);
    for (int i = 0; i < ahead; i++) CHECK(end(&c[i]) == SAGECOMM_MISMATCH);
  }
  meet();
  free(c);
}

void test_splits_far_ahead(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 2) run_on_devices(n, w, seed, far_ahead, NULL);
}

/* What the owner is writing, or has written over, is not compared; a driver that begins an all_to_all compares it at once. */
static void compared_at_once(rank *r, void *arg) {
  (void)arg;
  scr_group *g = r->beside->group;
  call_at_gate *c = new_calls();
  for (int i = 0; i < ODD - 1; i++) CHECK(issue(r, &c[i], i, 0) == SAGECOMM_PENDING);
  drive(g);
  meet();
  if (r->rank == 0) {
    scr_split *s = scr_shared_split(g->peer[1].shared, 2, 0, ODD - 1);
    scr_peer *p = &g->peer[1];
    CHECK(scr_external_compare(g, g->coll.external_head) == 0 && p->fits == ODD - 1);
    atomic_fetch_add(&s->hash, 1);
    CHECK(scr_external_compare(g, g->coll.external_head) == 0); /* compared before */
    p->fits = 0;
    CHECK(scr_external_compare(g, g->coll.external_head) == SCR_INCIDENT_UNFIT && g->coll.external_head->peer == 1);
    uint64_t seq = atomic_exchange(&s->seq, 0);
    CHECK(scr_external_compare(g, g->coll.external_head) == 0);
    p->fits = 0;
    atomic_store(&s->seq, seq + SCR_SPLITS);
    CHECK(scr_external_compare(g, g->coll.external_head) == 0);
    atomic_store(&s->seq, seq);
    atomic_fetch_sub(&s->hash, 1);
  }
  meet();
  if (r->rank == 1) {
    scr_drive_unlock(g);
    CHECK(issue(r, &c[ODD - 1], ODD - 1, 1) == SAGECOMM_PENDING);
    drive(g);
  }
  meet();
  if (r->rank == 0) {
    scr_run *culprit = NULL;
    CHECK(issue(r, &c[ODD - 1], ODD - 1, 0) == SAGECOMM_PENDING);
    CHECK(scr_drive(g, NULL, 0, &culprit) == SCR_INCIDENT_UNFIT && culprit->coll.seq == ODD && culprit->peer == 1);
  }
  meet();
  scr_drive_unlock(g);
  for (int i = 0; i < ODD; i++) CHECK(end(&c[i]) == SAGECOMM_MISMATCH);
  meet();
  free(c);
}

void test_splits_compared(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 2) run_on_devices(n, w, seed, compared_at_once, NULL);
}

/* ---- entries are copied and compared while they are written ---- */

enum { COPIED = 10 * SCR_SPLITS };

typedef struct copying {
  const scr_group *group;
  _Atomic bool over;
} copying;

static uint64_t number_of(const scr_group *g) { return atomic_load(&g->peer[g->rank].shared->splits); }

/* Copies what the rank tells the other one. Each entry that is there has the lengths of its call, and so has each entry of which the count
 * told, but for those that the rank may have begun to write over meanwhile. */
static void copy_once(const scr_group *g, int with) {
  void *shared[SCR_LANES] = {g->peer[g->rank].lane[0], g->peer[g->rank].lane[1]};
  uint64_t words[SCR_STATE_WORDS];
  scr_shared_copy_state(shared, g->size, with, words);
  uint64_t over = number_of(g) + 1; /* may be under way */
  const uint64_t *splits = &words[SCR_STATE_WORDS - 1 - 4 * SCR_SPLITS], *entry = splits + 1;
  for (uint64_t i = 0; i < SCR_SPLITS; i++, entry += 4) {
    if (entry[0] == 0) continue;
    CHECK(entry[0] % SCR_SPLITS == i);
    CHECK(entry[1] == 4 * elements((int)entry[0] - 1, g->rank, with));
    CHECK(entry[2] == 4 * elements((int)entry[0] - 1, with, g->rank));
  }
  for (uint64_t n = over > SCR_SPLITS ? over - SCR_SPLITS : 0; n++ < *splits;)
    CHECK(splits[1 + 4 * (n % SCR_SPLITS)] == n);
}

static void *look_on(void *arg) {
  copying *c = arg;
  const scr_group *g = c->group;
  scr_unfit unfit;
  while (!atomic_load(&c->over)) {
    copy_once(g, 1 - g->rank);
    CHECK(!scr_group_unfit(g, 1 - g->rank, &unfit));
  }
  copy_once(g, 1 - g->rank);
  CHECK(number_of(g) == COPIED);
  return NULL;
}

static void copied(rank *r, void *arg) {
  (void)arg;
  call_at_gate *c = aligned_alloc(SCR_LINE, sizeof *c);
  copying look = {.group = r->beside->group};
  pthread_t other;
  CHECK(c != NULL && pthread_create(&other, NULL, look_on, &look) == 0);
  for (int i = 0; i < COPIED; i++) {
    memset(c, 0, sizeof *c);
    CHECK(issue(r, c, i, 0) == SAGECOMM_PENDING);
    atomic_store_explicit(&c->words.input_ready, 1, memory_order_release);
    atomic_store_explicit(&c->words.output_taken, 1, memory_order_release);
    CHECK(end(c) == SAGECOMM_OK);
    if (i % SCR_SPLITS == 0) sched_yield();
  }
  atomic_store(&look.over, true);
  pthread_join(other, NULL);
  meet();
  free(c);
}

void test_splits_copied(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 2) run_on_devices(n, w, seed, copied, NULL);
}
