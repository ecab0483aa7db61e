/* group.c: group calls. Between GroupStart() and the outermost GroupEnd() calls are collected in jobs, one for each communicator
 * that is used and one for each that is made. GroupEnd() runs a single job itself. Several jobs have a thread each: what a rank
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
static _Thread_local facade_result first_error; /* of a call inside the group */

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
  for (int i = 0; i < j->n_calls; i++) free(j->calls[i].lists);
  free(j->ranks);
  free(j->calls);
  free(j);
}

/* The communicator whose state tells how a job goes on. The state of a parent is that of its own calls. */
static comm_t told_by(const job *j) { return j->child != NULL ? j->child : j->comm; }

/* A job runs with the device of its communicator, whichever the caller's is at the time. */
facade_result job_run(job *j) {
  void *context = told_by(j)->context, *before = driver_enter(context);
  facade_result result = j->kind == JOB_CALLS ? calls_run(j->comm, j->calls, j->n_calls) : join_run(j);
  driver_leave(before, context);
  return result;
}

/* Runs a job and tells the end. */
static void run(job *j) {
  j->result = job_run(j);
  if (j->result != RESULT_OK) memcpy(j->text, last_error(), sizeof j->text);
  derived(j); /* before its user hears of the end */
  if (j->blocking) return;
  comm_t told = told_by(j);
  scr_note_released(told);
  comm_set_state(told, j->result);
}

static void *thread_of(void *argument) {
  job *j = argument;
  scr_note_acquired(j);
  bool blocking = j->blocking;
  run(j);
  scr_note_released(j);
  if (!blocking) job_free(j);
  return NULL;
}

/* Starts a thread for a job, on which no signal handler of the program runs. The job of a communicator that does not block may be
 * gone when it returns. */
static bool start(job *j, pthread_t *thread) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  scr_note_released(j);
  bool started = pthread_create(thread, NULL, thread_of, j) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

static void without_thread(job *j) {
  j->result = fail(NULL, RESULT_SYSTEM,
                   "sagecomm: no thread could be started for a communicator of a group call: look at `ulimit -u`");
  memcpy(j->text, last_error(), sizeof j->text);
}

/* Starts a job that nobody waits for. */
static facade_result run_behind(job *j) {
  pthread_t thread;
  comm_set_state(told_by(j), RESULT_IN_PROGRESS);
  if (start(j, &thread)) {
    pthread_detach(thread);
    return RESULT_IN_PROGRESS;
  }
  without_thread(j);
  facade_result result = j->result;
  comm_set_state(told_by(j), result);
  job_free(j);
  return result;
}

/* Runs jobs at once and frees them. Returns the first error, or RESULT_IN_PROGRESS if one goes on. */
static facade_result run_all(job *list) {
  facade_result result = RESULT_OK;
  job *waited = NULL;
  bool alone = list != NULL && list->next == NULL;
  while (list != NULL) {
    job *j = list;
    list = j->next;
    if (!j->blocking) {
      facade_result one = run_behind(j);
      if (result == RESULT_OK || result == RESULT_IN_PROGRESS) result = one;
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
    if (j->result != RESULT_OK && (result == RESULT_OK || result == RESULT_IN_PROGRESS)) {
      result = j->result;
      remember(j->result, j->text);
    }
    job_free(j);
  }
  return result;
}

/* Communicators are made first: the vendors do not permit their use in the same group call. */
static facade_result run_group(job *list) {
  job *made = NULL, *used = NULL, **made_end = &made, **used_end = &used;
  for (job *j = list; j != NULL; j = j->next) {
    job ***end = j->kind == JOB_CALLS ? &used_end : &made_end;
    **end = j;
    *end = &j->next;
  }
  *made_end = *used_end = NULL;
  facade_result result = run_all(made), then = run_all(used);
  return result == RESULT_OK || (result == RESULT_IN_PROGRESS && then != RESULT_OK) ? then : result;
}

static void append(job *j) {
  job **end = &jobs;
  while (*end != NULL) end = &(*end)->next;
  *end = j;
}

facade_result out_of_memory(const char *function) {
  return fail(NULL, RESULT_SYSTEM, "sagecomm: %s: out of memory", function);
}

facade_result job_submit(job *j) {
  if (depth > 0) {
    append(j);
    return RESULT_OK;
  }
  return run_all(j);
}

facade_result call_submit(comm_t comm, const char *function, call *c) {
  if (depth == 0 && comm->blocking) {
    job alone = {.kind = JOB_CALLS, .comm = comm, .calls = c, .n_calls = 1};
    facade_result result = job_run(&alone);
    free(c->lists);
    return result;
  }
  job *j = NULL;
  for (job *each = jobs; each != NULL; each = each->next) {
    if (each->kind == JOB_CALLS && each->comm == comm) j = each;
  }
  bool added = j == NULL;
  if (added) {
    j = calloc(1, sizeof *j);
    if (j == NULL) {
      free(c->lists);
      return out_of_memory(function);
    }
    j->kind = JOB_CALLS;
    j->blocking = comm->blocking;
  }
  if (j->n_calls == j->room) {
    int room = j->room == 0 ? 4 : 2 * j->room;
    call *more = realloc(j->calls, (size_t)room * sizeof *more);
    if (more == NULL) {
      if (added) job_free(j);
      free(c->lists);
      return out_of_memory(function);
    }
    j->calls = more;
    j->room = room;
  }
  j->calls[j->n_calls++] = *c;
  if (!added) return RESULT_OK;
  comm_hold(comm, function); /* the caller holds it too */
  j->comm = comm;
  return job_submit(j);
}

facade_result refused(facade_result result) {
  if (depth > 0 && first_error == RESULT_OK) first_error = result;
  return result;
}

void group_start(void) { depth++; }

static facade_result end(void) {
  job *list = jobs;
  jobs = NULL;
  facade_result result = first_error;
  first_error = RESULT_OK;
  if (result == RESULT_OK) return run_group(list);
  while (list != NULL) { /* nothing was sent */
    job *j = list;
    list = j->next;
    if (j->kind != JOB_CALLS) join_dropped(j);
    job_free(j);
  }
  return result;
}

facade_result group_end(void) {
  if (depth == 0) {
    return fail(NULL, RESULT_USAGE, "sagecomm: %sGroupEnd: no %sGroupStart() came before it on this thread",
                FACADE_PREFIX, FACADE_PREFIX);
  }
  return --depth > 0 ? RESULT_OK : end();
}

bool group_drop(void) {
  if (depth == 0) return false;
  if (--depth == 0) end();
  return true;
}
