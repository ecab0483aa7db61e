/* group.h: the state of a group in one process. */
#ifndef SCR_GROUP_H
#define SCR_GROUP_H

#include "faults.h"
#include "run.h"
#include "shared_block.h"

/* ---- the group word, the only place that orders collectives ----
 *
 * flags (8 bits) | number of the last collective (40) | generation of the handle (16). A fast operation takes the drive
 * lock and the next number by one compare-and-swap that succeeds on an idle group only. */
#define SCR_LOCKED UINT64_C(1) /* a thread drives the collectives */
#define SCR_QUEUED UINT64_C(2) /* the queue is not empty */
#define SCR_DOWN UINT64_C(4)   /* failed, aborted or destroyed: nothing starts any more */
#define SCR_FUSES UINT64_C(8)  /* always set in a group that fuses: Go issues every collective; see bucket.h */
#define SCR_FLAGS UINT64_C(0xff)
#define SCR_SEQ_ONE UINT64_C(0x100)
#define SCR_SEQ_MASK ((UINT64_C(1) << 40) - 1)
#define SCR_GEN_SHIFT 48

static inline uint64_t scr_word_seq(uint64_t w) { return (w >> 8) & SCR_SEQ_MASK; }

/* A period in which this process did not run (SIGSTOP, a paused machine): it lasted `by` ns and ended at `at`. */
typedef struct scr_stop {
  int64_t at, by;
} scr_stop;

typedef struct scr_flight_area scr_flight_area;

typedef struct scr_peer {
  scr_shared_block *shared;          /* of this lane */
  scr_shared_block *lane[SCR_LANES]; /* of both lanes */
  unsigned char *arena;
  uint64_t arena_bytes;
  _Atomic uint32_t *engine_bell; /* not of a shadow */
  unsigned char *large;          /* its large slots; NULL until this process has read their offset, or made its own */
  uint64_t consumed_seen[2];     /* lower bounds of its consumed tickets: small slots, large slots */
  uint64_t recorded_seen;        /* lower bound of its last recorded call; see gate.c. Drive lock. */
  uint64_t agreed; /* the last call of which this rank's record and its own are known to agree. Drive lock. */
  const scr_flight_area *flight; /* its flight recorder; NULL where it has none or this process cannot read it */
  uint32_t flight_entries;
  bool flight_stacks;
  _Atomic bool is_visited; /* it is in the group's `visited` */
  /* Not 0: its shared blocks are shadows (docs/protocol.md, section 16). A thread that publishes for it, or waits for it, moves
   * the bytes; this is the number for scr_go. */
  uint64_t pair;
  uint64_t split_hash; /* of the blocks between the two ranks in external all_to_alls so far. Drive lock. */
  uint64_t fits;       /* up to which of these nothing is left to compare. Drive lock. */
} scr_peer;

/* Whether `bytes` at `offset` lie inside the peer's arena and `offset` is aligned to SCR_LINE. The peer wrote the
 * offset, so it may be any number. */
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

/* Both directions of p2p with one peer. Guarded by the p2p lock. */
typedef struct scr_p2p_pair {
  scr_fifo *out, *in;
  uint64_t fifo_bytes;  /* of both */
  bool broken;          /* the peer wrote an invalid count or frame */
  uint64_t written;     /* bytes that this rank has put into `out` */
  uint64_t reader_seen; /* lower bound of the bytes that the peer has taken from `out` */
  uint64_t read;        /* bytes that this rank has taken from `in` */
  uint64_t eager_sent, eager_seen, eager_received, eager_released;
  uint64_t next_id;
  scr_run *send_head, *send_tail;            /* sends that are posted and not yet announced, in order */
  scr_run *granted_head, *granted_tail;      /* sends that the receiver has granted */
  scr_keyed_list waiting;                    /* sends that are announced and not granted, by id */
  scr_keyed_list receiving;                  /* recvs that matched an announced send, by its id */
  scr_keyed_list unexpected;                 /* sends that arrived before their recvs (scr_unexpected), by tag */
  struct scr_grant *grant_head, *grant_tail; /* grants that wait for room in `out` */
} scr_p2p_pair;

/* The channels to and from one peer. Guarded by the drive lock. */
typedef struct scr_channels {
  scr_channel *out[SCR_CHANNELS]; /* Go sets it before the first program that sends through it */
  const scr_channel *in[SCR_CHANNELS];
  uint64_t sent[SCR_CHANNELS];
  uint64_t taken_seen[SCR_CHANNELS]; /* lower bound of the messages that the peer has taken */
  uint64_t taken[SCR_CHANNELS];
  uint64_t expected[SCR_CHANNELS]; /* number of the last message whose buffer was told to Go: direct.h */
} scr_channels;

#define SCR_BATCH_SHAPES 64

/* Collectives longer than this read the clock at both ends: see recorder.h. */
#define SCR_STAMP_BYTES (64 * 1024)

/* Locks, in the order in which they are taken:
 *
 * 1. The drive lock (SCR_LOCKED in `word`): whoever finds it taken leaves the work to its holder. Only
 *    scr_group_close() waits for it.
 * 2. p2p.lock. A thread holds it together with the drive lock in scr_group_close() alone.
 * 3. queue_lock, visit_lock, and the locks of the pool of runs (run.c), of completed runs (engine.c) and of the table of groups
 *    (group.c). No other lock is taken while one of these is held.
 *
 * Go is entered without any of them, because a hook may wait for a lock of Go's. The hooks of connections (push, poll, attend, send,
 * expect, forget), which do not, are called with the drive lock or p2p.lock. */
/* One lane of a group. The host lane stands for the group: its handle is the group's. */
struct scr_group {
  alignas(SCR_LINE) _Atomic uint64_t word;
  /* The number of threads that use the group's memory without the drive lock. Like `word`, it stays valid after the
   * group is closed. */
  _Atomic uint32_t inside;
  /* The last asynchronous collective that its caller had begun was waited for within policy.soon_ns. It stays valid, too: a thread may
   * store it just behind the end of the group. */
  _Atomic bool waited_soon;
  uint64_t handle;
  int32_t rank, size;
  bool trace;
  uint8_t lane;            /* SCR_HOST_LANE or SCR_DEVICE_LANE */
  bool pairs;              /* it has peers with a `pair` */
  _Atomic bool has_failed; /* a run has ended with the failure of the group */
  uint64_t message_bytes;  /* of the longest message of a channel */
  uint32_t spin, yield_us;
  scr_shared_block *shared;
  scr_peer *peer;
  /* The ranks that loops over peers visit: all of this host, this one included, then those of other hosts with which it has to do
   * (scr_group_visit()). Nothing is ever taken off. */
  int32_t *visited;
  int32_t n_near;             /* of this host */
  _Atomic uint32_t n_visited; /* in all; stored behind the entry, with `visit_lock` */
  _Atomic uint32_t visit_lock;
  scr_group *host; /* the host lane, which may be this one */
  _Atomic uint64_t *failure;
  uint64_t stream_bytes;
  _Atomic int64_t timeout_ns;

  /* Recording. Each of the three has one part for collectives (drive lock) and one for p2p operations (p2p lock). */
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
    uint64_t attended; /* peers of other hosts for which the driver polls: bits, of the first 64 */
    /* Where the engine last saw the queue blocked. */
    scr_run *engine_run;
    _Atomic uint64_t *engine_flag;
    uint64_t engine_need;
    /* The last stop of this process that the engine has seen; waiters extend their deadlines by it. */
    scr_stop stop;
    /* When a waiter, or the engine while there is work, last read the clock. A later gap shows a stop of this
     * process. */
    _Atomic int64_t looked_ns;
    scr_channels *channels; /* by peer */
    unsigned char *scratch; /* for sendrecv plans, of which one runs at a time */
    uint64_t scratch_bytes;
    scr_run *external_head, *external_tail; /* external runs that have started; see gate.c */
    uint64_t *fast_offsets;
    scr_run fast;    /* the run of the fast path */
    uint64_t splits; /* external all_to_alls so far */
  } coll;

  alignas(SCR_LINE) _Atomic uint32_t
      queue_lock; /* guards the queue, and this rank's failure record among the threads of this process */
  scr_run *queue_head, *queue_tail;
  scr_run *held_head, *held_tail; /* held operations, in the order of their issue */
  _Atomic uint32_t held;          /* their number; changed under queue_lock */
  _Atomic uint64_t numbered;      /* operations held so far, in a group that fuses; changed under queue_lock */
  /* Complete operations of carriers whose done functions nobody has called, linked by `next_completed`. queue_lock. */
  scr_run *unclaimed, *unclaimed_tail;
  _Atomic uint32_t carrying; /* carriers of several operations that are not complete, and operations in `unclaimed` */

  /* Go writes these under its own lock; any thread reads them without one. */
  uint64_t boundary[SAGECOMM_KIND_COUNT][SCR_MAX_CLASSES];
  _Atomic uint32_t boundaries[SAGECOMM_KIND_COUNT]; /* their number, stored after them */
  scr_policy policy;                                /* beside what every issue reads anyway */
  scr_cache_entry cache[SCR_CACHE_ENTRIES];
  _Atomic uint32_t cached;
  /* Hashes of coalesced calls that Go has checked and packed into one collective. */
  _Atomic uint64_t batch_shapes[SCR_BATCH_SHAPES];

  _Atomic(scr_cause *) cause; /* stored once; only scr_group_recause() replaces it */
  /* Causes that were replaced. queue_lock; scr_group_close() reads it without, when no thread is inside. */
  scr_cause *replaced;

  /* P2p operations. Guarded by `lock`, except for the atomics. */
  struct {
    alignas(SCR_LINE) _Atomic uint32_t lock;
    _Atomic uint32_t unfinished; /* operations */
    scr_p2p_pair *pair;          /* by peer */
    scr_keyed_list recvs;        /* recvs that are posted and unmatched, by source and tag */
    uint64_t activity;
    /* Device lane: operations that their streams have not reached, and how many. Each pass looks at them. */
    scr_run *behind_head, *behind_tail;
    _Atomic uint32_t behind;
    int32_t turn;  /* where in `visited` the next pass starts */
    scr_stop stop; /* as in coll */
    _Atomic int64_t looked_ns;
    /* The number of threads that wait for p2p operations, awake or asleep. They drive all p2p operations; the engine
     * drives them only while there are none. */
    _Atomic uint32_t drivers;
    _Atomic bool waits_at_once; /* the last short recv was waited for right after it was posted */
  } p2p;

  _Atomic uint64_t sleeps, blocked; /* counters */

  /* Of the host lane: the device lane, NULL before it is opened. The memory of groups is never freed. */
  _Atomic(scr_group *) device;
};

/* Returns the length of g->visited. Sequentially consistent, because the load may begin the last look before a sleep. */
static inline int32_t scr_n_visited(const scr_group *g) {
  return (int32_t)atomic_load_explicit(&g->n_visited, memory_order_seq_cst);
}

/* Keeps the group from being closed until scr_group_exit(). Returns false if the handle's group is down or closed. */
bool scr_group_enter(scr_group *g, uint64_t handle);
void scr_group_exit(scr_group *g);
/* Copies the group's cause and returns its status.
 * Requires: the caller keeps the group open: it holds a lock of the group or counts in `inside`. */
int32_t scr_copy_error(const scr_group *g, sagecomm_error *err);
/* Returns the timeout of an operation in ns, at most SCR_LONGEST_NS, so that adding it to the time does not
 * overflow. */
int64_t scr_op_timeout(const scr_group *g, const sagecomm_op *op);

#endif
