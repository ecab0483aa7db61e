/* plans.h: the sendrecv plans (algo/sendrecv) as tables, and collectives that use them instead of slot plans.
 * sanitize_test.go writes the tables: all algorithms, for the sizes of groups and the roots that scenarios use. */
#ifndef PLANS_H
#define PLANS_H

#include "ranks.h"

/* The plan of one rank. */
typedef struct plan {
  int kind, algorithm; /* its number among those of the kind */
  int size, rank, root;
  const char *name;
  bool even;
  uint32_t pieces, cells, sets, n_steps, n_regions;
  const scr_step *step;
  const scr_region *region;
} plan;

extern const plan plans[];
extern const unsigned n_plans;

/* Messages of chunks up to this length fit into a channel, in all plans. */
#define LONGEST_CHUNK 8192

/* The sendrecv algorithms of a kind. */
int algorithms_of(int kind);
/* Returns the number of an algorithm, which must exist. */
int algorithm_named(int kind, const char *name);
bool takes_even_blocks_only(int kind, int algorithm);

#define SLOTS (-1)
#define SIZE_CLASSES 2

/* Sets what groups of later run_ranks() use for a kind and size class: a sendrecv algorithm and its chunk, or slots,
 * as at first. The root is the first or the last rank, where messages are used. */
void choose(int kind, int size_class, int algorithm, uint32_t chunk);
void choose_slots(void);
/* Messages, for all kinds, in chunks of `least` bytes or more. After as many rounds as choose_rounds() each algorithm had
 * its turn; in each round, one kind uses slot plans. */
void choose_messages(int round, uint32_t least, uint64_t *random);
int choose_rounds(void);

/* Returns NULL if the group uses slots for the kind and size class. */
const plan *chosen_plan(const sagecomm_op *op, int size_class, int size, int rank);
/* A program, and the channels that it sends through. */
scr_program *compile_messages(scr_group *g, const sagecomm_op *op, const plan *p);
/* A program over slots (slot_programs.c), and the large slots of this rank if it needs them. */
scr_program *compile_slots(scr_group *g, const sagecomm_op *op, uint64_t bytes);

#endif
