/* direct.h: payloads that pass between a buffer and a rank of another host without a copy in a channel or fifo (docs/protocol.md,
 * section 16, Without a copy). Go has the connections; the group is one with `pairs`. */
#ifndef SCR_DIRECT_H
#define SCR_DIRECT_H

#include "engine.h"
#include "group.h"

/* Shorter payloads are copied. */
#define SCR_DIRECT_BYTES (16 * 1024)

/* Whether a payload of n bytes may pass straight between a buffer and a peer. */
static inline bool scr_passes_directly(const scr_group *g, int32_t peer, uint64_t n) {
  return SCR_UNLIKELY(g->pairs) && n >= SCR_DIRECT_BYTES && g->peer[peer].pair != 0;
}

/* Makes sure that nothing is written any more to buffers that are expected to be written (scr_hooks.expect). It comes before an
 * operation fails. Other operations of the group get what comes through places and fifos. */
void scr_forget_buffers(const scr_group *g);

#endif
