/* bucket.h: operations of a group that fuses. Go (fusion, pgbackend/bucket.go) decides which of them share a
 * collective; docs/protocol.md, section 14, says how all ranks come to the same answer.
 *
 * In such a group every collective of the host lane is a held operation first: a run that has a number among those of
 * the user, and no place in the order of collectives yet. scr_carry() takes the oldest ones and queues a carrier, a run
 * with a number of its own. The carrier is what is driven, and what peers compare; its operations are complete when it
 * is. What users see (works, statistics, flight recorder, timeline) is that of the operations. held.h is what Go
 * calls. */
#ifndef SCR_BUCKET_H
#define SCR_BUCKET_H

#include "group.h"

/* Returns what a thread that waits for a held operation has to drive, or NULL: nothing for now. Enters Go where the
 * operation has no carrier, and then may drive an agreement until the slice is over; *again is whether to look once
 * more. Holds: nothing. */
scr_run *scr_carrier_of(scr_run *r, int64_t slice_end, bool *again);

/* Records that a carrier has started, or an agreement. Requires: the drive lock. */
void scr_carrier_started(scr_group *g, scr_run *carrier);
/* Completes the operations of a carrier with its status and cause. `waiter`: the caller waits for one of them, and is
 * likely to wait for the others next; so scr_group_claim() calls their done functions if no waiter does.
 * Requires: the drive lock. */
void scr_carrier_finished(scr_run *carrier, bool waiter);
/* Moves all held operations to the queue, where scr_drain() fails them. Requires: queue_lock; the group is down. */
void scr_queue_held(scr_group *g);

#endif
