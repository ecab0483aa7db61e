/* join.c: jobs that make communicators. Their ranks meet in the core: at a unique id, or through the parent of a
 * split. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facade.h"

/* Makes a job and its new communicator, which `*made` becomes. NULL: no memory, and the last error says so. */
static job *new_job(const char *function, comm_t *made, bool blocking, bool with_communicator) {
  job *j = calloc(1, sizeof *j);
  comm_t comm = j != NULL && with_communicator ? comm_make(blocking) : NULL;
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
  comm_t comm = j->kind == JOB_JOIN ? j->comm : j->child;
  if (comm == NULL) return;
  if (j->made != NULL) *j->made = NULL;
  comm_drop(comm);
}

facade_result join_submit(job *j) {
  facade_result result = job_submit(j);
  return result == RESULT_OK || result == RESULT_IN_PROGRESS ? result : refused(result);
}

/* Gives a group to the communicator of a job. */
static facade_result accept(comm_t comm, sagecomm_group group) {
  sagecomm_error err = {0};
  int32_t rank = 0, size = 0;
  int32_t status = core()->group_place(group, &rank, &size, &err);
  if (status < 0) {
    facade_result result = failed(comm, status, &err);
    core()->group_destroy(group, &err);
    return result;
  }
  if (comm_joined(comm, group, rank, size)) return RESULT_OK;
  core()->group_destroy(group, &err);
  return fail(NULL, RESULT_USAGE, "sagecomm: the communicator was destroyed while it was made");
}

facade_result join_run(job *j) {
  sagecomm_group group = 0;
  sagecomm_error err = {0};
  int32_t status;
  comm_t made = j->kind == JOB_JOIN ? j->comm : j->child, told = made != NULL ? made : j->comm;
  if (j->kind == JOB_JOIN) {
    sagecomm_join join = {.struct_size = sizeof join,
                          .rank = made->rank,
                          .size = made->size,
                          .id = j->id,
                          .name = made->name,
                          .timeout_ns = j->timeout_ns,
                          .operations_ns = made->operations_ns,
                          .cancelled = &j->cancelled};
    status = core()->group_join(&join, 1, &group, &err);
  } else {
    sagecomm_child child = {.struct_size = sizeof child,
                            .parent = comm_group(j->comm),
                            .color = j->color,
                            .key = j->key,
                            .name = j->name,
                            .timeout_ns = j->timeout_ns,
                            .operations_ns = told->operations_ns,
                            .cancelled = &j->cancelled};
    if (j->kind == JOB_SUBSET) {
      child.members = j->ranks;
      child.n_members = (uint32_t)j->n_ranks;
      child.label = j->label;
    } else {
      child.left_out = j->ranks;
      child.n_left_out = (uint32_t)j->n_ranks;
    }
    if (j->aborts) child.aborts = j->outstanding ? SAGECOMM_ABORTS_HERE : SAGECOMM_ABORTS_ELSEWHERE;
    status = j->kind == JOB_SPLIT ? core()->group_split(&child, 1, &group, &err)
                                  : core()->group_shrink(&child, 1, &group, &err);
  }
  facade_result result = status < 0 ? failed(told, status, &err) : RESULT_OK;
  pthread_mutex_lock(&comm_lock);
  int32_t cancelled = j->cancelled;
  bool given_up_for = j->given_up_for;
  pthread_mutex_unlock(&comm_lock);
  if (status == SAGECOMM_ABORTED && cancelled == CANCELLED_BY_GROUP) {
    result = fail(told, result, FACADE_ANOTHER_FAILED);
  } else if (status == SAGECOMM_ABORTED && cancelled != 0 && given_up_for) {
    result = fail(told, result, FACADE_GIVEN_UP_FOR);
  }
  if (result == RESULT_OK && group != 0) result = accept(made, group);
  if (result != RESULT_OK && j->blocking) join_dropped(j); /* otherwise its user asks it for its state, and ends it */
  return result;
}

facade_result join_job(const char *function, comm_t *comm, int size, const uint8_t *id, int rank, bool blocking,
                       job **j) {
  if (comm == NULL || id == NULL) {
    return fail(NULL, RESULT_NULL, "sagecomm: %s: %s is NULL", function, comm == NULL ? "comm" : "the unique id");
  }
  if (size < 1 || rank < 0 || rank >= size) {
    return fail(NULL, RESULT_ARGUMENT, "sagecomm: %s: rank %d of %d ranks", function, rank, size);
  }
  if (core() == NULL) return RESULT_SYSTEM;
  facade_result refusal = refused_to_child();
  if (refusal != RESULT_OK) return refusal;
  *j = new_job(function, comm, blocking, true);
  if (*j == NULL) return RESULT_MEMORY;
  (*j)->kind = JOB_JOIN;
  (*j)->timeout_ns = FACADE_JOIN_NS;
  memcpy((*j)->id, id, sizeof(*j)->id);
  comm_t made = (*j)->comm = *comm;
  made->rank = rank;
  made->size = size;
  made->operations_ns = FACADE_OPERATIONS_NS;
  uint32_t hash = 2166136261; /* FNV-1a: the name must not show the secret of the id */
  for (size_t i = 0; i < sizeof(*j)->id; i++) hash = (hash ^ id[i]) * 16777619;
  snprintf(made->name, sizeof made->name, "%s-%08x", FACADE_NAME, hash);
  return RESULT_OK;
}

facade_result join_all(const char *function, comm_t *comms, int n, const int *devices) {
  if (comms == NULL || n < 1) {
    return refused(
        fail(NULL, RESULT_ARGUMENT, "sagecomm: %s: %s", function, n < 1 ? "ndev is less than 1" : "comm is NULL"));
  }
  uint8_t id[SAGECOMM_ID_BYTES];
  facade_result result = unique_id(id);
  if (result != RESULT_OK) return refused(result);
  group_start();
  for (int i = 0; i < n; i++) {
    job *j = NULL;
    result = join_job(function, &comms[i], n, id, i, true, &j);
    if (result != RESULT_OK) {
      refused(result);
      break;
    }
    if (driver_present()) { /* this thread may have no device yet */
      int device = devices == NULL ? i : devices[i];
      void *context = driver_context_of(device);
      if (context != NULL || driver_device() >= 0) {
        comms[i]->device_type = FACADE_DEVICE_TYPE;
        comms[i]->device = comms[i]->device_index = device;
      }
      if (context != NULL) comms[i]->context = context;
    }
    job_submit(j);
  }
  return group_end();
}

facade_result hold_joined(comm_t comm, const char *function) {
  facade_result result = comm_hold(comm, function);
  if (result != RESULT_OK || comm_usable(comm)) return result;
  result = fail(comm, RESULT_USAGE, "sagecomm: %s: the communicator was finalized, or has not joined", function);
  comm_release(comm);
  return result;
}

job *derive_job(const char *function, comm_t parent, int kind, bool with_child, bool blocking, int *ranks, int n,
                comm_t *made) {
  job *j = new_job(function, made, blocking, with_child);
  if (j == NULL) {
    free(ranks);
    comm_release(parent);
    return NULL;
  }
  j->kind = kind;
  j->comm = parent;
  j->child = *made;
  j->ranks = ranks;
  j->n_ranks = n;
  j->timeout_ns = FACADE_JOIN_NS;
  if (kind != JOB_SUBSET && !job_derive(j)) {
    join_dropped(j);
    fail(parent, RESULT_USAGE,
         "sagecomm: %s: another split or shrink of this communicator is in the same group call: "
         "make them one after the other",
         function);
    job_free(j);
    return NULL;
  }
  pthread_mutex_lock(&comm_lock);
  if (j->child != NULL) {
    j->child->device = parent->device;
    j->child->device_type = parent->device_type;
    j->child->device_index = parent->device_index;
    j->child->context = parent->context;
    j->child->operations_ns = parent->operations_ns;
  }
  pthread_mutex_unlock(&comm_lock);
  return j;
}
