/* fusing.h: what Go does in a group that fuses (pgbackend/bucket.go, fusion/queue.go), in a few lines. */
#ifndef FUSING_H
#define FUSING_H

#include "ranks.h"

/* Takes the place of the hook `issue` for collectives of the host lane. */
int32_t hold(scr_group *g, const sagecomm_op *op, scr_run **out, sagecomm_error *err);
/* The hook `want`. */
void want(uint64_t handle, scr_run **agreement);
/* Calls fn, while another thread proposes open buckets from time to time. */
void with_ticks(rank *r, rank_fn *fn, void *arg);

#endif
