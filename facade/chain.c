/* chain.c: how the jobs of a group call run. What a rank joins, or does on host memory, may wait for its peers, and
 * these may be other communicators of the same group call, so jobs have a thread each. Jobs that issue into one stream
 * of a device are a chain: one thread issues them in the order of the calls, because a stream that holds the operations
 * of two communicators in another order than that of a peer holds up both for ever. GroupEnd() runs a single chain
 * itself. A chain of communicators that do not block has a thread that nobody waits for. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>

#include "../internal/runner/annotate.h"
#include "facade.h"

/* Runs a job and tells the end. */
static void run(job *j) {
  j->result = job_run(j);
  if (j->result != RESULT_OK) memcpy(j->text, last_error(), sizeof j->text);
  if (j->result != RESULT_OK && job_makes(j)) j->follows = !jobs_end_batch(j);
  job_ended(j);
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

/* Starts a thread for a chain, on which no signal handler of the program runs. A chain that nobody waits for may be
 * gone when it returns. */
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
  j->result = fail(job_told_by(j), RESULT_SYSTEM,
                   "sagecomm: no thread could be started for a communicator of a group call: look at `ulimit -u`");
  memcpy(j->text, last_error(), sizeof j->text);
  if (job_makes(j)) jobs_end_batch(j);
  split_dropped(j, "no thread could be started for its split");
  if (j->blocking && job_makes(j)) join_dropped(j);
  job_ended(j);
}

/* A handle such as that of the default stream is another stream on each device. */
static bool share_a_stream(const job *a, const job *b) {
  if (a->kind != JOB_CALLS || b->kind != JOB_CALLS) return false;
  for (int i = 0; i < a->n_calls; i++) {
    const sagecomm_op *one = &a->calls[i].op;
    if (one->device_type == SAGECOMM_HOST) continue;
    for (int k = 0; k < b->n_calls; k++) {
      const sagecomm_op *other = &b->calls[k].op;
      if (same_stream(one->stream, other->stream) && one->device_type == other->device_type &&
          one->device_index == other->device_index) {
        return true;
      }
    }
  }
  return false;
}

/* Makes chains of a list of jobs, in the order of the list. Returns how many there are; `first` of each job is the head
 * of its chain. */
int jobs_make_chains(job *list) {
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
  bool alone = jobs_make_chains(list) == 1;
  job *waited = NULL, *heads = NULL, **heads_end = &heads;
  uint64_t batch = 0;
  for (job *j = list; j != NULL; j = j->next) {
    job_begin(j, list->next != NULL ? &batch : NULL);
    if (!j->blocking) add_result(&result, RESULT_IN_PROGRESS);
  }
  /* A chain that runs may free its jobs that nobody waits for, so both lists are made of the rest first. */
  while (list != NULL) {
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
      if (j->result != RESULT_OK && (result == RESULT_OK || result == RESULT_IN_PROGRESS)) {
        remember(job_told_by(j), j->result, j->text);
      }
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

/* Communicators are made first: the vendors do not permit their use in the same group call. Where one could not be
 * made, nothing is issued. */
facade_result jobs_run(job *list) {
  job *made = NULL, *used = NULL, **made_end = &made, **used_end = &used;
  for (job *j = list; j != NULL; j = j->next) {
    job ***end = j->kind == JOB_CALLS ? &used_end : &made_end;
    **end = j;
    *end = &j->next;
  }
  *made_end = *used_end = NULL;
  facade_result result = run_all(made);
  if (result != RESULT_OK && result != RESULT_IN_PROGRESS) {
    jobs_drop(used);
    return result;
  }
  facade_result then = run_all(used);
  return then == RESULT_OK ? result : then;
}

facade_result job_now(job *j) { return run_all(j); }
