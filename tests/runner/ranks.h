/* ranks.h: ranks as threads over one piece of memory, for tests of the runner without Go. What Go decides in the
 * library (programs, failures) is decided here by a few lines, so that sanitizers see all of the runner. */
#ifndef RANKS_H
#define RANKS_H

#include <stdio.h>
#include <stdlib.h>

#include "../../internal/runner/engine.h"
#include "../../internal/runner/p2p.h"
#include "../../internal/runner/program.h"
#include "../../internal/runner/queue.h"

#define MAX_RANKS 8
#define SELDOM_NS (20 * 1000000000LL)
#define SLEEP_NS (50 * 1000000LL) /* the longest sleep of a driver */
#define SOUNDLY_US 400000         /* after so long without work the engine sleeps for a second, unless it is rung */
#define ARENA_BYTES (UINT64_C(8) << 20) /* of each rank */

typedef struct rank {
  int rank;
  uint64_t handle;
  scr_group *group;
  uint64_t random;           /* the same on all ranks: they make the same choices */
  const struct rank *beside; /* the same rank in another group, or lane, of the same ranks; NULL: there is none */
} rank;

typedef void rank_fn(rank *r, void *arg);

/* Makes a group of n ranks, runs fn on one thread each and takes the group down. spin: rounds before a rank gives its
 * processor away. */
void run_ranks(int n, uint32_t spin, uint32_t yield_us, uint64_t seed, rank_fn *fn, void *arg);

uint64_t next_random(uint64_t *state);

/* Issues the operation, waits until it is complete and returns its status. */
int32_t call(const rank *r, const sagecomm_op *op, sagecomm_error *err);
/* Waits until the work is complete, releases it and returns its status. */
int32_t complete(sagecomm_work work, sagecomm_error *err);
/* Issues an asynchronous sum of one integer. */
int32_t begin_sum(const rank *r, int32_t *data, int64_t timeout_ns, sagecomm_work *work, sagecomm_error *err);
/* How an operation has ended, of which note_end() is the done function. */
typedef struct ending {
  _Atomic int64_t at; /* 0: it has not */
  int32_t status;
} ending;
void note_end(void *e, int32_t status, const sagecomm_error *err);
/* Returns when the operation has ended, and does not drive it. */
int64_t sleep_until_end(const ending *e);
/* How often the bell of the progress engine was rung. */
uint32_t rings(void);
/* Takes the group down on all ranks, as Go does for abort(). Returns the first cause. */
sagecomm_error declare(const rank *r, int32_t status, int32_t culprit, const char *message);
/* The rank that gets no memory for broadcasts; -1: none. */
extern _Atomic int no_memory_on;
/* Set in tests in which a rank writes random words anywhere, so that records of failures are not trusted. */
extern _Atomic bool garbled;
/* Whether run_ranks() makes two groups, or the device lane of the one group as well; whether groups fuse (fusing.h). */
extern bool two_groups, device_lanes, fusing;
/* Whether each rank uses the failure word of its own shared block. */
extern bool own_words;
/* Whether drivers and the engine sleep for up to SELDOM_NS while what they have to do is at no gate. */
extern bool seldom;
/* Returns the program of an operation, compiled at its first use. */
const scr_program *program_of(scr_group *g, const sagecomm_op *op, uint64_t bytes);
/* The gate of the next operation that a rank issues on a device. */
extern scr_gate next_gate[MAX_RANKS];
/* Allocates zeroed memory in a rank's arena. It is never freed. */
uint64_t take_memory(int rank, uint64_t n);
/* All ranks of this run_ranks() arrive before any goes on. */
void meet(void);

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      abort();                                                                      \
    }                                                                               \
  } while (0)

#endif
