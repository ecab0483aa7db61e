/* group.h: one rank's side of a group. */
#ifndef SCR_GROUP_H
#define SCR_GROUP_H

#include "faults.h"
#include "run.h"
#include "shared_block.h"

/* ---- the group word: order exists once, here ----
 *
 * flags (8 bits) | number of the last collective (40) | generation of the handle (16). A fast operation takes the drive
 * lock and the next number by one compare-and-swap that succeeds on an idle group only. */
#define SCR_LOCKED UINT64_C(1) /* a thread drives the collectives */
#define SCR_QUEUED UINT64_C(2) /* the queue is not empty */
#define SCR_DOWN UINT64_C(4)   /* failed, aborted or destroyed: nothing starts any more */
#define SCR_FLAGS UINT64_C(0xff)
#define SCR_SEQ_ONE UINT64_C(0x100)
#define SCR_SEQ_MASK ((UINT64_C(1) << 40) - 1)
#define SCR_GEN_SHIFT 48

static inline uint64_t scr_word_seq(uint64_t w) { return (w >> 8) & SCR_SEQ_MASK; }

/* Time in which this process did not run, until `at`. */
typedef struct scr_stop {
  int64_t at, by;
} scr_stop;

typedef struct scr_flight_area scr_flight_area;

typedef struct scr_peer {
  scr_shared_block *shared;
  unsigned char *arena;
  uint64_t arena_bytes;
  _Atomic uint32_t *engine_bell;
  unsigned char *large;          /* its large slots, once seen; this rank's own from its making */
  uint64_t consumed_seen[2];     /* lower bounds of what it has consumed, by size of slot */
  const scr_flight_area *flight; /* NULL: it has none, or none that is seen here */
  uint32_t flight_entries;
  bool flight_stacks;
} scr_peer;

/* Whether `bytes` at an offset that the peer wrote lie in its arena, aligned as the library aligns them. */
static inline bool scr_inside(const scr_peer *p, uint64_t offset, uint64_t bytes) {
  return offset % SCR_LINE == 0 && bytes <= p->arena_bytes && offset <= p->arena_bytes - bytes;
}

typedef struct scr_cache_entry {
  _Atomic uint64_t key; /* 0: free; stored after the program */
  scr_program *program;
} scr_cache_entry;

typedef struct scr_recorder scr_recorder;
typedef struct scr_stats scr_stats;
typedef struct scr_tracer scr_tracer;
typedef struct scr_frame scr_frame;
typedef struct scr_unexpected scr_unexpected;

/* One direction pair with one peer. */
typedef struct scr_p2p_pair {
  scr_fifo *out, *in;
  bool broken;          /* the peer wrote what cannot be meant */
  uint64_t written;     /* mine in `out` */
  uint64_t reader_seen; /* lower bound of the peer's progress in `out` */
  uint64_t read;        /* mine in `in` */
  uint64_t eager_sent, eager_seen, eager_received, eager_released;
  uint64_t next_id;
  scr_run *send_head, *send_tail;       /* posted, not yet announced, in order */
  scr_run *granted_head, *granted_tail; /* clear to send */
  scr_run *waiting, *waiting_tail;      /* announced by rendezvous, no clearance yet, in order */
  scr_run *receiving, *receiving_tail;  /* recvs that matched a rendezvous, in the order of their grants */
  scr_unexpected *unexpected_head, *unexpected_tail;
  struct scr_grant *grant_head, *grant_tail; /* clearances that found no room yet */
} scr_p2p_pair;

/* One direction pair of channels with one peer; under the drive lock. */
typedef struct scr_channels {
  scr_channel *out[SCR_CHANNELS]; /* set by Go before the first program that sends there */
  const scr_channel *in[SCR_CHANNELS];
  uint64_t sent[SCR_CHANNELS];
  uint64_t taken_seen[SCR_CHANNELS]; /* lower bound of what the peer has taken of them */
  uint64_t taken[SCR_CHANNELS];
} scr_channels;

#define SCR_BATCH_SHAPES 64

/* Collectives longer than this read the clock at both ends: see recorder.h. */
#define SCR_STAMP_BYTES (64 * 1024)

struct scr_group {
  alignas(SCR_LINE) _Atomic uint64_t word;
  /* Threads that use the group's memory without the drive lock. Like the word it outlives the group. */
  _Atomic uint32_t inside;
  uint64_t handle;
  int32_t rank, size;
  bool trace;
  uint32_t spin, yield_us;
  scr_shared_block *shared;
  scr_peer *peer;
  _Atomic uint64_t *failure;
  uint64_t stream_bytes;
  _Atomic int64_t timeout_ns;

  /* What is noted of operations. Each has a part under the drive lock and one under the p2p lock. */
  struct {
    scr_recorder *recorder; /* NULL: off */
    scr_stats *stats;
    scr_tracer *tracer; /* NULL: off */
    uint32_t unstamped; /* short collectives that did not read the clock when they began; see recorder.h. Drive lock. */
  } records;

  /* Collectives. Guarded by the drive lock. */
  struct {
    uint64_t ticket[2];
    uint64_t hash;
    uint32_t spin_now;
    /* Where the engine last saw the queue blocked. */
    scr_run *engine_run;
    _Atomic uint64_t *engine_flag;
    uint64_t engine_need;
    /* A stop of this process that the engine has seen and not yet told those that wait. */
    scr_stop stop;
    /* When a waiter, or the engine while there is work, last looked at the clock: what waits knows of no stop before. */
    _Atomic int64_t looked_ns;
    scr_channels *channels; /* by peer */
    unsigned char *scratch; /* of sendrecv plans: one at a time needs it */
    uint64_t scratch_bytes;
    uint64_t *fast_offsets;
    scr_run fast; /* the run of the fast path */
  } coll;

  alignas(SCR_LINE) _Atomic uint32_t queue_lock; /* guards the queue and, in this process, the failure record */
  scr_run *queue_head, *queue_tail;

  /* Written by Go under its own lock, read by all. */
  uint64_t boundary[SAGECOMM_KIND_COUNT][SCR_MAX_CLASSES];
  _Atomic uint32_t boundaries[SAGECOMM_KIND_COUNT]; /* stored after them */
  scr_policy policy;                                /* beside what every issue reads anyway */
  scr_cache_entry cache[SCR_CACHE_ENTRIES];
  _Atomic uint32_t cached;
  /* Shapes of coalesced calls of which Go has said that they are one collective. */
  _Atomic uint64_t batch_shapes[SCR_BATCH_SHAPES];

  _Atomic(scr_cause *) cause; /* stored once */

  /* Sends and recvs. Guarded by `lock`, but for the atomics. */
  struct {
    alignas(SCR_LINE) _Atomic uint32_t lock;
    _Atomic uint32_t unfinished;    /* operations */
    scr_p2p_pair *pair;             /* by peer */
    scr_run *recv_head, *recv_tail; /* posted, unmatched, in order */
    uint64_t activity;
    int32_t turn;  /* whose fifos the next pass looks at first */
    scr_stop stop; /* as of collectives */
    _Atomic int64_t looked_ns;
    /* Threads that wait for p2p operations, and so drive them all, awake or asleep. While there is one the engine does
     * not. */
    _Atomic uint32_t drivers;
    _Atomic bool waits_at_once; /* whoever posted a short recv lately waited for it right away */
  } p2p;

  _Atomic uint64_t sleeps, blocked; /* counters */
};

/* Keeps the group from being closed until scr_group_exit(). False: the handle's group is down or gone. */
bool scr_group_enter(scr_group *g, uint64_t handle);
void scr_group_exit(scr_group *g);
/* The group's cause for a caller that keeps the group open: by a lock, or as one of `inside`. */
int32_t scr_copy_error(const scr_group *g, sagecomm_error *err);
/* How long an operation may take, within what can be added to the time. */
int64_t scr_op_timeout(const scr_group *g, const sagecomm_op *op);

#endif
