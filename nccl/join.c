/* join.c: functions that make communicators. Their ranks meet in the core: at a unique id, or through the parent of a split. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facade.h"

#define SECOND INT64_C(1000000000)

/* How long a rank waits for the others to join. The error names those that are missing. */
#define JOIN_TIMEOUT (1800 * SECOND)
/* Operations of NCCL have no timeout: their users have. It is a hundred years. */
#define NO_TIMEOUT (INT64_C(36525) * 86400 * SECOND)

/* ---- configurations ---- */

static bool has(const ncclConfig_t *config, size_t end) { return config != NULL && config->size >= end; }
#define HAS(config, field) has(config, offsetof(ncclConfig_t, field) + sizeof(config)->field)

static ncclResult_t check_config(const ncclConfig_t *config, const char *function) {
  if (config == NULL || (HAS(config, version) && config->magic == NCCL_API_MAGIC)) return ncclSuccess;
  return fail(NULL, ncclInvalidArgument, "sagecomm: %s: config is not initialised by NCCL_CONFIG_INITIALIZER",
              function);
}

/* Of the settings only `blocking` means something here: the rest is about NCCL's kernels, networks and memory. */
static bool blocks(const ncclConfig_t *config, bool otherwise) {
  if (!HAS(config, blocking) || config->blocking == NCCL_CONFIG_UNDEF_INT) return otherwise;
  return config->blocking != 0;
}

/* ---- jobs ---- */

/* Makes a job and its new communicator, which `*made` becomes. NULL: no memory, and the last error says so. */
static job *new_job(const char *function, ncclComm_t *made, bool blocking, bool with_communicator) {
  job *j = calloc(1, sizeof *j);
  ncclComm_t comm = j != NULL && with_communicator ? comm_make(blocking) : NULL;
  if (j == NULL || (with_communicator && comm == NULL)) {
    free(j);
    out_of_memory(function);
    return NULL;
  }
  if (comm != NULL) comm_hold(comm, function); /* for the job; the user has the other hold */
  j->blocking = blocking;
  j->made = made;
  *made = comm;
  return j;
}

void join_dropped(job *j) {
  ncclComm_t comm = j->kind == JOB_JOIN ? j->comm : j->child;
  if (comm == NULL) return;
  *j->made = NULL;
  comm_end(comm, "ncclGroupEnd", NULL);
}

static ncclResult_t submit(job *j) {
  ncclResult_t result = job_submit(j);
  return result == ncclSuccess || result == ncclInProgress ? result : refused(result);
}

/* Gives a group to the communicator of a job. */
static ncclResult_t accept(ncclComm_t comm, sagecomm_group group) {
  sagecomm_error err = {0};
  int32_t rank = 0, size = 0;
  int32_t status = core()->group_place(group, &rank, &size, &err);
  if (status < 0) {
    ncclResult_t result = failed(comm, status, &err);
    core()->group_destroy(group, &err);
    return result;
  }
  if (comm_joined(comm, group, rank, size)) return ncclSuccess;
  core()->group_destroy(group, &err);
  return fail(NULL, ncclInvalidUsage, "sagecomm: the communicator was destroyed while it was made");
}

/* Returns the group of a parent. */
static sagecomm_group group_of(ncclComm_t comm) {
  pthread_mutex_lock(&comm_lock);
  sagecomm_group group = comm->group;
  pthread_mutex_unlock(&comm_lock);
  return group;
}

ncclResult_t join_run(job *j) {
  sagecomm_group group = 0;
  sagecomm_error err = {0};
  int32_t status;
  ncclComm_t made = j->kind == JOB_JOIN ? j->comm : j->child;
  if (j->kind == JOB_JOIN) {
    sagecomm_join join = {.struct_size = sizeof join,
                          .rank = made->rank,
                          .size = made->size,
                          .id = (const uint8_t *)j->id.internal,
                          .name = made->name,
                          .timeout_ns = JOIN_TIMEOUT,
                          .operations_ns = NO_TIMEOUT};
    status = core()->group_join(&join, 1, &group, &err);
  } else {
    sagecomm_child child = {.struct_size = sizeof child,
                            .parent = group_of(j->comm),
                            .color = j->color,
                            .key = j->key,
                            .left_out = j->excluded,
                            .n_left_out = (uint32_t)j->n_excluded,
                            .name = j->name,
                            .timeout_ns = JOIN_TIMEOUT,
                            .operations_ns = NO_TIMEOUT};
    if (j->kind == JOB_SHRINK && (j->flags & NCCL_SHRINK_ABORT) != 0) {
      core()->group_abort(child.parent, "ncclCommShrink() was called with NCCL_SHRINK_ABORT", &err);
    }
    status = j->kind == JOB_SPLIT ? core()->group_split(&child, 1, &group, &err)
                                  : core()->group_shrink(&child, 1, &group, &err);
  }
  ncclResult_t result = status < 0 ? failed(made != NULL ? made : j->comm, status, &err) : ncclSuccess;
  if (result == ncclSuccess && group != 0) result = accept(made, group);
  if (result != ncclSuccess && j->blocking) join_dropped(j); /* otherwise its user asks it for its state, and ends it */
  return result;
}

/* ---- functions ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  if (id == NULL) return fail(NULL, ncclInvalidArgument, "sagecomm: ncclGetUniqueId: uniqueId is NULL");
  if (core() == NULL) return ncclSystemError;
  _Static_assert(sizeof id->internal == SAGECOMM_ID_BYTES, "one id fits into the other");
  sagecomm_error err = {0};
  int32_t status = core()->unique_id((uint8_t *)id->internal, &err);
  return status < 0 ? failed(NULL, status, &err) : ncclSuccess;
}
EXPORTED(GetUniqueId);

/* Makes the job of one rank. */
static ncclResult_t joining(const char *function, ncclComm_t *comm, int size, const ncclUniqueId *id, int rank,
                            const ncclConfig_t *config, job **j) {
  if (comm == NULL) return fail(NULL, ncclInvalidArgument, "sagecomm: %s: comm is NULL", function);
  if (size < 1 || rank < 0 || rank >= size) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: %s: rank %d of %d ranks", function, rank, size);
  }
  ncclResult_t result = check_config(config, function);
  if (result != ncclSuccess) return result;
  if (core() == NULL) return ncclSystemError;
  *j = new_job(function, comm, blocks(config, true), true);
  if (*j == NULL) return ncclSystemError;
  (*j)->kind = JOB_JOIN;
  (*j)->id = *id;
  ncclComm_t made = (*j)->comm = *comm;
  made->rank = rank;
  made->size = size;
  uint32_t hash = 2166136261; /* FNV-1a: the name must not show the secret of the id */
  for (size_t i = 0; i < sizeof id->internal; i++) hash = (hash ^ (uint8_t)id->internal[i]) * 16777619;
  snprintf(made->name, sizeof made->name, "nccl-%08x", hash);
  return ncclSuccess;
}

static ncclResult_t join(const char *function, ncclComm_t *comm, int size, const ncclUniqueId *id, int rank,
                         const ncclConfig_t *config) {
  job *j = NULL;
  ncclResult_t result = joining(function, comm, size, id, rank, config, &j);
  return result == ncclSuccess ? submit(j) : refused(result);
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
  static const char *const function = "ncclCommInitAll";
  if (comms == NULL || n < 1) {
    return refused(
        fail(NULL, ncclInvalidArgument, "sagecomm: %s: %s", function, n < 1 ? "ndev is less than 1" : "comm is NULL"));
  }
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) return refused(result);
  group_start();
  for (int i = 0; i < n; i++) {
    job *j = NULL;
    result = joining(function, &comms[i], n, &id, i, NULL, &j);
    if (result != ncclSuccess) {
      refused(result);
      break;
    }
    if (driver_device() >= 0) comms[i]->device = devices == NULL ? i : devices[i];
    job_submit(j);
  }
  return group_end();
}
EXPORTED(CommInitAll);

/* Holds the parent of a shrink, which may have failed. */
static ncclResult_t hold_joined(ncclComm_t comm, const char *function) {
  ncclResult_t result = comm_hold(comm, function);
  if (result != ncclSuccess || group_of(comm) != 0) return result;
  comm_release(comm);
  return fail(NULL, ncclInvalidUsage, "sagecomm: %s: the communicator was finalized, or has not joined", function);
}

/* A split or a shrink. Takes `excluded`. */
static ncclResult_t derive(const char *function, ncclComm_t comm, int kind, int color, int key, int *excluded, int n,
                           int flags, ncclComm_t *made, const ncclConfig_t *config) {
  ncclResult_t result = made == NULL ? fail(NULL, ncclInvalidArgument, "sagecomm: %s: newcomm is NULL", function)
                                     : check_config(config, function);
  if (result == ncclSuccess) result = kind == JOB_SPLIT ? comm_enter(comm, function) : hold_joined(comm, function);
  if (result != ncclSuccess) {
    free(excluded);
    return refused(result);
  }
  bool none = kind == JOB_SPLIT && color < 0; /* then the parent's state tells how the split goes on */
  job *j = new_job(function, made, none ? comm->blocking : blocks(config, comm->blocking), !none);
  if (j == NULL) {
    free(excluded);
    comm_release(comm);
    return refused(ncclSystemError);
  }
  j->kind = kind;
  j->comm = comm; /* the job has the hold */
  j->child = *made;
  j->color = color;
  j->key = key;
  j->excluded = excluded;
  j->n_excluded = n;
  j->flags = flags;
  if (!job_derive(j)) {
    join_dropped(j);
    job_free(j);
    return refused(fail(NULL, ncclInvalidUsage,
                        "sagecomm: %s: another split or shrink of this communicator goes on, or is in the same group "
                        "call: make them one after the other",
                        function));
  }
  if (kind == JOB_SPLIT) {
    snprintf(j->name, sizeof j->name, "%.40s/%d", comm->name, color);
  } else {
    snprintf(j->name, sizeof j->name, "%.40s/without %d", comm->name, n);
  }
  if (j->child != NULL) {
    j->child->device = comm->device;
    memcpy(j->child->name, j->name, sizeof j->name);
  }
  return submit(j);
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
  int *copy = malloc((size_t)n * sizeof *copy);
  if (copy == NULL) return refused(out_of_memory(function));
  memcpy(copy, excluded, (size_t)n * sizeof *copy);
  return derive(function, comm, JOB_SHRINK, 0, 0, copy, n, flags, made, config);
}
EXPORTED(CommShrink);
