/* plans.c: see plans.h. */
#include "plans.h"

#define KINDS SAGECOMM_SEND

static struct choice {
  int algorithm;
  uint32_t chunk;
} choices[KINDS][SIZE_CLASSES];
static bool chosen; /* false: all kinds use slot plans */

int algorithms_of(int kind) {
  int n = 0;
  for (unsigned i = 0; i < n_plans; i++) {
    if (plans[i].kind == kind && plans[i].algorithm >= n) n = plans[i].algorithm + 1;
  }
  CHECK(n > 0);
  return n;
}

static const plan *find(int kind, int algorithm, int size, int rank, int root) {
  for (unsigned i = 0; i < n_plans; i++) {
    const plan *p = &plans[i];
    if (p->kind == kind && p->algorithm == algorithm && p->size == size && p->rank == rank && p->root == root) return p;
  }
  fprintf(stderr, "no plan %d of kind %d for rank %d of %d, root %d\n", algorithm, kind, rank, size, root);
  abort();
}

int algorithm_named(int kind, const char *name) {
  unsigned i = 0;
  while (i < n_plans && (plans[i].kind != kind || strcmp(plans[i].name, name) != 0)) i++;
  CHECK(i < n_plans);
  return plans[i].algorithm;
}

bool takes_even_blocks_only(int kind, int algorithm) {
  return algorithm != SLOTS && find(kind, algorithm, MAX_RANKS, 0, 0)->even;
}

void choose_slots(void) { chosen = false; }

void choose(int kind, int size_class, int algorithm, uint32_t chunk) {
  CHECK(chunk <= LONGEST_CHUNK && chunk % 64 == 0);
  if (!chosen) {
    for (int k = 0; k < KINDS; k++) {
      for (int c = 0; c < SIZE_CLASSES; c++) choices[k][c].algorithm = SLOTS;
    }
  }
  chosen = true;
  choices[kind][size_class] = (struct choice){algorithm, chunk};
}

int choose_rounds(void) {
  int most = 0;
  for (int kind = 0; kind < KINDS; kind++) {
    int n = algorithms_of(kind);
    if (n > most) most = n;
  }
  return most + 2; /* a kind uses slot plans in two rounds of up to 2 * KINDS */
}

void choose_messages(int round, uint32_t least, uint64_t *random) {
  static const uint32_t chunks[] = {64, 192, 1024, LONGEST_CHUNK};
  for (int kind = 0; kind < KINDS; kind++) {
    int before = 0; /* earlier rounds in which it used a sendrecv plan */
    for (int i = 0; i < round; i++) before += i % KINDS != kind;
    int algorithm = round % KINDS == kind ? SLOTS : before % algorithms_of(kind);
    for (int c = 0; c < SIZE_CLASSES; c++) {
      uint32_t chunk = chunks[next_random(random) >> 62];
      choose(kind, c, algorithm, chunk > least ? chunk : least);
    }
  }
}

const plan *chosen_plan(const sagecomm_op *op, int size_class, int size, int rank) {
  if (!chosen || size == 1 || choices[op->kind][size_class].algorithm == SLOTS) return NULL;
  return find(op->kind, choices[op->kind][size_class].algorithm, size, rank, scr_rooted(op->kind) ? op->root : 0);
}

scr_program *compile_messages(scr_group *g, const sagecomm_op *op, const plan *from) {
  static const uint8_t elem[SAGECOMM_DTYPE_COUNT] = {
      [SAGECOMM_UINT8] = 1, [SAGECOMM_INT32] = 4, [SAGECOMM_FLOAT32] = 4};
  int size_class = scr_group_class(g, op->kind, scr_op_bytes(op, g->rank, g->size));
  bool premul = op->reduce_op == SAGECOMM_PREMUL_SUM, average = op->reduce_op == SAGECOMM_AVG;
  scr_program *p = scr_program_new();
  CHECK(p != NULL && scr_program_sendrecv(p, from->n_steps, from->n_regions));
  p->kernels = scr_get_kernels();
  p->elem = elem[op->dtype];
  p->chunk = choices[op->kind][size_class].chunk;
  p->divisor = g->size;
  p->input_blocks =
      op->kind == SAGECOMM_REDUCE_SCATTER || op->kind == SAGECOMM_ALL_TO_ALL || op->kind == SAGECOMM_SCATTER;
  p->output_blocks = op->kind == SAGECOMM_ALL_GATHER || op->kind == SAGECOMM_ALL_TO_ALL || op->kind == SAGECOMM_GATHER;
  p->reduce = p->kernels->reduce[op->dtype][premul || average ? SAGECOMM_SUM : op->reduce_op];
  if (premul) p->scale = p->kernels->scale[op->dtype];
  scr_sendrecv *m = p->sendrecv;
  if (average) m->average = p->kernels->reduce[op->dtype][SAGECOMM_AVG];
  m->pieces = from->pieces;
  m->cells = from->cells;
  m->sets = from->sets;
  m->even = from->even;
  memcpy((void *)(uintptr_t)m->step, from->step, from->n_steps * sizeof *from->step);
  memcpy((void *)(uintptr_t)m->region, from->region, from->n_regions * sizeof *from->region);
  for (uint32_t i = 0; i < from->n_steps; i++) {
    const scr_step *s = &from->step[i];
    if (s->lag > m->max_lag) m->max_lag = s->lag;
    if (s->op != SCR_STEP_SEND || scr_group_has_channel(g, s->peer, s->channel)) continue;
    scr_group_set_channel(g, s->peer, s->channel, take_memory(g->rank, scr_group_channel_bytes(g)));
  }
  return p;
}
