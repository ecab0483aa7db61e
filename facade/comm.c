/* comm.c: communicators, which are groups of the core with what the vendor's interface asks for besides.
 *
 * A list has all of them, so that a pointer to one that was destroyed is an error and no fault. Whoever is inside a
 * call holds its communicator, and the last one that leaves frees it. An abort on another thread ends joins and
 * operations, waits until nobody touches buffers of the communicator's calls, and returns. A thread that waits for a
 * stream touches none: comm_begin() refuses it afterwards. */
#include <stdlib.h>
#include <string.h>

#include "../internal/runner/annotate.h"
#include "facade.h"

pthread_mutex_t comm_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static comm_t all;

/* A child of a fork has none of the threads that use a communicator, and may not wait for them. It can end its parent's
 * communicators for itself and is refused everything else, before it takes another lock than these two. */
static bool forked;

static void lock_all(void) {
  pthread_mutex_lock(&comm_lock);
  pthread_mutex_lock(&printing);
}

static void unlock_all(void) {
  pthread_mutex_unlock(&printing);
  pthread_mutex_unlock(&comm_lock);
}

static void in_child(void) {
  forked = true;
  finished = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  for (comm_t each = all; each != NULL; each = each->next) each->issuing = 0;
  unlock_all();
}

static void watch_forks(void) { pthread_atfork(lock_all, unlock_all, in_child); }

facade_result refused_to_child(void) {
  sagecomm_error err = {0};
  if (!forked) return RESULT_OK;
  return failed(NULL, core()->group_error(0, &err), &err); /* in a child, any function of the core says so */
}

comm_t comm_make(bool blocking) {
  static pthread_once_t watched = PTHREAD_ONCE_INIT;
  pthread_once(&watched, watch_forks);
  comm_t comm = calloc(1, sizeof *comm);
  if (comm == NULL) return NULL;
  comm->holders = 1;
  comm->blocking = blocking;
  comm->device = driver_device();
  comm->context = driver_context();
  if (comm->device >= 0) {
    comm->device_type = FACADE_DEVICE_TYPE;
    comm->device_index = comm->device;
  }
  pthread_mutex_lock(&comm_lock);
  comm->next = all;
  all = comm;
  pthread_mutex_unlock(&comm_lock);
  return comm;
}

/* Requires: the lock. */
static bool exists(comm_t comm) {
  for (comm_t each = all; each != NULL; each = each->next) {
    if (each == comm) return !each->destroyed;
  }
  return false;
}

bool comm_find(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  bool here = exists(comm);
  if (here) comm->holders++;
  pthread_mutex_unlock(&comm_lock);
  return here;
}

/* Like comm_hold(), also in a child. */
static facade_result hold(comm_t comm, const char *function) {
  if (comm == NULL) return fail(NULL, RESULT_NULL, "sagecomm: %s: comm is NULL", function);
  if (comm_find(comm)) return RESULT_OK;
  return fail(NULL, RESULT_ARGUMENT, "sagecomm: %s: comm is no communicator of this process, or was destroyed",
              function);
}

facade_result comm_hold(comm_t comm, const char *function) {
  facade_result result = refused_to_child();
  return result == RESULT_OK ? hold(comm, function) : result;
}

void comm_hold_again(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  comm->holders++;
  pthread_mutex_unlock(&comm_lock);
}

static facade_result unusable(comm_t comm, const char *function) {
  return fail(comm, RESULT_USAGE,
              "sagecomm: %s: the communicator was finalized, or the group call that makes it has not ended", function);
}

/* Returns RESULT_OK if a communicator is ready, or the last error says why not. Requires: it is held. */
static facade_result ready(comm_t comm, const char *function) {
  pthread_mutex_lock(&comm_lock);
  facade_result result = comm->state;
  bool joined = comm->group != 0 && !comm->finalizing;
  char text[TEXT_BYTES];
  if (result != RESULT_OK && result != RESULT_IN_PROGRESS) memcpy(text, comm->state_text, sizeof text);
  pthread_mutex_unlock(&comm_lock);
  if (result == RESULT_IN_PROGRESS) {
    result = fail(comm, RESULT_ARGUMENT, "sagecomm: %s: " FACADE_IN_PROGRESS, function);
  } else if (result != RESULT_OK) {
    remember(comm, result, text); /* which a thread of the library may have had */
  } else if (!joined) {
    result = unusable(comm, function);
  }
  return result;
}

facade_result comm_enter(comm_t comm, const char *function) {
  facade_result result = comm_hold(comm, function);
  if (result != RESULT_OK) return result;
  result = ready(comm, function);
  if (result != RESULT_OK) comm_release(comm);
  return result;
}

void comm_release(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  bool last = --comm->holders == 0;
  if (last) {
    comm_t *at = &all;
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

bool comm_begin(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  bool here = !comm->aborted;
  if (here) comm->issuing++;
  pthread_mutex_unlock(&comm_lock);
  return here;
}

void comm_finish(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  if (--comm->issuing == 0) pthread_cond_broadcast(&finished);
  pthread_mutex_unlock(&comm_lock);
}

void comm_drop(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  bool first = exists(comm);
  if (first) comm->destroyed = true;
  pthread_mutex_unlock(&comm_lock);
  if (first) comm_release(comm);
}

facade_result comm_end(comm_t comm, const char *function, const char *reason) {
  facade_result result = hold(comm, function);
  if (result != RESULT_OK) return result;
  pthread_mutex_lock(&comm_lock);
  bool first = !comm->destroyed; /* two threads may both hold it here */
  comm->destroyed = true;
  if (reason != NULL) comm->aborted = true;
  if (first) comm->holders--;
  sagecomm_group group = comm->group;
  pthread_mutex_unlock(&comm_lock);
  if (reason != NULL || group == 0) jobs_cancel(comm); /* a join that goes on ends too */
  if (reason != NULL) {
    sagecomm_error err;
    if (first && group != 0) core()->group_leave(group, reason, &err);
    pthread_mutex_lock(&comm_lock);
    while (comm->issuing > 0) pthread_cond_wait(&finished, &comm_lock);
    pthread_mutex_unlock(&comm_lock);
  }
  comm_release(comm);
  return RESULT_OK;
}

facade_result comm_finish_group(comm_t comm) {
  sagecomm_group group = comm_group(comm); /* an abort finds it until the end */
  sagecomm_error err = {0}, none;
  int32_t status = core()->group_finish(group, &err);
  facade_result result = status < 0 ? failed(comm, status, &err) : RESULT_OK;
  pthread_mutex_lock(&comm_lock);
  comm->finished = true; /* before the group ends, whose errors are no concern of the user's any more */
  if (result != RESULT_OK) {
    comm->state = result;
    memcpy(comm->state_text, last_error(), sizeof comm->state_text);
  }
  pthread_mutex_unlock(&comm_lock);
  core()->group_destroy(group, &none);
  pthread_mutex_lock(&comm_lock);
  comm->group = 0;
  pthread_mutex_unlock(&comm_lock);
  return result;
}

/* Returns false if nothing changes. */
static bool set_finalizing(comm_t comm, bool finalizing) {
  pthread_mutex_lock(&comm_lock);
  bool changes = comm->finalizing != finalizing;
  comm->finalizing = finalizing;
  pthread_mutex_unlock(&comm_lock);
  return changes;
}

/* As with NCCL, it is a wrong argument, and other calls are a wrong usage. */
static facade_result finalized_already(comm_t comm, const char *function) {
  return fail(comm, RESULT_ARGUMENT, "sagecomm: %s: the communicator was finalized already", function);
}

static bool was_finalized(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  bool was = comm->finalizing && comm->state == RESULT_OK;
  pthread_mutex_unlock(&comm_lock);
  return was;
}

facade_result comm_finalize(comm_t comm, const char *function) {
  facade_result result = comm_hold(comm, function);
  if (result != RESULT_OK) return result;
  result = was_finalized(comm) ? finalized_already(comm, function) : ready(comm, function);
  if (result != RESULT_OK) {
    comm_release(comm);
    return result;
  }
  job *j = calloc(1, sizeof *j);
  if (j == NULL) {
    comm_release(comm);
    return out_of_memory(function);
  }
  j->kind = JOB_FINALIZE;
  j->comm = comm; /* with the hold */
  j->blocking = comm->blocking;
  if (!set_finalizing(comm, true)) { /* two threads may both have entered */
    result = finalized_already(comm, function);
    job_free(j);
    return result;
  }
  if (job_derive(j)) return job_now(j);
  set_finalizing(comm, false);
  result = fail(
      comm, RESULT_USAGE,
      "sagecomm: %s: a call, split or shrink of this communicator is in the same group call: finalize it afterwards",
      function);
  job_free(j);
  return result;
}

bool comm_usable(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  bool usable = comm->group != 0 && !comm->finalizing;
  pthread_mutex_unlock(&comm_lock);
  return usable;
}

void comm_set_state(comm_t comm, facade_result state, int given_up, const char *text) {
  comm->state = state;
  if (state != RESULT_OK && state != RESULT_IN_PROGRESS) memcpy(comm->state_text, text, sizeof comm->state_text);
  comm->state_given_up = given_up != comm->given_up;
}

bool comm_joined(comm_t comm, sagecomm_group group, int rank, int size) {
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

sagecomm_group comm_group(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  sagecomm_group group = comm->group;
  pthread_mutex_unlock(&comm_lock);
  return group;
}

void comm_place(comm_t comm, bool known, sagecomm_op *op) {
  pthread_mutex_lock(&comm_lock);
  if (known) {
    comm->device_type = op->device_type;
    comm->device_index = op->device_index;
  } else {
    op->device_type = comm->device_type;
    op->device_index = comm->device_index;
  }
  pthread_mutex_unlock(&comm_lock);
}

/* Whether a split or shrink of it goes on that it does not wait for: NCCL's users ask the parent whether the new
 * communicator is ready.
 * Requires: the lock. */
static bool makes_in_background(comm_t comm) {
  for (job *j = comm->deriving; j != NULL && !comm->blocking; j = j->derives_next) {
    if (j->listed && !j->blocking && job_makes(j)) return true;
  }
  return false;
}

static bool asks_group(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  bool asks = !comm->finished;
  pthread_mutex_unlock(&comm_lock);
  return asks;
}

facade_result comm_state(comm_t comm, const char *function, facade_result *error) {
  if (error == NULL) return fail(NULL, RESULT_NULL, "sagecomm: %s: asyncError is NULL", function);
  facade_result result = comm_hold(comm, function);
  if (result != RESULT_OK) return result;
  pthread_mutex_lock(&comm_lock);
  *error = comm->state;
  char text[TEXT_BYTES];
  if (*error != RESULT_OK && *error != RESULT_IN_PROGRESS) memcpy(text, comm->state_text, sizeof text);
  sagecomm_group group = comm->finished ? 0 : comm->group;
  bool masked = comm->given_up > 0 && (*error == RESULT_OK || (*error == RESULT_REMOTE && comm->state_given_up));
  bool derives = makes_in_background(comm);
  pthread_mutex_unlock(&comm_lock);
  bool own = *error != RESULT_OK && *error != RESULT_IN_PROGRESS; /* an error of `state` */
  if (*error == RESULT_OK || masked) {
    scr_note_acquired(comm); /* what a thread of this library has done for it */
    sagecomm_error err = {0};
    int32_t status = group == 0 ? SAGECOMM_OK : core()->group_error(group, &err);
    sagecomm_error none;
    if (masked && status == SAGECOMM_ABORTED && core()->group_shrunk(group, &none) == 1) {
      *error = RESULT_OK;
      own = false;
    } else if (status < 0 && asks_group(comm)) { /* it was not finalized meanwhile */
      *error = failed_before(comm, status, &err);
      own = false;
    }
  }
  if (own) remember(comm, *error, text);
  if (*error == RESULT_OK && derives) *error = RESULT_IN_PROGRESS;
  comm_release(comm);
  return RESULT_OK;
}

facade_result comm_ask(comm_t comm, const char *function, int what, int *answer) {
  if (answer == NULL) return fail(NULL, RESULT_NULL, "sagecomm: %s: the result's place is NULL", function);
  facade_result result = comm_hold(comm, function);
  if (result != RESULT_OK) return result;
  pthread_mutex_lock(&comm_lock);
  bool known = what == ASK_DEVICE || comm->size > 0; /* a split or shrink knows its place when it has joined */
  int found = what == ASK_SIZE ? comm->size : what == ASK_RANK ? comm->rank : comm->device;
  bool early = !known && comm->state == RESULT_IN_PROGRESS;
  pthread_mutex_unlock(&comm_lock);
  if (known) {
    *answer = found;
  } else if (early) {
    result = asked_early(comm, function);
  } else {
    result = ready(comm, function);
    pthread_mutex_lock(&comm_lock); /* it may have joined since */
    if (result == RESULT_OK) *answer = what == ASK_SIZE ? comm->size : comm->rank;
    pthread_mutex_unlock(&comm_lock);
  }
  comm_release(comm);
  return result;
}
