/* group.c: group calls. Between GroupStart() and the outermost GroupEnd() calls are collected in jobs, one for each
 * communicator that is used and one for each that is made. */
#include <stdlib.h>
#include <string.h>

#include "facade.h"

static _Thread_local int depth;
static _Thread_local job *jobs;
static _Thread_local facade_result first_error; /* of a call inside the group */

bool job_derive(job *j) {
  for (job *each = jobs; each != NULL; each = each->next) {
    if (each->comm == j->comm && (each->derives || (j->kind == JOB_FINALIZE && each->kind == JOB_CALLS))) return false;
  }
  job_take_place(j);
  return true;
}

bool calls_collected(comm_t comm) {
  for (job *each = jobs; each != NULL; each = each->next) {
    if (each->kind == JOB_CALLS && each->comm == comm) return true;
  }
  return false;
}

/* Whether the group of this thread aborts the operations of a communicator. */
static bool aborts(comm_t comm) {
  for (job *each = jobs; each != NULL; each = each->next) {
    if (each->comm == comm && each->aborts) return true;
  }
  return false;
}

void jobs_drop(job *list) {
  while (list != NULL) {
    job *j = list;
    list = j->next;
    if (j->kind != JOB_CALLS) join_dropped(j);
    job_free(j);
  }
}

/* A thread may end inside a group call, and its jobs hold their communicators. */
static pthread_key_t thread_ends;

static void drop_of_thread(void *list) {
  job **of_thread = list;
  for (job *j = *of_thread; j != NULL; j = j->next) j->made = NULL; /* it may point into the stack of the thread */
  jobs_drop(*of_thread);
  *of_thread = NULL;
}

static void make_key(void) { pthread_key_create(&thread_ends, drop_of_thread); }

static void append(job *j) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_key);
  if (jobs == NULL) pthread_setspecific(thread_ends, &jobs); /* without memory for it, they stay */
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
  return job_now(j);
}

/* The handle of a stream that each thread has of its own: another thread would take it for its own stream. */
static bool of_thread(const call *c) {
  return FACADE_STREAM_OF_THREAD != 0 && (uintptr_t)c->op.stream == FACADE_STREAM_OF_THREAD;
}

static facade_result stream_of_thread(const char *function) {
  return fail(
      NULL, RESULT_USAGE,
      "sagecomm: %s: the stream is the per-thread default stream, and another thread issues the call, because the "
      "communicator does not block, or the group call has communicators of several streams: use a stream that was "
      "created",
      function);
}

facade_result call_submit(comm_t comm, const char *function, call *c) {
  if (depth == 0 && comm->blocking) {
    job alone = {.kind = JOB_CALLS, .blocking = true, .comm = comm, .calls = c, .n_calls = 1};
    job_note_context(&alone);
    job_begin(&alone, NULL);
    facade_result result = job_run(&alone);
    job_ended(&alone);
    free(c->lists);
    return result;
  }
  if (aborts(comm)) {
    free(c->lists);
    return fail(
        comm, RESULT_USAGE,
        "sagecomm: %s: a shrink that aborts this communicator is in the same group call: make the call before it, "
        "or of the new communicator",
        function);
  }
  if (!comm->blocking && of_thread(c)) {
    free(c->lists);
    return stream_of_thread(function);
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
  comm_hold_again(comm);
  j->comm = comm;
  job_note_context(j);
  return job_submit(j);
}

facade_result refused(facade_result result) {
  if (depth > 0 && first_error == RESULT_OK) first_error = result;
  return result;
}

void group_start(void) { depth++; }

/* Calls run on this thread if they are one chain. */
static facade_result check_streams(job *list) {
  bool here = false, several = false;
  const job *calls = NULL;
  for (job *j = list; j != NULL; j = j->next) {
    if (j->kind != JOB_CALLS) continue;
    for (int i = 0; i < j->n_calls; i++) here = here || of_thread(&j->calls[i]);
  }
  if (!here) return RESULT_OK;
  jobs_make_chains(list);
  for (job *j = list; j != NULL; j = j->next) {
    if (j->kind != JOB_CALLS) continue;
    several = several || (calls != NULL && j->first != calls->first);
    calls = j;
  }
  return several ? stream_of_thread(FACADE_PREFIX "GroupEnd") : RESULT_OK;
}

/* Several communicators may wait for each other, so what one of them refuses must be known before another one
 * begins. */
static facade_result check_calls(const job *list) {
  int n = 0;
  for (const job *j = list; j != NULL; j = j->next) n += j->kind == JOB_CALLS;
  facade_result result = RESULT_OK;
  for (const job *j = list; n > 1 && result == RESULT_OK && j != NULL; j = j->next) {
    if (j->kind == JOB_CALLS) result = calls_check(j->comm, j->calls, j->n_calls);
  }
  return result;
}

static facade_result end(void) {
  job *list = jobs;
  jobs = NULL;
  facade_result result = first_error;
  first_error = RESULT_OK;
  if (result == RESULT_OK) result = refused_to_child();
  if (result == RESULT_OK) result = check_streams(list);
  if (result == RESULT_OK) result = check_calls(list);
  if (result == RESULT_OK) return jobs_run(list);
  jobs_drop(list);
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
