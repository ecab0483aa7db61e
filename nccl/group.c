/* group.c: group calls. Between ncclGroupStart() and the outermost ncclGroupEnd() calls are collected in jobs, one for each communicator
 * that is used and one for each that is made. ncclGroupEnd() runs a single job itself. Several jobs have a thread each: what a rank
 * joins or issues may wait for its peers, and these may be other communicators of the same group call. A job of a communicator
 * that does not block has a thread that nobody waits for. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "../internal/runner/annotate.h"
#include "facade.h"

static _Thread_local int depth;
static _Thread_local job *jobs;
static _Thread_local ncclResult_t first_error; /* of a call inside the group */

bool job_derive(job *j) {
  pthread_mutex_lock(&comm_lock);
  j->derives = !j->comm->deriving;
  j->comm->deriving = true;
  pthread_mutex_unlock(&comm_lock);
  return j->derives;
}

static void derived(job *j) {
  if (!j->derives) return;
  pthread_mutex_lock(&comm_lock);
  j->comm->deriving = j->derives = false;
  pthread_mutex_unlock(&comm_lock);
}

void job_free(job *j) {
  derived(j);
  if (j->comm != NULL) comm_release(j->comm);
  if (j->child != NULL) comm_release(j->child);
  free(j->excluded);
  free(j->calls);
  free(j);
}

ncclResult_t job_run(job *j) { return j->kind == JOB_CALLS ? calls_run(j->comm, j->calls, j->n_calls) : join_run(j); }

/* The communicator whose state tells how a job goes on. The state of a parent is that of its own calls. */
static ncclComm_t told_by(const job *j) { return j->child != NULL ? j->child : j->comm; }

/* Runs a job and tells the end. */
static void run(job *j) {
  j->result = job_run(j);
  if (j->result != ncclSuccess) memcpy(j->text, last_error(), sizeof j->text);
  derived(j); /* before its user hears of the end */
  if (j->blocking) return;
  ncclComm_t told = told_by(j);
  scr_note_released(told);
  comm_set_state(told, j->result);
}

static void *thread_of(void *argument) {
  job *j = argument;
  scr_note_acquired(j);
  driver_enter(j->context);
  bool blocking = j->blocking;
  run(j);
  scr_note_released(j);
  if (!blocking) job_free(j);
  return NULL;
}

/* Starts a thread for a job, on which no signal handler of the program runs. The job of a communicator that does not block may be
 * gone when it returns. */
static bool start(job *j, pthread_t *thread) {
  j->context = driver_context();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  scr_note_released(j);
  bool started = pthread_create(thread, NULL, thread_of, j) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

static void without_thread(job *j) {
  j->result = fail(NULL, ncclSystemError,
                   "sagecomm: no thread could be started for a communicator of a group call: look at `ulimit -u`");
  memcpy(j->text, last_error(), sizeof j->text);
}

/* Starts a job that nobody waits for. */
static ncclResult_t run_behind(job *j) {
  pthread_t thread;
  comm_set_state(told_by(j), ncclInProgress);
  if (start(j, &thread)) {
    pthread_detach(thread);
    return ncclInProgress;
  }
  without_thread(j);
  ncclResult_t result = j->result;
  comm_set_state(told_by(j), result);
  job_free(j);
  return result;
}

/* Runs jobs at once and frees them. Returns the first error, or ncclInProgress if one goes on. */
static ncclResult_t run_all(job *list) {
  ncclResult_t result = ncclSuccess;
  job *waited = NULL;
  bool alone = list != NULL && list->next == NULL;
  while (list != NULL) {
    job *j = list;
    list = j->next;
    if (!j->blocking) {
      ncclResult_t one = run_behind(j);
      if (result == ncclSuccess || result == ncclInProgress) result = one;
      continue;
    }
    if (alone) {
      run(j);
    } else if (start(j, &j->thread)) {
      j->started = true;
    } else {
      without_thread(j);
    }
    j->next = waited;
    waited = j;
  }
  while (waited != NULL) {
    job *j = waited;
    waited = j->next;
    if (j->started) {
      pthread_join(j->thread, NULL);
      scr_note_acquired(j);
    }
    if (j->result != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) {
      result = j->result;
      remember(j->text);
    }
    job_free(j);
  }
  return result;
}

/* Communicators are made first: NCCL does not permit their use in the same group call. */
static ncclResult_t run_group(job *list) {
  job *made = NULL, *used = NULL, **made_end = &made, **used_end = &used;
  for (job *j = list; j != NULL; j = j->next) {
    job ***end = j->kind == JOB_CALLS ? &used_end : &made_end;
    **end = j;
    *end = &j->next;
  }
  *made_end = *used_end = NULL;
  ncclResult_t result = run_all(made), then = run_all(used);
  return result == ncclSuccess || (result == ncclInProgress && then != ncclSuccess) ? then : result;
}

static void append(job *j) {
  job **end = &jobs;
  while (*end != NULL) end = &(*end)->next;
  *end = j;
}

ncclResult_t out_of_memory(const char *function) {
  return fail(NULL, ncclSystemError, "sagecomm: %s: out of memory", function);
}

ncclResult_t job_submit(job *j) {
  if (depth > 0) {
    append(j);
    return ncclSuccess;
  }
  return run_all(j);
}

ncclResult_t call_submit(ncclComm_t comm, const char *function, call *c) {
  if (depth == 0 && comm->blocking) return calls_run(comm, c, 1);
  job *j = NULL;
  for (job *each = jobs; each != NULL; each = each->next) {
    if (each->kind == JOB_CALLS && each->comm == comm) j = each;
  }
  bool added = j == NULL;
  if (added) {
    j = calloc(1, sizeof *j);
    if (j == NULL) return out_of_memory(function);
    j->kind = JOB_CALLS;
    j->blocking = comm->blocking;
  }
  if (j->n_calls == j->room) {
    int room = j->room == 0 ? 4 : 2 * j->room;
    call *more = realloc(j->calls, (size_t)room * sizeof *more);
    if (more == NULL) {
      if (added) job_free(j);
      return out_of_memory(function);
    }
    j->calls = more;
    j->room = room;
  }
  j->calls[j->n_calls++] = *c;
  if (!added) return ncclSuccess;
  comm_hold(comm, function); /* the caller holds it too */
  j->comm = comm;
  return job_submit(j);
}

ncclResult_t refused(ncclResult_t result) {
  if (depth > 0 && first_error == ncclSuccess) first_error = result;
  return result;
}

void group_start(void) { depth++; }

ncclResult_t ncclGroupStart(void) {
  group_start();
  return ncclSuccess;
}
EXPORTED(GroupStart);

static ncclResult_t end(void) {
  job *list = jobs;
  jobs = NULL;
  ncclResult_t result = first_error;
  first_error = ncclSuccess;
  if (result == ncclSuccess) return run_group(list);
  while (list != NULL) { /* nothing was sent */
    job *j = list;
    list = j->next;
    if (j->kind != JOB_CALLS) join_dropped(j);
    job_free(j);
  }
  return result;
}

ncclResult_t group_end(void) {
  if (depth == 0) {
    return fail(NULL, ncclInvalidUsage, "sagecomm: ncclGroupEnd: no ncclGroupStart() came before it on this thread");
  }
  return --depth > 0 ? ncclSuccess : end();
}

ncclResult_t ncclGroupEnd(void) { return group_end(); }
EXPORTED(GroupEnd);

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info) {
  (void)info;
  if (depth == 0) {
    return fail(NULL, ncclInvalidUsage,
                "sagecomm: ncclGroupSimulateEnd: no ncclGroupStart() came before it on this thread");
  }
  ncclResult_t result =
      refused(fail(NULL, ncclInvalidUsage,
                   "sagecomm: ncclGroupSimulateEnd is not supported: `python -m sagecomm simulate` predicts "
                   "the times of collectives"));
  if (--depth == 0) end();
  return result;
}
EXPORTED(GroupSimulateEnd);
