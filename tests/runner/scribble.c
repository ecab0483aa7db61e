/* scribble.c: a rank writes random words all over what it shares, while all ranks work. Whether the others
 * get a result or a failure, they get it in time and touch no memory but buffers and arenas (AddressSanitizer: each arena has
 * a gap behind it, each buffer its own). Races by intent: not for ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>

#include "../../internal/runner/p2p.h"
#include "plans.h"
#include "scenarios.h"

#ifdef __SANITIZE_THREAD__
static const bool races = false;
#else
static const bool races = true;
#endif

#define TIMEOUT_NS (100 * INT64_C(1000000)) /* of operations while somebody scribbles */
#define HANG_NS (20 * INT64_C(1000000000))  /* a slow machine under a sanitizer, not a wait without end */

static int size;
static _Atomic int64_t timeout_ns;

/* `count` pieces of `words` words each, `stride` bytes apart. */
typedef struct region {
  unsigned char *at;
  uint64_t stride, count, words;
} region;

#define MAX_REGIONS (26 + (2 + 3 * SCR_CHANNELS) * MAX_RANKS)

typedef struct scribbler {
  pthread_t thread;
  uint64_t random;
  bool early; /* it begins before the large slots and fifos exist, when their offsets are still to be read */
  region list[MAX_REGIONS];
  int regions;
  _Atomic bool stop;
} scribbler;

static void add(scribbler *s, void *at, uint64_t stride, uint64_t count, uint64_t words) {
  CHECK(s->regions < MAX_REGIONS);
  s->list[s->regions++] = (region){at, stride, count, words};
}

/* All that shared_block.h has, each kind of word as a region of its own, so that the rare ones are hit as often as the others. */
static void add_all(scribbler *s, const scr_group *g) {
  scr_shared_block *b = g->shared;
  uint32_t n = (uint32_t)g->size;
  add(s, b, 0, 1, 4);         /* magic, rank and size, bell, length: read once, before */
  add(s, &b->left, 0, 1, 1);  /* goodbye */
  add(s, &b->large, 0, 1, 1); /* offset */
  add(s, &b->consumed0, SCR_LINE, 2, 1);
  add(s, &b->collective, SCR_LINE, 2, 1); /* sleepers: waits_for, bell */
  add(s, &b->p2p, SCR_LINE, 2, 1);
  add(s, &b->failure, 0, 1, 1); /* counts on rank 0 */
  add(s, b->failure_record, 0, 1, SCR_FAILURE_BYTES / 8);
  add(s, b->records, sizeof(scr_record), SCR_RECORDS, sizeof(scr_record) / 8);
  add(s, b->small, SCR_SMALL_STRIDE, SCR_SMALL_SLOTS, 8);                   /* headers of slots */
  add(s, b->small + SCR_SMALL_DATA, SCR_SMALL_STRIDE, SCR_SMALL_SLOTS, 16); /* heads of blocks */
  add(s, scr_shared_fifo_reader(b, 0), sizeof(scr_fifo_reader), n, 2);      /* counts of readers */
  add(s, scr_shared_fifo(b, n, 0), 8, n, 1);                                /* offsets */
  add(s, scr_shared_channel(b, n, 0, 0), 8, n * SCR_CHANNELS, 1);
  add(s, scr_shared_channel_reader(b, n, 0), sizeof(scr_channel_reader), n, SCR_CHANNELS); /* counts of messages */
  add(s, scr_shared_detached(b, n, 0), 8, n, 1);
  add(s, b, 0, 1, scr_shared_bytes(g->lane, g->size) / 8);
  unsigned char *large = g->peer[g->rank].large;
  if (large == NULL) return; /* the fifos do not exist either */
  add(s, large, SCR_LARGE_STRIDE, SCR_LARGE_SLOTS, 8);
  add(s, large + SCR_LARGE_REDUCED, SCR_LARGE_STRIDE, SCR_LARGE_SLOTS, 1);
  add(s, large, 0, 1, SCR_LARGE_SLOTS * SCR_LARGE_STRIDE / 8);
  for (int32_t p = 0; p < g->size; p++) {
    scr_fifo *out = g->p2p.pair[p].out;
    if (out == NULL) continue;
    add(s, &out->written, 0, 1, 1);
    add(s, out->data, 64, SCR_FIFO_BYTES / 64, SCR_FRAME_WORDS);
  }
  for (int32_t i = 0; i < g->size * SCR_CHANNELS; i++) {
    scr_channel *out = g->coll.channels[i / SCR_CHANNELS].out[i % SCR_CHANNELS];
    if (out == NULL) continue;
    add(s, &out->sent, 0, 1, 1);
    add(s, out->places, scr_channel_stride(SCR_CHANNEL_BYTES), SCR_CHANNEL_PLACES, 4); /* headers */
    add(s, out->places + SCR_CHANNEL_DATA, scr_channel_stride(SCR_CHANNEL_BYTES), SCR_CHANNEL_PLACES, 64);
  }
}

/* Returns a random word, or one close to the present value. */
static uint64_t value_for(scribbler *s, uint64_t old) {
  uint64_t x = next_random(&s->random);
  switch (x >> 32 & 3) {
    case 0:
      return old ^ UINT64_C(1) << x % 64; /* a bit of it */
    case 1:
      return old + x % 16 - 8;
    case 2:
      return x % ARENA_BYTES & ~(uint64_t)(SCR_LINE - 1); /* a place */
    default:
      return next_random(&s->random) >> x % 64;
  }
}

static void *scribble(void *p) {
  scribbler *s = p;
  /* Few regions at a time, because otherwise a word that means failure soon ends the test. */
  int from = (int)(next_random(&s->random) % (uint64_t)s->regions), few = (int)(next_random(&s->random) % 3) + 1;
  while (!atomic_load(&s->stop)) {
    uint64_t x = next_random(&s->random);
    const region *r = &s->list[(from + (int)(x % (uint64_t)few)) % s->regions];
    uint64_t k = (x >> 8 & 0xffff) % r->count, w = (x >> 24 & 0xffff) % r->words;
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(r->at + k * r->stride) + w;
    atomic_store_explicit(word, value_for(s, atomic_load_explicit(word, memory_order_relaxed)), memory_order_relaxed);
    if (x >> 60 < 4) sched_yield();
  }
  return NULL;
}

static bool in_time(int64_t began) { return scr_now() - began < atomic_load(&timeout_ns) + HANG_NS; }

/* Elements of a buffer, or of each block, and how many blocks the buffers have. */
static void shape_of(int kind, uint32_t *in, uint32_t *out) {
  *in = kind == SAGECOMM_REDUCE_SCATTER || kind == SAGECOMM_ALL_TO_ALL || kind == SAGECOMM_SCATTER ? (uint32_t)size : 1;
  *out = kind == SAGECOMM_ALL_GATHER || kind == SAGECOMM_ALL_TO_ALL || kind == SAGECOMM_GATHER ? (uint32_t)size : 1;
}

static int32_t collective(const rank *r, int kind, uint32_t n, int root) {
  uint32_t ins, outs;
  shape_of(kind, &ins, &outs);
  sagecomm_segment in = {calloc(ins, n * 4), ins * n * 4}, out = {calloc(outs, n * 4), outs * n * 4};
  bool sends = kind != SAGECOMM_BARRIER, receives = sends;
  if (kind == SAGECOMM_BROADCAST || kind == SAGECOMM_SCATTER) sends = r->rank == root;
  if (kind == SAGECOMM_GATHER || kind == SAGECOMM_REDUCE) receives = r->rank == root;
  sagecomm_op op = {.kind = (uint8_t)kind,
                    .dtype = SAGECOMM_INT32,
                    .root = root,
                    .timeout_ns = atomic_load(&timeout_ns),
                    .n_in = sends,
                    .n_out = receives,
                    .in = &in,
                    .out = &out};
  sagecomm_error err;
  int64_t began = scr_now();
  int32_t status = call(r, &op, &err);
  CHECK(in_time(began));
  free(in.data);
  free(out.data);
  return status;
}

/* Sends to the next rank and receives from the one before, or from any. */
static int32_t p2p(const rank *r, uint32_t bytes, bool any) {
  sagecomm_segment in = {calloc(1, bytes), bytes}, out = {calloc(1, bytes), bytes};
  sagecomm_op send = {.kind = SAGECOMM_SEND,
                      .flags = SAGECOMM_ASYNC,
                      .root = (r->rank + 1) % size,
                      .timeout_ns = atomic_load(&timeout_ns),
                      .n_in = 1,
                      .in = &in};
  sagecomm_op recv = {.kind = SAGECOMM_RECV,
                      .root = any ? SAGECOMM_ANY_SOURCE : (r->rank + size - 1) % size,
                      .timeout_ns = atomic_load(&timeout_ns),
                      .n_out = 1,
                      .out = &out};
  sagecomm_work sent = 0, got = 0;
  sagecomm_error err;
  int64_t began = scr_now();
  int32_t begun = scr_issue(r->handle, &send, &sent, NULL, &err);
  int32_t received = scr_issue(r->handle, &recv, &got, NULL, &err);
  if (received == SAGECOMM_PENDING) {
    received = complete(got, &err);
  } else if (received == SAGECOMM_OK && any) {
    scr_release(got);
  }
  if (begun == SAGECOMM_PENDING) begun = complete(sent, &err);
  CHECK(in_time(began));
  free(in.data);
  free(out.data);
  return begun != SAGECOMM_OK ? begun : received;
}

static int32_t traffic(rank *r, int rounds) {
  static const uint32_t elements[] = {1, 200, 9000}, bytes[] = {4, 5000, 150000};
  int32_t status = SAGECOMM_OK;
  for (int i = 0; status == SAGECOMM_OK && i < rounds; i++) {
    for (int kind = 0; status == SAGECOMM_OK && kind < SAGECOMM_SEND; kind++) {
      status = collective(r, kind, elements[(i + kind) % 3], i % 2 ? size - 1 : 0);
    }
    if (status == SAGECOMM_OK) status = p2p(r, bytes[i % 3], i % 2);
  }
  return status;
}

static void random_words(rank *r, void *arg) {
  scribbler *s = arg;
  if (!s->early) CHECK(traffic(r, 3) == SAGECOMM_OK); /* all memory is there */
  meet();
  if (r->rank == size - 1) {
    atomic_store(&timeout_ns, TIMEOUT_NS);
    add_all(s, r->group);
  }
  meet();
  if (r->rank == size - 1) {
    atomic_store(&garbled, true);
    CHECK(pthread_create(&s->thread, NULL, scribble, s) == 0);
  }
  traffic(r, 40);
  meet();
  if (r->rank == size - 1) {
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
  }
}

/* How often for each number of ranks and way of waiting. */
static uint64_t repeats(void) {
  const char *n = getenv("RANKS_GARBAGE");
  return n ? strtoull(n, NULL, 10) : 12;
}

void test_random_garbage(int n, waiting w, uint64_t seed) {
  size = n;
  for (uint64_t i = 0; races && n > 1 && i < repeats(); i++) {
    scribbler s = {.random = seed * 1000003 + i + 1, .early = i % 2};
    atomic_store(&timeout_ns, HANG_NS);
    /* With slot plans, or with sendrecv plans for most kinds, each time by another algorithm. */
    uint64_t random = s.random;
    if (i % 4 < 2) choose_messages((int)(next_random(&random) % (uint64_t)choose_rounds()), 1024, &random);
    run_ranks(n, w.spin, w.yield_us, seed, random_words, &s);
    choose_slots();
  }
}
