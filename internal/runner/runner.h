/* runner.h: what Go sees of the runner. The types inside are in run.h, group.h, p2p.h and shared_block.h.
 *
 * The runner carries out programs on shared memory: flags, copies, reductions, waiting. It decides nothing: which program,
 * whether a call is allowed, what a failure means and how it is worded is Go's, reached through scr_hooks.
 */
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

#include "records.h"

#define SCR_MANY_PARTS 127

/* What a driver found that Go must diagnose. */
enum {
  SCR_INCIDENT_FAILURE = 1, /* the failure word is set */
  SCR_INCIDENT_MISMATCH,    /* rank `peer` made another call */
  SCR_INCIDENT_TIMEOUT,     /* the operation's deadline has passed while waiting for `peer` */
  SCR_INCIDENT_LEFT,        /* rank `peer` said goodbye and is needed */
  SCR_INCIDENT_LENGTH,      /* point-to-point: `peer` sent `got` bytes where `want` were expected */
  SCR_INCIDENT_GARBAGE,     /* what `peer` wrote cannot be meant: a message, or where the slots of a collective lie */
  SCR_INCIDENT_TYPE,        /* point-to-point: `peer` sent elements of type `got` */
  SCR_INCIDENT_MEMORY,      /* this process has none for what came from `peer` */
  SCR_INCIDENT_UNEVEN,      /* all_to_all: this rank's blocks differ in length, and the program cannot have that */
  SCR_INCIDENT_SPLIT,       /* all_to_all: `peer` has a block of `got` bytes where `bytes` are expected */
  /* What `peer` wrote cannot be meant, in a collective: */
  SCR_INCIDENT_BAD_LONGEST, /* how long the longest block of its all_to_all is */
  SCR_INCIDENT_BAD_CHANNEL, /* where its channel to this rank of channel `got` lies */
  SCR_INCIDENT_BAD_MESSAGE, /* a message in that channel */
  SCR_INCIDENT_BAD_TAKEN,   /* how many messages of this rank's channel of channel `got` it has taken */
};

typedef struct scr_incident {
  int32_t code;
  int32_t peer;
  uint64_t sequence;
  uint8_t kind, dtype, reduce_op, parts; /* parts as in scr_call */
  int32_t root;                          /* or peer of send and recv */
  int32_t tag;
  uint64_t bytes;
  uint64_t got;
  int64_t waited_ns;
  int64_t timeout_ns;
} scr_incident;

/* Calls from the runner into Go. Set once, before the first group. All are called with no lock held. */
typedef struct scr_hooks {
  /* A collective that the fast path cannot take: check, choose, compile, number and queue it. On SAGECOMM_OK *out is
   * the queued run, with a reference for the caller. */
  int32_t (*issue)(uint64_t group, const sagecomm_op *op, scr_run **out, sagecomm_error *err);
  /* Diagnoses incident; the group is down when it returns. */
  void (*incident)(uint64_t group, const scr_incident *incident);
  /* Makes the fifo to `peer`. SAGECOMM_OK, or the group is down. */
  int32_t (*fifo)(uint64_t group, int32_t peer);
  /* Checks the operations of a coalesced call and says which of them share one: batch[i] is the number of the batch that
   * ops[i] is part of. Batches are issued in the order of their numbers, from 0. */
  int32_t (*fuse)(uint64_t group, const sagecomm_op *ops, uint32_t n, uint32_t *batch, sagecomm_error *err);
  /* A part of a coalesced call could not be issued after others were, for the reason of *cause: the group is down when it
   * returns. */
  void (*fail)(uint64_t group, const sagecomm_error *cause);
  /* An operation of a group that traces is about to be issued. */
  void (*trace)(uint64_t group, const sagecomm_op *op);
} scr_hooks;

void scr_set_hooks(const scr_hooks *hooks);
/* Sets the hooks to the Go functions of this package and watches for fork. */
void scr_call_go(void);

/* ---- programs ---- */

enum { SCR_PUBLISH, SCR_REDUCE, SCR_COLLECT, SCR_READ, SCR_AWAIT, SCR_LOCAL };
enum { SCR_NOBODY, SCR_EVERYBODY, SCR_OTHERS, SCR_FROM_ROOT };

typedef struct scr_stage {
  uint8_t action; /* SCR_PUBLISH ... */
  uint8_t lag;
  uint8_t share; /* reduce: this rank's share instead of the whole chunk */
  uint8_t from;
  uint8_t to_output;
  uint8_t back;     /* reduce: SCR_OTHERS or SCR_FROM_ROOT, whose slots the result goes back into, or SCR_NOBODY */
  uint8_t skip_own; /* publish: leave this rank's share out, its reduce reads it from the input */
  uint8_t head;     /* done once, before the pipeline, on the heads of blocks */
} scr_stage;

#define SCR_MAX_STAGES 6

/* A sendrecv program: sendrecv.Plan as C. What its parts mean is said there. */
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
  uint32_t from, n_from, to, n_to; /* of the list of regions */
} scr_step;

typedef struct scr_sendrecv {
  uint32_t n_steps, max_lag, pieces, cells, sets;
  bool even;                /* blocks must be of equal length */
  scr_reduce_fn *average;   /* divides what is summed up; NULL: nothing to divide */
  const scr_region *region; /* both lists lie behind this struct */
  const scr_step *step;
} scr_sendrecv;

typedef struct scr_program {
  scr_sendrecv *sendrecv; /* owned; NULL: its stages on slots */
  uint8_t large;
  uint8_t n_stages;
  uint8_t max_lag;
  uint8_t input_blocks;  /* the input is a block for each rank */
  uint8_t output_blocks; /* the output is a block for each rank */
  uint8_t own_from_input;
  uint8_t elem;      /* bytes of an element */
  uint8_t n_heads;   /* stages before the pipeline */
  uint8_t algorithm; /* Go's number of it, for statistics */
  uint32_t chunk;    /* bytes; of one block, where the input is blocks */
  uint32_t head;     /* bytes of each block that go ahead through the small slots */
  double divisor;
  scr_reduce_fn *reduce;
  scr_scale_fn *scale; /* PREMUL_SUM */
  const scr_kernels *kernels;
  scr_stage stage[SCR_MAX_STAGES];
} scr_program;

#define SCR_MAX_CLASSES 16
#define SCR_CACHE_ENTRIES 1024 /* power of two; filled to three quarters at most */

/* ---- groups ---- */

typedef struct scr_peer_config {
  void *arena; /* base of the mapping of the peer's arena */
  uint64_t arena_bytes;
  uint64_t shared;      /* offset of its shared block */
  uint64_t engine_bell; /* offset of its engine's bell, from scr_shared_check() */
  uint64_t flight;      /* offset of its flight recorder, 0: it has none that others can see */
  uint32_t flight_entries;
  bool flight_stacks; /* it records stacks */
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
  int64_t at_once_ns; /* A recv that is waited for within this time had a waiter from the start. */
} scr_policy;

typedef struct scr_group_config {
  int32_t rank, size;
  int64_t timeout_ns;
  uint32_t spin;           /* rounds of waiting before the processor is given away */
  uint32_t yield_us;       /* then sched_yield for so long, then sleep */
  uint64_t stream_bytes;   /* outputs of at least this length go past the cache */
  uint32_t flight_entries; /* that the flight recorder keeps, of collectives and of messages each; 0: off. It lies where
                              this rank's peer configuration says, else in memory of its own. */
  bool flight_stacks;      /* who called is recorded */
  bool trace;              /* tells Go of every operation */
  bool timeline;           /* keeps events for scr_group_take_trace() */
  scr_policy policy;
  const scr_peer_config *peers;
} scr_group_config;

/* Bytes of a shared block for a group of `size`. */
uint64_t scr_shared_bytes(int32_t size);
/* Lays a shared block out in zeroed memory; engine_bell is an offset in the same arena. */
void scr_shared_format(void *shared, int32_t rank, int32_t size, uint64_t engine_bell);
/* 0, or -1 if at p->shared block in p->arena there is no shared block of this rank and size. Sets p->engine_bell: the peer may change
 * the shared block's header at any time, so it is read here and never again. */
int scr_shared_check(scr_peer_config *p, int32_t rank, int32_t size);

/* Returns the handle and the group, or 0 when there is no memory or no free handle. */
uint64_t scr_group_open(const scr_group_config *config, scr_group **out);
scr_group *scr_group_of(uint64_t handle);
/* From here on the handle is refused and no thread is inside. The group is down and its queue empty. */
void scr_group_close(scr_group *g);

void scr_group_set_timeout(scr_group *g, int64_t timeout_ns);
void scr_group_set_large(scr_group *g, uint64_t offset);
bool scr_group_has_large(const scr_group *g);
void scr_group_set_fifo(scr_group *g, int32_t peer, uint64_t offset);
bool scr_group_has_fifo(const scr_group *g, int32_t peer);
void scr_group_set_channel(scr_group *g, int32_t peer, int32_t channel, uint64_t offset);
bool scr_group_has_channel(const scr_group *g, int32_t peer, int32_t channel);
/* Size class of a byte count is the number of boundaries at or below it. */
void scr_group_set_classes(scr_group *g, int kind, const uint64_t *boundaries, int n);
int scr_group_class(const scr_group *g, int kind, uint64_t bytes);
uint64_t scr_group_sequence(const scr_group *g);
/* Sets the shared block's goodbye word and wakes who waits for this rank. */
void scr_group_goodbye(scr_group *g);
/* The last thing done with the peers' shared blocks: tells them that this rank will not touch them any more. */
void scr_group_leave(scr_group *g);
/* Whether `rank` has said so of a shared block of a group of `size`. */
bool scr_shared_deserted(const void *shared, int32_t size, int32_t rank);
/* Whether the rank whose shared block it is has given up (scr_shared_give_up). */
bool scr_shared_gave_up(const void *shared);
/* Says goodbye in a shared block of this rank for which it has no group, after the reason: peers may have one. */
void scr_shared_give_up(void *shared, const void *record, size_t n);
/* Collectives and p2p operations that are not complete. */
uint64_t scr_group_unfinished(const scr_group *g);

/* Failure. record: at most SCR_FAILURE_BYTES of Go's. Returns the rank whose record is the first cause (this one, or
 * an earlier winner). */
int32_t scr_group_set_failure(scr_group *g, const void *record, size_t n);
/* 1 + rank of the first cause, 0 for none; copies n bytes of its record at most. */
int32_t scr_group_get_failure(const scr_group *g, void *record, size_t n);
/* The record of a rank that has given up; false if it has not. */
bool scr_group_gave_up(const scr_group *g, int32_t rank, void *record, size_t n);
/* Marks the group as down for this process with the error that every later call gets, and completes what is queued. The
 * first error stays. */
void scr_group_down(scr_group *g, const sagecomm_error *error);
/* Wakes every sleeping rank so that it looks at the failure word. */
void scr_group_wake_all(scr_group *g);

/* What `rank` announced as its `sequence`th collective: true and filled if it is still there. */
typedef struct scr_call {
  uint64_t sequence, hash, bytes;
  uint8_t kind, dtype, reduce_op;
  uint8_t uneven; /* blocks differ in length */
  uint8_t parts;  /* operations that are packed together, SCR_MANY_PARTS or more; 0: one */
  int32_t root;
} scr_call;
bool scr_group_call(const scr_group *g, int32_t rank, uint64_t sequence, scr_call *out);
/* The last collective that `rank` announced, 0 for none; and whether it has left. */
uint64_t scr_group_last_call(const scr_group *g, int32_t rank, bool *left);
/* Chunks that a rank is done with, of all collectives so far. */
uint64_t scr_group_consumed(const scr_group *g, int32_t rank);
/* The rank whose flag a rank sleeps for, or has met an incident over; -1 if it is awake. One that waits for long is
 * awake from time to time. */
int32_t scr_group_awaits(const scr_group *g, int32_t rank);

/* Program cache. Insert returns false when it is full: the program then belongs to one run. */
scr_program *scr_program_new(void);
/* Gives a program room for so many steps and regions, in the order of the lists. False: no memory. */
bool scr_program_sendrecv(scr_program *p, uint32_t steps, uint32_t regions);
void scr_program_free(scr_program *p);
uint64_t scr_cache_key(const scr_group *g, const sagecomm_op *op, uint64_t bytes);
const scr_program *scr_cache_find(const scr_group *g, uint64_t key);
bool scr_cache_insert(scr_group *g, uint64_t key, scr_program *p);
uint32_t scr_cache_entries(const scr_group *g);

/* Numbers the operation, queues it and lets it start. own: the program is freed with the run. NULL: no memory, or the
 * group is down (*down). */
scr_run *scr_submit(scr_group *g, const sagecomm_op *op, uint64_t bytes, const scr_program *p, bool own, bool *down);

/* ---- probe ---- */

/* What memory costs on this machine. Each is the least of many trials. */
typedef struct scr_probe {
  double copy_ns, reduce_ns; /* per byte copied, and of each operand reduced, in memory that this core has at hand */
  /* Between two cores; 0 where this process may use one only, or the second thread did not get to run. */
  double hop_ns; /* from storing a flag until another core has seen it */
  double far_ns,
      claim_ns; /* per byte that another core has just written; stored, more than copy_ns, where it has read */
} scr_probe;

/* Measures with a second thread, for a few milliseconds and budget_ns at most. False: no memory, no thread. */
bool scr_probe_run(int64_t budget_ns, scr_probe *out);

/* ---- the ABI's operations ---- */

int32_t scr_issue(sagecomm_group group, const sagecomm_op *op, sagecomm_work *work, uint64_t *sequence,
                  sagecomm_error *err);
int32_t scr_issue_coalesced(sagecomm_group group, const sagecomm_op *ops, uint32_t n, sagecomm_work *work,
                            uint64_t *sequence, sagecomm_error *err);
int32_t scr_wait(sagecomm_work work, int64_t timeout_ns, sagecomm_error *err);
int32_t scr_wait_briefly(sagecomm_work work, sagecomm_error *err);
int32_t scr_on_done(sagecomm_work work, sagecomm_done_fn done, void *ctx, sagecomm_error *err);
int32_t scr_work_source(sagecomm_work work);
void scr_release(sagecomm_work work);
uint64_t scr_run_handle(const scr_run *run);
/* The group's state as an error, or SAGECOMM_OK. */
int32_t scr_group_error(sagecomm_group group, sagecomm_error *err);
uint64_t scr_go_entries(void);
/* Set in a forked child; every entry looks at it first. */
bool scr_in_child(void);
int32_t scr_refuse_child(sagecomm_error *err);
void scr_watch_fork(void);

/* ---- progress engine ---- */

enum {
  SCR_ENGINE_CONTROL = 1, /* scr_engine_control() was called */
  SCR_ENGINE_INCIDENT,    /* *group and *incident say what */
  SCR_ENGINE_COMPLETER,   /* completions wait and no completer is idle */
  SCR_ENGINE_FIFO,        /* *group needs a fifo to incident->peer */
};

#define SCR_MAX_BELLS 64
/* The engine's futex word in one arena of this process; before the first group of that arena. False: too many. */
bool scr_engine_add_bell(void *bell);
/* Afterwards nobody wakes it but the engine's next turns may still read it: let the engine take control first. Calls of
 * these two take turns. */
void scr_engine_remove_bell(void *bell);
typedef struct scr_engine_config {
  uint32_t spin, yield_us; /* as of a group */
  int64_t slice_ns;        /* one look at a group drives its queue for so long */
  int64_t look_ns;         /* while there is work it looks so often whether waiting makes sense */
  int64_t sound_ns;        /* its longest sleep where there is none */
  uint32_t idle_looks;     /* after so many looks without work it sleeps for so long */
} scr_engine_config;

/* Before the first turn. */
void scr_engine_configure(const scr_engine_config *config);
/* Drives the groups for which nobody waits. Returns when there is something for Go. */
int scr_engine_turn(scr_group *const *groups, int n, uint64_t *group, scr_incident *incident);
void scr_engine_control(void);
/* Waits for completed operations that have a done function and calls them, one at a time. Returns after idle_ns with
 * nothing to do. */
void scr_completer_run(int64_t idle_ns);

#endif
