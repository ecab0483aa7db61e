/* run.h: a run, which is one operation in progress, and the pool of runs. */
#ifndef SCR_RUN_H
#define SCR_RUN_H

#include <stddef.h>
#include <string.h>

#include "bell.h"
#include "error.h"
#include "keyed_list.h"
#include "runner.h"

/* splitmix64's finaliser (Steele, Lea, Flood 2014) */
static inline uint64_t scr_mix(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* Adds the length of another operation to the hash of a batch, which begins with the number of operations. */
static inline uint64_t scr_batch_hash(uint64_t hash, uint64_t bytes) { return scr_mix(hash + 1 + bytes); }

enum { SCR_PENDING_STATE = 0, SCR_HAS_DONE = 1, SCR_DONE = 2, SCR_HAS_COMPOSITE = 4 };

/* Results of advancing a run. Incident codes (runner.h) are positive. */
enum { SCR_FINISHED = 0, SCR_BLOCKED = -1, SCR_YIELDED = -2, SCR_IDLE = -3, SCR_NEEDS_FIFO = -4 };

#define SCR_INLINE_SEGMENTS 4

typedef struct scr_segments {
  const sagecomm_segment *list;
  uint32_t n;
  uint32_t at;   /* the segment of the last look, near which the next look usually is, */
  uint64_t base; /* and the number of bytes before it */
} scr_segments;

/* Where the blocks of a buffer lie. */
typedef struct scr_blocks {
  const uint64_t *at; /* size() + 1 offsets, or NULL: blocks are equal */
  uint64_t equal;     /* bytes of each if `at` is NULL */
} scr_blocks;

static inline uint64_t scr_block_at(const scr_blocks *b, int32_t i) {
  return b->at ? b->at[i] : (uint64_t)i * b->equal;
}

static inline uint64_t scr_block_bytes(const scr_blocks *b, int32_t i) {
  return b->at ? b->at[i + 1] - b->at[i] : b->equal;
}

/* Several runs that one work stands for. */
typedef struct scr_composite scr_composite;

/* One operation in progress. A collective is written under the drive lock once it is queued, a p2p operation under
 * the p2p lock. */
struct scr_run {
  _Atomic uint32_t state; /* SCR_PENDING_STATE, SCR_HAS_DONE or SCR_HAS_COMPOSITE; SCR_DONE. Futex word of waiters. */
  _Atomic uint32_t sleepers;
  _Atomic uint32_t refs;
  _Atomic uint32_t claimed; /* a thread calls the done function */
  uint32_t index, generation;
  scr_group *group;
  uint64_t group_handle;
  int32_t status;
  scr_cause *cause; /* owned; of a status below 0 */
  _Atomic uint32_t released;

  /* The call. It does not change once the operation is numbered or posted. */
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
  _Atomic int64_t deadline_ns; /* 0: the run has not waited yet. A waiter and the engine may both set it. */
  _Atomic int64_t extended_ns; /* end of the last stop by which the deadline was moved */

  /* Of an operation on a device. Guarded by the drive lock once the run is queued. */
  scr_gate gate;
  bool at_gate;           /* it is blocked at its gate */
  bool reached;           /* the input of its first unit was ready on this rank */
  bool listed;            /* it is in the list of external runs */
  bool met;               /* its stream was done before calls were compared; see scr_external_met() */
  scr_run *next_external; /* in that list */

  /* The flag at which the run is blocked, or the peer and value of an incident. Guarded by the drive lock for a
   * collective, by the p2p lock for a p2p operation. */
  _Atomic uint64_t *flag;
  uint64_t need;
  int32_t peer;

  /* A collective's cursor over its program. Guarded by the drive lock once the run is queued. */
  struct {
    uint8_t started, uneven;
    uint8_t
        batch; /* number of operations packed into it, SCR_MANY_PARTS for that many or more; 0: it is a single one */
    uint64_t batch_hash;
    const scr_program *program;
    scr_program *own_program; /* owned: not in the cache */
    uint64_t
        longest;   /* bytes that are cut into chunks: the buffer or its longest block; all_to_all: that of all ranks */
    uint64_t base; /* offset of the first chunk in a block, behind its head */
    uint64_t seq, hash, ticket, chunks;
    /* Of one that its caller has begun: until when a thread that comes to wait for it comes soon. Below 0, negated, where the engine was
     * woken; else it is left to such a thread. 0: it has come, or none will. */
    _Atomic int64_t soon_ns;
    uint64_t head; /* position of the pipeline */
    uint32_t stage;
    bool stream_out;
    bool ahead;        /* its first chunk was published with the heads */
    uint32_t channel;  /* SCR_SLEEP_CHANNEL where it is blocked in a channel, else 0 */
    uint64_t cell;     /* bytes of a cell of a sendrecv plan's scratch memory */
    uint64_t expected; /* SCR_INCIDENT_SPLIT: the expected bytes; `need` has those that came */
  } coll;

  _Atomic(sagecomm_done_fn) done; /* stored after done_ctx: a thread in wait() may look at any time */
  void *done_ctx;
  scr_run *next; /* in the queue, or in a queue of p2p operations */
  scr_composite *
      composite; /* the composite of which this run is a part; holds a reference to its run. Stored before SCR_HAS_COMPOSITE. */
  scr_composite *composite_of; /* owned; set if this run stands for several others and carries out nothing itself */
  scr_run *next_completed;     /* in the list of runs for the completers */

  /* In a group that fuses: see bucket.h. */
  bool held;                  /* an operation that a carrier carries out */
  bool agrees;                /* an agreement, which belongs to no operation of the user */
  _Atomic(scr_run *) carrier; /* of a held operation; owned; NULL: it waits in the list of held operations */
  scr_run *members;           /* of a carrier: its operations, linked by `next`; owned until it is complete */
  uint64_t agreed;            /* of an agreement: this rank's proposal, and after it the lowest one of all ranks */

  /* State of a p2p operation. Guarded by the p2p lock, except for the atomics. */
  struct {
    _Atomic uint32_t waiters;  /* threads that wait for it, or for an agreement; they call its done function */
    _Atomic int64_t posted_ns; /* when a short recv was posted; 0 once a thread waits for it */
    uint64_t id, moved;
    /* A recv: with an announced send, whose rank `source` is. A send at a gate: it was granted. */
    _Atomic bool matched;
    scr_keyed entry;  /* in a keyed list of p2p operations */
    int32_t incident; /* that its posting has met, for the thread that issues it; 0: none */
    /* On a device: */
    _Atomic bool behind;  /* its stream has not reached it; it is in the group's list `behind` */
    _Atomic bool arrived; /* a recv that is behind has its payload, and needs no peer any more */
    scr_run *next_behind;
    /* A recv from another host: its buffer is expected to be written (direct.h), and how many bytes came in this way. */
    bool expected;
    uint64_t delivered;
  } p2p;
  int32_t source; /* the rank whose send a recv matched, -1 before */

  /* Data of the flight recorder and the statistics. Guarded by the same lock as the operation. */
  struct {
    /* When (in ticks) and by which thread a queued collective was created. 0 on the fast path, which starts it at
     * once. */
    uint64_t created, caller;
    uint64_t began, waited;         /* ticks: when it started, and how long it has waited for peers */
    uint64_t blocked;               /* ticks: when its present wait began; 0: it does not wait */
    uint32_t stack;                 /* number of the caller's stack text, 0: not known */
    uint8_t stamped;                /* it read the clock when it began */
    struct scr_flight_entry *entry; /* NULL: not recorded yet */
    uint64_t entry_position;
  } records;
};

/* Returns the p2p operation that an entry of a keyed list is a part of, or NULL for NULL. */
static inline scr_run *scr_run_of_entry(scr_keyed *e) {
  return e ? (scr_run *)(void *)((char *)e - offsetof(scr_run, p2p.entry)) : NULL;
}

static inline bool scr_is_p2p(const scr_run *r) { return r->kind == SAGECOMM_SEND || r->kind == SAGECOMM_RECV; }

/* Whether it is an inner p2p operation, a part of another operation. Those have negative tags; users' tags are not
 * negative. */
static inline bool scr_is_inner(const scr_run *r) { return scr_is_p2p(r) && r->tag < 0; }

scr_run *scr_run_new(void);
scr_run *scr_run_of(uint64_t handle);
void scr_run_ref(scr_run *r);
void scr_run_unref(scr_run *r);
/* Copies the description of the operation into the run. With `scratch`, which has room for 2 (size + 1) offsets, the
 * run points to the caller's arrays instead of copying them. Returns false without memory. */
bool scr_run_operands(scr_run *r, const sagecomm_op *op, int32_t size, uint64_t *scratch);
/* Marks the run complete and wakes its waiters. If it has a done function and no waiter would call it (`waiter`: the
 * caller is one), hands it to the completers. Drops no reference. A run that has `failed` keeps the cause that its group
 * has now. */
void scr_run_finish(scr_run *r, bool failed, bool waiter);
/* Does the same for a run whose status and cause are set already. */
void scr_run_settle(scr_run *r, bool waiter);
/* Calls the done function unless another thread has claimed that. */
void scr_run_complete(scr_run *r);

#endif
