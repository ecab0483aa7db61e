/* held.h: what Go asks of the operations of a group that fuses: see bucket.h. Included by runner.h. */
#ifndef SCR_HELD_H
#define SCR_HELD_H

#include <stdbool.h>
#include <stdint.h>

/* Appends an operation of the host lane to the list of held operations and gives it its number among those of the
 * user. `bytes` is scr_op_bytes(). Returns it with a reference for the caller, or NULL as scr_submit(). */
scr_run *scr_hold(scr_group *g, const sagecomm_op *op, uint64_t bytes, bool *down);
/* Numbers and queues a collective that carries out the first n held operations: a single operation of any kind, or
 * all_reduces of one type and reduction, in the order of their issue. `bytes` is the sum of their lengths. The rest
 * is as for scr_submit(). Returns false where that returns NULL: then the operations fail if the group is down, and are
 * held still if there is no memory.
 * Requires: no other thread calls it for this group. */
bool scr_carry(scr_group *g, uint32_t n, uint64_t bytes, const scr_program *p, bool own, bool *down);
/* Numbers and queues an agreement: an all_reduce (MIN) of one int64, which is this rank's proposal. `about` is what
 * peers compare, below 2^16. Its timeout is the least one of the first `proposal` held operations. Returns it with a
 * reference for the caller, or NULL as scr_submit(). */
scr_run *scr_agree(scr_group *g, uint32_t about, uint64_t proposal, const scr_program *p, bool own, bool *down);
/* Drives the agreement for policy.begin_ns at most, so that this rank's proposal is out. Returns whether it is
 * complete. */
bool scr_agree_begin(scr_run *agreement);
/* Whether it is complete. *lowest is 0 if it has failed, else the lowest proposal: UINT64_MAX, which no rank
 * proposes, for 0, which none does either. */
bool scr_agreed(const scr_run *agreement, uint64_t *lowest);
/* Whether a thread waits for it that will drive what follows. */
bool scr_agreement_waited_for(const scr_run *agreement);
/* Drives the queue for policy.begin_ns at most and leaves the rest to the engine. */
void scr_group_begin(scr_group *g);
/* Hands the done functions of complete operations that no waiter has called to the completers. */
void scr_group_claim(scr_group *g);
/* Whether carriers of several operations are under way, or scr_group_claim() has something to do. */
bool scr_group_carrying(const scr_group *g);
void scr_run_keep(scr_run *r); /* adds a reference */
void scr_run_drop(scr_run *r); /* gives one back */
/* In the field `root` of an agreement, which no other all_reduce uses; the rest of it is `about`. */
#define SCR_AGREES (1 << 30)

#endif
