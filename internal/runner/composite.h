/* composite.h: several runs that one work stands for. */
#ifndef SCR_COMPOSITE_H
#define SCR_COMPOSITE_H

#include "group.h"

/* A run that is complete when all its parts are, at most so many, and scr_composite_close() was called. NULL: no memory. */
scr_run *scr_composite_new(scr_group *g, uint64_t group, uint32_t parts);
/* Takes the caller's reference to a pending work over. */
void scr_composite_add(scr_run *all, sagecomm_work part);
/* No more parts come. `status` and *err: OK or pending, or why the last one could not be issued. Returns what
 * scr_issue() does; the composite is freed unless *work is set. */
int32_t scr_composite_close(scr_run *all, int32_t status, sagecomm_work *work, sagecomm_error *err);
/* Called once by whoever completed a run that has SCR_HAS_COMPOSITE. */
void scr_composite_part_done(scr_run *part);
/* A part that is not complete, which the composite keeps; NULL: there is none. */
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
