/* facade.h: the frame of the libraries that stand where a vendor's collectives library stands (docs/nccl.md,
 * docs/hccl.md). It translates calls of such a library into calls of the core's C ABI (export/sagecomm.h) and decides
 * nothing. It is compiled once for each of them: nccl/ and hccl/ have an abi.h with the vendor's types and numbers, and
 * the functions that they export.
 *
 *   core.c     opens the core, and gives its errors the vendor's numbers and texts
 *   comm.c     communicators: which ones there are, who is inside one, their end
 *   join.c     jobs that make communicators
 *   group.c    group calls, which collect jobs
 *   job.c      one job: its place in the order of its communicator, its context, and how it runs
 *   chain.c    the jobs of a group call, and their threads
 *   buffers.c  checks the memory that their buffers are
 *   request.c  collectives, sends and recvs as their user asks for them
 *   issue.c    hands calls to the core, and orders their streams
 *
 * Beside abi.h, each of them has a driver.c, the few functions of the vendor's runtime that the frame calls itself.
 */
#ifndef SAGECOMM_FACADE_H
#define SAGECOMM_FACADE_H

#include <abi.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../export/sagecomm.h"

#define SECOND INT64_C(1000000000)

typedef struct FACADE_COMM *comm_t;

/* ---- core.c ---- */

enum { TEXT_BYTES = 1024 };

/* Returns the core's functions, or NULL; then the last error says why. */
const sagecomm_api *core(void);

/* Sets the last error of this thread, and of a communicator if there is one, and returns the result. */
facade_result fail(comm_t comm, facade_result result, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Makes a text of another thread the last error of this one, as an error of a communicator if there is one. */
void remember(comm_t comm, facade_result result, const char *text);
/* Returns the last error of this thread. */
const char *last_error(void);
/* Makes the last error of this thread, which has run a job that nobody waits for, known to all threads. */
void publish_error(void);
/* Returns a copy of the last error of this thread, or, if that is newer, of a communicator, or without one the last
 * published error. An error of another communicator is not shown for one that has had errors. The copy is valid until
 * this thread asks again. */
const char *newest_error(comm_t comm);
/* Returns a copy of the last error of a thread whose last call gave this result; otherwise NULL. */
const char *error_behind(facade_result result);

/* Returns the result for a status below zero of the core, with its text as the last error. */
facade_result failed(comm_t comm, int32_t status, const sagecomm_error *err);
/* Like failed(), for the failure of a group, for which users ask again and again: it prints the text once. */
facade_result failed_before(comm_t comm, int32_t status, const sagecomm_error *err);
/* Refuses a question about a communicator that is being made, which users ask again and again: it prints the text
 * once. */
facade_result asked_early(comm_t comm, const char *function);

/* Returns whether this process has loaded a library since *then was set, 0 at first, and sets it. To look for a library
 * that is not loaded takes the dynamic linker through all its folders. */
bool loads_since(uint64_t *then);

/* Makes a unique id. */
facade_result unique_id(uint8_t id[SAGECOMM_ID_BYTES]);

/* Each of the libraries has the rest: its mark, by which an engine of the core knows that it must not call it; its
 * file; and where its users look for errors. */
extern int FACADE_MARK;
void facade_print(const char *text);
/* Held while facade_print() runs. */
extern pthread_mutex_t printing;

/* ---- driver.c of each library ---- */

/* What the process has of the vendor's runtime. A process that has not loaded it uses no device, so nothing loads it
 * here. */
bool driver_present(void);
/* Returns the current device of this thread, -1 if there is none. */
int driver_device(void);
/* Returns the current context of this thread, NULL if there is none. */
void *driver_context(void);
/* Returns the context of a device, NULL if there is none. */
void *driver_context_of(int device);
/* Makes a context current on this thread, unless it is NULL, and returns the one that was. */
void *driver_enter(void *context);
void driver_leave(void *before, void *context);
/* The rest returns 0, or the number of the driver's error. */
int driver_copy(void *to, const void *from, size_t bytes, void *stream);
int driver_synchronize(void *stream);
/* Makes `then` wait for what `first` holds now. */
int driver_order(void *first, void *then);
bool driver_captures(void *stream);

/* ---- comm.c ---- */

/* A reduction that multiplies by a factor first: SAGECOMM_PREMUL_SUM. */
typedef struct reduction {
  int number; /* that its user has, which no other one of the process has had; 0: there is none here */
  int type;
  double factor;
  const void *scalar; /* where the factor is to be read when an operation is issued, NULL: `factor` is it */
} reduction;

enum { CANCELLED_BY_ABORT = 1, CANCELLED_BY_GROUP = SAGECOMM_CANCEL_COLORS };

struct FACADE_COMM {
  comm_t next;
  int rank, size;
  char name[128]; /* of the group, the same on all ranks */
  int device;     /* that was current when it was made, or of its first operation on a device; -1: none yet */
  void *context;  /* of that device; both protected by the lock of comm.c */
  bool blocking;
  int64_t operations_ns; /* how long an operation may take */
  /* The rest is protected by the lock of comm.c. */
  bool cancelled;  /* what makes it is to end, because its user has ended it */
  int holders;     /* calls and threads that use it, and 1 until it is destroyed */
  int issuing;     /* of the threads that hold it, those that may touch the buffers of calls */
  int in_progress; /* jobs with calls of it that run, or wait for their thread */
  bool destroyed, aborted;
  int given_up;         /* how often it was shrunk with an abort, which is no error of calls that began before */
  bool state_given_up;  /* `state` is that of such a call */
  bool finalizing;      /* no call may begin; `group` becomes 0 when its end is complete */
  bool finished;        /* by its finalization, whose result it has; its group is not asked for errors any more */
  struct job *deriving; /* its splits, shrinks and finalization, in the order of their calls; the first goes on */
  sagecomm_group group; /* 0: it has not joined yet */
  facade_result
      state; /* of one that does not block: RESULT_IN_PROGRESS, or how the last call ended; else how its finalization has failed */
  char state_text[TEXT_BYTES]; /* of `state`, where that is an error; `text` may be that of a later call */
  char text[TEXT_BYTES];       /* its last error, and when that was in the order of all errors */
  uint64_t text_number;
  bool failure_printed; /* that of its group, for which comm_state() was asked */
  bool early_printed;   /* a refusal of comm_ask(), because it is being made */
  uint8_t device_type;  /* of the buffers of its last operation that had some; at first those of `device` */
  int32_t device_index;
  reduction *reductions;
  int n_reductions;
};

/* Makes a communicator that has not joined. NULL: no memory. */
comm_t comm_make(bool blocking);
/* Holds a communicator. Returns false if there is no such communicator. */
bool comm_find(comm_t comm);
/* Returns RESULT_OK and holds the communicator, or the last error says that there is no such communicator. */
facade_result comm_hold(comm_t comm, const char *function);
/* For a caller that has a hold already. It takes one more also where the communicator was destroyed meanwhile. */
void comm_hold_again(comm_t comm);
/* Like comm_hold(), for a call that needs a communicator that is ready: joined, not failed, nothing in progress. */
facade_result comm_enter(comm_t comm, const char *function);
/* Ends a hold. The last one destroys the group and frees the communicator. */
void comm_release(comm_t comm);
/* Ends a communicator for its user; `reason` ends its join and aborts its operations first, and waits until no thread
 * of this library touches buffers of its calls. */
facade_result comm_end(comm_t comm, const char *function, const char *reason);
/* Ends a communicator's group when its operations are complete, and the splits and shrinks that were called before: in
 * this call, or, where it does not block, on a thread. An abort ends the wait. Inside a group call it does not wait for
 * the end of that. */
facade_result comm_finalize(comm_t comm, const char *function);
/* What such a job does. */
facade_result comm_finish_group(comm_t comm);
/* Whether it has joined and was not finalized. */
bool comm_usable(comm_t comm);
/* Ends a communicator that its user does not get, unless the user has ended it. */
void comm_drop(comm_t comm);
/* Begins and ends what touches the buffers of calls. Returns false if the communicator was aborted. Requires: it is
 * held. */
bool comm_begin(comm_t comm);
void comm_finish(comm_t comm);
/* `given_up`: that of the job whose state it is; `text`: that of an error, of TEXT_BYTES. Requires: the lock. */
void comm_set_state(comm_t comm, facade_result state, int given_up, const char *text);
/* Gives the group to a communicator that has joined. Returns false if it was destroyed meanwhile. */
bool comm_joined(comm_t comm, sagecomm_group group, int rank, int size);
/* Returns the group of a communicator, 0 if it has none. */
sagecomm_group comm_group(comm_t comm);
/* Notes the place of an operation's buffers, or gives the place of the operation before to one without buffers. */
void comm_place(comm_t comm, bool known, sagecomm_op *op);
/* Sets *error to the state of a communicator, or to the failure of its group. */
facade_result comm_state(comm_t comm, const char *function, facade_result *error);
/* What comm_ask() asks for. */
enum { ASK_SIZE, ASK_RANK, ASK_DEVICE };
facade_result comm_ask(comm_t comm, const char *function, int what, int *answer);
/* Returns RESULT_OK, or in a child of a fork the core's refusal. */
facade_result refused_to_child(void);
/* Protects all communicators. */
extern pthread_mutex_t comm_lock;

/* ---- group.c ---- */

/* Blocks of different lengths, and pieces of memory that lie apart. */
typedef struct call_lists {
  sagecomm_segment *in, *out;
  uint64_t *in_blocks, *out_blocks; /* bytes; NULL: blocks are equal */
} call_lists;

/* A collective, send or recv. */
typedef struct call {
  sagecomm_op op;
  sagecomm_segment in, out;
  call_lists *lists;     /* in place of `in` and `out`; owned: one allocation. NULL: there is one piece of each */
  const void *copy_from; /* a broadcast whose root has two buffers: what is copied into `out` first */
  const void *scalar;    /* of a reduction: where its factor is */
  uint8_t scalar_type;   /* sagecomm_dtype */
} call;

/* A job is what one communicator has to do at once: to be made, or some calls. It holds its communicators. */
typedef struct job {
  struct job *next;
  enum { JOB_JOIN, JOB_SPLIT, JOB_SHRINK, JOB_SUBSET, JOB_FINALIZE, JOB_CALLS } kind;
  comm_t comm;                   /* whose state tells how the job goes on, unless there is a child */
  comm_t child;                  /* of a split, shrink or subset; NULL: this rank gets none */
  uint8_t id[SAGECOMM_ID_BYTES]; /* join */
  int64_t timeout_ns;            /* of all but calls */
  int color, key;                /* split */
  char name[128];                /* of the new group */
  int *ranks;                    /* owned; shrink: those that are left out; subset: those that form the new group */
  int n_ranks;
  uint64_t label;   /* of a subset */
  bool aborts;      /* a shrink that aborts its parent */
  bool outstanding; /* of such a shrink: something of the parent was outstanding when its user called it */
  void *context;    /* of calls: that of the thread that called, NULL: it had none */
  int device;       /* of that context */
  call *calls;      /* owned */
  int n_calls, room;
  comm_t *made; /* where the user wants the new communicator; set to NULL if it cannot be made */
  bool blocking;
  struct job *first, *behind; /* of its chain: the jobs that one thread runs, one after the other */
  struct job *waited;         /* of the first job: one of its chain that blocks, NULL: nobody waits for the chain */
  struct job *head;           /* of the first job: that of another chain */
  pthread_t thread;           /* of a job that is `waited`, if `started` */
  bool started;
  bool in_progress; /* of calls: it counts in its communicator, until it has ended */
  int given_up;     /* the number in the communicator that tells of it, when it began */
  /* Of all but calls, while they run or wait for that; protected by the lock of comm.c, but for `cancelled`, which is atomic. */
  bool listed;
  struct job *listed_next;
  int32_t cancelled; /* not 0: it is to end, CANCELLED_... */
  uint64_t batch;    /* the same for all that one group call makes, 0: it makes no other */
  bool follows;      /* of what makes a communicator: it has failed because another one of the same group call has */
  bool given_up_for; /* a split that goes on when its parent is shrunk with an abort, and is cancelled for that */
  bool derives;      /* it is in the list `deriving` of its communicator, until it has ended */
  struct job *derives_next;
  facade_result result;
  char text[TEXT_BYTES];
} job;

/* Adds a job to the group of this thread, or runs it if there is none. It owns the job. */
facade_result job_submit(job *j);
/* Adds a call to the group of this thread, or issues it if there is none; it owns the call's lists. Requires: the
 * caller holds the communicator. */
facade_result call_submit(comm_t comm, const char *function, call *c);
facade_result out_of_memory(const char *function);
/* Returns `result`, which GroupEnd() returns as well if this is inside a group. */
facade_result refused(facade_result result);

/* Gives a split, shrink or finalization its place behind those of the same parent. Returns false if one is in the same
 * group call, or, for a finalization, calls are: the ranks could not tell which is which, and a finalization would wait
 * for what the group call begins. */
bool job_derive(job *j);
/* Whether the group of this thread has calls of a communicator. */
bool calls_collected(comm_t comm);
/* Frees jobs of which nothing was sent. */
void jobs_drop(job *list);
void group_start(void);
facade_result group_end(void);
/* Ends a group call without its calls. Returns false if there is none. */
bool group_drop(void);

/* ---- job.c ---- */

#define FACADE_ANOTHER_FAILED "sagecomm: another communicator of the same group call could not be made"
#define FACADE_GIVEN_UP_FOR \
  "sagecomm: the parent was shrunk meanwhile with an abort of its operations, and this is one of them"
#define FACADE_REASON_ANOTHER "another group of the same call could not be made" /* as the core says it */

/* Returns the communicator whose state tells how a job goes on. */
comm_t job_told_by(const job *j);
/* Whether a communicator becomes of a job, on this rank or on another one. */
bool job_makes(const job *j);
/* Gives a job its place behind the splits, shrinks and finalizations of the same parent. */
void job_take_place(job *j);
/* Counts a job that is to run, and if its user does not wait for it, its communicator is in progress. Those that make
 * communicators are of one group call: `batch` is 0 for the first of them, and the same for the others; NULL: there is
 * one only. */
void job_begin(job *j, uint64_t *batch);
/* Takes a job that has ended off the counts and lists, and if its user does not wait for it, its communicator has its
 * result from then on. Who sees that sees the job nowhere else. */
void job_ended(job *j);
/* Notes what is current on the thread that calls. */
void job_note_context(job *j);
/* Does what a job is for. */
facade_result job_run(job *j);
/* Aborts the parent of a split that ends before it begins: the peers would take the next split for this one; and that
 * of a shrink that was to abort it. Does nothing for other jobs.
 * Requires: the job has its place. */
void split_dropped(job *j, const char *reason);
void job_free(job *j);
/* Ends the jobs that make a communicator, or wait to split, shrink or finalize it, because its user has ended it. */
void jobs_cancel(comm_t comm);
/* Ends what the same group call makes beside a job, because that has failed. Returns false if it was ended that way
 * itself. */
bool jobs_end_batch(job *j);

/* ---- chain.c ---- */

/* Runs a job at once, also inside a group, and frees it. */
facade_result job_now(job *j);
/* Runs the jobs of a group call and frees them. Returns the first error, or RESULT_IN_PROGRESS if one goes on. */
facade_result jobs_run(job *list);
/* Makes chains of a list of jobs, in the order of the list. Returns how many there are; `first` of each job is the head
 * of its chain. */
int jobs_make_chains(job *list);

/* ---- join.c ---- */

/* Makes the job of one rank that joins at an id, and its communicator, which *made becomes. */
facade_result join_job(const char *function, comm_t *made, int size, const uint8_t *id, int rank, bool blocking,
                       job **j);
/* Makes the job of a split, shrink or subset; it takes `ranks`. `with_child`: this rank is in the new group. Fails without
 * memory, or if the parent has another split or shrink in the same group call. Subsets have labels, so there may be
 * several. Requires: the caller holds the parent; the job has the hold then, and a failure ends it. */
facade_result derive_job(job **j, const char *function, comm_t parent, int kind, bool with_child, bool blocking,
                         int *ranks, int n, comm_t *made);
/* Makes a communicator for each rank of a group in this process. devices[i] is that of rank i; NULL: i. */
facade_result join_all(const char *function, comm_t *made, int n, const int *devices);
/* Holds the parent of a shrink, which may have failed. */
facade_result hold_joined(comm_t comm, const char *function);
facade_result join_submit(job *j);
facade_result join_run(job *j);
/* Ends the communicator that a job was to make. */
void join_dropped(job *j);

/* ---- request.c ---- */

/* A type of data of the vendor's. */
typedef struct facade_type {
  uint8_t dtype, bytes; /* sagecomm_dtype; bytes 0: there is no such type */
  bool only_moves;      /* it is moved as another type, or as several elements of one, so it cannot be reduced */
} facade_type;
extern const facade_type facade_types[];
extern const int facade_n_types;

/* A call as its user makes it. Counts are of elements. */
typedef struct request {
  const char *function;
  sagecomm_kind kind;
  const void *send;
  void *recv;
  size_t count;
  int type, op, root;
  void *stream;
  /* For each rank, where blocks have different lengths; NULL: `count` is that of all. Offsets NULL: blocks follow one another. */
  const uint64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
} request;

/* Sets the reduction of a call; each of the libraries has its own. */
facade_result facade_reduction(const request *r, comm_t comm, call *c);
bool type_known(int type);
bool kind_reduces(sagecomm_kind kind);
/* Checks what the core cannot see, and fills in a call. Leaves `kind` SAGECOMM_KIND_COUNT where there is nothing to do.
 * Requires: the caller holds the communicator. */
facade_result request_translate(const request *r, comm_t comm, call *c);
facade_result request_submit(const request *r, comm_t comm);
/* Reads a factor, behind what the stream holds where it is in memory of a device. */
facade_result read_factor(comm_t comm, const void *scalar, uint8_t dtype, void *stream, double *factor);

/* ---- buffers.c ---- */

/* Returns RESULT_OK, or refuses buffers that overlap other than in place, and for a reduction, addresses that are not
 * those of elements. Requires: a call that is filled in but for its place. */
facade_result buffers_check(const request *r, comm_t comm, const call *c);
/* Refuses an output whose blocks overlap: which of them is there in the end would differ between ranks. */
facade_result buffers_check_blocks(const request *r, comm_t comm, const sagecomm_segment *list, uint32_t n);

/* ---- issue.c ---- */

/* Issues calls of one communicator and waits for those on host memory. */
facade_result calls_run(comm_t comm, call *calls, int n);
/* Whether two handles are of one stream, on one device. */
bool same_stream(const void *one, const void *other);
/* Returns RESULT_OK, or why the core would refuse such calls on this rank. */
facade_result calls_check(comm_t comm, const call *calls, int n);

#endif
