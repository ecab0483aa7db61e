/* run.h: one operation on its way, and the pool of them. */
#ifndef SCR_RUN_H
#define SCR_RUN_H

#include <string.h>

#include "bell.h"
#include "error.h"
#include "runner.h"

/* splitmix64's finaliser (Steele, Lea, Flood 2014) */
static inline uint64_t scr_mix(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

enum { SCR_PENDING_STATE = 0, SCR_HAS_DONE = 1, SCR_DONE = 2, SCR_HAS_COMPOSITE = 4 };

/* What advancing returns. Incident codes of runner.h are positive and never mixed with these. */
enum { SCR_FINISHED = 0, SCR_BLOCKED = -1, SCR_YIELDED = -2, SCR_IDLE = -3, SCR_NEEDS_FIFO = -4 };

#define SCR_INLINE_SEGMENTS 4

typedef struct scr_segments {
  const sagecomm_segment *list;
  uint32_t n;
  uint32_t at;   /* a segment that was looked at lately, */
  uint64_t base; /* and the bytes before it: most looks go near the one before */
} scr_segments;

/* Where the blocks of a buffer lie. */
typedef struct scr_blocks {
  const uint64_t *at; /* size() + 1 offsets, or NULL: blocks are equal */
  uint64_t equal;     /* bytes of each then */
} scr_blocks;

static inline uint64_t scr_block_at(const scr_blocks *b, int32_t i) {
  return b->at ? b->at[i] : (uint64_t)i * b->equal;
}

static inline uint64_t scr_block_bytes(const scr_blocks *b, int32_t i) {
  return b->at ? b->at[i + 1] - b->at[i] : b->equal;
}

/* Several runs that one work stands for. */
typedef struct scr_composite scr_composite;

/* One operation on its way. Collectives: written under the drive lock once queued. P2p operations: under the p2p lock. */
struct scr_run {
  _Atomic uint32_t state; /* SCR_PENDING_STATE, SCR_HAS_DONE or SCR_HAS_COMPOSITE; SCR_DONE. Futex word of waiters. */
  _Atomic uint32_t sleepers;
  _Atomic uint32_t refs;
  _Atomic uint32_t claimed; /* a thread calls the done function */
  uint32_t index, generation;
  scr_group *group;
  uint64_t group_handle;
  int32_t status;
  scr_cause *cause; /* owned: of a status below 0 */
  _Atomic uint32_t released;

  /* What was asked for. It does not change once the operation is numbered or posted. */
  uint8_t kind, dtype, reduce_op, async;
  int32_t root, tag;
  uint64_t bytes; /* scr_op_bytes() */
  double factor;
  scr_segments in, out;
  scr_blocks in_blocks, out_blocks;
  uint64_t *offsets; /* of both, owned */
  sagecomm_segment segments[2 * SCR_INLINE_SEGMENTS];
  sagecomm_segment *more_segments; /* owned, when there are more than fit */
  int64_t timeout_ns;
  _Atomic int64_t deadline_ns; /* 0: not waited yet. A waiter and the engine may both set it. */
  _Atomic int64_t extended_ns; /* until when the stop lasted for which the deadline was moved last */

  /* Where the run is blocked, or with what an incident differs. Drive lock of a collective, lock of the group's p2p. */
  _Atomic uint64_t *flag;
  uint64_t need;
  int32_t peer;

  /* A collective's cursor over its program. Guarded by the drive lock once the run is queued. */
  struct {
    uint8_t started, uneven;
    uint8_t batch; /* operations that share it, SCR_MANY_PARTS or more; 0: it is one */
    uint64_t batch_hash;
    const scr_program *program;
    scr_program *own_program; /* owned: not in the cache */
    uint64_t longest; /* of what is cut into chunks: the buffer or its longest block; of an all_to_all, of all ranks */
    uint64_t base;    /* where the chunks begin in it, behind the head */
    uint64_t seq, hash, ticket, chunks;
    uint64_t head; /* position of the pipeline */
    uint32_t stage;
    bool stream_out;
    bool ahead;        /* its first chunk went with the heads */
    uint32_t channel;  /* SCR_SLEEP_CHANNEL of where it is blocked; 0: that is no channel's */
    uint64_t cell;     /* bytes of a cell of scratch memory, of a sendrecv plan */
    uint64_t expected; /* SCR_INCIDENT_SPLIT: bytes, where `need` came */
  } coll;

  _Atomic(sagecomm_done_fn) done; /* stored after done_ctx: a thread in wait() may look at any time */
  void *done_ctx;
  scr_run *next; /* in the queue, or in a list of p2p operations */
  scr_composite
      *composite; /* what this run is a part of; holds a reference to its run. Stored before SCR_HAS_COMPOSITE. */
  scr_composite *composite_of; /* owned: this run stands for several others and is none itself */
  scr_run *next_completed;     /* in the list of completions */

  /* Of a send or recv. Guarded by the p2p lock of the group, but for the two atomics. */
  struct {
    _Atomic uint32_t waiters;  /* threads that wait for it and call the done function when it is complete */
    _Atomic int64_t posted_ns; /* of a short recv that nobody has waited for */
    uint64_t id, moved;
    bool matched;
  } p2p;
  int32_t source; /* rank that a recv was served by, -1 before */

  /* What the flight recorder and the statistics note. Guarded as the operation itself is. */
  struct {
    /* Of a queued collective: when, in ticks, and by which thread it was created. 0 on the fast path, which creates and
     * starts at once. */
    uint64_t created, caller;
    uint64_t began, waited;         /* ticks: when it started, and how many of its time it has waited for peers */
    uint64_t blocked;               /* ticks since when it waits, 0: it does not */
    uint32_t stack;                 /* who called, 0: not known */
    uint8_t stamped;                /* it read the clock when it began */
    struct scr_flight_entry *entry; /* NULL: not recorded yet */
    uint64_t entry_position;
  } records;
};

static inline bool scr_is_p2p(const scr_run *r) { return r->kind == SAGECOMM_SEND || r->kind == SAGECOMM_RECV; }

/* Whether it is a p2p operation of which another operation is made: users' tags are not negative. */
static inline bool scr_is_inner(const scr_run *r) { return scr_is_p2p(r) && r->tag < 0; }

scr_run *scr_run_new(void);
scr_run *scr_run_of(uint64_t handle);
void scr_run_ref(scr_run *r);
void scr_run_unref(scr_run *r);
/* Takes the operation's description over. `scratch` is for 2 (size + 1) offsets and the caller's arrays are used as they
 * lie, or NULL: all is copied. False: no memory. */
bool scr_run_operands(scr_run *r, const sagecomm_op *op, int32_t size, uint64_t *scratch);
/* Marks it complete and wakes its waiters. If it has a done function and nobody is waiting who would call it
 * (`waiter`: the caller is), hands it to the completers. Drops no reference. */
void scr_run_finish(scr_run *r, int32_t status, bool waiter);
/* The last part of that, for a run whose result is there. */
void scr_run_settle(scr_run *r, bool waiter);
/* Calls the done function if nobody has. */
void scr_run_complete(scr_run *r);

#endif
