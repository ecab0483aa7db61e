/* job.c: one job: its place in the order of its communicator, its context, and how it runs. */
#include <stdlib.h>
#include <string.h>

#include "../internal/runner/annotate.h"
#include "facade.h"

/* The communicator whose state tells how a job goes on. The state of a parent is that of its own calls. */
comm_t job_told_by(const job *j) { return j->child != NULL ? j->child : j->comm; }

/* Splits, shrinks and the finalization of a parent wait for their turn here. */
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;

void job_take_place(job *j) {
  pthread_mutex_lock(&comm_lock);
  job **end = &j->comm->deriving;
  while (*end != NULL) end = &(*end)->derives_next;
  *end = j;
  j->derives = true;
  pthread_mutex_unlock(&comm_lock);
}

bool job_makes(const job *j) { return j->kind != JOB_CALLS && j->kind != JOB_FINALIZE; }

/* The jobs that are no calls, from the time they may run until they have ended; protected by the lock of comm.c. */
static job *listed;

/* A failure of the group call is heard after an abort too, because it ends more. Returns false if nothing changes.
 * Requires: the lock. */
static bool cancel(job *j, int32_t why) {
  bool changes = j->cancelled < why;
  if (changes) __atomic_store_n(&j->cancelled, why, __ATOMIC_RELEASE);
  return changes;
}

/* Whether calls or splits of the parent go on that came before a shrink. Other shrinks end by themselves. Requires: the
 * lock. */
static bool goes_on(const job *shrink) {
  bool any = shrink->comm->in_progress > 0;
  for (const job *each = shrink->comm->deriving; each != shrink; each = each->derives_next) {
    any = any || (each->listed && each->kind == JOB_SPLIT);
  }
  return any;
}

/* Whether a shrink aborts the parent. The user's thread asks, so nothing that it calls later counts, but what another
 * thread calls meanwhile may. The core waits for streams. */
static bool is_outstanding(const job *shrink) {
  sagecomm_error none;
  pthread_mutex_lock(&comm_lock);
  bool any = goes_on(shrink);
  pthread_mutex_unlock(&comm_lock);
  return any || core()->group_outstanding(comm_group(shrink->comm), &none) == 1;
}

/* Notes that a communicator is shrunk and that its operations are to be aborted for that: what its user calls from here
 * on has failed if they are, also where the shrink waits for its thread. Requires: the lock. */
static void give_up(job *j) {
  j->comm->given_up++;
  j->comm->state_given_up = true;
  j->outstanding = j->outstanding || goes_on(j);
  for (job *each = j->comm->deriving; each != j; each = each->derives_next) {
    if (!each->listed || each->kind != JOB_SPLIT) continue;
    if (cancel(each, CANCELLED_BY_ABORT)) each->given_up_for = true;
  }
  pthread_cond_broadcast(&turn);
}

void job_begin(job *j, uint64_t *batch) {
  static uint64_t batches;
  if (j->aborts) j->outstanding = is_outstanding(j);
  pthread_mutex_lock(&comm_lock);
  if (j->aborts) give_up(j);
  j->given_up = job_told_by(j)->given_up;
  if (j->kind == JOB_CALLS) {
    j->comm->in_progress++;
    j->in_progress = true;
  } else {
    if (batch != NULL && *batch == 0) *batch = ++batches;
    if (batch != NULL && job_makes(j)) j->batch = *batch;
    if (job_told_by(j)->cancelled) j->cancelled = CANCELLED_BY_ABORT;
    j->listed_next = listed;
    listed = j;
    j->listed = true;
  }
  if (!j->blocking) comm_set_state(job_told_by(j), RESULT_IN_PROGRESS, j->given_up, NULL);
  pthread_mutex_unlock(&comm_lock);
}

void job_ended(job *j) {
  if (!j->derives && !j->in_progress && !j->listed) return;
  bool tells = !j->blocking && (j->in_progress || j->listed);
  if (tells && j->result != RESULT_OK) publish_error();
  if (tells) scr_note_released(job_told_by(j));
  pthread_mutex_lock(&comm_lock);
  if (tells) comm_set_state(job_told_by(j), j->result, j->given_up, j->text);
  if (j->in_progress) j->comm->in_progress--;
  if (j->listed) {
    job **at = &listed;
    while (*at != j) at = &(*at)->listed_next;
    *at = j->listed_next;
  }
  if (j->derives) {
    job **at = &j->comm->deriving;
    while (*at != j) at = &(*at)->derives_next;
    *at = j->derives_next;
    pthread_cond_broadcast(&turn);
  }
  j->derives = j->in_progress = j->listed = false;
  comm_t *held[] = {&j->child, &j->comm};
  for (int i = 0; i < 2; i++) { /* so a user who has the result ends them, and no thread of the library later */
    if (!tells || *held[i] == NULL || (*held[i])->holders < 2) continue;
    (*held[i])->holders--;
    *held[i] = NULL;
  }
  pthread_mutex_unlock(&comm_lock);
}

void jobs_cancel(comm_t comm) {
  pthread_mutex_lock(&comm_lock);
  comm->cancelled = true;
  for (job *j = listed; j != NULL; j = j->listed_next) {
    if (job_told_by(j) == comm) cancel(j, CANCELLED_BY_ABORT);
  }
  pthread_cond_broadcast(&turn);
  pthread_mutex_unlock(&comm_lock);
}

bool jobs_end_batch(job *j) {
  pthread_mutex_lock(&comm_lock);
  bool first = j->cancelled != CANCELLED_BY_GROUP;
  for (job *each = listed; first && each != NULL; each = each->listed_next) {
    if (each != j && each->batch != 0 && each->batch == j->batch) cancel(each, CANCELLED_BY_GROUP);
  }
  pthread_cond_broadcast(&turn);
  pthread_mutex_unlock(&comm_lock);
  return first;
}

void split_dropped(job *j, const char *reason) {
  sagecomm_error err;
  bool aborts = j->kind == JOB_SPLIT || (j->aborts && j->outstanding);
  if (aborts) core()->group_abort(comm_group(j->comm), reason, &err); /* fails only if it has ended */
}

/* Whether the splits and shrinks of the parent that were called before have ended. The ranks must call them in the same
 * order. A shrink that aborts ends the splits that go on before it, some of whose ranks may not come, by its abort of
 * the parent. It waits for one that a group call has only collected. Requires: the lock. */
static bool may_go_on(const job *j) {
  for (const job *each = j->comm->deriving; each != j; each = each->derives_next) {
    if (!j->aborts || each->kind != JOB_SPLIT || each->cancelled == 0) return false;
  }
  return true;
}

static facade_result await_turn(job *j) {
  if (!j->derives) return RESULT_OK;
  pthread_mutex_lock(&comm_lock);
  int32_t ended = 0;
  while (!may_go_on(j) && ended == 0) {
    ended = j->cancelled;
    if (ended == 0) pthread_cond_wait(&turn, &comm_lock);
  }
  bool given_up_for = j->given_up_for && ended == CANCELLED_BY_ABORT;
  pthread_mutex_unlock(&comm_lock);
  if (ended == 0) return RESULT_OK;
  facade_result result =
      given_up_for ? fail(job_told_by(j), RESULT_REMOTE, FACADE_GIVEN_UP_FOR)
      : ended == CANCELLED_BY_GROUP
          ? fail(job_told_by(j), RESULT_REMOTE, FACADE_ANOTHER_FAILED)
          : fail(job_told_by(j), RESULT_USAGE,
                 "sagecomm: the communicator was aborted before its split, shrink or finalization began");
  if (!given_up_for)
    split_dropped(j, ended == CANCELLED_BY_GROUP ? FACADE_REASON_ANOTHER
                                                 : "the new communicator was aborted before its split or shrink began");
  if (j->blocking) join_dropped(j);
  return result;
}

void job_free(job *j) {
  job_ended(j);
  if (j->comm != NULL) comm_release(j->comm);
  if (j->child != NULL) comm_release(j->child);
  for (int i = 0; i < j->n_calls; i++) free(j->calls[i].lists);
  free(j->ranks);
  free(j->calls);
  free(j);
}

/* Returns the context for a job. A communicator that was made on a thread without one gets that of the device on which
 * its first operation is. Operations on host memory before come behind their streams in the context of the thread that
 * called them. */
static void *context_of(const job *j) {
  comm_t comm = job_told_by(j);
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
void job_note_context(job *j) {
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
