/* gate_programs.c: calls of all kinds on the device lane, by every algorithm, several at a time and external runs between them,
 * checked against the expected results. A thread beside each rank plays the two streams of its device for all calls of the
 * rank, and moves groups of units as internal/engine/staged does. What may differ between calls is drawn at random: lengths,
 * types, reductions, buffers in several pieces or in place, windows, streams that wait for words or do not, which stream is
 * ahead, and where the group is aborted. */
#include <pthread.h>
#include <sched.h>

#include "on_devices.h"
#include "plans.h"
#include "trial.h"

static int size;

#define OPEN 4
#define TRIALS 14
#define MOST_BYTES 24000
#define MOST_BY_SLOTS 96000 /* whose chunks are longer */

/* One side of a call: memory of the device, and pinned memory for it. */
typedef struct side {
  buffer memory;
  bool moved; /* the device moves it */
  uint64_t blocks, length;
  uint32_t units;
  uint64_t window;               /* bytes for each block; 0: there is room for all */
  unsigned char *pinned[PIECES]; /* of each piece; of the first block's window */
  sagecomm_segment *list;        /* what the run gets */
  uint32_t n;
} side;

typedef struct gate {
  scr_gate_words words;
  bool used;
  bool kept;                /* by an external run, which nobody has seen complete */
  uint32_t inputs, outputs; /* the last values of its words that the device writes */
} gate;

/* One call. */
typedef struct trip {
  trial t;
  contents c;
  bool external, waits; /* the streams wait for words: the device copies the output back by itself */
  side in, out;
  uint64_t chunk;
  uint32_t stride, window; /* units of a group, and for which there is room; window 0: for all */
  unsigned char *memory;   /* pinned */
  gate *gate;
  sagecomm_work work;
  _Atomic bool drained; /* the device is done with the call */
} trip;

/* The streams of a rank. */
typedef struct device {
  trip *queue[TRIALS];
  _Atomic int queued;
  _Atomic bool ends; /* nothing more is queued */
  uint64_t random;
  uint32_t in_share; /* in 256 steps: the share of the stream of inputs */
} device;

/* ---- the device ---- */

static uint64_t bytes_of_side(const side *s) { return s->blocks * s->length; }

/* Copies units [from, to) between the device and pinned memory. */
static void move_units(const trip *t, const side *s, uint32_t from, uint32_t to, bool out) {
  if (!s->moved) return;
  uint64_t blocks = s->blocks, length = s->length;
  uint64_t begin = scr_min(from * t->chunk, length), end = scr_min(to * t->chunk, length);
  if (s->units == 1) {
    blocks = 1;
    begin = 0;
    end = bytes_of_side(s);
  }
  for (uint64_t b = 0; b < blocks; b++) {
    uint64_t base = b * length, at = 0;
    for (uint32_t i = 0; i < s->memory.n; at += s->memory.list[i++].bytes) {
      uint64_t first = base + begin > at ? base + begin : at, last = scr_min(base + end, at + s->memory.list[i].bytes);
      if (first >= last) continue;
      unsigned char *pinned =
          s->window ? s->pinned[0] + b * s->window + (first - base) % s->window : s->pinned[i] + (first - at);
      unsigned char *own = (unsigned char *)s->memory.list[i].data + (first - at);
      memcpy(out ? own : pinned, out ? pinned : own, last - first);
    }
  }
}

/* Moves the next group of the input. Returns the units that are there, `from` where the stream has to wait. */
static uint32_t step_in(trip *t, uint32_t from) {
  scr_gate_words *w = &t->gate->words;
  uint32_t to = from + t->stride < t->in.units ? from + t->stride : t->in.units;
  if (t->window != 0 && to > t->window && !there(&w->input_taken, to - t->window)) return from;
  move_units(t, &t->in, from, to, false);
  atomic_store_explicit(&w->input_ready, to, memory_order_release);
  return to;
}

/* The same of the output. */
static uint32_t step_out(trip *t, uint32_t from) {
  scr_gate_words *w = &t->gate->words;
  uint32_t to = from + t->stride < t->out.units ? from + t->stride : t->out.units;
  if (!there(&w->input_ready, to < t->in.units ? to : t->in.units)) return from;
  if (!t->external && !there(&w->output_done, to == t->out.units ? 1u << 30 : to)) return from;
  move_units(t, &t->out, from, to, true);
  atomic_store_explicit(&w->output_taken, to, memory_order_release);
  return to;
}

static void *streams(void *p) {
  device *d = p;
  uint32_t in = 0, out = 0; /* units of the calls that each stream is at */
  int in_at = 0, out_at = 0;
  for (;;) {
    int n = atomic_load(&d->queued);
    if (atomic_load(&d->ends) && in_at == n && out_at == n) return NULL;
    uint64_t x = next_random(&d->random) >> 8;
    if (x % 256 < d->in_share && in_at < n) {
      trip *t = d->queue[in_at];
      in = step_in(t, in);
      if (in == t->in.units) {
        in_at++;
        in = 0;
      }
    } else if (out_at < n) {
      trip *t = d->queue[out_at];
      if (t->waits && out < t->out.units) out = step_out(t, out);
      /* Behind an error the output may be through before the input. Where streams cannot wait, the host copies the output. */
      bool over = in_at > out_at && (!t->waits || out == t->out.units);
      if (over) {
        atomic_store(&t->drained, true);
        out_at++;
        out = 0;
      }
    }
    if ((x >> 8) % 4 == 0) sched_yield();
  }
}

/* ---- where a call lies in pinned memory: layout.go of internal/engine/staged ---- */

static void make_side(side *s, buffer memory, bool moved) {
  *s = (side){.memory = memory, .moved = moved, .blocks = 1, .units = 1};
  for (uint32_t i = 0; i < memory.n; i++) s->length += memory.list[i].bytes;
}

static void divide(side *s) {
  s->blocks = (uint64_t)size;
  s->length /= s->blocks;
}

static bool is_even(const trial *t) {
  for (int i = 0; i < size; i++) {
    if (t->length[0][i] != t->length[0][0]) return false;
  }
  return true;
}

/* Cuts a call into units, and has it go through windows. */
static void cut_into_units(trip *t, const scr_program *p, uint64_t bytes, uint64_t x) {
  int kind = t->t.kind;
  bool ranges = flat(kind) || kind == SAGECOMM_ALL_GATHER || kind == SAGECOMM_REDUCE_SCATTER;
  t->stride = 1;
  if (!ranges || bytes <= p->chunk || (!flat(kind) && !is_even(&t->t))) return;
  if (kind == SAGECOMM_REDUCE_SCATTER) divide(&t->in);
  if (kind == SAGECOMM_ALL_GATHER) divide(&t->out);
  uint32_t units = (uint32_t)((bytes + p->chunk - 1) / p->chunk);
  t->chunk = p->chunk;
  t->stride = 1 + (uint32_t)(x % 3);
  if (t->in.memory.n > 0) t->in.units = units;
  if (t->out.moved && t->waits) t->out.units = units;
  if (!t->waits || (x >> 2) % 2) return;
  uint32_t lag = p->sendrecv ? p->sendrecv->max_lag : p->max_lag, groups = 1 + (lag + t->stride - 1) / t->stride;
  t->window = t->stride * (groups > 3 ? groups : 3);
  t->in.window = t->out.window = t->window * t->chunk;
}

static void add(side *s, void *data, uint64_t bytes) { s->list[s->n++] = (sagecomm_segment){data, bytes}; }

static void list_segments(side *s) {
  s->list = calloc(PIECES + (s->window ? s->blocks * (1 + s->length / s->window) : 0), sizeof *s->list);
  for (uint32_t i = 0; i < s->memory.n && s->window == 0; i++) add(s, s->pinned[i], s->memory.list[i].bytes);
  for (uint64_t b = 0; b < s->blocks && s->window != 0; b++) {
    for (uint64_t left = s->length; left > 0; left -= scr_min(left, s->window))
      add(s, s->pinned[0] + b * s->window, scr_min(left, s->window));
  }
}

/* A piece of the input that lies within one of the output has its place there. */
static unsigned char *within(const trip *t, const sagecomm_segment *piece) {
  for (uint32_t i = 0; i < t->out.memory.n; i++) {
    const sagecomm_segment *o = &t->out.memory.list[i];
    uint64_t at = (uint64_t)((unsigned char *)piece->data - (unsigned char *)o->data);
    if (piece->bytes > 0 && (unsigned char *)piece->data >= (unsigned char *)o->data && at + piece->bytes <= o->bytes)
      return t->out.pinned[i] + at;
  }
  return NULL;
}

static void place(trip *t) {
  uint64_t used = 0, room = t->in.blocks * t->in.window + t->out.blocks * t->out.window;
  for (uint32_t i = 0; i < t->in.memory.n; i++) room += t->in.memory.list[i].bytes + 64;
  for (uint32_t i = 0; i < t->out.memory.n; i++) room += t->out.memory.list[i].bytes + 64;
  unsigned char *at = t->memory = malloc(room + 1);
  if (t->window != 0) {
    t->in.pinned[0] = at;
    /* The root of a broadcast has one buffer. */
    t->out.pinned[0] = t->out.moved && t->in.memory.n > 0 ? at + t->in.blocks * t->in.window : at;
    used = t->in.blocks * t->in.window + t->out.blocks * t->out.window;
  } else {
    for (uint32_t i = 0; i < t->out.memory.n; i++, used += (t->out.memory.list[i - 1].bytes + 63) & ~UINT64_C(63))
      t->out.pinned[i] = at + used;
    for (uint32_t i = 0; i < t->in.memory.n; i++) {
      t->in.pinned[i] = within(t, &t->in.memory.list[i]);
      if (t->in.pinned[i] != NULL) continue;
      t->in.pinned[i] = at + used;
      used += (t->in.memory.list[i].bytes + 63) & ~UINT64_C(63);
    }
  }
  CHECK(used <= room);
  list_segments(&t->in);
  list_segments(&t->out);
}

/* ---- a call ---- */

/* A gate may be used again when its device has written the last values: pool.go of internal/engine/staged. */
static gate *take_gate(gate gates[]) {
  for (int i = 0;; i = (i + 1) % OPEN) {
    gate *g = &gates[i];
    if (g->used &&
        (g->kept || !there(&g->words.input_ready, g->inputs) || !there(&g->words.output_taken, g->outputs))) {
      sched_yield();
      continue;
    }
    memset(&g->words, 0, sizeof g->words);
    g->used = true;
    return g;
  }
}

static trip *new_trip(const rank *r, int kind, uint64_t *own, uint64_t x) {
  trip *t = calloc(1, sizeof *t);
  const sagecomm_op of_kind = {.kind = (uint8_t)kind};
  uint32_t most = chosen_plan(&of_kind, 0, size, 0) == NULL ? MOST_BY_SLOTS : MOST_BYTES;
  uint64_t shared = x;
  t->t = draw_trial(&shared, kind, r->rank, size, most);
  if (kind == SAGECOMM_BROADCAST) t->t.in_place = true; /* callers have one buffer there */
  make_contents(&t->t, &t->c, own);
  t->waits = next_random(own) % 4 != 0;
  bool root_has_it = kind == SAGECOMM_BROADCAST && r->rank == t->t.root;
  make_side(&t->in, t->c.in, true);
  make_side(&t->out, t->c.out, !root_has_it);
  if (t->out.memory.n == 0) t->out.moved = false;
  sagecomm_op op = op_of(&t->t, &t->c);
  uint64_t bytes = scr_op_bytes(&op, r->rank, size);
  cut_into_units(t, program_of(r->beside->group, &op, bytes), bytes, next_random(own));
  place(t);
  return t;
}

/* An external run moves nothing here. */
static trip *new_external(void) {
  trip *t = calloc(1, sizeof *t);
  t->external = t->waits = true;
  t->stride = t->in.units = t->out.units = 1;
  return t;
}

static void queue_commands(device *d, trip *t) {
  int at = atomic_load(&d->queued);
  d->queue[at] = t;
  atomic_store(&d->queued, at + 1);
}

static int32_t issue(const rank *r, device *d, trip *t, sagecomm_error *err) {
  scr_gate_words *w = &t->gate->words;
  t->gate->kept = t->external;
  t->gate->inputs = t->in.units;
  t->gate->outputs = t->out.units;
  sagecomm_op op = {.kind = SAGECOMM_BARRIER};
  if (!t->external) op = op_of(&t->t, &t->c);
  op.device_type = 1;
  op.in = t->in.list;
  op.n_in = t->in.n;
  op.out = t->out.list;
  op.n_out = t->out.n;
  next_gate[r->rank] = (scr_gate){.words = w,
                                  .window = t->window,
                                  .inputs = t->in.units,
                                  .outputs = t->out.moved ? t->out.units : t->external,
                                  .external = t->external};
  queue_commands(d, t);
  int32_t status = scr_issue(r->handle, &op, &t->work, NULL, err);
  if (status >= 0) return status;
  atomic_store_explicit(&w->input_taken, SCR_GATE_OPEN, memory_order_release); /* its streams have got their commands */
  atomic_store_explicit(&w->output_done, SCR_GATE_OPEN, memory_order_release);
  return status;
}

/* `aborted`: it may have failed. What has succeeded is right. */
static void finish(trip *t, int32_t status, bool aborted) {
  sagecomm_error err;
  if (status == SAGECOMM_PENDING) status = complete(t->work, &err);
  CHECK(status == SAGECOMM_OK || (aborted && status == SAGECOMM_ABORTED));
  while (!atomic_load(&t->drained)) sched_yield();
  if (t->external) t->gate->kept = false;
  if (!t->waits) {
    if (status == SAGECOMM_OK) move_units(t, &t->out, 0, t->out.units, true);
    atomic_store_explicit(&t->gate->words.output_taken, t->out.units, memory_order_release);
  }
  if (!t->external && status == SAGECOMM_OK) check_contents(&t->t, &t->c);
  free_contents(&t->c);
  free(t->in.list);
  free(t->out.list);
  free(t->memory);
  free(t);
}

static trip *take_out(trip *open[], int *n, uint64_t *own) {
  int i = (int)(next_random(own) % (uint64_t)*n);
  trip *t = open[i];
  open[i] = open[--*n];
  return t;
}

/* *arg: at which call rank 0 aborts the group; TRIALS: never. */
static void many(rank *r, void *arg) {
  int aborts_at = *(int *)arg;
  uint64_t own = (r->random + (uint64_t)r->rank * 977) | 1;
  gate *gates = aligned_alloc(SCR_LINE, OPEN * sizeof *gates);
  memset(gates, 0, OPEN * sizeof *gates);
  device d = {.random = own + 2, .in_share = (uint32_t[]){128, 240, 16}[next_random(&own) % 3]};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, streams, &d) == 0);
  trip *open[OPEN];
  int n_open = 0, first = (int)(next_random(&r->random) % SAGECOMM_SEND);
  bool aborted = false;
  for (int i = 0; i < TRIALS; i++) {
    uint64_t x = next_random(&r->random);
    int kind = i < SAGECOMM_SEND ? (first + i) % SAGECOMM_SEND : (int)(x % SAGECOMM_SEND);
    if (i == aborts_at) { /* all have issued what is before */
      meet();
      aborted = true;
      if (r->rank == 0) declare(r, SAGECOMM_ABORTED, 0, "the user aborts");
    }
    trip *t = (x >> 32) % 5 == 0 ? new_external() : new_trip(r, kind, &own, x | 1);
    t->gate = take_gate(gates);
    sagecomm_error err;
    int32_t status = issue(r, &d, t, &err);
    CHECK(status >= 0 || aborted);
    if (status != SAGECOMM_PENDING) {
      finish(t, status, aborted);
      continue;
    }
    open[n_open++] = t;
    while (n_open == OPEN || (i < aborts_at && n_open > 0 && next_random(&own) % 3 == 0))
      finish(take_out(open, &n_open, &own), SAGECOMM_PENDING, aborted);
  }
  while (n_open > 0) finish(take_out(open, &n_open, &own), SAGECOMM_PENDING, aborted);
  atomic_store(&d.ends, true);
  pthread_join(thread, NULL);
  meet();
  free(gates);
}

static void run(int n, waiting w, uint64_t *seed, bool aborts) {
  if (n > 4) return; /* a thread plays the device of each rank, too */
  size = n;
  for (int round = 0; round < choose_rounds(); round++) {
    if ((round + n / 4) % 2 == (w.spin == 0)) continue; /* each in one way of waiting or the other */
    if ((n == 1 && round > 1) || (aborts && round / 2 % 2)) continue;
    choose_messages(round, 512, seed);
    int aborts_at = aborts ? (int)(next_random(seed) % TRIALS) : TRIALS;
    run_on_devices(n, w, *seed, many, &aborts_at);
  }
  choose_slots();
}

void test_programs_at_gates(int n, waiting w, uint64_t seed) { run(n, w, &seed, false); }

void test_abort_at_gates(int n, waiting w, uint64_t seed) {
  if (n > 1) run(n, w, &seed, true);
}
