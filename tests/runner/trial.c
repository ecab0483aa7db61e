/* trial.c: see trial.h. */
#include "trial.h"

#include "plans.h"

/* ---- contents ---- */

bool flat(int kind) { return kind == SAGECOMM_ALL_REDUCE || kind == SAGECOMM_REDUCE || kind == SAGECOMM_BROADCAST; }

static bool gathers(int kind) { return kind == SAGECOMM_ALL_GATHER || kind == SAGECOMM_GATHER; }

/* Returns element i that a rank sends to another one, or to all. Floats are chosen so that sums are exact. */
static uint32_t content(const trial *t, int from, int to, uint32_t i) {
  if (t->dtype != SAGECOMM_FLOAT32) return (uint32_t)from * 1000003 + (uint32_t)to * 1009 + i * 31 + t->salt * 7919;
  return (uint32_t)(from + 1) * 64 + (uint32_t)to * 16 + (i + t->salt) % 97 * 4;
}

static void encode(const trial *t, double x, unsigned char *to) {
  float f = (float)x;
  uint32_t n = (uint32_t)(int64_t)x;
  if (t->dtype == SAGECOMM_FLOAT32) {
    memcpy(to, &f, 4);
  } else if (t->elem == 4) {
    memcpy(to, &n, 4);
  } else {
    *to = (unsigned char)n;
  }
}

/* Rounds a value to the type. */
static double held(const trial *t, uint32_t x) {
  if (t->dtype == SAGECOMM_FLOAT32) return x;
  return t->elem == 4 ? (int32_t)x : (uint8_t)x;
}

/* Returns element i of the reduction of all ranks' contents. */
static double reduced(const trial *t, int to, uint32_t i) {
  double all = held(t, content(t, 0, to, i));
  for (int q = 1; q < t->size; q++) {
    double x = held(t, content(t, q, to, i));
    if (t->reduce_op != SAGECOMM_MAX) all += x;
    if (t->reduce_op == SAGECOMM_MAX && x > all) all = x;
  }
  if (t->reduce_op == SAGECOMM_AVG) return (float)all / (float)t->size;
  return t->reduce_op == SAGECOMM_PREMUL_SUM ? all * FACTOR : all;
}

int n_blocks(const trial *t, bool out) {
  if (t->kind == SAGECOMM_BARRIER) return 0;
  if (scr_rooted(t->kind) && t->rank != t->root) {
    bool receives = t->kind == SAGECOMM_BROADCAST || t->kind == SAGECOMM_SCATTER;
    return out == receives ? 1 : 0;
  }
  if (t->kind == SAGECOMM_ALL_TO_ALL) return t->size;
  if (out) return gathers(t->kind) ? t->size : 1;
  return t->kind == SAGECOMM_REDUCE_SCATTER || t->kind == SAGECOMM_SCATTER ? t->size : 1;
}

uint32_t length_of(const trial *t, bool out, int block) {
  if (flat(t->kind)) return t->length[0][0];
  if (n_blocks(t, out) == 1) block = t->rank;
  if (t->kind == SAGECOMM_ALL_TO_ALL) return out ? t->length[block][t->rank] : t->length[t->rank][block];
  return t->length[0][block];
}

void block_of_input(const trial *t, int block, unsigned char *to) {
  bool for_all = flat(t->kind) || gathers(t->kind);
  for (uint32_t i = 0; i < length_of(t, false, block); i++, to += t->elem) {
    encode(t, held(t, content(t, t->rank, for_all ? 0 : block, i)), to);
  }
}

void block_of_output(const trial *t, int block, unsigned char *to) {
  for (uint32_t i = 0; i < length_of(t, true, block); i++, to += t->elem) {
    double x;
    if (scr_reduces(t->kind)) {
      x = reduced(t, t->kind == SAGECOMM_REDUCE_SCATTER ? t->rank : 0, i);
    } else if (t->kind == SAGECOMM_BROADCAST) {
      x = held(t, content(t, t->root, 0, i));
    } else if (t->kind == SAGECOMM_SCATTER) {
      x = held(t, content(t, t->root, t->rank, i));
    } else {
      x = held(t, content(t, block, t->kind == SAGECOMM_ALL_TO_ALL ? t->rank : 0, i));
    }
    encode(t, x, to);
  }
}

/* ---- buffers ---- */

#define UNTOUCHED 0xa5

buffer cut(uint64_t *random, uint64_t elements, uint32_t elem) {
  buffer b = {.room = (elements + PIECES) * elem, .n = next_random(random) % 2 ? 1 : PIECES};
  b.base = malloc(b.room);
  memset(b.base, UNTOUCHED, b.room);
  unsigned char *at = b.base;
  for (uint32_t i = 0; i < b.n; i++) {
    uint64_t n = i == b.n - 1 ? elements : next_random(random) % (elements + 1);
    b.list[i] = (sagecomm_segment){at, n * elem};
    at += (n + 1) * elem;
    elements -= n;
  }
  return b;
}

void copy_in(const buffer *b, const unsigned char *from) {
  for (uint32_t i = 0; i < b->n; from += b->list[i++].bytes) memcpy(b->list[i].data, from, b->list[i].bytes);
}

static void tell(const trial *t) {
  fprintf(stderr, "kind %d of type %d, reduction %d, root %d, rank %d of %d, %u elements (to rank 0: %u)%s\n", t->kind,
          t->dtype, t->reduce_op, t->root, t->rank, t->size, t->length[0][0], t->length[t->size - 1][0],
          t->in_place ? ", in place" : "");
}

void expect_content(const trial *t, const buffer *b, const unsigned char *want) {
  for (uint32_t i = 0; i < b->n; want += b->list[i++].bytes) {
    if (memcmp(b->list[i].data, want, b->list[i].bytes) != 0) tell(t);
    CHECK(memcmp(b->list[i].data, want, b->list[i].bytes) == 0);
  }
}

void expect_gaps(const buffer *b) {
  const unsigned char *at = b->base;
  for (uint32_t i = 0; i < b->n; i++) {
    for (; at < (const unsigned char *)b->list[i].data; at++) CHECK(*at == UNTOUCHED);
    at += b->list[i].bytes;
  }
  for (; at < b->base + b->room; at++) CHECK(*at == UNTOUCHED);
}

buffer part_of(const buffer *b, uint64_t at, uint64_t bytes) {
  buffer part = {0};
  for (uint32_t i = 0; i < b->n; i++) {
    uint64_t n = b->list[i].bytes, skip = at < n ? at : n, take = n - skip < bytes ? n - skip : bytes;
    part.list[part.n++] = (sagecomm_segment){(unsigned char *)b->list[i].data + skip, take};
    at -= skip;
    bytes -= take;
  }
  return part;
}

/* ---- calls ---- */

static uint32_t draw_length(uint64_t *random, uint32_t elem, uint32_t bytes) {
  uint64_t x = next_random(random);
  const uint32_t most[] = {2, 40, 1000, bytes / elem};
  return (uint32_t)((x >> 8) % most[x % 4]);
}

/* Some algorithms of all_to_all need equal blocks. In slot plans, the root of a broadcast has one buffer. */
static void fit(trial *t) {
  const sagecomm_op op = {.kind = t->kind};
  const plan *p = chosen_plan(&op, 0, t->size, t->rank);
  if (p == NULL && t->kind == SAGECOMM_BROADCAST) t->in_place = true;
  if (p == NULL || !p->even) return;
  for (int i = 0; i < t->size; i++) {
    for (int k = 0; k < t->size; k++) t->length[i][k] = t->length[0][0];
  }
}

trial draw_trial(uint64_t *random, int kind, int rank, int size, uint32_t most) {
  static const uint8_t dtypes[] = {SAGECOMM_UINT8, SAGECOMM_INT32, SAGECOMM_FLOAT32};
  static const uint8_t reductions[] = {SAGECOMM_SUM, SAGECOMM_MAX, SAGECOMM_AVG, SAGECOMM_PREMUL_SUM};
  uint64_t x = next_random(random);
  trial t = {.kind = (uint8_t)kind, .dtype = dtypes[x % 3], .rank = rank, .size = size, .salt = (uint32_t)(x >> 40)};
  t.root = x >> 4 & 1 && scr_rooted(kind) ? size - 1 : 0;
  t.in_place = (x >> 5) % 2 && kind != SAGECOMM_ALL_TO_ALL;
  if (scr_reduces(kind)) t.reduce_op = reductions[(x >> 6) % (t.dtype == SAGECOMM_FLOAT32 ? 4 : 2)];
  t.elem = t.dtype == SAGECOMM_UINT8 ? 1 : 4;
  bool even = kind == SAGECOMM_GATHER || kind == SAGECOMM_SCATTER || (x >> 8) % 2;
  uint32_t n = draw_length(random, t.elem * (flat(kind) ? 1 : 3), most);
  for (int i = 0; i < size; i++) {
    for (int k = 0; k < size; k++) t.length[i][k] = even ? n : draw_length(random, t.elem * 3, most);
  }
  fit(&t);
  return t;
}

static unsigned char *blocks(const trial *t, bool out, uint64_t bytes[]) {
  uint64_t total = 0;
  int n = n_blocks(t, out);
  for (int i = 0; i < n; i++) total += bytes[i] = (uint64_t)length_of(t, out, i) * t->elem;
  unsigned char *all = malloc(total + 1), *at = all;
  for (int i = 0; i < n; at += bytes[i++]) (out ? block_of_output : block_of_input)(t, i, at);
  return all;
}

static uint64_t total(const uint64_t bytes[], int n) {
  uint64_t sum = 0;
  for (int i = 0; i < n; i++) sum += bytes[i];
  return sum;
}

void make_contents(const trial *t, contents *c, uint64_t *random) {
  int ins = n_blocks(t, false), outs = n_blocks(t, true);
  c->given = blocks(t, false, c->in_bytes);
  c->wanted = blocks(t, true, c->out_bytes);
  uint64_t n_in = total(c->in_bytes, ins), n_out = total(c->out_bytes, outs);
  if (t->in_place && outs > ins && ins > 0) {
    c->out = cut(random, n_out / t->elem, t->elem);
    c->in = part_of(&c->out, total(c->out_bytes, t->rank), n_in);
  } else {
    if (ins > 0) c->in = cut(random, n_in / t->elem, t->elem);
    if (t->in_place && ins > 0 && outs > 0) {
      c->out = part_of(&c->in, ins > outs ? total(c->in_bytes, t->rank) : 0, n_out);
    } else if (outs > 0) {
      c->out = cut(random, n_out / t->elem, t->elem);
    }
  }
  copy_in(&c->in, c->given);
}

void check_contents(const trial *t, const contents *c) {
  expect_content(t, &c->out, c->wanted);
  if (!t->in_place) expect_content(t, &c->in, c->given);
  if (c->in.base) expect_gaps(&c->in);
  if (c->out.base) expect_gaps(&c->out);
}

void free_contents(contents *c) {
  free(c->in.base);
  free(c->out.base);
  free(c->given);
  free(c->wanted);
}

sagecomm_op op_of(const trial *t, const contents *c) {
  bool blocks_differ = !flat(t->kind) && t->kind != SAGECOMM_GATHER && t->kind != SAGECOMM_SCATTER;
  return (sagecomm_op){.kind = t->kind,
                       .dtype = t->dtype,
                       .reduce_op = t->reduce_op,
                       .factor = FACTOR,
                       .root = t->root,
                       .n_in = c->in.n,
                       .n_out = c->out.n,
                       .in = c->in.list,
                       .out = c->out.list,
                       .in_blocks = blocks_differ && n_blocks(t, false) > 1 ? c->in_bytes : NULL,
                       .out_blocks = blocks_differ && n_blocks(t, true) > 1 ? c->out_bytes : NULL};
}
