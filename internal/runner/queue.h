/* queue.h: the drive lock and the queue of collectives. */
#ifndef SCR_QUEUE_H
#define SCR_QUEUE_H

#include "group.h"

bool scr_drive_lock(scr_group *g);
void scr_drive_unlock(scr_group *g);
/* Under the drive lock: carries the queue on until it is empty, blocked, or until_ns has passed, or `until` is done. */
int scr_drive(scr_group *g, scr_run *until, int64_t until_ns, scr_run **blocked);
/* Requires: the drive lock; the group is down. Completes all that is queued: with success what needs nothing of the peers that
 * they have not published, in order, and with the group's error the rest. */
void scr_drain(scr_group *g);

#endif
