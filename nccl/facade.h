/* facade.h: what the files of the facade share. The facade translates calls of NCCL into calls of the core's C ABI (export/sagecomm.h)
 * and decides nothing.
 *
 *   core.c         opens the core, and gives its errors NCCL's numbers and texts
 *   driver.c       the few functions of CUDA's driver that the facade calls itself, where the process has one
 *   comm.c         communicators: which ones there are, who is inside one, their end
 *   join.c         functions that make communicators
 *   group.c        ncclGroupStart() to ncclGroupEnd(), and how the calls in between are issued
 *   collectives.c  collectives, sends, recvs and reductions that multiply first
 *   issue.c        hands calls to the core, and orders their streams
 *   memory.c       ncclMemAlloc() and registration
 *   refused.c      what the facade does not do
 */
#ifndef SAGECOMM_NCCL_FACADE_H
#define SAGECOMM_NCCL_FACADE_H

#include <pthread.h>
#include <stdbool.h>

#include "../export/sagecomm.h"
#include "abi.h"

/* ---- core.c ---- */

enum { TEXT_BYTES = 1024 };

/* Returns the core's functions, or NULL; then the last error says why. */
const sagecomm_api *core(void);

/* Sets the last error of this thread, and of a communicator if there is one, and returns the result. */
ncclResult_t fail(ncclComm_t comm, ncclResult_t result, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Makes a text of another thread the last error of this one. */
void remember(const char *text);
/* Returns the last error of this thread. */
const char *last_error(void);

/* Returns the result for a status below zero of the core, with its text as the last error. */
ncclResult_t failed(ncclComm_t comm, int32_t status, const sagecomm_error *err);

/* ---- driver.c ---- */

/* What the process has of CUDA. A process that has not loaded the driver uses no device, so nothing loads it here. */
bool driver_present(void);
/* Returns the current device of this thread, -1 if there is none. */
int driver_device(void);
/* The current context of this thread, NULL if there is none; and makes it current on another thread. */
void *driver_context(void);
void driver_enter(void *context);
/* The rest returns 0, or the number of the driver's error. */
int driver_allocate(void **memory, size_t bytes);
int driver_free(void *memory);
int driver_copy(void *to, const void *from, size_t bytes, cudaStream_t stream);
int driver_synchronize(cudaStream_t stream);
/* Makes `then` wait for what `first` holds now. */
int driver_order(cudaStream_t first, cudaStream_t then);
bool driver_captures(cudaStream_t stream);

/* ---- comm.c ---- */

/* A reduction that multiplies by a factor first: SAGECOMM_PREMUL_SUM. */
typedef struct reduction {
  bool exists;
  ncclDataType_t type;
  double factor;
  const void *scalar; /* where the factor is to be read when an operation is issued, NULL: `factor` is it */
} reduction;

struct ncclComm {
  struct ncclComm *next;
  int rank, size;
  char name[64]; /* of the group, the same on all ranks */
  int device;    /* that was current when it was made, -1: none */
  bool blocking;
  /* The rest is protected by the lock of comm.c. */
  int holders; /* calls and threads that use it, and 1 until it is destroyed */
  bool destroyed;
  bool deriving;         /* a split or a shrink of it goes on */
  sagecomm_group group;  /* 0: it has not joined yet */
  ncclResult_t state;    /* of a communicator that does not block: ncclInProgress, or how the last call ended */
  char text[TEXT_BYTES]; /* its last error, and when that was in the order of all errors */
  uint64_t text_number;
  reduction *reductions;
  int n_reductions;
};

/* Makes a communicator that has not joined. NULL: no memory. */
ncclComm_t comm_make(bool blocking);
/* Returns ncclSuccess and holds the communicator, or the last error says that there is no such communicator. */
ncclResult_t comm_hold(ncclComm_t comm, const char *function);
/* Like comm_hold(), for a call that needs a communicator that is ready: joined, not failed, nothing in progress. */
ncclResult_t comm_enter(ncclComm_t comm, const char *function);
/* Ends a hold. The last one destroys the group and frees the communicator. */
void comm_release(ncclComm_t comm);
/* Ends a communicator for its user; `reason` aborts its operations first. */
ncclResult_t comm_end(ncclComm_t comm, const char *function, const char *reason);
void comm_set_state(ncclComm_t comm, ncclResult_t state);
/* Gives the group to a communicator that has joined. Returns false if it was destroyed meanwhile. */
bool comm_joined(ncclComm_t comm, sagecomm_group group, int rank, int size);
/* Protects all communicators. */
extern pthread_mutex_t comm_lock;

/* ---- group.c ---- */

/* A collective, send or recv. */
typedef struct call {
  sagecomm_op op;
  sagecomm_segment in, out;
  const void *copy_from; /* a broadcast whose root has two buffers: what is copied into `out` first */
  const void *scalar;    /* of a reduction: where its factor is */
  ncclDataType_t scalar_type;
} call;

/* A job is what one communicator has to do at once: to be made, or some calls. It holds its communicators. */
typedef struct job {
  struct job *next;
  enum { JOB_JOIN, JOB_SPLIT, JOB_SHRINK, JOB_CALLS } kind;
  ncclComm_t comm;  /* whose state tells how the job goes on, unless there is a child */
  ncclComm_t child; /* of a split or shrink; NULL: this rank gets none */
  ncclUniqueId id;  /* join */
  int color, key;   /* split */
  char name[64];    /* of the new group */
  int *excluded;    /* shrink; owned */
  int n_excluded, flags;
  call *calls; /* owned */
  int n_calls, room;
  ncclComm_t *made; /* where the user wants the new communicator; set to NULL if it cannot be made */
  bool blocking;
  void *context;
  pthread_t thread;
  bool started;
  bool derives; /* it has set `deriving` of its communicator */
  ncclResult_t result;
  char text[TEXT_BYTES];
} job;

/* Adds a job to the group of this thread, or runs it if there is none. It owns the job. */
ncclResult_t job_submit(job *j);
void job_free(job *j);
/* Does what a job is for. */
ncclResult_t job_run(job *j);
/* Adds a call to the group of this thread, or issues it if there is none. Requires: the caller holds the communicator. */
ncclResult_t call_submit(ncclComm_t comm, const char *function, call *c);
ncclResult_t out_of_memory(const char *function);
/* Returns `result`, which GroupEnd() returns as well if this is inside a group. */
ncclResult_t refused(ncclResult_t result);

/* Reserves a parent for a split or shrink. Returns false if another one goes on: the ranks could not tell which is which. */
bool job_derive(job *j);

void group_start(void);
ncclResult_t group_end(void);

/* ---- join.c ---- */

ncclResult_t join_run(job *j);
/* Ends the communicator that a job was to make. */
void join_dropped(job *j);

/* ---- collectives.c ---- */

/* Reads a factor, behind what the stream holds where it is in memory of a device. */
ncclResult_t read_factor(ncclComm_t comm, const void *scalar, ncclDataType_t type, cudaStream_t stream, double *factor);

/* ---- issue.c ---- */

/* Issues calls of one communicator and waits for those on host memory. */
ncclResult_t calls_run(ncclComm_t comm, call *calls, int n);

#endif
