/* coalesce.c: coalesced calls. Go decides which operations share a collective; this file packs each batch as one
 * operation on the segments of all its members, so that the data moves from the tensors into the slots without a
 * copy between. */
#include <stdio.h>
#include <stdlib.h>

#include "composite.h"
#include "engine.h"

/* ---- the shape of a call ---- */

static bool even(const uint64_t *blocks, int32_t size) {
  for (int32_t i = 1; blocks && i < size; i++) {
    if (blocks[i] != blocks[0]) return false;
  }
  return true;
}

/* Returns a hash of everything on which Go's decision depends, or 0 if Go might refuse the call. */
static uint64_t shape_of(const sagecomm_op *ops, uint32_t n, int32_t rank, int32_t size) {
  uint64_t h = n;
  for (uint32_t i = 0; i < n; i++) {
    const sagecomm_op *op = &ops[i];
    if (op->kind >= SAGECOMM_SEND || op->device_type != SAGECOMM_HOST ||
        !scr_op_allowed(rank, op, scr_op_bytes(op, rank, size)))
      return 0;
    bool uneven = !even(op->in_blocks, size) || !even(op->out_blocks, size);
    uint64_t root = scr_rooted(op->kind) ? (uint32_t)op->root : 0;
    uint64_t reduce = scr_reduces(op->kind) ? op->reduce_op : 0;
    h = scr_mix(h + 1 + (op->kind | (uint64_t)op->dtype << 8 | reduce << 16 | (uint64_t)uneven << 24 | root << 32));
  }
  return h;
}

/* ---- memory that must not be shared ---- */

typedef struct range {
  const unsigned char *from, *to;
  uint32_t op;
  bool written;
} range;

static int by_address(const void *a, const void *b) {
  const unsigned char *x = ((const range *)a)->from, *y = ((const range *)b)->from;
  return x < y ? -1 : x > y;
}

static void sort_ranges(range *r, size_t n) {
  if (n > 32) {
    qsort(r, n, sizeof *r, by_address);
    return;
  }
  for (size_t i = 1; i < n; i++) {
    range one = r[i];
    size_t k = i;
    for (; k > 0 && r[k - 1].from > one.from; k--) r[k] = r[k - 1];
    r[k] = one;
  }
}

/* The farthest end of the ranges so far, and the farthest end among those of other operations. */
typedef struct reach {
  const unsigned char *to, *others_to;
  uint32_t op, other;
} reach;

static void extend(reach *f, const range *r) {
  if (f->to == NULL || r->op == f->op || r->to > f->to) {
    if (f->to != NULL && r->op != f->op) {
      f->others_to = f->to;
      f->other = f->op;
    }
    if (f->to == NULL || r->op != f->op || r->to > f->to) f->to = r->to;
    f->op = r->op;
  } else if (f->others_to == NULL || r->to > f->others_to) {
    f->others_to = r->to;
    f->other = r->op;
  }
}

static bool reaches(const reach *f, const range *r, uint32_t *op) {
  *op = f->op != r->op ? f->op : f->other;
  const unsigned char *to = f->op != r->op ? f->to : f->others_to;
  return to != NULL && r->from < to;
}

static size_t collect(range *out, const sagecomm_segment *s, uint32_t n, uint32_t op, bool written) {
  size_t k = 0;
  for (uint32_t i = 0; i < n; i++) {
    const unsigned char *at = s[i].data;
    if (s[i].bytes > 0) out[k++] = (range){at, at + s[i].bytes, op, written};
  }
  return k;
}

#define FEW 64

static int32_t refuse_shared(sagecomm_error *err, uint32_t a, uint32_t b) {
  char text[200];
  snprintf(
      text, sizeof text,
      "sagecomm: operations %u and %u of one coalesced call, counted from 0, share memory that one of them writes: "
      "pass a clone of it, or issue them apart",
      a < b ? a : b, a < b ? b : a);
  return scr_plain_error(err, SAGECOMM_INVALID, text);
}

/* Returns SAGECOMM_INVALID if two operations touch the same memory and one of them writes it. */
static int32_t check_memory(const sagecomm_op *ops, uint32_t n, const uint32_t *batch, uint32_t first,
                            sagecomm_error *err) {
  range few[FEW], *r = few;
  size_t all = 0;
  for (uint32_t i = 0; i < n; i++) all += (size_t)ops[i].n_in + ops[i].n_out;
  if (all > FEW && (r = malloc(all * sizeof *r)) == NULL) return scr_no_memory(err);
  all = 0;
  for (uint32_t i = 0; i < n; i++) {
    const sagecomm_op *op = &ops[i];
    if (batch[i] == SCR_LEFT_OUT) continue;
    bool same =
        op->n_in == 1 && op->n_out == 1 && op->in[0].data == op->out[0].data && op->in[0].bytes == op->out[0].bytes;
    if (!same) all += collect(r + all, op->in, op->n_in, i, false);
    all += collect(r + all, op->out, op->n_out, i, true);
  }
  sort_ranges(r, all);
  reach read = {0}, written = {0};
  uint32_t other = 0;
  int32_t status = SAGECOMM_OK;
  for (size_t i = 0; i < all && status == SAGECOMM_OK; i++) {
    if (reaches(&written, &r[i], &other) || (r[i].written && reaches(&read, &r[i], &other))) {
      status = refuse_shared(err, first + other, first + r[i].op);
    }
    extend(r[i].written ? &written : &read, &r[i]);
  }
  if (r != few) free(r);
  return status;
}

static bool alike(const sagecomm_op *a, const sagecomm_op *b) {
  return a->kind == b->kind && (!scr_reduces(a->kind) || a->reduce_op == b->reduce_op) &&
         (!scr_rooted(a->kind) || a->root == b->root);
}

/* Checks the memory of adjacent operations, some of which are packed together. On a device, where the inputs of all
 * operations are copied before an output is written, check_memory() checks all. */
static int32_t check_stretches(const sagecomm_op *ops, uint32_t n, const uint32_t *batch, sagecomm_error *err) {
  for (uint32_t i = 0, end; i < n; i = end) {
    uint32_t lowest = batch[i], highest = batch[i];
    for (end = i + 1; end < n && alike(&ops[i], &ops[end]); end++) {
      if (batch[end] < lowest) lowest = batch[end];
      if (batch[end] > highest) highest = batch[end];
    }
    if (highest - lowest + 1 == end - i) continue; /* no two of them share a batch */
    int32_t status = check_memory(ops + i, end - i, batch + i, i, err);
    if (status != SAGECOMM_OK) return status;
  }
  return SAGECOMM_OK;
}

/* Operations of two classes have no order. */
enum { COLLECTIVE, SENT, RECEIVED, CLASSES };

static int class_of(const sagecomm_op *op) {
  return op->kind < SAGECOMM_SEND ? COLLECTIVE : op->kind == SAGECOMM_SEND ? SENT : RECEIVED;
}

static bool own(const sagecomm_op *op, int32_t rank, int kind) { return (int)op->kind == kind && op->root == rank; }

static bool one_memory(const sagecomm_op *sent, const sagecomm_op *received) {
  if (sent->n_in != received->n_out) return false;
  for (uint32_t i = 0; i < sent->n_in; i++) {
    if (sent->in[i].data != received->out[i].data || sent->in[i].bytes != received->out[i].bytes) return false;
  }
  return true;
}

/* Whether a recv of a rank from itself may take such a send: those that are paired take each other in the order of their calls, and others
 * in that of the calls with their tag. */
static bool takes(const sagecomm_op *received, const sagecomm_op *sent) {
  return ((received->flags ^ sent->flags) & SAGECOMM_PAIRED) == 0 &&
         ((sent->flags & SAGECOMM_PAIRED) || received->tag == sent->tag);
}

/* Returns the recv that takes a send of a rank to itself, `n` if there is none, and marks it in `taken`. The recvs before `*first` are
 * taken. */
static uint32_t taker_of(const sagecomm_op *sent, const sagecomm_op *ops, uint32_t n, int32_t rank, uint32_t *taken,
                         uint32_t *first) {
  while (*first < n && (taken[*first] || !own(&ops[*first], rank, SAGECOMM_RECV))) ++*first;
  for (uint32_t i = *first; i < n; i++) {
    SCR_STEP();
    if (taken[i] || !own(&ops[i], rank, SAGECOMM_RECV) || !takes(&ops[i], sent)) continue;
    taken[i] = 1;
    return i;
  }
  return n;
}

/* Collects the memory of all operations. A send of a rank to itself whose recv takes it into the same memory changes none, so it is
 * left out. `taken` has room for a mark of each. */
static size_t collect_all(range *out, const sagecomm_op *ops, uint32_t n, const uint32_t *batch, int32_t rank,
                          uint32_t *taken) {
  size_t k = 0;
  uint32_t first = 0;
  memset(taken, 0, n * sizeof *taken);
  for (uint32_t i = 0; i < n; i++) {
    if (own(&ops[i], rank, SAGECOMM_SEND)) {
      uint32_t recv = taker_of(&ops[i], ops, n, rank, taken, &first);
      if (recv < n && one_memory(&ops[i], &ops[recv])) continue;
    }
    if (batch[i] == SCR_LEFT_OUT) continue;
    k += collect(out + k, ops[i].in, ops[i].n_in, i, false);
    k += collect(out + k, ops[i].out, ops[i].n_out, i, true);
  }
  return k;
}

/* Returns SAGECOMM_INVALID if a p2p operation and a collective, or a send and a recv, share memory that one of them writes, because no
 * order holds between the two. It takes one pass over all buffers, sorted by address. `taken` is that of collect_all(). */
static int32_t check_p2p(const sagecomm_op *ops, uint32_t n, const uint32_t *batch, int32_t rank, uint32_t *taken,
                         sagecomm_error *err) {
  range few[FEW], *r = few;
  size_t all = 0;
  bool several = false;
  for (uint32_t i = 0; i < n; i++) {
    all += (size_t)ops[i].n_in + ops[i].n_out;
    several = several || class_of(&ops[i]) != class_of(&ops[0]);
  }
  if (!several) return SAGECOMM_OK;
  if (all > FEW && (r = malloc(all * sizeof *r)) == NULL) return scr_no_memory(err);
  all = collect_all(r, ops, n, batch, rank, taken);
  sort_ranges(r, all);
  /* For each class: the farthest end of the memory that its operations touch, and that they write, and the operation it belongs to. */
  struct {
    const unsigned char *to;
    uint32_t op;
  } touched[CLASSES] = {0}, written[CLASSES] = {0};
  int32_t status = SAGECOMM_OK;
  for (size_t i = 0; i < all && status == SAGECOMM_OK; i++) {
    SCR_STEP();
    int mine = class_of(&ops[r[i].op]);
    for (int other = 0; other < CLASSES && status == SAGECOMM_OK; other++) {
      if (other == mine) continue;
      if (written[other].to > r[i].from) {
        status = refuse_shared(err, written[other].op, r[i].op);
      } else if (r[i].written && touched[other].to > r[i].from) {
        status = refuse_shared(err, touched[other].op, r[i].op);
      }
    }
    if (r[i].to > touched[mine].to) {
      touched[mine].to = r[i].to;
      touched[mine].op = r[i].op;
    }
    if (r[i].written && r[i].to > written[mine].to) {
      written[mine].to = r[i].to;
      written[mine].op = r[i].op;
    }
  }
  if (r != few) free(r);
  return status;
}

/* ---- packing ---- */

static uint32_t add(sagecomm_segment *to, uint32_t n, void *data, uint64_t bytes) {
  if (n > 0 && (unsigned char *)to[n - 1].data + to[n - 1].bytes == data) {
    to[n - 1].bytes += bytes;
    return n;
  }
  to[n] = (sagecomm_segment){data, bytes};
  return n + 1;
}

/* The position in one operation's buffer while it is packed. */
typedef struct cursor {
  uint32_t segment;
  uint64_t offset;
} cursor;

/* Lists the segments of all buffers, one buffer after the other; with `blocks`, the first blocks of all buffers,
 * then the second ones, and so on. */
static uint32_t pack(sagecomm_segment *to, const sagecomm_op *const *part, uint32_t n, bool out, int32_t blocks,
                     cursor *at) {
  uint32_t k = 0;
  memset(at, 0, n * sizeof *at);
  for (int32_t b = 0; b < (blocks ? blocks : 1); b++) {
    for (uint32_t i = 0; i < n; i++) {
      const sagecomm_segment *s = out ? part[i]->out : part[i]->in;
      uint32_t n_s = out ? part[i]->n_out : part[i]->n_in;
      uint64_t left = scr_total(s, n_s) / (uint64_t)(blocks ? blocks : 1);
      if (left == 0 && n_s > 0 && k == 0) k = add(to, k, s[0].data, 0); /* an empty buffer keeps one segment */
      while (left > 0) {
        cursor *c = &at[i];
        uint64_t here = s[c->segment].bytes - c->offset, len = here < left ? here : left;
        if (len > 0) k = add(to, k, (unsigned char *)s[c->segment].data + c->offset, len);
        left -= len;
        c->offset += len;
        if (c->offset == s[c->segment].bytes) *c = (cursor){c->segment + 1, 0};
      }
    }
  }
  return k;
}

static bool out_is_blocks(int kind) { return kind == SAGECOMM_ALL_GATHER || kind == SAGECOMM_GATHER; }

static bool in_is_blocks(int kind) { return kind == SAGECOMM_REDUCE_SCATTER || kind == SAGECOMM_SCATTER; }

/* Issues one batch. `rank` and `size` were read while the group was open; scr_issue() checks the handle again. */
static int32_t issue_batch(sagecomm_group group, int32_t rank, int32_t size, const sagecomm_op *const *part, uint32_t n,
                           uint8_t flags, sagecomm_work *work, uint64_t *sequence, sagecomm_error *err) {
  sagecomm_op op = *part[0];
  op.flags = flags;
  if (n == 1) return scr_issue(group, &op, work, sequence, err);
  size_t most = 0;
  for (uint32_t i = 0; i < n; i++) most += (size_t)part[i]->n_in + part[i]->n_out;
  if (in_is_blocks(op.kind) || out_is_blocks(op.kind)) most += (size_t)n * (size_t)size;
  sagecomm_segment few[FEW], *segments = few;
  cursor few_at[FEW], *at = few_at;
  void *memory = NULL;
  if (most > FEW || n > FEW) {
    memory = malloc(most * sizeof *segments + n * sizeof *at);
    if (memory == NULL) return scr_no_memory(err);
    segments = memory;
    at = (cursor *)(void *)(segments + most);
  }
  /* Buffers that only the root needs are left out on other ranks, which may or may not pass them. */
  bool away = scr_rooted(op.kind) && op.root != rank;
  bool no_in = away && (op.kind == SAGECOMM_BROADCAST || op.kind == SAGECOMM_SCATTER);
  bool no_out = away && (op.kind == SAGECOMM_REDUCE || op.kind == SAGECOMM_GATHER);
  op.n_in = no_in ? 0 : pack(segments, part, n, false, in_is_blocks(op.kind) ? size : 0, at);
  op.n_out = no_out ? 0 : pack(segments + op.n_in, part, n, true, out_is_blocks(op.kind) ? size : 0, at);
  op.in = segments;
  op.out = segments + op.n_in;
  op.in_blocks = op.out_blocks = NULL;
  op.batch_size = n;
  op.stack = part[0]->stack;
  op.batch_hash = n;
  for (uint32_t i = 0; i < n; i++) op.batch_hash = scr_batch_hash(op.batch_hash, scr_op_bytes(part[i], rank, size));
  int32_t status = scr_issue(group, &op, work, sequence, err);
  free(memory);
  return status;
}

/* ---- issue ---- */

static uint32_t count_batches(const uint32_t *batch, uint32_t n) {
  uint32_t batches = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (batch[i] != SCR_LEFT_OUT && batch[i] >= batches) batches = batch[i] + 1;
  }
  return batches;
}

/* Orders the operations by their batches, keeping their order in each, and counts each batch. */
static void sort_batches(const sagecomm_op *ops, uint32_t n, const uint32_t *batch, uint32_t batches, uint32_t *count,
                         const sagecomm_op **part) {
  memset(count, 0, batches * sizeof *count);
  for (uint32_t i = 0; i < n; i++) {
    if (batch[i] != SCR_LEFT_OUT) count[batch[i]]++;
  }
  for (uint32_t b = 0, at = 0; b < batches; b++) { /* from lengths to beginnings */
    uint32_t k = count[b];
    count[b] = at;
    at += k;
  }
  for (uint32_t i = 0; i < n; i++) {
    SCR_STEP();
    if (batch[i] != SCR_LEFT_OUT) part[count[batch[i]]++] = &ops[i];
  }
  for (uint32_t b = batches; b-- > 1;) count[b] -= count[b - 1]; /* from the ends back to the lengths */
}

/* Issues batch after batch. Synchronous ones run one after the other until one of them returns PENDING. */
static int32_t issue_batches(scr_group *g, sagecomm_group group, int32_t rank, int32_t size, const sagecomm_op *ops,
                             uint32_t n, const uint32_t *count, uint32_t batches, const sagecomm_op **part,
                             sagecomm_work *work, uint64_t *sequence, sagecomm_error *err) {
  uint8_t flags = ops[0].flags;
  for (uint32_t i = 0; i < n; i++) {
    if (ops[i].kind >= SAGECOMM_SEND) flags |= SAGECOMM_ASYNC; /* the peer may issue its side later in its own call */
  }
  scr_run *all = batches > 1 ? scr_composite_new(g, group, batches) : NULL;
  if (batches > 1 && all == NULL) return scr_no_memory(err);
  int32_t status = SAGECOMM_OK;
  uint32_t from = 0;
  for (uint32_t b = 0; b < batches && status >= 0; b++) {
    uint32_t k = count[b];
    sagecomm_work one = 0;
    uint64_t number = 0;
    status = issue_batch(group, rank, size, part + from, k, flags, &one, &number, err);
    from += k;
    if (sequence && number != 0) *sequence = number;
    if (all == NULL) {
      *work = one;
      return status;
    }
    if (status < 0 && b > 0) { /* other ranks issue the later batches, which this rank cannot, so the group fails */
      scr_entering_go();
      scr_go.fail(group, err);
    }
    if (status == SAGECOMM_PENDING) {
      scr_composite_add(all, one);
      flags |= SAGECOMM_ASYNC;
    } else if (one != 0) {
      scr_release(one); /* the work of a recv from any source */
    }
  }
  return scr_composite_close(all, status, work, err);
}

int32_t scr_issue_coalesced(sagecomm_group group, const sagecomm_op *ops, uint32_t n, sagecomm_work *work,
                            uint64_t *sequence, sagecomm_error *err) {
  if (scr_in_child()) return scr_refuse_child(err);
  sagecomm_error unseen;
  if (err == NULL) err = &unseen;
  if (work) *work = 0;
  if (sequence) *sequence = 0;
  if (n == 0) return SAGECOMM_OK;
  if (n == 1 && work && !(ops[0].flags & SAGECOMM_PAIRED)) return scr_issue(group, ops, work, sequence, err);
  scr_group *g = scr_group_of(group);
  /* Both are read once, because the memory of a stale handle's group may become another group's at any time.
   * scr_issue() refuses a stale handle in any case; a size of 0 would be a divisor. */
  int32_t rank = g ? *(volatile int32_t *)&g->rank : 0, size = g ? *(volatile int32_t *)&g->size : 0;
  if (SCR_UNLIKELY(size == 0)) return scr_plain_error(err, SAGECOMM_INVALID, "sagecomm: the group was destroyed");
  uint32_t few_batches[2 * FEW], *batch = few_batches, *count = few_batches + FEW;
  const sagecomm_op *few_parts[FEW], **part = few_parts;
  void *memory = NULL;
  if (n > FEW) {
    memory = malloc(n * (sizeof *part + 2 * sizeof *batch));
    if (memory == NULL) return scr_no_memory(err);
    part = memory;
    batch = (uint32_t *)(void *)(part + n);
    count = batch + n;
  }
  uint64_t shape = shape_of(ops, n, rank, size);
  _Atomic uint64_t *known = &g->batch_shapes[shape % SCR_BATCH_SHAPES];
  int32_t status = SAGECOMM_OK;
  if (SCR_LIKELY(shape != 0 && atomic_load_explicit(known, memory_order_relaxed) == shape)) {
    memset(batch, 0, n * sizeof *batch);
  } else {
    scr_entering_go();
    status = scr_go.fuse(group, ops, n, batch, err);
    if (status == SAGECOMM_OK && shape != 0 && count_batches(batch, n) == 1) {
      atomic_store_explicit(known, shape, memory_order_relaxed);
    }
  }
  if (status == SAGECOMM_OK) {
    status =
        ops[0].device_type == SAGECOMM_HOST ? check_stretches(ops, n, batch, err) : check_memory(ops, n, batch, 0, err);
  }
  if (status == SAGECOMM_OK) status = check_p2p(ops, n, batch, rank, count, err); /* not counted yet */
  uint32_t batches = status == SAGECOMM_OK && work ? count_batches(batch, n) : 0;
  if (batches > 0) {
    sort_batches(ops, n, batch, batches, count, part);
    status = issue_batches(g, group, rank, size, ops, n, count, batches, part, work, sequence, err);
  }
  free(memory);
  return status;
}
