/* shared_block.h: the layout of shared memory. docs/protocol.md describes it.
 *
 * Every rank owns one shared block per group, in its own arena, and maps the shared blocks of all peers. A cache
 * line has one writer, its owner. Exceptions: the failure word (one compare-and-swap), bells (a thread that wakes
 * the owner adds to them), `detached`, and the data of large slots, where the rank that reduces a share writes the
 * result back (docs/protocol.md, 1 and 3). Lines are 128 bytes apart because processors fetch them in pairs.
 * */
#ifndef SCR_SHARED_BLOCK_H
#define SCR_SHARED_BLOCK_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SCR_LINE 128
#define SCR_SHARED_BLOCK_MAGIC UINT64_C(0x7361676562643035) /* "sagebd05" */

/* The small slots: a short payload lies in the cache line of `filled`. */
#define SCR_SMALL_SLOTS 8
#define SCR_SMALL_BYTES 8192
#define SCR_INLINE_BYTES 40
/* The large slots: two for the stages before the reduction and two for those after it; together they fit in a
 * second-level cache of 1 MiB. */
#define SCR_LARGE_SLOTS 4
#define SCR_LARGE_BYTES (256 * 1024)

/* The number of calls for which a rank keeps records, from which diagnosis finds where two ranks' calls began to
 * differ. */
#define SCR_RECORDS 64

/* Header of a slot. `filled` is 1 + the ticket of the chunk in the slot; it is stored last and sequentially
 * consistent (scr_store_flag()), so a reader that sees it also sees the data, `hash` and `consumed`. */
typedef struct scr_slot {
  alignas(SCR_LINE) _Atomic uint64_t filled;
  uint64_t hash;     /* the owner's running hash of calls, including this one */
  uint64_t consumed; /* tickets of these slots that the owner has consumed */
  unsigned char inline_data[SCR_INLINE_BYTES];
  /* Offset 64: the payload of a small slot. A large slot leaves this half line unused and continues below. */
} scr_slot;

#define SCR_SMALL_DATA 64
#define SCR_SMALL_STRIDE (SCR_LINE + SCR_SMALL_BYTES)
#define SCR_LARGE_REDUCED 128 /* _Atomic uint64_t: ticket + 1 once the owner has reduced its share of all slots */
#define SCR_LARGE_DATA 256
#define SCR_LARGE_STRIDE (SCR_LARGE_DATA + SCR_LARGE_BYTES)

/* The record of one call, for diagnosis. Its owner sets seq to 0, then writes hash, bytes, what and seq in this
 * order; a reader reads seq before and after. Fields are atomics because the owner may overwrite a record while a
 * slow reader reads it. */
typedef struct scr_record {
  _Atomic uint64_t seq;   /* number of the collective */
  _Atomic uint64_t hash;  /* running hash including it */
  _Atomic uint64_t bytes; /* scr_op_bytes() */
  /* kind | dtype << 8 | reduce_op << 16 | blocks differ in length << 24 | batch << 25 | root << 32 */
  _Atomic uint64_t what;
} scr_record;

/* Says for what a driver sleeps, and how to wake it. */
typedef struct scr_sleeper {
  /* 0: awake. Collectives: 1 + the rank whose flag is waited for, and which flag of a channel
   * (SCR_SLEEP_CHANNEL); p2p: how many threads sleep. Plus SCR_SLEEP_ENGINE. Owner writes. */
  alignas(SCR_LINE) _Atomic uint32_t waits_for;
  /* Of a shadow, in whose waits_for a pump sleeps: waits_for of its rank as that rank told it last (docs/protocol.md,
   * section 16). */
  _Atomic uint32_t told;
  /* Futex word of the driver. A thread that wakes it adds to it. */
  alignas(SCR_LINE) _Atomic uint32_t bell;
} scr_sleeper;

/* Added to the rank in waits_for when the sleeper waits in a channel: for a message from that rank (room = 0), or
 * for room in the channel to it (room = 1). For a flag of a shared block or slot nothing is added. */
#define SCR_SLEEP_CHANNEL(channel, room) ((1 + 2 * (uint32_t)(channel) + (uint32_t)(room)) << 16)
/* the engine sleeps: wake the engine's bell instead; used by p2p as well */
#define SCR_SLEEP_ENGINE UINT32_C(0x80000000)

#define SCR_FAILURE_BYTES 4096

/* Reader's side of the fifo of one ordered pair; owner: the reader. */
typedef struct scr_fifo_reader {
  alignas(SCR_LINE) _Atomic uint64_t read; /* bytes taken out of the fifo */
  _Atomic uint64_t eager_released; /* eager payload bytes that recvs have matched; they return credit to the writer */
} scr_fifo_reader;

/* Writer's side of a fifo, in the writer's arena. */
typedef struct scr_fifo {
  alignas(SCR_LINE) _Atomic uint64_t written; /* bytes put into the fifo */
  alignas(SCR_LINE) unsigned char data[];
} scr_fifo;

/* Powers of two. A group over several hosts may have the longer ones between them. */
#define SCR_FIFO_BYTES (512 * 1024)
#define SCR_LONG_FIFO_BYTES (4 * 1024 * 1024)

/* Channels carry the messages of sendrecv plans. Each ordered pair of ranks has SCR_CHANNELS of them. Message n lies
 * in place n mod SCR_CHANNEL_PLACES. A channel lies in the writer's arena and only the writer writes it. */
#define SCR_CHANNELS 4
#define SCR_CHANNEL_PLACES 4
/* The longest message. A group over several hosts may have the longer ones. */
#define SCR_CHANNEL_BYTES (64 * 1024)
#define SCR_LONG_CHANNEL_BYTES (512 * 1024)

typedef struct scr_place {
  alignas(SCR_LINE) _Atomic uint64_t filled; /* number of the message, from 1; stored last, as scr_slot.filled is */
  uint64_t hash;                             /* the writer's running hash of calls, including this one */
  uint64_t bytes;                            /* of the message */
  uint64_t block;                            /* total bytes of the longest block of which the message holds a part */
  uint64_t
      delivered; /* of a shadow: number of the last message of this place whose bytes lie in the reader's buffer already */
  /* SCR_CHANNEL_DATA: the message */
} scr_place;

#define SCR_CHANNEL_DATA 64
/* From one place to the next one. */
static inline uint64_t scr_channel_stride(uint64_t longest) { return SCR_LINE + longest; }

typedef struct scr_channel {
  alignas(SCR_LINE) _Atomic uint64_t sent; /* number of messages; no reader waits for it */
  alignas(SCR_LINE) unsigned char places[];
} scr_channel;

/* Reader's side of the channels from one rank; owner: the reader. */
typedef struct scr_channel_reader {
  alignas(SCR_LINE) _Atomic uint64_t taken[SCR_CHANNELS]; /* messages */
} scr_channel_reader;

/* value of `left`: the rank gave up before its first collective; the reason is in failure_record */
#define SCR_GAVE_UP UINT64_MAX

/* The hash of every SCR_MARK_EVERY-th call of a device lane, in which external runs may be far apart. */
#define SCR_MARKS 64
#define SCR_MARK_EVERY 32

typedef struct scr_mark {
  _Atomic uint64_t seq; /* number of the collective; 0 while the owner writes the mark */
  _Atomic uint64_t hash;
} scr_mark;

/* The lengths of the blocks between two ranks in the last SCR_SPLITS external all_to_alls, which no other rank knows. It is written
 * as a record is. */
#define SCR_SPLITS 64

typedef struct scr_split {
  _Atomic uint64_t seq;      /* number of the collective */
  _Atomic uint64_t sent;     /* bytes from the owner to the peer */
  _Atomic uint64_t expected; /* bytes from the peer to the owner */
  _Atomic uint64_t hash;     /* of these lengths in all external all_to_alls so far, the same on both ranks */
} scr_split;

/* A rank has one for each lane of the group. */
typedef struct scr_shared_block {
  alignas(SCR_LINE) uint64_t magic;
  uint32_t rank, size;
  uint64_t engine_bell; /* offset in the owner's arena */
  uint64_t bytes;       /* of the shared block with its variable part */

  /* Host lane: 1 + last collective issued, or SCR_GAVE_UP; 0 until the rank leaves. */
  alignas(SCR_LINE) _Atomic uint64_t left;
  alignas(SCR_LINE) _Atomic uint64_t large;     /* offset of the large slots in the owner's arena, 0 until they exist */
  alignas(SCR_LINE) _Atomic uint64_t consumed0; /* tickets of the small slots consumed */
  alignas(SCR_LINE) _Atomic uint64_t consumed1; /* tickets of the large slots consumed */
  alignas(SCR_LINE) _Atomic uint64_t reached; /* device lane: the last collective whose input was ready on this rank */
  _Atomic uint64_t splits;                    /* device lane: how many external all_to_alls the owner has told of */
  scr_sleeper collective;
  scr_sleeper p2p;
  /* Host lane, of rank 0, or of each rank where the ranks share no memory: 1 + the rank whose record is the first cause. */
  alignas(SCR_LINE) _Atomic uint64_t failure;
  alignas(SCR_LINE) unsigned char failure_record[SCR_FAILURE_BYTES]; /* host lane */
  alignas(SCR_LINE) scr_record records[SCR_RECORDS];
  alignas(SCR_LINE) scr_mark marks[SCR_MARKS]; /* device lane */
  alignas(SCR_LINE) unsigned char small[SCR_SMALL_SLOTS * SCR_SMALL_STRIDE];
  /* scr_fifo_reader reader[size]: of the fifos that other ranks write for this one.
   * scr_channel_reader channel_reader[size]: of the channels.
   * _Atomic uint64_t fifo[size]: offsets in the owner's arena of the fifos that it writes, 0 until one exists.
   * _Atomic uint64_t channel[size][SCR_CHANNELS]: of the channels.
   * _Atomic uint64_t detached[size]: each rank writes its own: 1 once it will not touch this shared block any more.
   * Device lane, from the next line on: scr_split split[SCR_SPLITS][size]: number n lies in row n mod SCR_SPLITS. A row has whole
   * lines, and a call writes one. */
  alignas(SCR_LINE) unsigned char variable[];
} scr_shared_block;

static inline scr_fifo_reader *scr_shared_fifo_reader(scr_shared_block *b, uint32_t from) {
  return (scr_fifo_reader *)(void *)b->variable + from;
}

/* `size` is the size of the group as this process knows it, not the shared block's field, which a peer can
 * overwrite. */
static inline scr_channel_reader *scr_shared_channel_reader(scr_shared_block *b, uint32_t size, uint32_t from) {
  return (scr_channel_reader *)(void *)(b->variable + size * sizeof(scr_fifo_reader)) + from;
}

static inline _Atomic uint64_t *scr_shared_fifo(scr_shared_block *b, uint32_t size, uint32_t to) {
  return (_Atomic uint64_t *)(void *)scr_shared_channel_reader(b, size, size) + to;
}

static inline _Atomic uint64_t *scr_shared_channel(scr_shared_block *b, uint32_t size, uint32_t to, uint32_t channel) {
  return scr_shared_fifo(b, size, size) + to * SCR_CHANNELS + channel;
}

static inline _Atomic uint64_t *scr_shared_detached(scr_shared_block *b, uint32_t size, uint32_t by) {
  return scr_shared_channel(b, size, size, 0) + by;
}

static inline uint64_t scr_whole_lines(uint64_t bytes) { return (bytes + SCR_LINE - 1) / SCR_LINE * SCR_LINE; }

/* What each lane has. */
static inline uint64_t scr_shared_common_bytes(uint64_t size) {
  uint64_t each = sizeof(scr_fifo_reader) + sizeof(scr_channel_reader) + (2 + SCR_CHANNELS) * sizeof(uint64_t);
  return scr_whole_lines(size * each);
}

static inline uint64_t scr_shared_variable_bytes(uint64_t size, bool device) {
  return scr_shared_common_bytes(size) + (device ? SCR_SPLITS * scr_whole_lines(size * sizeof(scr_split)) : 0);
}

/* Device lane. `n` counts external all_to_alls from 1. */
static inline scr_split *scr_shared_split(scr_shared_block *b, uint32_t size, uint32_t with, uint64_t n) {
  uint64_t row = n % SCR_SPLITS * scr_whole_lines(size * sizeof(scr_split));
  return (scr_split *)(void *)(b->variable + scr_shared_common_bytes(size) + row) + with;
}

#endif
