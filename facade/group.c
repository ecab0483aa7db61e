/* group.c: group calls. Between GroupStart() and the outermost GroupEnd() calls are collected in jobs, one for each communicator
 * that is used and one for each that is made. What a rank joins, or does on host memory, may wait for its peers, and these may be
 * other communicators of the same group call, so jobs have a thread each. Jobs that issue into one stream of a device are a chain:
 * one thread issues them in the order of the calls, because a stream that holds the operations of two communicators in another order
 * than that of a peer holds up both for ever. GroupEnd() runs a single chain itself. A chain of communicators that do not block has a
 * thread that nobody waits for. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "../internal/runner/annotate.h"
#include "facade.h"

static _Thread_local int depth;
static _Thread_local job *jobs;
static _Thread_local facade_result first_error; /* of a call inside the group */

/* The communicator whose state tells how a job goes on. The state of a parent is that of its own calls. */
static comm_t told_by(const job *j) { return j->child != NULL ? j->child : j->comm; }

/* Whether a communicator becomes of a job. */
static bool makes(const job *j) { return j->kind == JOB_JOIN || j->child != NULL; }

/* Splits, shrinks and the finalization of a parent wait for their turn here. */
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;

bool job_derive(job *j) {
  for (job *each = jobs; each != NULL; each = each->next) {
    if (each->comm == j->comm && (each->derives || (j->kind == JOB_FINALIZE && each->kind == JOB_CALLS))) return false;
  }
  pthread_mutex_lock(&comm_lock);
  job **end = &j->comm->deriving;
  while (*end != NULL) end = &(*end)->derives_next;
  *end = j;
  j->derives = true;
  pthread_mutex_unlock(&comm_lock);
  return true;
}

/* Counts a job with calls. Requires: it has its communicator. */
static void begin(job *j) {
  pthread_mutex_lock(&comm_lock);
  j->comm->in_progress++;
  j->in_progress = true;
  j->given_up = j->comm->given_up;
  pthread_mutex_unlock(&comm_lock);
}

/* Takes a job that has ended off the count and the list of its communicator. */
static void ended(job *j) {
  if (!j->derives && !j->in_progress) return;
  pthread_mutex_lock(&comm_lock);
  if (j->in_progress) j->comm->in_progress--;
  if (j->derives) {
    job **at = &j->comm->deriving;
    while (*at != j) at = &(*at)->derives_next;
    *at = j->derives_next;
    pthread_cond_broadcast(&turn);
  }
  j->derives = j->in_progress = false;
  pthread_mutex_unlock(&comm_lock);
}

void job_cancelled(void) {
  pthread_mutex_lock(&comm_lock);
  pthread_cond_broadcast(&turn);
  pthread_mutex_unlock(&comm_lock);
}

/* Waits until the splits and shrinks of the parent that were called before have ended. The ranks must call them in the same order. */
static facade_result await_turn(job *j) {
  if (!j->derives) return RESULT_OK;
  comm_t told = told_by(j);
  pthread_mutex_lock(&comm_lock);
  bool ended = false;
  while (j->comm->deriving != j && !ended) {
    ended = __atomic_load_n(&told->cancelled, __ATOMIC_ACQUIRE) != 0;
    if (!ended) pthread_cond_wait(&turn, &comm_lock);
  }
  pthread_mutex_unlock(&comm_lock);
  if (!ended) return RESULT_OK;
  facade_result result =
      fail(told, RESULT_USAGE, "sagecomm: the communicator was aborted before its split, shrink or finalization began");
  if (j->blocking) join_dropped(j);
  return result;
}

void job_free(job *j) {
  ended(j);
  if (j->comm != NULL) comm_release(j->comm);
  if (j->child != NULL) comm_release(j->child);
  for (int i = 0; i < j->n_calls; i++) free(j->calls[i].lists);
  free(j->ranks);
  free(j->calls);
  free(j);
}

/* Returns the context for a job. A communicator that was made on a thread without one gets that of the device on which its first
 * operation is. Operations on host memory before come behind their streams in the context of the thread that called them. */
static void *context_of(const job *j) {
  comm_t comm = told_by(j);
  pthread_mutex_lock(&comm_lock);
  void *context = comm->context;
  pthread_mutex_unlock(&comm_lock);
  if (context != NULL || j->kind != JOB_CALLS) return context;
  const sagecomm_op *op = &j->calls[0].op;
  if (op->device_type == SAGECOMM_HOST) return j->context;
  context = j->context != NULL && j->device == op->device_index ? j->context : driver_context_of(op->device_index);
  pthread_mutex_lock(&comm_lock);
  if (comm->context == NULL && context != NULL) {
    comm->context = context;
    comm->device = op->device_index;
  }
  pthread_mutex_unlock(&comm_lock);
  return context;
}

/* Notes what is current on the thread that calls, for context_of(). */
static void note_context(job *j) {
  pthread_mutex_lock(&comm_lock);
  bool known = j->comm->context != NULL;
  pthread_mutex_unlock(&comm_lock);
  if (known) return;
  j->context = driver_context();
  j->device = j->context == NULL ? -1 : driver_device();
}

/* A job runs with the device of its communicator, whichever the caller's is at the time. */
facade_result job_run(job *j) {
  facade_result result = await_turn(j);
  if (result != RESULT_OK) return result;
  void *context = context_of(j), *before = driver_enter(context);
  result = j->kind == JOB_CALLS      ? calls_run(j->comm, j->calls, j->n_calls)
           : j->kind == JOB_FINALIZE ? comm_finish_group(j->comm)
                                     : join_run(j);
  driver_leave(before, context);
  return result;
}

/* Runs a job and tells the end. */
static void run(job *j) {
  j->result = job_run(j);
  if (j->result != RESULT_OK) memcpy(j->text, last_error(), sizeof j->text);
  if (j->result != RESULT_OK && makes(j)) j->follows = !comm_end_batch(told_by(j));
  ended(j); /* before its user hears of the end */
  if (j->blocking) return;
  if (j->result != RESULT_OK) publish_error();
  comm_t told = told_by(j);
  scr_note_released(told);
  comm_set_state(told, j->result, j->given_up);
}

/* Runs a chain. Whoever waits for a job frees it. */
static void run_chain(job *j) {
  while (j != NULL) {
    job *behind = j->behind;
    bool blocking = j->blocking;
    run(j);
    if (!blocking) job_free(j);
    j = behind;
  }
}

static void *thread_of(void *argument) {
  job *first = argument, *waited = first->waited;
  scr_note_acquired(first);
  run_chain(first);
  if (waited != NULL) scr_note_released(waited);
  return NULL;
}

/* Starts a thread for a chain, on which no signal handler of the program runs. A chain that nobody waits for may be gone when it
 * returns. */
static bool start(job *first, pthread_t *thread) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  scr_note_released(first);
  bool started = pthread_create(thread, NULL, thread_of, first) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

static void without_thread(job *j) {
  j->result = fail(NULL, RESULT_SYSTEM,
                   "sagecomm: no thread could be started for a communicator of a group call: look at `ulimit -u`");
  memcpy(j->text, last_error(), sizeof j->text);
  if (makes(j)) comm_end_batch(told_by(j));
}

/* A handle such as that of the default stream is another stream on each device. */
static bool share_a_stream(const job *a, const job *b) {
  if (a->kind != JOB_CALLS || b->kind != JOB_CALLS) return false;
  for (int i = 0; i < a->n_calls; i++) {
    const sagecomm_op *one = &a->calls[i].op;
    if (one->device_type == SAGECOMM_HOST) continue;
    for (int k = 0; k < b->n_calls; k++) {
      const sagecomm_op *other = &b->calls[k].op;
      if (one->stream == other->stream && one->device_type == other->device_type &&
          one->device_index == other->device_index) {
        return true;
      }
    }
  }
  return false;
}

/* Makes chains of a list of jobs, in the order of the list. Returns how many there are; `first` of each job is the head of its chain. */
static int make_chains(job *list) {
  for (job *j = list; j != NULL; j = j->next) {
    j->first = j;
    j->behind = j->waited = NULL;
    for (job *before = list; before != j; before = before->next) {
      if (before->first == j->first || !share_a_stream(before, j)) continue;
      job *into = before->first,
          *from = j->first; /* of two chains that the job connects, the later one becomes part of the other */
      for (job *each = list; each != j->next; each = each->next) {
        if (each != into && each != from) continue;
        if (each == from) from = into, into = each;
        break;
      }
      for (job *each = list; each != j->next; each = each->next) {
        if (each->first == from) each->first = into;
      }
    }
  }
  int chains = 0;
  for (job *head = list; head != NULL; head = head->next) {
    if (head->first != head) continue;
    chains++;
    job *last = NULL;
    for (job *j = head; j != NULL; j = j->next) {
      if (j->first != head) continue;
      if (last != NULL) last->behind = j;
      last = j;
      if (j->blocking && head->waited == NULL) head->waited = j; /* there when the thread ends: its user waits for it */
    }
  }
  return chains;
}

/* Keeps the first error; RESULT_IN_PROGRESS is none. */
static void add_result(facade_result *all, facade_result one) {
  if (one != RESULT_OK && (*all == RESULT_OK || *all == RESULT_IN_PROGRESS)) *all = one;
}

/* Runs jobs at once and frees them. Returns the first error, or RESULT_IN_PROGRESS if one goes on. */
static facade_result run_all(job *list) {
  facade_result result = RESULT_OK;
  bool alone = make_chains(list) == 1;
  job *waited = NULL, *heads = NULL, **heads_end = &heads;
  uint64_t batch = 0;
  for (job *j = list; j != NULL; j = j->next) {
    if (makes(j) && list->next != NULL) comm_batch(told_by(j), &batch);
    if (!j->blocking) {
      comm_set_state(told_by(j), RESULT_IN_PROGRESS, j->given_up);
      add_result(&result, RESULT_IN_PROGRESS);
    }
  }
  while (
      list !=
      NULL) { /* a chain that runs may free its jobs that nobody waits for, so both lists are made of the rest first */
    job *j = list;
    list = j->next;
    j->next = NULL;
    if (j->blocking) {
      j->next = waited;
      waited = j;
    }
    if (j->first == j) {
      j->head = NULL;
      *heads_end = j;
      heads_end = &j->head;
    }
  }
  while (heads != NULL) {
    job *first = heads, *joined = first->waited;
    heads = first->head;
    if (alone && joined != NULL) {
      run_chain(first);
      continue;
    }
    pthread_t thread;
    if (start(first, &thread)) {
      if (joined == NULL) {
        pthread_detach(thread);
      } else {
        joined->thread = thread;
        joined->started = true;
      }
      continue;
    }
    while (first != NULL) {
      job *j = first;
      first = j->behind;
      without_thread(j);
      if (j->blocking) continue;
      add_result(&result, j->result);
      comm_set_state(told_by(j), j->result, j->given_up);
      job_free(j);
    }
  }
  for (job *j = waited; j != NULL; j = j->next) {
    if (!j->started) continue;
    pthread_join(j->thread, NULL);
    scr_note_acquired(j);
  }
  for (int follows = 0; follows < 2; follows++) { /* what has failed first is the cause */
    for (job *j = waited; j != NULL; j = j->next) {
      if (j->follows != follows) continue;
      if (j->result != RESULT_OK && (result == RESULT_OK || result == RESULT_IN_PROGRESS)) remember(j->result, j->text);
      add_result(&result, j->result);
    }
  }
  while (waited != NULL) {
    job *j = waited;
    waited = j->next;
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

/* Frees jobs of which nothing was sent. */
static void drop(job *list) {
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
  drop(*of_thread);
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

facade_result job_now(job *j) { return run_all(j); }

facade_result job_submit(job *j) {
  if (depth > 0) {
    append(j);
    return RESULT_OK;
  }
  return run_all(j);
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
    job alone = {.kind = JOB_CALLS, .comm = comm, .calls = c, .n_calls = 1};
    note_context(&alone);
    begin(&alone);
    facade_result result = job_run(&alone);
    ended(&alone);
    free(c->lists);
    return result;
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
  comm_hold(comm, function); /* the caller holds it too */
  j->comm = comm;
  note_context(j);
  begin(j);
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
  make_chains(list);
  for (job *j = list; j != NULL; j = j->next) {
    if (j->kind != JOB_CALLS) continue;
    several = several || (calls != NULL && j->first != calls->first);
    calls = j;
  }
  return several ? stream_of_thread(FACADE_PREFIX "GroupEnd") : RESULT_OK;
}

/* Several communicators may wait for each other, so what one of them refuses must be known before another one begins. */
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
  if (result == RESULT_OK) return run_group(list);
  drop(list);
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
