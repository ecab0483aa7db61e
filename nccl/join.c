/* join.c: functions that make communicators. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../facade/facade.h"

/* ---- configurations ---- */

static bool has(const ncclConfig_t *config, size_t end) { return config != NULL && config->size >= end; }
#define HAS(config, field) has(config, offsetof(ncclConfig_t, field) + sizeof(config)->field)

static ncclResult_t check_config(const ncclConfig_t *config, const char *function) {
  if (config != NULL && (!HAS(config, version) || config->magic != NCCL_API_MAGIC)) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: %s: config is not initialised by NCCL_CONFIG_INITIALIZER",
                function);
  }
  if (HAS(config, blocking) && config->blocking != NCCL_CONFIG_UNDEF_INT && (config->blocking & ~1) != 0) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: %s: blocking of config is %d, expected 0 or 1", function,
                config->blocking);
  }
  return ncclSuccess;
}

/* Of the settings only `blocking` means something here: the rest is about NCCL's kernels, networks and memory. A child
 * without a configuration has its parent's. */
static bool blocks(const ncclConfig_t *config, bool of_parent) {
  if (config == NULL) return of_parent;
  return !HAS(config, blocking) || config->blocking != 0;
}

/* Only ranks that stay call a shrink. */
static ncclResult_t check_excluded(const char *function, ncclComm_t comm, const int *excluded, int n) {
  if (n >= comm->size) {
    return fail(comm, ncclInvalidArgument, "sagecomm: %s: %d ranks are to be left out of %d", function, n, comm->size);
  }
  for (int i = 0; i < n; i++) {
    if (excluded[i] < 0 || excluded[i] >= comm->size) {
      return fail(comm, ncclInvalidArgument, "sagecomm: %s: rank %d is outside the communicator, expected 0 to %d",
                  function, excluded[i], comm->size - 1);
    }
    if (excluded[i] == comm->rank) {
      return fail(comm, ncclInvalidArgument, "sagecomm: %s: rank %d calls it, and is to be left out", function,
                  excluded[i]);
    }
  }
  return ncclSuccess;
}

/* ---- functions ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  if (id == NULL) return fail(NULL, ncclInvalidArgument, "sagecomm: ncclGetUniqueId: uniqueId is NULL");
  _Static_assert(sizeof id->internal == SAGECOMM_ID_BYTES, "one id fits into the other");
  return unique_id((uint8_t *)id->internal);
}
EXPORTED(GetUniqueId);

static ncclResult_t join(const char *function, ncclComm_t *comm, int size, const ncclUniqueId *id, int rank,
                         const ncclConfig_t *config) {
  job *j = NULL;
  ncclResult_t result = check_config(config, function);
  if (result == ncclSuccess) {
    result = join_job(function, comm, size, (const uint8_t *)id->internal, rank, blocks(config, true), &j);
  }
  return result == ncclSuccess ? join_submit(j) : refused(result);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
  return join("ncclCommInitRank", comm, size, &id, rank, NULL);
}
EXPORTED(CommInitRank);

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
  return join("ncclCommInitRankConfig", comm, size, &id, rank, config);
}
EXPORTED(CommInitRankConfig);

/* The first id suffices. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank, int n, ncclUniqueId *ids,
                                      ncclConfig_t *config) {
  static const char *const function = "ncclCommInitRankScalable";
  if (n < 1 || ids == NULL)
    return refused(fail(NULL, ncclInvalidArgument, "sagecomm: %s: there is no unique id", function));
  return join(function, comm, size, &ids[0], rank, config);
}
EXPORTED(CommInitRankScalable);

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices) {
  return join_all("ncclCommInitAll", comms, n, devices);
}
EXPORTED(CommInitAll);

/* A split or a shrink. */
static ncclResult_t derive(const char *function, ncclComm_t comm, int kind, int color, int key, const int *excluded,
                           int n, int flags, ncclComm_t *made, const ncclConfig_t *config) {
  ncclResult_t result = made == NULL ? fail(NULL, ncclInvalidArgument, "sagecomm: %s: newcomm is NULL", function)
                                     : check_config(config, function);
  if (result == ncclSuccess) result = kind == JOB_SPLIT ? comm_enter(comm, function) : hold_joined(comm, function);
  bool aborts = (flags & NCCL_SHRINK_ABORT) != 0;
  int *copy = NULL;
  if (result == ncclSuccess) {
    result = check_excluded(function, comm, excluded, n);
    if (result == ncclSuccess && aborts && calls_collected(comm)) {
      result =
          fail(comm, ncclInvalidUsage,
               "sagecomm: %s: a call of this communicator is in the same group call, which the shrink would abort: "
               "shrink it afterwards",
               function);
    }
    if (result == ncclSuccess && n > 0) {
      copy = malloc((size_t)n * sizeof *copy);
      if (copy == NULL) result = out_of_memory(function);
    }
    if (result != ncclSuccess) comm_release(comm);
  }
  if (result != ncclSuccess) return refused(result);
  if (n > 0) memcpy(copy, excluded, (size_t)n * sizeof *copy);
  bool none = kind == JOB_SPLIT && color < 0; /* then the parent's state tells how the split goes on */
  job *j;
  result = derive_job(&j, function, comm, kind, !none, none ? comm->blocking : blocks(config, comm->blocking), copy, n,
                      made);
  if (result != ncclSuccess) return refused(result);
  j->color = color;
  j->key = key;
  j->aborts = aborts;
  if (kind == JOB_SPLIT) {
    snprintf(j->name, sizeof j->name, "%.40s/%d", comm->name, color);
  } else {
    snprintf(j->name, sizeof j->name, "%.40s/without %d", comm->name, n);
  }
  if (j->child != NULL) memcpy(j->child->name, j->name, sizeof j->name);
  return join_submit(j);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
  return derive("ncclCommSplit", comm, JOB_SPLIT, color, key, NULL, 0, 0, made, config);
}
EXPORTED(CommSplit);

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n, ncclComm_t *made, ncclConfig_t *config, int flags) {
  static const char *const function = "ncclCommShrink";
  if (n < 1 || excluded == NULL) {
    return refused(fail(NULL, ncclInvalidArgument, "sagecomm: %s: no rank is left out", function));
  }
  return derive(function, comm, JOB_SHRINK, 0, 0, excluded, n, flags, made, config);
}
EXPORTED(CommShrink);
