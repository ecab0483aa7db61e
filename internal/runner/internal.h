/* internal.h: the runner's own types. Nothing here is seen by Go; nothing here is shared between processes. */
#ifndef SCR_INTERNAL_H
#define SCR_INTERNAL_H

#include <stdatomic.h>
#include <string.h>

#include "shared_block.h"
#include "faults.h"
#include "runner.h"

#define SCR_LIKELY(x) __builtin_expect(!!(x), 1)
#define SCR_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* splitmix64's finaliser (Steele, Lea, Flood 2014) */
static inline uint64_t scr_mix(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

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

/* ---- runs ---- */

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

/* Why a group is down. It never changes; the group and every operation that failed with it hold a reference, so that a
 * work tells its cause when the group is gone and its memory is another one's. */
typedef struct scr_cause {
  _Atomic uint32_t refs;
  sagecomm_error error;
} scr_cause;

scr_cause *scr_cause_new(const sagecomm_error *error); /* NULL: no memory */
scr_cause *scr_cause_ref(scr_cause *c);
void scr_cause_unref(scr_cause *c);
/* Copies it, or that the group was destroyed if there is none, and returns its status. */
int32_t scr_cause_copy(const scr_cause *c, sagecomm_error *err);

/* Several runs that one work stands for. */
typedef struct scr_composite scr_composite;

/* One operation on its way. Collectives: written under the drive lock once queued. Messages: under the message lock. */
struct scr_run {
  _Atomic uint32_t state; /* SCR_PENDING_STATE, SCR_HAS_DONE or SCR_HAS_COMPOSITE; SCR_DONE. Futex word of waiters. */
  _Atomic uint32_t sleepers;
  _Atomic uint32_t refs;
  _Atomic uint32_t claimed; /* somebody calls the done function */
  uint32_t index, generation;
  scr_group *group;
  uint64_t group_handle;
  int32_t status;
  scr_cause *cause; /* owned: of a status below 0 */
  _Atomic uint32_t released;

  uint8_t kind, dtype, reduce_op, started, async, uneven, parts, stamped;
  int32_t root, tag;
  uint64_t bytes; /* scr_op_bytes() */
  double factor;
  uint64_t parts_hash;
  scr_segments in, out;
  scr_blocks in_blocks, out_blocks;
  uint64_t *offsets; /* of both, owned */
  sagecomm_segment segments[2 * SCR_INLINE_SEGMENTS];
  sagecomm_segment *more_segments; /* owned, when there are more than fit */
  const scr_program *program;
  scr_program *own_program; /* owned: not in the cache */

  uint64_t longest; /* of what is cut into chunks: the buffer or its longest block; of an all_to_all, of all ranks */
  uint64_t base;    /* where the chunks begin in it, behind the head */
  uint64_t seq, hash, ticket, chunks;
  uint64_t head; /* position of the pipeline */
  uint32_t stage;
  bool stream_out;
  bool ahead; /* its first chunk went with the heads */
  int64_t timeout_ns;
  _Atomic int64_t deadline_ns; /* 0: not waited yet. A waiter and the engine may both set it. */
  _Atomic int64_t extended_ns; /* until when what it was moved for had lasted */

  uint64_t cell; /* bytes of a cell of scratch memory, of a collective made of messages */

  _Atomic uint64_t *flag; /* where it is blocked */
  uint32_t channel;       /* SCR_SLEEP_CHANNEL of that, 0: it is no channel's */
  uint64_t need;
  uint64_t expected; /* SCR_INCIDENT_SPLIT: bytes, where `need` came */
  int32_t peer;

  _Atomic(sagecomm_done_fn) done; /* stored after done_ctx: a thread in wait() may look at any time */
  void *done_ctx;
  scr_run *next; /* queue, or a list of messages */
  scr_composite
      *composite; /* what this run is a part of; holds a reference to its run. Stored before SCR_HAS_COMPOSITE. */
  scr_composite *composite_of; /* owned: this run stands for several others and is none itself */
  scr_run *next_completed;     /* list of completions */

  /* messages */
  _Atomic uint32_t waiters;  /* threads that wait for it and call the done function when it is complete */
  _Atomic int64_t posted_ns; /* of a short recv that nobody has waited for */
  uint64_t id, moved;
  int32_t source;
  bool announced, matched;

  /* What is noted of it. Of a queued collective: when, in ticks, and by which thread it was created. 0 on the fast path,
   * which creates and starts at once. */
  uint64_t created, caller;
  uint64_t began, waited;         /* ticks: when it started, and how many of its time it has waited for peers */
  uint64_t blocked;               /* ticks since when it waits, 0: it does not */
  uint32_t stack;                 /* who called, 0: not known */
  struct scr_flight_entry *entry; /* NULL: not recorded yet */
  uint64_t entry_position;
};

/* ---- groups ---- */

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
  scr_run *waiting;                     /* announced by rendezvous, no clearance yet */
  scr_run *receiving;                   /* recvs that matched a rendezvous */
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
  scr_shared_block *shared;
  scr_peer *peer;
  _Atomic uint64_t *failure;
  uint64_t ticket[2];
  uint64_t hash;
  _Atomic int64_t timeout_ns;
  uint32_t spin, spin_now, yield_us;
  uint64_t stream_bytes;
  scr_recorder *recorder; /* NULL: off */
  scr_stats *stats;
  uint32_t unstamped; /* short collectives that did not read the clock when they began; see recorder.h */
  scr_tracer *tracer; /* NULL: off */
  /* Stops of this process that the engine has seen and not yet told those that wait, of collectives and of messages. */
  scr_stop stop, p2p_stop;
  /* When a waiter, or the engine while there is work, last looked at the clock: what waits knows of no stop before that. */
  _Atomic int64_t looked_ns, p2p_looked_ns;
  /* Where the engine last saw the queue blocked. */
  scr_run *engine_run;
  _Atomic uint64_t *engine_flag;
  uint64_t engine_need;

  alignas(SCR_LINE) _Atomic uint32_t queue_lock;
  scr_run *queue_head, *queue_tail;

  scr_channels *channels; /* by peer */
  unsigned char *scratch; /* of collectives made of messages: one at a time needs it */
  uint64_t scratch_bytes;

  scr_run fast; /* the run of the fast path, under the drive lock */
  uint64_t *fast_offsets;

  uint64_t boundary[SAGECOMM_KIND_COUNT][SCR_MAX_CLASSES];
  _Atomic uint32_t boundaries[SAGECOMM_KIND_COUNT]; /* stored after them */
  scr_cache_entry cache[SCR_CACHE_ENTRIES];
  _Atomic uint32_t cached;
  /* Coalesced calls of which Go has said that they are one collective. */
  _Atomic uint64_t fused[SCR_BATCH_SHAPES];

  _Atomic(scr_cause *) cause; /* stored once */

  alignas(SCR_LINE) _Atomic uint32_t p2p_lock;
  _Atomic uint32_t messages; /* unfinished */
  scr_p2p_pair *pair;
  scr_run *recv_head, *recv_tail; /* posted, unmatched, in order */
  uint64_t p2p_activity;
  int32_t p2p_turn; /* whose rings the next pass looks at first */
  /* Threads that wait for messages, and so drive them all, awake or asleep. While there is one the engine does not. */
  _Atomic uint32_t p2p_drivers;
  _Atomic bool waits_at_once; /* who posted a short recv lately waited for it right away */

  _Atomic uint64_t sleeps, blocked;
};

/* ---- waiting (wait.c) ---- */

int64_t scr_now(void); /* CLOCK_MONOTONIC, ns */

static inline void scr_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void scr_futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t ns);
void scr_futex_wake(_Atomic uint32_t *word);
void scr_spin_lock(_Atomic uint32_t *lock);
void scr_spin_unlock(_Atomic uint32_t *lock);
bool scr_try_lock(_Atomic uint32_t *lock);

/* Adds to the bell and wakes its sleepers. */
void scr_bell_wake(_Atomic uint32_t *bell);

/* State of one spell of waiting. Zero it; zero it again after progress. */
typedef struct scr_backoff {
  int64_t began, looked, last;
} scr_backoff;

/* By how much more than `asked` ns the time since *last is too long to be a wait of this process alone, else 0. */
int64_t scr_overrun(int64_t *last, int64_t now, int64_t asked);
/* Gives a run that had begun to wait the time back. Who waits for it and the engine both find a stop out; it counts once. */
void scr_extend(scr_run *r, scr_stop stop);
/* The time; a gap far longer than `asked` ns since the last look moves the run's deadline. The first look of a spell goes by
 * the group's: the engine looks 50 times a second as long as a run that has begun to wait goes on. */
int64_t scr_look_at_clock(scr_run *r, scr_backoff *p, int64_t asked);

#define SCR_SLICE_NS (50 * 1000000LL)
/* For ever, and still far from where sums of times overflow. */
#define SCR_LONGEST_NS (INT64_MAX / 4)

/* Stores the flag and wakes the peers that sleep for it: store, then read of the sleeper words, both sequentially
 * consistent, which together with the sleeper's store-then-look lets no wake-up be lost (docs/protocol.md). */
static inline void scr_store_flag(_Atomic uint64_t *flag, uint64_t value) {
  atomic_store_explicit(flag, value, memory_order_seq_cst);
}
void scr_wake_peer(const scr_peer *p, const scr_sleeper *s, uint32_t word);
/* 1 + the rank whose flag a sleeper of collectives waits for, or 0. */
static inline uint32_t scr_sleeps_for(uint32_t word) { return word & 0xffff; }
/* What it says as it waits where the run is blocked. */
static inline uint32_t scr_sleeps_word(const scr_run *r) { return r->channel | (1 + (uint32_t)r->peer); }
static inline void scr_wake_readers(scr_group *g) {
  uint32_t me = 1 + (uint32_t)g->rank;
  for (int32_t i = 0; i < g->size; i++) {
    scr_sleeper *s = &g->peer[i].shared->collective;
    uint32_t word = atomic_load_explicit(&s->waits_for, memory_order_seq_cst);
    if (SCR_UNLIKELY(word != 0)) {
      if (i != g->rank && scr_sleeps_for(word) == me) scr_wake_peer(&g->peer[i], s, word);
    }
  }
}

/* Waits a little for the blocked run: yields, then sleeps in slices. 0 to look again, SCR_YIELDED when slice_end has
 * passed, or a incident code with run->peer set. */
int scr_relax(scr_group *g, scr_run *r, scr_backoff *p, scr_sleeper *s, int64_t slice_end);
/* Looks whether waiting still makes sense. 0 or a incident code. */
int scr_health(scr_group *g, scr_run *r, int64_t now);
void scr_describe_incident(const scr_run *r, int code, scr_incident *out);

/* ---- programs (program.c) ---- */

void scr_run_start(scr_group *g, scr_run *r);
/* Goes on until the run is finished or blocked, or until_ns (0: never) has passed. Under the drive lock. */
int scr_run_advance(scr_group *g, scr_run *r, int64_t until_ns);

/* ---- collectives made of messages (sendrecv.c) ---- */

/* How many bytes are cut into chunks: the longest block that this rank knows of. */
uint64_t scr_sendrecv_longest(const scr_group *g, const scr_run *r);
/* As scr_run_advance(), of a program of messages. */
int scr_sendrecv_advance(scr_group *g, scr_run *r, int64_t until_ns);
/* Whether what a rank says that it sleeps for, in a channel from or to `awaited`, is there. */
bool scr_channel_is_there(const scr_group *g, int32_t rank, int32_t awaited, uint32_t word);

/* ---- runs and queue (run.c, issue.c) ---- */

/* coll.Kind.Reduces and coll.Kind.Rooted. */
static inline bool scr_reduces(int kind) {
  return kind == SAGECOMM_ALL_REDUCE || kind == SAGECOMM_REDUCE || kind == SAGECOMM_REDUCE_SCATTER;
}

static inline bool scr_rooted(int kind) {
  return kind == SAGECOMM_BROADCAST || kind == SAGECOMM_REDUCE || kind == SAGECOMM_GATHER || kind == SAGECOMM_SCATTER;
}

static inline bool scr_is_p2p(const scr_run *r) { return r->kind == SAGECOMM_SEND || r->kind == SAGECOMM_RECV; }

/* Whether it is a message of which another operation is made: users' tags are not negative. */
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

bool scr_drive_lock(scr_group *g);
void scr_drive_unlock(scr_group *g);
/* Under the drive lock: carries the queue on until it is empty, blocked, or until_ns has passed, or `until` is done. */
int scr_drive(scr_group *g, scr_run *until, int64_t until_ns, scr_run **blocked);
/* Under the drive lock, the group being down: completes all that is queued with its error. */
void scr_drain(scr_group *g);
/* Keeps the group from being closed until scr_group_exit(). False: the handle's group is down or gone. */
bool scr_group_enter(scr_group *g, uint64_t handle);
void scr_group_exit(scr_group *g);
/* The group's cause for a caller that keeps the group open: by a lock, or as one of `inside`. */
int32_t scr_copy_error(const scr_group *g, sagecomm_error *err);
/* How long an operation may take, within what can be added to the time. */
int64_t scr_op_timeout(const scr_group *g, const sagecomm_op *op);
int32_t scr_plain_error(sagecomm_error *err, int32_t status, const char *message);
int32_t scr_no_memory(sagecomm_error *err);
/* Whether a call whose program is there is allowed as well. What else would be refused has no program under its key. */
bool scr_op_allowed(const scr_group *g, const sagecomm_op *op, uint64_t bytes);

/* ---- messages (p2p.c, p2p_issue.c) ---- */

int32_t scr_p2p_issue(scr_group *g, uint64_t handle, const sagecomm_op *op, sagecomm_work *work, sagecomm_error *err);
/* What one pass over the messages may cost, in bytes copied: about 0.1 ms. */
#define SCR_PASS_BYTES (1024 * 1024)
/* Under the message lock: moves what can be moved, about `budget` bytes: SCR_YIELDED when there may be more. SCR_IDLE
 * when nothing is unfinished, SCR_BLOCKED, SCR_NEEDS_FIFO (*peer), or a incident code (*culprit). */
int scr_p2p_progress(scr_group *g, int64_t budget, int32_t *peer, scr_run **culprit);
void scr_p2p_drain(scr_group *g);
/* Under the message lock: gives all unfinished messages more time. */
void scr_p2p_extend(scr_group *g, scr_stop stop);
int scr_p2p_wait(scr_group *g, scr_run *r, int64_t slice_end);
void scr_p2p_free(scr_group *g);

/* ---- engine (engine.c) ---- */

void scr_engine_wake(void);
/* Has it look again within 20 ms: at what is unfinished, whose bell peers ring, but whose deadlines are its task. */
void scr_engine_watch(void);
void scr_push_completed(scr_run *r);

extern scr_hooks scr_go;
extern _Atomic uint64_t scr_entries;
void scr_entering_go(void); /* counts */

#endif
