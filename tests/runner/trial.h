/* trial.h: a call drawn at random: what ranks contribute, what each of them must get, and the buffers for both. */
#ifndef TRIAL_H
#define TRIAL_H

#include "ranks.h"

#define PIECES 5
#define FACTOR 0.5 /* of PREMUL_SUM */

/* One call. `length`: elements of what a rank has for another one, by ranks, where both matter. */
typedef struct trial {
  uint8_t kind, dtype, reduce_op;
  int root, rank, size;
  bool in_place;
  uint32_t salt, elem;
  uint32_t length[MAX_RANKS][MAX_RANKS];
} trial;

/* Segments with guard bytes between them. */
typedef struct buffer {
  unsigned char *base;
  uint64_t room;
  sagecomm_segment list[PIECES];
  uint32_t n;
} buffer;

/* Whether a kind has one buffer without blocks. */
bool flat(int kind);

/* Returns how many blocks there are in this rank's input or output. A flat buffer is one block. */
int n_blocks(const trial *t, bool out);

/* Returns the elements of a block. */
uint32_t length_of(const trial *t, bool out, int block);

/* Write what a block of the input holds, and what a block of the output must hold afterwards. */
void block_of_input(const trial *t, int block, unsigned char *to);
void block_of_output(const trial *t, int block, unsigned char *to);

/* Returns a buffer for so many elements, in one piece or several. */
buffer cut(uint64_t *random, uint64_t elements, uint32_t elem);

void copy_in(const buffer *b, const unsigned char *from);

/* Returns a part of a buffer. */
buffer part_of(const buffer *b, uint64_t at, uint64_t bytes);

/* Stop the program if a buffer holds something else, or if bytes between its segments were written. */
void expect_content(const trial *t, const buffer *b, const unsigned char *want);
void expect_gaps(const buffer *b);

/* Draws a call, the same on all ranks, of at most `most` bytes in a buffer without blocks and a third of that in a block. Algorithms that
 * need equal blocks get them, and the root of a broadcast by slots has one buffer. */
trial draw_trial(uint64_t *random, int kind, int rank, int size, uint32_t most);

/* The buffers of a call, and all blocks of its input and of its output, one after the other. */
typedef struct contents {
  buffer in, out;
  unsigned char *given, *wanted;
  uint64_t in_bytes[MAX_RANKS], out_bytes[MAX_RANKS];
} contents;

/* Makes the buffers. `random` decides where they are cut, on each rank elsewhere. */
void make_contents(const trial *t, contents *c, uint64_t *random);
/* Stops the program unless the buffers hold what they must behind the call. */
void check_contents(const trial *t, const contents *c);
void free_contents(contents *c);
/* Returns the call on these buffers, which stay the contents'. */
sagecomm_op op_of(const trial *t, const contents *c);

#endif
