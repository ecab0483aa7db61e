/* queue.h: the drive lock and the queue of collectives. */
#ifndef SCR_QUEUE_H
#define SCR_QUEUE_H

#include "group.h"

bool scr_drive_lock(scr_group *g);
void scr_drive_unlock(scr_group *g);
/* Advances the queue until it is empty or blocked, until_ns has passed, or `until` is done.
 * Requires: the drive lock. */
int scr_drive(scr_group *g, scr_run *until, int64_t until_ns, scr_run **blocked);
/* Requires: the drive lock; the group is down. Completes all queued runs, in order: with success as long as the
 * peers have published what a run needs, the rest with the group's error. */
void scr_drain(scr_group *g);

#endif
