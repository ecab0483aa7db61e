/* gates.h: what the interpreters, the queue and the engine call at gates (gate.c). runner.h has the types.
 * Requires: the drive lock, for every function. */
#ifndef SCR_GATES_H
#define SCR_GATES_H

#include "program.h"

int scr_gate_enter(scr_group *g, scr_run *r, uint64_t unit);
void scr_gate_leave(scr_run *r, uint64_t unit);

/* Returns the unit of chunk k. */
static inline uint64_t scr_unit_of(const scr_run *r, uint64_t k) { return k + (r->coll.program->n_heads ? 1 : 0); }

/* Waits until the device has filled the unit of the input and emptied that of the output. Without side effects, so a
 * blocked run comes here again. Returns 0 or SCR_BLOCKED. */
static inline int scr_enter_unit(scr_group *g, scr_run *r, uint64_t unit) {
  return SCR_LIKELY(r->gate.words == NULL) ? 0 : scr_gate_enter(g, r, unit);
}

/* Tells the device that the run is done with the unit. */
static inline void scr_leave_unit(scr_run *r, uint64_t unit) {
  if (SCR_UNLIKELY(r->gate.words != NULL)) scr_gate_leave(r, unit);
}

/* Ends all waits of the device for a run that is complete or has failed. */
void scr_gate_open(const scr_run *r);

/* Puts a run that has started into the list of external runs. */
void scr_external_begin(scr_group *g, scr_run *r);
/* Finds the runs whose streams are done, and may have met those of peers, which have recorded their calls before. Then it compares calls if
 * there are some. Returns 0 or an incident code. */
int scr_external_met(scr_group *g, scr_run **culprit);
/* Completes the external runs that scr_external_met() has found, and no others: the calls that their streams met are compared. With `all`
 * it completes or fails all runs of a group that is down, with the cause of the group. `until`: the caller waits for that run. Returns
 * whether all streams were done. Requires: scr_external_met() has returned 0 under the same drive lock, or `all`. */
bool scr_external_sweep(scr_group *g, const scr_run *until, bool all);
/* Says at which flag an external run is blocked, and returns it. */
scr_run *scr_external_block(scr_group *g, scr_run *r);
/* Compares this rank's calls with those of each peer, and the blocks of all_to_alls. Returns 0 or an incident code. */
int scr_external_compare(scr_group *g, scr_run *r);
/* Looks whether the waits of all external runs can still succeed, and compares calls. Returns 0 or an incident code of
 * *culprit. */
int scr_external_check(scr_group *g, int64_t now, scr_run **culprit);

#endif
