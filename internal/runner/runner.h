/* runner.h: the interface of the runner for Go. Its own types are in run.h, group.h, p2p.h and shared_block.h.
 *
 * The runner carries out programs on shared memory: flags, copies, reductions, waiting. It decides nothing: Go
 * chooses the program, checks the call, diagnoses failures and words errors; the runner reaches it through
 * scr_hooks.
 * */
#ifndef SCR_RUNNER_H
#define SCR_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../export/sagecomm.h"
#include "../kernels/kernels.h"
#include "op.h"

typedef struct scr_group scr_group;
typedef struct scr_run scr_run;

#include "gate.h"
#include "records.h"

#define SCR_MANY_PARTS 127

/* The codes of an incident: why a driver cannot go on. Go diagnoses it. */
enum {
  SCR_INCIDENT_FAILURE = 1, /* the failure word is set */
  SCR_INCIDENT_MISMATCH,    /* rank `peer` made a different call */
  SCR_INCIDENT_TIMEOUT,     /* the operation's deadline has passed while waiting for `peer` */
  SCR_INCIDENT_LEFT,        /* rank `peer`, which the operation needs, has left */
  SCR_INCIDENT_LENGTH,      /* p2p: `peer` sent `got` bytes where `bytes` were expected */
  SCR_INCIDENT_GARBAGE,     /* `peer` wrote an invalid p2p frame, or an invalid offset of its slots */
  SCR_INCIDENT_TYPE,        /* p2p: `peer` sent elements of type `got` */
  SCR_INCIDENT_MEMORY,      /* this process has no memory for what `peer` sent */
  SCR_INCIDENT_UNEVEN,      /* all_to_all: this rank's blocks differ in length, which the program does not support */
  SCR_INCIDENT_SPLIT,       /* all_to_all: `peer` has a block of `got` bytes where `bytes` are expected */
  SCR_INCIDENT_UNFIT, /* external all_to_alls: blocks between this rank and `peer` differ; see scr_group_unfit() */
  /* `peer` wrote an invalid value in a collective: */
  SCR_INCIDENT_BAD_LONGEST, /* the length of the longest block of its all_to_all */
  SCR_INCIDENT_BAD_CHANNEL, /* the offset of its channel number `got` to this rank */
  SCR_INCIDENT_BAD_MESSAGE, /* a message in that channel */
  SCR_INCIDENT_BAD_TAKEN,   /* the number of messages that it has taken from this rank's channel number `got` */
};

typedef struct scr_incident {
  int32_t code;
  int32_t peer;
  uint64_t sequence;
  uint8_t kind, dtype, reduce_op, parts; /* parts as in scr_call */
  int32_t root;                          /* or the peer of a p2p operation */
  int32_t tag;
  bool announced; /* of a recv: its send was announced */
  uint64_t bytes;
  uint64_t got;
  int64_t waited_ns;
  int64_t timeout_ns;
} scr_incident;

#define SCR_LEFT_OUT UINT32_MAX /* in place of the number of a batch */

/* A payload that goes to, or comes from, a rank of another host without a copy: a message of a channel, or a piece of a p2p
 * operation. */
typedef struct scr_payload {
  int32_t lane, channel; /* SCR_PIECE: a piece */
  uint64_t number;       /* of the message, or of the operation */
  uint64_t hash,
      block;  /* of the message; of a piece to send: the operation's bytes, and where its frame begins in the fifo */
  void *data; /* of a piece that is expected: of the whole operation */
  uint64_t bytes;
} scr_payload;

#define SCR_PIECE (-1)

/* Calls from the runner into Go. They are set once, before the first group.
 * Holds: nothing while one is called, but for those that take a pair. */
typedef struct scr_hooks {
  /* Checks, compiles, numbers and queues a collective that the fast path cannot take. On SAGECOMM_OK *out is the
   * queued run, with a reference for the caller. */
  int32_t (*issue)(uint64_t group, const sagecomm_op *op, scr_run **out, sagecomm_error *err);
  /* Diagnoses an incident. The group is down when it returns, or soon, if that takes longer than a caller may go without a look for
   * signals: then whoever comes back to the operation meets the incident again. */
  void (*incident)(uint64_t group, const scr_incident *incident);
  /* Makes the fifo to `peer`. Returns SAGECOMM_OK, or an error after it has taken the group down. */
  int32_t (*fifo)(uint64_t group, int32_t peer);
  /* Checks the operations of a coalesced call and assigns them to batches: batch[i] is the number of the batch of
   * ops[i], or SCR_LEFT_OUT if that is not carried out. Batches are issued in the order of their numbers, from 0. */
  int32_t (*fuse)(uint64_t group, const sagecomm_op *ops, uint32_t n, uint32_t *batch, sagecomm_error *err);
  /* Fails the group with *cause because a part of a coalesced call could not be issued after others were. The group
   * is down when it returns. */
  void (*fail)(uint64_t group, const sagecomm_error *cause);
  /* Announces an operation of a group with `trace` that is about to be issued. */
  void (*trace)(uint64_t group, const sagecomm_op *op);
  /* Somebody waits for a held operation of the group. *agreement is the agreement that is under way, with a reference
   * for the caller, or NULL if there is none: the operation has a carrier, or the group is down. */
  void (*want)(uint64_t group, scr_run **agreement);
  /* Sends what this rank has published for the rank of a shadow, or leaves that to the pump of the link. It waits for nothing, and for
   * no lock that is held while the runner is entered, but for scr_group_visit(): so the caller may hold locks, other than visit_lock. */
  void (*push)(uint64_t pair);
  /* Lets the pump of the link look at all that this rank has stored for the rank of a shadow: its goodbye is for the pump alone. As push. */
  void (*wake)(uint64_t pair);
  /* Tells the rank of a shadow, behind the goodbye, that this rank touches nothing of the group any more. As push. */
  void (*detach)(uint64_t pair);
  /* Reads what has come for the pair of a shadow, and for others on its connections. Returns whether anything has come. As push. */
  int32_t (*poll)(uint64_t pair);
  /* Whether this thread is about to poll for the pair again and again: then nobody else is woken for what comes. As push. */
  void (*attend)(uint64_t pair, int32_t on);
  /* Sends a payload straight out of a buffer, unless it would have to wait or something that comes before it is not sent yet. Returns
   * whether the payload was taken: then the buffer may be overwritten. As push. */
  int32_t (*send)(uint64_t pair, const scr_payload *p);
  /* Lets a payload that is about to come be written straight to its buffer, if it has not begun to come. What was written so is
   * marked in the place (scr_place.delivered) or the frame (SCR_DELIVERED). Returns whether there may be something to forget. As push. */
  int32_t (*expect)(uint64_t pair, const scr_payload *p);
  /* When it returns, nothing is written to the buffers any more that were expected for a lane; what comes goes through places and
   * fifos, as if it had not been expected. It waits only while a thread handles what has come, which waits for nothing. */
  void (*forget)(uint64_t pair, int32_t lane);
} scr_hooks;

void scr_set_hooks(const scr_hooks *hooks);
/* Sets the hooks to the Go functions of this package and installs the fork handler. */
void scr_call_go(void);

/* ---- programs ---- */

enum { SCR_PUBLISH, SCR_REDUCE, SCR_COLLECT, SCR_READ, SCR_AWAIT, SCR_LOCAL };
enum { SCR_NOBODY, SCR_EVERYBODY, SCR_OTHERS, SCR_FROM_ROOT };

typedef struct scr_stage {
  uint8_t action; /* SCR_PUBLISH ... */
  uint8_t lag;
  uint8_t share; /* reduce: only this rank's share of the chunk */
  uint8_t from;
  uint8_t to_output;
  uint8_t back;     /* reduce: whose slots get the result: SCR_OTHERS, SCR_FROM_ROOT or SCR_NOBODY */
  uint8_t skip_own; /* publish: without this rank's share, which its reduce reads from the input */
  uint8_t head;     /* runs once, before the pipeline, on the heads of blocks */
} scr_stage;

#define SCR_MAX_STAGES 6

/* A sendrecv program: plan.SendRecvPlan in C. The Go type documents its parts. */
enum { SCR_STEP_SEND = 8, SCR_STEP_RECV, SCR_STEP_RECV_REDUCE, SCR_STEP_REDUCE, SCR_STEP_COPY };
enum { SCR_INPUT, SCR_OUTPUT, SCR_SCRATCH };

typedef struct scr_region {
  uint32_t space; /* SCR_INPUT ... */
  uint32_t cell;
  int32_t block;
  uint32_t first, count; /* pieces */
} scr_region;

typedef struct scr_step {
  uint8_t op; /* SCR_STEP_SEND ... */
  uint8_t channel;
  uint8_t message_first;
  uint32_t lag;
  int32_t peer;
  uint32_t from, n_from, to, n_to; /* ranges in the list of regions */
} scr_step;

typedef struct scr_sendrecv {
  uint32_t n_steps, max_lag, pieces, cells, sets;
  bool even;                /* all blocks must have the same length */
  scr_reduce_fn *average;   /* divides the sum for AVG; NULL for other reductions */
  const scr_region *region; /* both lists lie behind this struct */
  const scr_step *step;
} scr_sendrecv;

typedef struct scr_program {
  scr_sendrecv *sendrecv; /* owned; NULL: a slot program, which uses `stage` */
  uint8_t large;
  uint8_t n_stages;
  uint8_t max_lag;
  uint8_t input_blocks;  /* the input holds one block for each rank */
  uint8_t output_blocks; /* the output holds one block for each rank */
  uint8_t own_from_input;
  uint8_t elem;      /* bytes of an element */
  uint8_t n_heads;   /* stages before the pipeline */
  uint8_t algorithm; /* Go's number of the algorithm, for statistics */
  uint32_t chunk;    /* bytes; of one block if the input holds blocks */
  uint32_t head;     /* bytes of each block that are sent before the pipeline, through the small slots */
  double divisor;
  scr_reduce_fn *reduce;
  scr_scale_fn *scale; /* PREMUL_SUM */
  const scr_kernels *kernels;
  scr_stage stage[SCR_MAX_STAGES];
} scr_program;

#define SCR_MAX_CLASSES 16
#define SCR_CACHE_ENTRIES 1024 /* power of two; filled to three quarters at most */

/* ---- groups ---- */

/* The lanes of a group (docs/protocol.md, section 10). A scr_group is one of them. */
enum { SCR_HOST_LANE, SCR_DEVICE_LANE, SCR_LANES };

typedef struct scr_peer_config {
  void *arena; /* base of the mapping of the peer's arena */
  uint64_t arena_bytes;
  uint64_t shared[SCR_LANES]; /* offsets of its shared blocks */
  uint64_t engine_bell;       /* offset of its engine's bell, from scr_shared_check() */
  uint64_t pair;              /* not 0: its shared blocks are shadows, and this is their number for hooks */
  uint64_t flight;            /* offset of its flight recorder for this lane; 0: none that peers can read */
  uint32_t flight_entries;
  bool flight_stacks; /* it records callers' stacks */
} scr_peer_config;

/* How long, and how much, the threads of a group do before they leave the rest to others. */
typedef struct scr_policy {
  int64_t sync_ns;  /* A synchronous call keeps its caller for so long, then it returns PENDING. */
  int64_t sleep_ns; /* A driver sleeps for so long at most before it looks around. */
  uint64_t
      begin_bytes;  /* Callers begin asynchronous collectives up to this length, and move so much of p2p operations. */
  int64_t begin_ns; /* What is before them in the queue goes on for so long. */
  int64_t brief_ns; /* wait_briefly() waits for so long, for operations up to begin_bytes. */
  int64_t drain_ns; /* What is queued when the group goes down may complete for so long. */
  int64_t gate_ns;  /* A driver that is blocked at a gate sleeps for so long at most. */
  int64_t at_once_ns; /* A recv that is waited for within this time had a waiter from the start. */
  int64_t soon_ns;    /* An asynchronous collective that is waited for within this time needed no engine. */
} scr_policy;

typedef struct scr_group_config {
  int32_t rank, size;
  uint32_t lane;
  scr_group *host; /* of a device lane: the host lane of its group, which is closed later */
  int64_t timeout_ns;
  uint32_t spin;           /* rounds of spinning before the thread yields */
  uint32_t yield_us;       /* how long the thread yields before it sleeps */
  uint64_t stream_bytes;   /* outputs of at least this length are written with non-temporal stores */
  uint32_t flight_entries; /* capacity of each trail of the flight recorder, which lies at this rank's
                              `flight` in `peers` or in private memory; 0: off */
  bool flight_stacks;      /* records callers' stacks */
  bool trace;              /* calls the hook `trace` for every operation */
  bool timeline;           /* keeps events for scr_group_take_trace() */
  bool fuses;              /* Go gathers operations: see bucket.h */
  /* Of the host lane, whose word the device lane uses: the rank whose shared block has the failure word. 0, or this rank
   * where the ranks of the group share no memory (docs/protocol.md, section 16). */
  int32_t failure_rank;
  uint64_t message_bytes,
      fifo_bytes; /* of the longest message of a channel, and of fifos to ranks of other hosts; 0: the shorter ones */
  scr_policy policy;
  const scr_peer_config *peers;
} scr_group_config;

/* Bytes of a shared block of a lane for a group of `size`. */
uint64_t scr_shared_bytes(int lane, int32_t size);
/* Initialises a shared block in zeroed memory. engine_bell is an offset in the same arena. */
void scr_shared_format(void *shared, int lane, int32_t rank, int32_t size, uint64_t engine_bell);
/* Returns 0, or -1 if there are no shared blocks of this rank and size at the offsets p->shared of p->arena. Sets
 * p->engine_bell: the peer may change the header of its shared block at any time, so it is read here and never
 * again. */
int scr_shared_check(scr_peer_config *p, int32_t rank, int32_t size);

/* Opens a lane. Returns its handle and the lane, or 0 if there is no memory or no free handle. */
uint64_t scr_group_open(const scr_group_config *config, scr_group **out);
scr_group *scr_group_of(uint64_t handle);
/* Frees the group. When it returns, the handle is refused and no thread is inside.
 * Requires: the group is down and its queue is empty. */
void scr_group_close(scr_group *g);

void scr_group_set_timeout(scr_group *g, int64_t timeout_ns);
void scr_group_set_large(scr_group *g, uint64_t offset);
bool scr_group_has_large(const scr_group *g);
void scr_group_set_fifo(scr_group *g, int32_t peer, uint64_t offset);
bool scr_group_has_fifo(const scr_group *g, int32_t peer);
/* Return the memory of a fifo to a peer, and of a channel, and the longest message of a channel. */
uint64_t scr_group_fifo_bytes(const scr_group *g, int32_t peer);
uint64_t scr_group_channel_bytes(const scr_group *g);
uint64_t scr_group_message_bytes(const scr_group *g);
void scr_group_set_channel(scr_group *g, int32_t peer, int32_t channel, uint64_t offset);
bool scr_group_has_channel(const scr_group *g, int32_t peer, int32_t channel);
/* Sets the size classes of a kind. The class of a byte count is the number of boundaries at or below it. */
void scr_group_set_classes(scr_group *g, int kind, const uint64_t *boundaries, int n);
int scr_group_class(const scr_group *g, int kind, uint64_t bytes);
/* Returns the number of the last collective of this lane. */
uint64_t scr_group_sequence(const scr_group *g);
/* Returns how many collectives the user has issued in this lane. In a group that fuses this differs from the number of
 * the last one: several operations may share a collective, and agreements are collectives. */
uint64_t scr_group_issued(const scr_group *g);
/* The same of the device lane, 0 before this process has opened it.
 * Requires: the host lane. */
uint64_t scr_group_device_sequence(const scr_group *g);
/* Lets loops over peers visit a rank of another host from now on. Any thread may call it, of either lane. */
void scr_group_visit(scr_group *g, int32_t rank);
/* Sets the word `left` of the shared block and wakes the peers that wait for this rank, in both lanes.
 * Requires: the host lane. */
void scr_group_goodbye(scr_group *g);
/* Tells the peers that this rank will not touch their shared blocks any more. It is the last access to them.
 * Requires: the host lane. */
void scr_group_detach(scr_group *g);
/* Whether `rank` has told the owner of a shared block that it will not touch it any more (scr_group_detach). `size`
 * is the size of the group. */
bool scr_shared_detached_by(const void *shared, int32_t size, int32_t rank);
/* Whether the owner of the shared block has called scr_shared_give_up(). */
bool scr_shared_gave_up(const void *shared);
/* Marks a shared block of this rank, whose group it could not open, as left, after it has stored the reason: peers
 * may have opened theirs. */
void scr_shared_give_up(void *shared, const void *record, size_t n);
/* Returns the number of collectives and p2p operations that are not complete. */
uint64_t scr_group_unfinished(const scr_group *g);
/* Whether an operation that was issued has ended with the failure of the group. */
bool scr_group_has_failed(const scr_group *g);
/* Describes an operation that is not complete as one that has timed out: the first collective, or the first p2p operation if there is no
 * collective. Its `peer` is -1 if it has not started, and so waits for none yet. Returns 1, or 0 if all are complete, or -1 if a thread
 * drives the collectives. */
int scr_group_oldest(scr_group *g, scr_incident *out);

/* Declares a failure. `record` is Go's, at most SCR_FAILURE_BYTES. Returns the rank whose record is the first cause:
 * this rank, or one that declared a failure earlier. */
int32_t scr_group_set_failure(scr_group *g, const void *record, size_t n);
/* Returns 1 + the rank of the first cause, or 0 if there is none. Copies at most n bytes of its record. */
int32_t scr_group_get_failure(const scr_group *g, void *record, size_t n);
/* Copies the record of a rank that has given up. Returns false if it has not. */
bool scr_group_gave_up(const scr_group *g, int32_t rank, void *record, size_t n);
/* Marks the group as down in this process and completes its queued runs. Later calls get `error`, or that of an
 * earlier scr_group_down(). */
void scr_group_down(scr_group *g, const sagecomm_error *error);
/* Replaces the cause of this lane. Operations that have failed keep theirs. Returns false without memory: the cause stays.
 * Requires: the group is down, and the caller keeps it open. */
bool scr_group_recause(scr_group *g, const sagecomm_error *error);
/* Wakes every sleeping rank, in both lanes, so that it looks at the failure word. */
void scr_group_wake_all(scr_group *g);

/* A collective as its rank recorded it in its shared block. */
typedef struct scr_call {
  uint64_t sequence, hash, bytes;
  uint8_t kind, dtype, reduce_op;
  uint8_t uneven; /* blocks differ in length */
  uint8_t parts;  /* number of operations packed into it, SCR_MANY_PARTS for that many or more; 0: a single one */
  int32_t root;
} scr_call;
/* Copies the `sequence`th collective of `rank`. Returns false if its record was overwritten or is not there yet. */
bool scr_group_call(const scr_group *g, int32_t rank, uint64_t sequence, scr_call *out);
/* Returns the number of the last collective that `rank` recorded, or 0. *left is whether it has left. */
uint64_t scr_group_last_call(const scr_group *g, int32_t rank, bool *left);
/* The same without `left`. */
uint64_t scr_group_recorded(const scr_group *g, int32_t rank);
/* Copies the last collective that `rank` recorded in a lane, which this process need not have opened. Returns false if
 * there is none. */
bool scr_group_last_in(const scr_group *g, int lane, int32_t rank, scr_call *out);
/* Marks the running hash of a collective of the device lane if SCR_MARK_EVERY divides its number, and compares this rank's
 * mark at or before a number with a peer's: true also where either has none. */
void scr_group_mark(scr_group *g, uint64_t seq, uint64_t hash);
bool scr_group_marks_agree(const scr_group *g, int32_t peer, uint64_t seq);
/* The lengths of the blocks between two ranks in an external all_to_all, as both have told them. */
typedef struct scr_unfit {
  uint64_t sequence;
  uint64_t sent, expected;           /* by this rank: bytes to the peer, and from it */
  uint64_t peer_sent, peer_expected; /* by the peer: bytes to this rank, and from it */
} scr_unfit;
/* Compares what this rank and a peer have told each other of external all_to_alls, as far back as both remember. Returns true if it
 * differs, with the first call in which it does. Where the lengths of that one fit, those of an earlier one did not. */
bool scr_group_unfit(const scr_group *g, int32_t peer, scr_unfit *out);
/* Returns how many external all_to_alls a rank has told of. */
uint64_t scr_group_splits(const scr_group *g, int32_t rank);
/* Returns the number of the last collective of the device lane whose input was ready on `rank`, from either lane. */
uint64_t scr_group_reached(const scr_group *g, int32_t rank);
/* Device lane: whether a stream of this rank has not reached its p2p operation, or a peer has called the send of a recv and
 * its payload is not all here. */
bool scr_p2p_streams_are_late(scr_group *g);
/* Returns the number of chunks, of all collectives so far, that a rank has consumed. */
uint64_t scr_group_consumed(const scr_group *g, int32_t rank);
/* Returns the rank whose flag `rank` sleeps for, or about which it reports an incident, or -1 if it is awake. A rank
 * that waits for long is awake from time to time. */
int32_t scr_group_awaits(const scr_group *g, int32_t rank);

/* Returns the number of the last collective that the owner of the shared block has recorded, 0 if there is none. */
uint64_t scr_shared_recorded(const void *shared);

/* What a rank tells a peer that shares no memory with it, for diagnosis (docs/protocol.md, section 16): of each lane
 * consumed0, consumed1, reached, waits_for and the records, then the marks, then of the pair with rank `with` the number of external
 * all_to_alls and the lengths of their blocks. A record, mark or length that its owner is writing has seq = 0.
 * scr_shared_put_state() stores it in the shadow of the rank, where no word falls. It returns false, and stores nothing, if no
 * rank writes that. `shared` has the shared blocks by lane, of a group of `size`. */
#define SCR_STATE_WORDS (SCR_LANES * (4 + 4 * SCR_STATE_RECORDS) + 2 * SCR_STATE_MARKS + 1 + 4 * SCR_STATE_SPLITS)
#define SCR_STATE_RECORDS 64
#define SCR_STATE_MARKS 64
#define SCR_STATE_SPLITS 64
void scr_shared_copy_state(void *const shared[SCR_LANES], int32_t size, int32_t with, uint64_t out[SCR_STATE_WORDS]);
bool scr_shared_put_state(void *const shared[SCR_LANES], int32_t size, int32_t with,
                          const uint64_t in[SCR_STATE_WORDS]);

/* The program cache. scr_cache_insert() returns false if the cache is full; the program then belongs to one run. */
scr_program *scr_program_new(void);
/* Allocates the lists of steps and regions of a sendrecv program. Returns false without memory. */
bool scr_program_sendrecv(scr_program *p, uint32_t steps, uint32_t regions);
void scr_program_free(scr_program *p);
uint64_t scr_cache_key(const scr_group *g, const sagecomm_op *op, uint64_t bytes);
const scr_program *scr_cache_find(const scr_group *g, uint64_t key);
bool scr_cache_insert(scr_group *g, uint64_t key, scr_program *p);
uint32_t scr_cache_entries(const scr_group *g);

/* Numbers and queues the operation. With `own`, the program is freed with the run. `gate` is copied; NULL for host
 * memory. Returns NULL without memory, or if the group is down (*down). */
scr_run *scr_submit(scr_group *g, const sagecomm_op *op, uint64_t bytes, const scr_program *p, bool own,
                    const scr_gate *gate, bool *down);

/* Posts a send or recv at a gate, the buffer of which has room for all of it. Returns the operation with a reference for
 * the caller, or NULL without memory, or if the group is down (*down). */
scr_run *scr_p2p_submit(scr_group *g, const sagecomm_op *op, const scr_gate *gate, bool *down);

#include "held.h"

/* ---- probe ---- */

/* The costs of memory on this machine. Each is the least of many trials. */
typedef struct scr_probe {
  double copy_ns,
      reduce_ns; /* per byte copied, and per byte of each operand reduced, in memory that this core has in its cache */
  /* Between two cores; 0 if this process may use one core only, or the second thread did not run in time. */
  double hop_ns;           /* from storing a flag until another core has seen it */
  double far_ns, claim_ns; /* per byte: read what another core wrote; store, beyond copy_ns, to what it read */
} scr_probe;

/* Measures with a second thread for a few milliseconds, budget_ns at most. Returns false without memory or thread. */
bool scr_probe_run(int64_t budget_ns, scr_probe *out);

/* ---- the ABI's operations ---- */

int32_t scr_issue(sagecomm_group group, const sagecomm_op *op, sagecomm_work *work, uint64_t *sequence,
                  sagecomm_error *err);
int32_t scr_issue_coalesced(sagecomm_group group, const sagecomm_op *ops, uint32_t n, sagecomm_work *work,
                            uint64_t *sequence, sagecomm_error *err);
int32_t scr_wait(sagecomm_work work, int64_t timeout_ns, sagecomm_error *err);
int32_t scr_wait_briefly(sagecomm_work work, sagecomm_error *err);
int32_t scr_test(sagecomm_work work);
int32_t scr_on_done(sagecomm_work work, sagecomm_done_fn done, void *ctx, sagecomm_error *err);
int32_t scr_work_source(sagecomm_work work);
void scr_release(sagecomm_work work);
uint64_t scr_run_handle(const scr_run *run);
/* Returns SAGECOMM_OK, or the status and error of a group that is down. */
int32_t scr_group_error(sagecomm_group group, sagecomm_error *err);
uint64_t scr_go_entries(void);
/* Whether this process is a forked child, in which every entry refuses to work. */
bool scr_in_child(void);
int32_t scr_refuse_child(sagecomm_error *err);
void scr_watch_fork(void);
/* Sets whether a forked child closes a descriptor. Call it with false before this process closes the descriptor. */
void scr_close_in_child(int32_t fd, bool closes);

/* ---- progress engine ---- */

enum {
  SCR_ENGINE_CONTROL = 1, /* scr_engine_control() was called */
  SCR_ENGINE_INCIDENT,    /* *group has met *incident */
  SCR_ENGINE_COMPLETER,   /* completions wait and no completer is idle */
  SCR_ENGINE_FIFO,        /* *group needs a fifo to incident->peer */
};

#define SCR_MAX_BELLS 64
/* Adds the engine's futex word in one arena of this process. Returns false if there are too many.
 * Requires: no group of that arena is open yet; scr_engine_remove_bell() is not running. */
bool scr_engine_add_bell(void *bell);
/* Removes a bell. When it returns, no thread wakes the bell any more. The engine may still read it until its present
 * turn ends, so the caller lets the engine return with SCR_ENGINE_CONTROL before it unmaps the bell.
 * Requires: scr_engine_add_bell() is not running. */
void scr_engine_remove_bell(void *bell);
typedef struct scr_engine_config {
  uint32_t spin, yield_us; /* as of a group */
  int64_t slice_ns;        /* one look at a group drives its queue for so long */
  int64_t look_ns;         /* while there is work it looks so often whether waiting makes sense */
  int64_t gate_ns;         /* its longest sleep while a run is blocked at a gate */
  int64_t sound_ns;        /* its longest sleep where there is none */
  uint32_t idle_looks;     /* after so many looks without work it sleeps for so long */
} scr_engine_config;

/* Before the first turn. */
void scr_engine_configure(const scr_engine_config *config);
/* Drives the runs of the groups that have no waiter. Returns one of SCR_ENGINE_... when Go has something to do.
 * Requires: one thread calls it. */
int scr_engine_turn(scr_group *const *groups, int n, uint64_t *group, scr_incident *incident);
void scr_engine_control(void);
/* Calls the done functions of completed operations that have no waiter, one at a time. Returns after idle_ns without
 * work. */
void scr_completer_run(int64_t idle_ns);
/* Whether completers have done functions to call, or are calling some. */
bool scr_completing(void);

#endif
