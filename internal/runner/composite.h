/* composite.h: several runs that one work stands for. */
#ifndef SCR_COMPOSITE_H
#define SCR_COMPOSITE_H

#include "group.h"

/* Returns a run that completes when scr_composite_close() was called and all its parts, `parts` at most, are
 * complete; NULL without memory. */
scr_run *scr_composite_new(scr_group *g, uint64_t group, uint32_t parts);
/* Adds a pending work and takes over the caller's reference to it. */
void scr_composite_add(scr_run *all, sagecomm_work part);
/* Ends the adding of parts. `status` and *err are OK or PENDING, or the reason why the last part could not be
 * issued. Returns what scr_issue() returns; the composite is freed unless *work is set. */
int32_t scr_composite_close(scr_run *all, int32_t status, sagecomm_work *work, sagecomm_error *err);
/* Counts a part as complete. The thread that completed a run with SCR_HAS_COMPOSITE calls it once. */
void scr_composite_part_done(scr_run *part);
/* Returns a part that is not complete, or NULL. The composite keeps the reference. */
scr_run *scr_composite_unfinished(const scr_run *all);
void scr_composite_free(scr_composite *b);

/* A promise is a composite without parts: somebody else carries its operation out and completes it. The user's work is
 * scr_run_handle(). NULL: no memory. */
scr_run *scr_promise_new(scr_group *g, uint64_t group);
/* Called once, by whoever carries the operation out. *err is why, if `status` is below 0. */
void scr_promise_complete(scr_run *promise, int32_t status, const sagecomm_error *err);
/* In the place of completing: nobody has the work. */
void scr_promise_drop(scr_run *promise);

#endif
