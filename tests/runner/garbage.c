/* garbage.c: a rank that writes invalid values. The rank that reads them must neither crash nor hang, and must name
 * the culprit at once if it finds an invalid value. */
#include <pthread.h>
#include <sched.h>

#include "../../internal/runner/p2p.h"
#include "scenarios.h"

static int size;

static int32_t collective(const rank *r, uint32_t n, sagecomm_error *err) {
  int32_t *data = malloc(n * 4 + 4);
  for (uint32_t i = 0; i < n; i++) data[i] = r->rank;
  sagecomm_segment s = {data, n * 4};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_INT32, .n_in = 1, .n_out = 1, .in = &s, .out = &s};
  int32_t status = call(r, &op, err);
  for (uint32_t i = 0; status == SAGECOMM_OK && i < n; i++) CHECK(data[i] == size * (size - 1) / 2);
  free(data);
  return status;
}

static int32_t p2p(const rank *r, uint8_t kind, int peer, int32_t *value, sagecomm_error *err) {
  sagecomm_segment s = {value, 4};
  sagecomm_op op = {.kind = kind, .dtype = SAGECOMM_INT32, .root = peer};
  if (kind == SAGECOMM_SEND) {
    op.n_in = 1;
    op.in = &s;
  } else {
    op.n_out = 1;
    op.out = &s;
  }
  return call(r, &op, err);
}

/* ---- the header of a shared block, after it was checked ---- */

static void other_size(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  int to = (r->rank + 1) % size, from = (r->rank + size - 1) % size;
  if (r->rank == size - 1) {
    for (int i = 0; i < size; i++) r->group->peer[i].shared->size = UINT32_C(0x40000000);
  }
  meet();
  int32_t sent = r->rank, got = -1;
  CHECK(p2p(r, SAGECOMM_SEND, to, &sent, &err) == SAGECOMM_OK);
  CHECK(p2p(r, SAGECOMM_RECV, from, &got, &err) == SAGECOMM_OK && got == from);
  meet();
  scr_group_detach(r->group);
  meet();
  for (int i = 0; i < size; i++) CHECK(scr_shared_detached_by(r->group->shared, size, i));
}

void test_shared_block_size_is_not_read_again(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, other_size, NULL);
}

/* ---- offsets ---- */

/* Offsets of something of `bytes` bytes that cannot be meant. */
static uint64_t wrong_offset(int i, uint64_t bytes, const scr_peer *p) {
  const uint64_t list[] = {
      SCR_LINE / 2, /* not aligned */
      1,
      p->arena_bytes,
      p->arena_bytes - bytes + SCR_LINE, /* partly outside */
      UINT64_C(1) << 45,
      -(uint64_t)SCR_LINE,
  };
  return i < (int)(sizeof list / sizeof *list) ? list[i] : 0;
}

static void expect_garbage(const rank *r, int32_t status, const sagecomm_error *err) {
  CHECK(status == SAGECOMM_INTERNAL && err->status == SAGECOMM_INTERNAL && err->rank == size - 1);
  sagecomm_error again;
  CHECK(scr_group_error(r->handle, &again) == SAGECOMM_INTERNAL);
}

#define LARGE 3000 /* elements */

static void wrong_large(rank *r, void *arg) {
  sagecomm_error err;
  int ill = size - 1;
  if (r->rank == ill) scr_store_flag(&r->group->shared->large, *(uint64_t *)arg);
  meet();
  if (r->rank != ill) expect_garbage(r, collective(r, LARGE, &err), &err);
  meet();
  CHECK(collective(r, LARGE, &err) == SAGECOMM_INTERNAL);
}

/* Another rank writes into this one's shared block before this one has used its own large slots. */
static void own_large(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  if (r->rank == size - 1) scr_store_flag(&r->group->peer[0].shared->large, 7);
  meet();
  if (r->rank == 0) CHECK(collective(r, LARGE, &err) == SAGECOMM_OK);
  if (r->rank == 0) CHECK(scr_group_has_large(r->group));
}

static void wrong_fifo(rank *r, void *arg) {
  sagecomm_error err;
  int32_t got;
  if (r->rank == size - 1) {
    for (int i = 0; i < size; i++) {
      scr_store_flag(scr_shared_fifo(r->group->shared, (uint32_t)size, (uint32_t)i), *(uint64_t *)arg);
    }
  }
  meet();
  if (r->rank == 0) expect_garbage(r, p2p(r, SAGECOMM_RECV, size - 1, &got, &err), &err);
  meet();
}

void test_wrong_offsets(int n, waiting w, uint64_t seed) {
  size = n;
  const scr_peer like = {.arena_bytes = ARENA_BYTES};
  if (n == 1) {
    run_ranks(n, w.spin, w.yield_us, seed, own_large, NULL);
    return;
  }
  for (int i = 0;; i++) {
    uint64_t large = wrong_offset(i, SCR_LARGE_SLOTS * (uint64_t)SCR_LARGE_STRIDE, &like);
    uint64_t fifo = wrong_offset(i, sizeof(scr_fifo) + SCR_FIFO_BYTES, &like);
    if (large == 0) return;
    run_ranks(n, w.spin, w.yield_us, seed, wrong_large, &large);
    run_ranks(n, w.spin, w.yield_us, seed, wrong_fifo, &fifo);
  }
}

/* ---- a bad frame behind a good one: the operation that the good one was for is complete and not the culprit ---- */

static void find_culprit(rank *r) {
  sagecomm_error err;
  int32_t value;
  scr_run *culprit;
  int32_t peer;
  sagecomm_segment s = {&value, 4};
  sagecomm_op op = {
      .kind = SAGECOMM_RECV, .dtype = SAGECOMM_INT32, .root = size - 1, .flags = SAGECOMM_ASYNC, .n_out = 1, .out = &s};
  sagecomm_work work;
  CHECK(scr_issue(r->handle, &op, &work, NULL, &err) == SAGECOMM_PENDING);
  scr_spin_lock(&r->group->p2p.lock);
  meet(); /* the peer forges both frames */
  meet();
  CHECK(scr_p2p_progress(r->group, SCR_PASS_BYTES, &peer, &culprit) == SCR_INCIDENT_GARBAGE);
  CHECK(peer == size - 1 && culprit == NULL);
  scr_spin_unlock(&r->group->p2p.lock);
  CHECK(complete(work, &err) == SAGECOMM_OK);
}

static void forge(const rank *r, const scr_frame *f, int64_t written);
static void begin_p2p(rank *r);

static void good_then_bad(rank *r, void *arg) {
  (void)arg;
  begin_p2p(r);
  if (r->rank == 0) {
    find_culprit(r);
  } else {
    meet();
    if (r->rank == size - 1) {
      const scr_frame good = {.type = SCR_FRAME_EAGER,
                              .dtype = SAGECOMM_INT32,
                              .bytes = 4,
                              .total = 4,
                              .id = r->group->p2p.pair[0].next_id};
      forge(r, &good, 0);
      forge(r, &(scr_frame){.type = SCR_FRAME_DATA, .bytes = 4, .total = 4, .id = 99}, 0);
    }
    meet();
  }
  meet();
}

void test_culprit_of_a_bad_frame(int n, waiting w, uint64_t seed) {
  size = n;
  if (n > 1) run_ranks(n, w.spin, w.yield_us, seed, good_then_bad, NULL);
}

/* ---- frames ---- */

typedef struct bad {
  scr_frame frame;
  int times;       /* the last of so many alike is one too many */
  bool announced;  /* the send that rank 0 expects was announced before, with the id of the frame */
  int64_t written; /* beyond what the frame takes */
} bad;

/* Puts a frame with any header into the fifo to rank 0. */
static void forge(const rank *r, const scr_frame *f, int64_t written) {
  scr_p2p_pair *ch = &r->group->p2p.pair[0];
  memcpy(ch->out->data + (ch->written & (SCR_FIFO_BYTES - 1)), f, sizeof *f);
  ch->written += (SCR_FRAME_HEADER + f->bytes + 63) / 64 * 64;
  scr_store_flag(&ch->out->written, ch->written + (uint64_t)written);
}

/* Makes the fifos between the ill rank and rank 0. */
static void begin_p2p(rank *r) {
  sagecomm_error err;
  int32_t value = 5;
  if (r->rank == size - 1) {
    CHECK(p2p(r, SAGECOMM_SEND, 0, &value, &err) == SAGECOMM_OK);
    CHECK(p2p(r, SAGECOMM_RECV, 0, &value, &err) == SAGECOMM_OK);
  }
  if (r->rank == 0) {
    CHECK(p2p(r, SAGECOMM_RECV, size - 1, &value, &err) == SAGECOMM_OK);
    CHECK(p2p(r, SAGECOMM_SEND, size - 1, &value, &err) == SAGECOMM_OK);
  }
  /* A p2p operation is complete before whoever drove it, maybe the engine, is out of the fifos. */
  while (atomic_load(&r->group->p2p.unfinished) != 0) sched_yield();
  scr_spin_lock(&r->group->p2p.lock);
  scr_spin_unlock(&r->group->p2p.lock);
  meet();
}

static void bad_frame(rank *r, void *arg) {
  const bad *b = arg;
  sagecomm_error err;
  int32_t value;
  begin_p2p(r);
  if (r->rank == size - 1) {
    if (b->announced) {
      forge(r, &(scr_frame){.type = SCR_FRAME_ANNOUNCE, .dtype = SAGECOMM_INT32, .total = 4, .id = b->frame.id}, 0);
    }
    for (int i = 1; i <= b->times; i++) forge(r, &b->frame, i == b->times ? b->written : 0);
  }
  meet();
  if (r->rank == 0) expect_garbage(r, p2p(r, SAGECOMM_RECV, size - 1, &value, &err), &err);
  meet();
}

void test_bad_frames(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  const bad list[] = {
      {.frame = {.type = 0}, .times = 1},
      {.frame = {.type = 77}, .times = 1},
      {.frame = {.type = SCR_FRAME_EAGER, .tag = 1, .bytes = SCR_EAGER_BYTES + 1, .total = SCR_EAGER_BYTES + 1},
       .times = 1},
      {.frame = {.type = SCR_FRAME_EAGER, .tag = 1, .bytes = 8, .total = 16}, .times = 1},
      {.frame = {.type = SCR_FRAME_EAGER, .tag = 1, .bytes = SCR_EAGER_BYTES, .total = SCR_EAGER_BYTES},
       .times = SCR_EAGER_CREDIT / SCR_EAGER_BYTES + 1},
      {.frame = {.type = SCR_FRAME_ANNOUNCE, .tag = 1, .bytes = 8, .total = 8}, .times = 1},
      {.frame = {.type = SCR_FRAME_GRANT, .id = 99}, .times = 1},
      {.frame = {.type = SCR_FRAME_DATA, .bytes = 8, .id = 99}, .times = 1},
      {.frame = {.type = SCR_FRAME_DATA, .bytes = SCR_FIFO_BYTES / 8 + 64}, .times = 1},
      {.frame = {.type = SCR_FRAME_DATA, .bytes = SCR_FIFO_BYTES - 64}, .times = 1},
      {.frame = {.type = SCR_FRAME_DATA, .bytes = -(uint64_t)64}, .times = 1, .written = 64},
      {.frame = {.type = SCR_FRAME_DATA, .bytes = 8, .id = 7}, .times = 1, .announced = true}, /* one of 4 bytes */
      {.frame = {.type = SCR_FRAME_WRAP, .bytes = 64}, .times = 1},
      {.frame = {.type = SCR_FRAME_EAGER, .tag = 1, .bytes = 64, .total = 64}, .times = 1, .written = -64},
      {.frame = {.type = SCR_FRAME_EAGER, .tag = 1}, .times = 1, .written = -128},
      {.frame = {.type = SCR_FRAME_EAGER, .tag = 1}, .times = 1, .written = SCR_FIFO_BYTES},
  };
  for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
    bad b = list[i];
    run_ranks(n, w.spin, w.yield_us, seed, bad_frame, &b);
  }
}

/* The reader of a fifo cannot have taken more than was written. */
static void wrong_counts(rank *r, void *arg) {
  uint32_t n = *(uint32_t *)arg; /* bytes of each send */
  begin_p2p(r);
  if (r->rank == size - 1) {
    scr_fifo_reader *reader = scr_shared_fifo_reader(r->group->shared, 0);
    if (n == 0) scr_store_flag(&reader->read, UINT64_C(1) << 40);
    if (n > 0) scr_store_flag(&reader->eager_released, UINT64_C(1) << 40);
  }
  meet();
  if (r->rank == 0) {
    unsigned char *data = calloc(1, n + 1);
    sagecomm_segment s = {data, n};
    sagecomm_op op = {.kind = SAGECOMM_SEND, .dtype = SAGECOMM_UINT8, .root = size - 1, .tag = 1, .n_in = 1, .in = &s};
    sagecomm_error err;
    int32_t status = SAGECOMM_OK;
    for (int i = 0; i <= SCR_FIFO_BYTES / SCR_FRAME_HEADER && status == SAGECOMM_OK; i++) status = call(r, &op, &err);
    expect_garbage(r, status, &err);
    free(data);
  }
  meet();
}

void test_wrong_counts(int n, waiting w, uint64_t seed) {
  size = n;
  if (n == 1) return;
  uint32_t bytes[] = {0, SCR_EAGER_BYTES};
  for (int i = 0; i < 2; i++) run_ranks(n, w.spin, w.yield_us, seed, wrong_counts, &bytes[i]);
}

/* ---- while it is read. These are races, which is what they are about: not for ThreadSanitizer. ---- */

#ifdef __SANITIZE_THREAD__
static const bool races = false;
#else
static const bool races = true;
#endif

/* Alternates between two lengths in a word that the victim reads. */
typedef struct swapper {
  pthread_t thread;
  _Atomic uint64_t *word;
  _Atomic bool stop;
} swapper;

static void *swap(void *p) {
  swapper *s = p;
  for (uint64_t i = 0; !atomic_load(&s->stop); i++) {
    atomic_store_explicit(s->word, i % 2 ? SCR_EAGER_BYTES : 64, memory_order_relaxed);
  }
  return NULL;
}

/* A frame's length changes between the check and the copy. */
static void changing_length(rank *r, void *arg) {
  (void)arg;
  sagecomm_error err;
  int32_t value;
  begin_p2p(r);
  swapper s = {0};
  if (r->rank == size - 1) {
    scr_p2p_pair *ch = &r->group->p2p.pair[0];
    scr_frame *f = (scr_frame *)(void *)(ch->out->data + ch->written);
    s.word = (_Atomic uint64_t *)(void *)&f->bytes;
    forge(r, &(scr_frame){.type = SCR_FRAME_EAGER, .tag = 1, .bytes = 64, .total = 64}, SCR_EAGER_BYTES);
    CHECK(pthread_create(&s.thread, NULL, swap, &s) == 0);
  }
  meet();
  if (r->rank == 0) expect_garbage(r, p2p(r, SAGECOMM_RECV, size - 1, &value, &err), &err);
  meet();
  if (r->rank == size - 1) {
    atomic_store(&s.stop, true);
    pthread_join(s.thread, NULL);
  }
}

void test_changing_frame(int n, waiting w, uint64_t seed) {
  size = n;
  for (int i = 0; races && n == 2 && i < 40; i++) run_ranks(n, w.spin, w.yield_us, seed, changing_length, NULL);
}
