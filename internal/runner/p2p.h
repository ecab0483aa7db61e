/* p2p.h: the frames of a fifo, and what p2p.c, p2p_issue.c and fifo.c share. Each ordered pair of ranks has one
 * fifo. Frames begin at multiples of 64 bytes and never wrap: a WRAP frame fills the end of the fifo when the next
 * frame does not fit there. */
#ifndef SCR_P2P_H
#define SCR_P2P_H

#include "wait.h"

enum {
  SCR_FRAME_EAGER = 1, /* the payload */
  SCR_FRAME_ANNOUNCE,  /* a payload of `total` bytes waits at the sender */
  SCR_FRAME_GRANT,     /* receiver to sender: a recv with a buffer has matched operation `id` */
  SCR_FRAME_DATA,      /* the next piece of operation `id` */
  SCR_FRAME_WRAP,
};

struct scr_frame {
  uint16_t type;
  uint16_t dtype; /* of EAGER and ANNOUNCE */
  int32_t tag;
  uint64_t bytes; /* payload in this frame */
  uint64_t total; /* of the operation */
  uint64_t id;    /* of the operation; its sender counts them per receiver */
  uint64_t reserved[4];
};

/* The tag of a DATA frame of a shadow whose payload lies in the buffer of the recv already. */
#define SCR_DELIVERED 1

#define SCR_FRAME_HEADER 64
#define SCR_FRAME_WORDS 4 /* 64-bit words of the header that are used */
/* Payloads up to this length travel eagerly; longer ones wait until the receiver has a buffer. */
#define SCR_EAGER_BYTES (8 * 1024)
/* The eager bytes of one sender that may lie unmatched at one receiver. */
#define SCR_EAGER_CREDIT (128 * 1024)
/* Returns the longest piece, of operations between two ranks with a fifo of that size. */
static inline uint64_t scr_piece_bytes(uint64_t fifo) { return fifo / 8; }

/* Returns the bytes of a fifo that a frame takes. */
static inline uint64_t scr_frame_bytes(uint64_t payload) { return SCR_FRAME_HEADER + ((payload + 63) & ~UINT64_C(63)); }

/* Whether a rank writes a frame with this type, `bytes` and `total`. `rest` is the number of bytes from the frame to the
 * end of the fifo. */
static inline bool scr_frame_is_valid(uint32_t type, uint64_t bytes, uint64_t total, uint64_t rest, uint64_t fifo) {
  switch (type) {
    case SCR_FRAME_EAGER:
      return bytes == total && bytes <= SCR_EAGER_BYTES;
    case SCR_FRAME_ANNOUNCE:
    case SCR_FRAME_GRANT:
      return bytes == 0;
    case SCR_FRAME_DATA:
      return bytes <= scr_piece_bytes(fifo) && (bytes > 0 || total == 0);
    case SCR_FRAME_WRAP: /* a WRAP frame that fills the whole fifo would repeat without end */
      return bytes == rest - SCR_FRAME_HEADER && rest < fifo;
    default:
      return false;
  }
}

/* Whether it is all there, and not cut by the end of the fifo. `there` bytes were written from the frame on. Both the
 * reader of a fifo and the pump of its writer (docs/protocol.md, section 16) look at each frame. */
static inline bool scr_frame_fits(uint32_t type, uint64_t bytes, uint64_t total, uint64_t there, uint64_t rest,
                                  uint64_t fifo) {
  return there <= fifo && scr_frame_is_valid(type, bytes, total, rest, fifo) && scr_frame_bytes(bytes) <= there &&
         scr_frame_bytes(bytes) <= rest;
}

/* A send that arrived before its recv was posted. */
struct scr_unexpected {
  scr_keyed entry;  /* the first member; in scr_p2p_pair.unexpected */
  uint64_t arrival; /* order over all senders, for recv from any source */
  uint32_t dtype;
  bool announced; /* the payload is still at the sender */
  uint64_t total, id;
  unsigned char data[];
};

/* A grant that is still to be sent. */
struct scr_grant {
  struct scr_grant *next;
  uint64_t id;
};

int32_t scr_p2p_issue(scr_group *g, uint64_t handle, const sagecomm_op *op, sagecomm_work *work, sagecomm_error *err);
/* Goes on with an operation that scr_p2p_submit() has posted. Returns what scr_issue() returns, and takes over the
 * caller's reference. */
int32_t scr_p2p_begin(scr_run *r, const sagecomm_op *op, sagecomm_work *work, sagecomm_error *err);
/* The budget of one pass over the fifos, in bytes: about 0.1 ms where they are copied. Between hosts it may take longer. */
#define SCR_PASS_BYTES (1024 * 1024)
/* Moves about `budget` bytes through the fifos. Returns SCR_YIELDED if there may be more to move, SCR_IDLE if
 * nothing is unfinished, SCR_BLOCKED if all that is unfinished waits for peers, SCR_NEEDS_FIFO (*peer), or an
 * incident code (*culprit).
 * Requires: the p2p lock. */
int scr_p2p_progress(scr_group *g, int64_t budget, int32_t *peer, scr_run **culprit);
void scr_p2p_drain(scr_group *g);
/* Extends the deadlines of all unfinished p2p operations by a stop of this process.
 * Requires: the p2p lock. */
void scr_p2p_extend(scr_group *g, scr_stop stop);
int scr_p2p_wait(scr_group *g, scr_run *r, int64_t slice_end);
void scr_p2p_free(scr_group *g);
/* scr_p2p_post() (p2p.c) returns 0 or an incident code. scr_p2p_scan() (p2p_scan.c) returns an incident code, or
 * SCR_BLOCKED if every unfinished operation can still complete.
 * Requires: the p2p lock. */
int scr_p2p_post(scr_group *g, scr_run *r);
int scr_p2p_scan(scr_group *g, int64_t now, int32_t *peer, scr_run **culprit);
/* The p2p part of scr_group_oldest(). */
bool scr_p2p_oldest(scr_group *g, scr_incident *out);

/* p2p_scan.c. Any thread may call these functions for an operation that is not complete. */
/* Sets the deadline of an operation that begins to wait. On a device the timeout begins when the stream has reached the
 * operation. */
void scr_p2p_begin_timeout(scr_run *r, int64_t now);
bool scr_p2p_has_timed_out(const scr_run *r, int64_t now);
/* Whether the operation still needs its peer. */
bool scr_p2p_needs_peer(const scr_group *g, const scr_run *r);
/* Returns a peer that has left if all peers that could match the run have left, else -1. */
int32_t scr_p2p_departed(const scr_group *g, const scr_run *r);

/* Completes an operation that is in no list any more, except in `behind`. One that has `failed` keeps the cause of the
 * group. */
void scr_p2p_finish(scr_group *g, scr_run *r, bool failed);

/* p2p_gate.c: operations on devices.
 * Requires: the p2p lock. */
/* Whether the stream has not reached the operation. Any thread may ask, without the lock. */
static inline bool scr_p2p_is_behind(const scr_run *r) {
  return SCR_UNLIKELY(atomic_load_explicit(&r->p2p.behind, memory_order_acquire));
}
void scr_p2p_stay_behind(scr_group *g, scr_run *r);
/* Goes on with the operations that their streams have reached. */
void scr_p2p_look_at_gates(scr_group *g);
/* Notes what the CPU reads or writes of pinned memory. */
void scr_p2p_note_piece(scr_run *r, uint64_t at, uint64_t n);

/* fifo.c. Invalid counts and frames of a peer set the pair's `broken`.
 * Requires: the p2p lock. */
bool scr_fifo_open(scr_group *g, int32_t peer);
/* Returns room for a frame with `payload` bytes, or NULL. scr_fifo_put() adds the frame to the fifo. */
scr_frame *scr_fifo_room(scr_group *g, int32_t peer, uint64_t payload);
void scr_fifo_put(scr_p2p_pair *pair, uint64_t payload);
/* Returns the payload of the next frame from the peer and copies its header to *f; returns NULL if none has arrived. */
const unsigned char *scr_fifo_next(scr_group *g, int32_t peer, scr_frame *f);
void scr_fifo_take(scr_p2p_pair *pair, uint64_t payload);
/* Publishes what was put and taken since the last call and wakes the peer. Returns true if there was anything. */
bool scr_fifo_publish(scr_group *g, int32_t peer);

#endif
