/* queue.h: the drive lock and the queue of collectives. */
#ifndef SCR_QUEUE_H
#define SCR_QUEUE_H

#include "group.h"

/* Returns false if another thread holds the lock. */
bool scr_drive_lock(scr_group *g);
/* Gives the lock back, and wakes the engine if the queue is not empty. */
void scr_drive_unlock(scr_group *g);
/* The same for a driver behind which a thread will wait for the run: the engine is only to look once in a while. */
void scr_drive_leave(scr_group *g, const scr_run *r);
/* Wakes the engine if the run was left to a waiter and none has come yet. Returns whether its caller had begun it, and nobody has waited
 * for it or called this before. Any thread may call it. Requires: a reference. */
bool scr_take_back(scr_run *r);
/* Whoever waits for the run from now on does not drive it alone: takes it back, and then leaves the next one to the engine as well. Any
 * thread may call it. Requires: a reference. */
void scr_see_to(scr_run *r);
/* Notes it if nobody has come soon to wait for the run at the head of the queue. Requires: the drive lock. */
void scr_note_unattended(scr_group *g, int64_t now);
/* Advances the queue. Returns SCR_IDLE when nothing is left, SCR_FINISHED when `until` is done, SCR_YIELDED when until_ns
 * has passed, or SCR_BLOCKED or an incident code of *blocked. Drains the queue if the group is down.
 * Requires: the drive lock. */
int scr_drive(scr_group *g, scr_run *until, int64_t until_ns, scr_run **blocked);
/* Requires: the drive lock; the group is down. Completes all queued runs, in order: with success as long as the
 * peers have published what a run needs, the rest with the group's error. */
void scr_drain(scr_group *g);

/* Completes the external runs whose streams have ended them, before the group goes down: nobody can tell afterwards whether a stream was
 * cut. Where another thread drives the lane for long, it leaves them to that one. Holds: nothing. */
void scr_complete_externals(scr_group *g);

/* Numbers a run and appends it to the queue, which gets a reference of its own. With `own`, the program is freed with the
 * run. Returns false if the group is down. */
bool scr_enqueue(scr_group *g, scr_run *r, bool own);

/* Clears SCR_QUEUED if neither a queued nor an external run is left. Requires: the drive lock. */
void scr_queue_settle(scr_group *g);

#endif
