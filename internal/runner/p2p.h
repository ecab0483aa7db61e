/* p2p.h: what travels through a fifo. A fifo is one ordered pair's; frames lie in it at multiples of 64 bytes and never
 * wrap: a frame that does not fit before the end is preceded by a WRAP frame that fills the rest. */
#ifndef SCR_P2P_H
#define SCR_P2P_H

#include "wait.h"

enum {
  SCR_FRAME_EAGER = 1, /* the payload */
  SCR_FRAME_ANNOUNCE,  /* a payload of `total` bytes waits at the sender */
  SCR_FRAME_GRANT,     /* receiver to sender: operation `id` has a buffer */
  SCR_FRAME_DATA,      /* the next piece of operation `id` */
  SCR_FRAME_WRAP,
};

struct scr_frame {
  uint16_t type;
  uint16_t dtype; /* of EAGER and ANNOUNCE */
  int32_t tag;
  uint64_t bytes; /* payload in this frame */
  uint64_t total; /* of the operation */
  uint64_t id;    /* of the operation, counted by its sender per receiver */
  uint64_t reserved[4];
};

#define SCR_FRAME_HEADER 64
#define SCR_FRAME_WORDS 4 /* of it that are used */
/* Longer payloads wait for a buffer at the receiver. */
#define SCR_EAGER_BYTES (8 * 1024)
/* Eager bytes that may lie unmatched at one receiver per sender. */
#define SCR_EAGER_CREDIT (128 * 1024)
#define SCR_PIECE_BYTES (64 * 1024)

/* A send that came before its recv. */
struct scr_unexpected {
  scr_unexpected *next;
  uint64_t arrival; /* order over all senders, for recv from any source */
  int32_t tag;
  uint32_t dtype;
  bool announced; /* no payload here yet */
  uint64_t total, id;
  unsigned char data[];
};

/* A clearance that is still to be sent. */
struct scr_grant {
  struct scr_grant *next;
  uint64_t id;
};

int32_t scr_p2p_issue(scr_group *g, uint64_t handle, const sagecomm_op *op, sagecomm_work *work, sagecomm_error *err);
/* What one pass over the fifos may cost, in bytes copied: about 0.1 ms. */
#define SCR_PASS_BYTES (1024 * 1024)
/* Under the p2p lock: moves what can be moved, about `budget` bytes: SCR_YIELDED when there may be more. SCR_IDLE
 * when nothing is unfinished, SCR_BLOCKED, SCR_NEEDS_FIFO (*peer), or an incident code (*culprit). */
int scr_p2p_progress(scr_group *g, int64_t budget, int32_t *peer, scr_run **culprit);
void scr_p2p_drain(scr_group *g);
/* Under the p2p lock: gives all unfinished p2p operations more time. */
void scr_p2p_extend(scr_group *g, scr_stop stop);
int scr_p2p_wait(scr_group *g, scr_run *r, int64_t slice_end);
void scr_p2p_free(scr_group *g);
/* p2p.c, p2p_issue.c; under the p2p lock. 0 or an incident code; SCR_BLOCKED from scan where all is well. */
int scr_p2p_post(scr_group *g, scr_run *r);
int scr_p2p_scan(scr_group *g, int64_t now, int32_t *peer, scr_run **culprit);

/* fifo.c. What a peer wrote and cannot mean sets the channel's `broken`. */
bool scr_fifo_open(scr_group *g, int32_t peer);
/* Room for a frame with that payload, or NULL. The frame counts once scr_fifo_put() is called. */
scr_frame *scr_fifo_room(scr_group *g, int32_t peer, uint64_t payload);
void scr_fifo_put(scr_p2p_pair *ch, uint64_t payload);
/* The payload of the next frame that has arrived from the peer, and a copy of its header; or NULL. */
const unsigned char *scr_fifo_next(scr_group *g, int32_t peer, scr_frame *f);
void scr_fifo_take(scr_p2p_pair *ch, uint64_t payload);
/* Shows the peer what was put and taken since the last time, and wakes it. True if there was something. */
bool scr_fifo_publish(scr_group *g, int32_t peer);

#endif
