/* comm.c: communicators, which are groups of the core with what NCCL's interface asks for besides.
 *
 * A list has all of them, so that a pointer to one that was destroyed is an error and no fault. Whoever is inside a call holds its
 * communicator: ncclCommAbort() on another thread ends the call and returns, and the last one that leaves frees it. */
#include <stdlib.h>
#include <string.h>

#include "../internal/runner/annotate.h"
#include "facade.h"

pthread_mutex_t comm_lock = PTHREAD_MUTEX_INITIALIZER;
static ncclComm_t all;

/* A child of a fork must be able to take the lock, to be told that it cannot use its parent's communicators. */
static void lock_all(void) { pthread_mutex_lock(&comm_lock); }
static void unlock_all(void) { pthread_mutex_unlock(&comm_lock); }
static void watch_forks(void) { pthread_atfork(lock_all, unlock_all, unlock_all); }

ncclComm_t comm_make(bool blocking) {
  static pthread_once_t watched = PTHREAD_ONCE_INIT;
  pthread_once(&watched, watch_forks);
  ncclComm_t comm = calloc(1, sizeof *comm);
  if (comm == NULL) return NULL;
  comm->holders = 1;
  comm->blocking = blocking;
  comm->device = driver_device();
  pthread_mutex_lock(&comm_lock);
  comm->next = all;
  all = comm;
  pthread_mutex_unlock(&comm_lock);
  return comm;
}

/* Requires: the lock. */
static bool exists(ncclComm_t comm) {
  for (ncclComm_t each = all; each != NULL; each = each->next) {
    if (each == comm) return !each->destroyed;
  }
  return false;
}

ncclResult_t comm_hold(ncclComm_t comm, const char *function) {
  if (comm == NULL) return fail(NULL, ncclInvalidArgument, "sagecomm: %s: comm is NULL", function);
  pthread_mutex_lock(&comm_lock);
  bool here = exists(comm);
  if (here) comm->holders++;
  pthread_mutex_unlock(&comm_lock);
  if (here) return ncclSuccess;
  return fail(NULL, ncclInvalidArgument, "sagecomm: %s: comm is no communicator of this process, or was destroyed",
              function);
}

ncclResult_t comm_enter(ncclComm_t comm, const char *function) {
  ncclResult_t result = comm_hold(comm, function);
  if (result != ncclSuccess) return result;
  pthread_mutex_lock(&comm_lock);
  result = comm->state;
  bool joined = comm->group != 0;
  pthread_mutex_unlock(&comm_lock);
  if (result == ncclInProgress) {
    result = fail(
        NULL, ncclInvalidArgument,
        "sagecomm: %s: the previous call on this communicator goes on: call ncclCommGetAsyncError() until it gives "
        "something else than ncclInProgress",
        function);
  } else if (result == ncclSuccess && !joined) {
    result =
        fail(NULL, ncclInvalidUsage,
             "sagecomm: %s: the communicator was finalized, or the group call that makes it has not ended", function);
  }
  if (result != ncclSuccess) comm_release(comm);
  return result;
}

void comm_release(ncclComm_t comm) {
  pthread_mutex_lock(&comm_lock);
  bool last = --comm->holders == 0;
  if (last) {
    ncclComm_t *at = &all;
    while (*at != comm) at = &(*at)->next;
    *at = comm->next;
  }
  pthread_mutex_unlock(&comm_lock);
  if (!last) return;
  sagecomm_error err;
  if (comm->group != 0) core()->group_destroy(comm->group, &err); /* fails only if there is no such group any more */
  free(comm->reductions);
  free(comm);
}

ncclResult_t comm_end(ncclComm_t comm, const char *function, const char *reason) {
  ncclResult_t result = comm_hold(comm, function);
  if (result != ncclSuccess) return result;
  pthread_mutex_lock(&comm_lock);
  bool first = !comm->destroyed; /* two threads may both hold it here */
  comm->destroyed = true;
  if (first) comm->holders--;
  sagecomm_group group = comm->group;
  pthread_mutex_unlock(&comm_lock);
  sagecomm_error err;
  if (first && reason != NULL && group != 0) core()->group_abort(group, reason, &err);
  comm_release(comm);
  return ncclSuccess;
}

void comm_set_state(ncclComm_t comm, ncclResult_t state) {
  pthread_mutex_lock(&comm_lock);
  comm->state = state;
  pthread_mutex_unlock(&comm_lock);
}

bool comm_joined(ncclComm_t comm, sagecomm_group group, int rank, int size) {
  pthread_mutex_lock(&comm_lock);
  bool wanted = !comm->destroyed;
  if (wanted) {
    comm->group = group;
    comm->rank = rank;
    comm->size = size;
  }
  pthread_mutex_unlock(&comm_lock);
  return wanted;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return comm == NULL ? ncclSuccess : comm_end(comm, "ncclCommDestroy", NULL);
}
EXPORTED(CommDestroy);

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return comm == NULL ? ncclSuccess : comm_end(comm, "ncclCommAbort", "ncclCommAbort() was called");
}
EXPORTED(CommAbort);

/* The group is destroyed, which waits for its operations; what is left is for ncclCommDestroy(). */
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  ncclResult_t result = comm_enter(comm, "ncclCommFinalize");
  if (result != ncclSuccess) return result;
  pthread_mutex_lock(&comm_lock);
  sagecomm_group group = comm->group;
  comm->group = 0;
  pthread_mutex_unlock(&comm_lock);
  sagecomm_error err;
  int32_t status = group == 0 ? SAGECOMM_OK : core()->group_destroy(group, &err);
  if (status < 0) result = failed(comm, status, &err);
  comm_release(comm);
  return result;
}
EXPORTED(CommFinalize);

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  if (error == NULL) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: ncclCommGetAsyncError: asyncError is NULL");
  }
  ncclResult_t result = comm_hold(comm, "ncclCommGetAsyncError");
  if (result != ncclSuccess) return result;
  pthread_mutex_lock(&comm_lock);
  *error = comm->state;
  sagecomm_group group = comm->group;
  pthread_mutex_unlock(&comm_lock);
  if (*error == ncclSuccess) {
    scr_note_acquired(comm); /* what a thread of this library has done for it */
    sagecomm_error err = {0};
    int32_t status = group == 0 ? SAGECOMM_OK : core()->group_error(group, &err);
    if (status < 0) *error = failed(comm, status, &err);
  }
  comm_release(comm);
  return ncclSuccess;
}
EXPORTED(CommGetAsyncError);

/* What the three functions below ask for. */
enum { COUNT, RANK, DEVICE };

static ncclResult_t ask(ncclComm_t comm, const char *function, int what, int *answer) {
  if (answer == NULL) return fail(NULL, ncclInvalidArgument, "sagecomm: %s: the result's place is NULL", function);
  ncclResult_t result = comm_hold(comm, function);
  if (result != ncclSuccess) return result;
  pthread_mutex_lock(&comm_lock);
  *answer = what == COUNT ? comm->size : what == RANK ? comm->rank : comm->device;
  pthread_mutex_unlock(&comm_lock);
  comm_release(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) { return ask(comm, "ncclCommCount", COUNT, count); }
EXPORTED(CommCount);

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) { return ask(comm, "ncclCommUserRank", RANK, rank); }
EXPORTED(CommUserRank);

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
  return ask(comm, "ncclCommCuDevice", DEVICE, device);
}
EXPORTED(CommCuDevice);

/* Of nccl_device.h. It grows at its end; `size` says how much of it the caller knows. */
struct ncclCommProperties {
  size_t size;
  unsigned int magic, version;
  int rank, nRanks, cudaDev, nvmlDev;
  bool deviceApiSupport, multimemSupport;
  int ginType, nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
};

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, struct ncclCommProperties *properties);

/* The device API, multimem and one-sided operations are not there, and each rank is alone in its team of those that reach each
 * other's memory. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, struct ncclCommProperties *properties) {
  static const char *const function = "ncclCommQueryProperties";
  if (properties == NULL || properties->magic != NCCL_API_MAGIC) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: %s: props is not initialised by NCCL_COMM_PROPERTIES_INITIALIZER",
                function);
  }
  ncclResult_t result = comm_enter(comm, function);
  if (result != ncclSuccess) return result;
  struct ncclCommProperties known = {.size = properties->size,
                                     .magic = properties->magic,
                                     .version = properties->version,
                                     .rank = comm->rank,
                                     .nRanks = comm->size,
                                     .cudaDev = comm->device,
                                     .nvmlDev = comm->device,
                                     .nLsaTeams = comm->size};
  memcpy(properties, &known, known.size < sizeof known ? known.size : sizeof known);
  comm_release(comm);
  return ncclSuccess;
}
EXPORTED(CommQueryProperties);
