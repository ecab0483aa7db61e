/* p2p_gates.c: sends and recvs on the device lane (docs/protocol.md, section 11). The test plays the stream of the caller: it
 * fills the pinned memory of a send and stores input_ready. */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "on_devices.h"

static int size;

#define MOST 128 /* operations of a rank that are under way */

/* One operation. */
typedef struct trip {
  scr_gate_words words;
  bool sends;
  int peer, tag;
  uint64_t bytes;
  unsigned char *pinned;
  sagecomm_segment segment;
  sagecomm_work work;
} trip;

static unsigned char content(int from, int to, int tag, uint64_t i) {
  return (unsigned char)(from * 89 + to * 53 + tag * 17 + (int)(i * 7 + i / 251));
}

/* `root`: the peer, or SAGECOMM_ANY_SOURCE. */
static trip *post_to(const rank *r, bool sends, int peer, int root, int tag, uint64_t bytes, int64_t timeout_ns) {
  trip *t = aligned_alloc(SCR_LINE, (sizeof *t + SCR_LINE - 1) & ~(size_t)(SCR_LINE - 1));
  memset(t, 0, sizeof *t);
  t->sends = sends;
  t->peer = peer;
  t->tag = tag;
  t->bytes = bytes;
  t->pinned = calloc(1, bytes + 1);
  t->segment = (sagecomm_segment){t->pinned, bytes};
  next_gate[r->rank] = (scr_gate){.words = &t->words, .inputs = 1, .outputs = 1};
  sagecomm_op op = {.kind = sends ? SAGECOMM_SEND : SAGECOMM_RECV,
                    .dtype = SAGECOMM_UINT8,
                    .flags = SAGECOMM_ASYNC,
                    .root = root,
                    .tag = tag,
                    .device_type = 1,
                    .timeout_ns = timeout_ns};
  if (sends) {
    op.n_in = 1;
    op.in = &t->segment;
  } else {
    op.n_out = 1;
    op.out = &t->segment;
  }
  sagecomm_error err;
  CHECK(scr_issue(r->handle, &op, &t->work, NULL, &err) == SAGECOMM_PENDING);
  return t;
}

static trip *post(const rank *r, bool sends, int peer, int tag, uint64_t bytes, int64_t timeout_ns) {
  return post_to(r, sends, peer, peer, tag, bytes, timeout_ns);
}

/* The stream reaches the operation. */
static void reach(const rank *r, trip *t) {
  for (uint64_t i = 0; t->sends && i < t->bytes; i++) t->pinned[i] = content(r->rank, t->peer, t->tag, i);
  atomic_store_explicit(&t->words.input_ready, 1, memory_order_release);
}

static bool is_open(trip *t) {
  return look(&t->words.output_done) == SCR_GATE_OPEN && look(&t->words.input_taken) == SCR_GATE_OPEN;
}

static void drop(trip *t) {
  free(t->pinned);
  free(t);
}

static void expect_content(const rank *r, const trip *t) {
  for (uint64_t i = 0; !t->sends && i < t->bytes; i++) CHECK(t->pinned[i] == content(t->peer, r->rank, t->tag, i));
}

/* Waits for the end, and checks what was received. */
static void end(const rank *r, trip *t) {
  sagecomm_error err;
  CHECK(complete(t->work, &err) == SAGECOMM_OK);
  CHECK(atomic_load(&t->words.input_ready) == 1 && is_open(t));
  expect_content(r, t);
  drop(t);
}

static void shuffle(trip **t, int n, uint64_t *random) {
  for (int i = n; i > 1; i--) {
    int k = (int)(next_random(random) % (uint64_t)i);
    trip *one = t[i - 1];
    t[i - 1] = t[k];
    t[k] = one;
  }
}

typedef struct device {
  const rank *r;
  trip **t;
  int n;
  uint64_t random;
} device;

static void *streams(void *p) {
  device *d = p;
  for (int i = 0; i < d->n; i++) {
    for (uint64_t k = next_random(&d->random) % 50; k > 0; k--) sched_yield();
    reach(d->r, d->t[i]);
  }
  return NULL;
}

/* All ranks exchange payloads of all lengths with all, themselves included; streams reach the operations in any order, and
 * some before, some after the frames of the peers. */
static void exchange(rank *r, void *arg) {
  (void)arg;
  static const uint64_t lengths[] = {0, 1, 4000, SCR_EAGER_BYTES + 1, 3 * SCR_FIFO_BYTES / 2};
  uint64_t random = (r->random + (uint64_t)r->rank) | 1;
  trip *t[MOST], *order[MOST];
  int n = 0;
  for (int peer = 0; peer < size; peer++) {
    for (int k = 0; k < 5; k++) {
      bool first = next_random(&random) % 2;
      t[n++] = post(r, first, peer, k, lengths[k], 0);
      t[n++] = post(r, !first, peer, k, lengths[k], 0);
      sagecomm_error err;
      CHECK(scr_wait(t[n - 1]->work, 0, &err) == SAGECOMM_PENDING); /* its stream has not reached it */
    }
  }
  memcpy(order, t, sizeof t);
  shuffle(order, n, &random);
  device d = {r, order, n, random};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, streams, &d) == 0);
  shuffle(t, n, &random);
  int kept = 0;
  for (int i = 0; i < n; i++) {
    if (i % 2) {
      end(r, t[i]);
    } else {
      t[kept++] = t[i];
    }
  }
  pthread_join(thread, NULL);
  for (int i = 0; i < kept; i++) end(r, t[i]);
  meet();
}

static void run(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg) {
  size = n;
  run_on_devices(n, w, seed, fn, arg);
}

void test_p2p_gates(int n, waiting w, uint64_t seed) {
  if (n <= 4) run(n, w, seed, exchange, NULL);
}

/* ---- operations are posted while streams reach others, in any order ---- */

#define MESSAGES 80
#define UNDER_WAY 12

/* The stream comes to one of the operations, if it has not. Takes it out if it is complete then. */
static void go_on(const rank *r, trip *open[], int *n, uint64_t *random) {
  int k = (int)(next_random(random) % (uint64_t)*n);
  trip *t = open[k];
  sagecomm_error err;
  if (atomic_load(&t->words.input_ready) == 0) {
    CHECK(scr_wait(t->work, 0, &err) == SAGECOMM_PENDING);
    reach(r, t);
  }
  int32_t status = scr_wait(t->work, 1000000, &err);
  if (status == SAGECOMM_PENDING) return;
  CHECK(status == SAGECOMM_OK && is_open(t));
  CHECK(t->sends || scr_work_source(t->work) == t->peer);
  scr_release(t->work);
  expect_content(r, t);
  drop(t);
  open[k] = open[--*n];
}

/* All ranks draw the same messages. *arg: before which of them rank 0 aborts the group; MESSAGES: it does not. */
static void programs(rank *r, void *arg) {
  static const uint64_t lengths[] = {0, 1, 4000, SCR_EAGER_BYTES + 1, 100000};
  int aborts_at = *(int *)arg;
  uint64_t own = (r->random + (uint64_t)r->rank * 977) | 1;
  trip *open[UNDER_WAY + 2];
  int n = 0;
  for (int i = 0; i < MESSAGES && i < aborts_at; i++) {
    uint64_t x = next_random(&r->random) >> 8, bytes = lengths[(x >> 16) % 5];
    int from = (int)(x % (uint64_t)size), to = (int)((x >> 8) % (uint64_t)size);
    bool receives_first = (x >> 24) % 2; /* of messages to itself */
    for (int k = 0; k < 2; k++) {
      bool sends = (k == 1) == receives_first;
      if (r->rank != (sends ? from : to)) continue;
      int peer = sends ? to : from;
      open[n++] = post_to(r, sends, peer, sends || (x >> 25) % 3 ? peer : SAGECOMM_ANY_SOURCE, i, bytes, 0);
    }
    while (n >= UNDER_WAY || (n > 0 && next_random(&own) % 3 == 0)) go_on(r, open, &n, &own);
  }
  bool aborts = aborts_at < MESSAGES;
  if (aborts) meet();
  if (aborts && r->rank == 0) declare(r, SAGECOMM_ABORTED, 0, "the user aborts");
  for (; n > 0 && aborts; n--) { /* memory is given back at once */
    trip *t = open[n - 1];
    sagecomm_error err;
    int32_t status = complete(t->work, &err);
    CHECK((status == SAGECOMM_OK && atomic_load(&t->words.input_ready) == 1) || status == SAGECOMM_ABORTED);
    CHECK(is_open(t));
    if (status == SAGECOMM_OK) expect_content(r, t);
    drop(t);
  }
  while (n > 0) go_on(r, open, &n, &own);
  meet();
}

void test_p2p_programs_at_gates(int n, waiting w, uint64_t seed) { run(n, w, seed, programs, &(int){MESSAGES}); }

void test_p2p_abort_at_gates(int n, waiting w, uint64_t seed) {
  for (int i = 0; i < 3; i++) run(n, w, seed + (uint64_t)i, programs, &(int){(int)(next_random(&seed) % MESSAGES)});
}

/* An operation whose stream is late holds up none that was called later. */
static void first_is_late(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  trip *t[4]; /* two recvs and two sends of rank 0 */
  for (int i = 0; i < 4; i++) t[i] = post(r, (r->rank == 0) == (i >= 2), 1 - r->rank, i, 5000, 0);
  for (int i = 0; i < 4 && r->rank == 1; i++) reach(r, t[i]);
  for (int i = 3; i >= 0; i--) {
    int k = i ^ 2; /* 1, 0, 3, 2: the first recv comes behind the second, and the first send as well */
    if (r->rank == 0 && k == 0) CHECK(scr_wait(t[2]->work, 0, &err) == SAGECOMM_PENDING);
    if (r->rank == 0) reach(r, t[k]);
    end(r, t[k]);
  }
  meet();
}

void test_p2p_first_is_late(int n, waiting w, uint64_t seed) {
  if (n == 2) run(n, w, seed, first_is_late, NULL);
}

/* A recv whose payload is there needs its sender no more, which may leave before the stream reaches the recv. */
static void sender_leaves(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  if (r->rank == 1) {
    trip *t = post(r, true, 0, 0, 100000, 0);
    reach(r, t);
    end(r, t);
    scr_group_goodbye(r->group);
    meet();
  } else {
    trip *t = r->rank == 0 ? post(r, false, 1, 0, 100000, 50 * 1000000) : NULL;
    meet();
    int64_t began = scr_now();
    while (t && scr_now() - began < 200 * 1000000) CHECK(scr_wait(t->work, 10 * 1000000, &err) == SAGECOMM_PENDING);
    if (t) reach(r, t);
    if (t) end(r, t);
  }
  meet();
}

void test_sender_leaves_a_gate(int n, waiting w, uint64_t seed) {
  if (n > 1 && n <= 4) run(n, w, seed, sender_leaves, NULL);
}

/* A timeout begins when the stream has reached the operation. Then all gates open. */
static void timeout_at_gate(rank *r, void *arg) {
  bool sends = *(bool *)arg;
  sagecomm_error err;
  trip *t = post(r, sends, (r->rank + 1) % size, 0, 1000, r->rank == 0 ? 50 * 1000000 : 0);
  meet();
  int64_t began = scr_now();
  while (r->rank == 0 && scr_now() - began < 150 * 1000000)
    CHECK(scr_wait(t->work, 10 * 1000000, &err) == SAGECOMM_PENDING);
  if (r->rank == 0) reach(r, t);
  CHECK(complete(t->work, &err) == SAGECOMM_TIMEOUT);
  CHECK(is_open(t));
  meet();
  drop(t);
}

void test_timeout_at_a_gate(int n, waiting w, uint64_t seed) {
  for (int sends = 0; sends < 2 && n == 2; sends++) run(n, w, seed, timeout_at_gate, &(bool){sends});
}

/* ---- who looks at gates ---- */

typedef struct arrival {
  const rank *r;
  trip *t;
} arrival;

static void arrive(void *of) {
  arrival *a = of;
  reach(a->r, a->t);
}

/* Who waits sleeps shortly while any operation of the lane waits for its stream. */
static void looks_often(rank *r, void *arg) {
  (void)arg;
  trip *t = post(r, r->rank == 0, 1 - r->rank, 0, 10, 0);
  wait_in_short_sleeps(r, t->work, arrive, &(arrival){r, t});
  end(r, t);
  meet();
}

void test_looks_at_gates(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 2) run_seldom(n, w, seed, looks_often, NULL);
}

#define TRIALS 10

/* Nobody waits, so the engine looks, out of a sound sleep as well. */
static void left_to_the_engine(rank *r, void *arg) {
  (void)arg;
  for (unsigned i = 0; i < TRIALS; i++) {
    ending e = {0};
    sagecomm_error err;
    trip *t = post(r, r->rank == 1, 1 - r->rank, 0, 10, 0);
    if (r->rank == 1) reach(r, t);
    if (r->rank == 1) end(r, t); /* the payload is there */
    meet();
    if (r->rank == 0) {
      CHECK(scr_on_done(t->work, note_end, &e, &err) == SAGECOMM_PENDING);
      usleep(500 * i); /* the engine, which comes to look and is about to sleep, is met at various moments */
      reach(r, t);
      await_end(&e);
      scr_release(t->work);
      while (!is_open(t)) sched_yield();
      drop(t);
    }
    meet();
  }
}

void test_gates_left_to_the_engine(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 2) run_seldom(n, w, seed, left_to_the_engine, NULL);
}
