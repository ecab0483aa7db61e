/* sagecomm.h: the C ABI of libsagecomm.so.
 *
 * One function is exported, sagecomm_get_api(); everything else is reached through the table that it returns.
 * The header is hand written, valid C11 and C++17, and knows neither torch nor Python.
 *
 * Rules that hold for every function of the table
 *   - Any thread may call it. Callers release Python's GIL first, because it may block; release(), version() and the
 *     work_ functions never block.
 *   - Returns a sagecomm_status. Anything below zero is an error; if `err` is not NULL it is filled in, by copy.
 *   - The library keeps no pointer of the caller's after a call has returned, except the buffers of an operation
 *     that is PENDING, which it uses until that operation is complete.
 *   - In a forked child every function that returns a status returns SAGECOMM_FORKED at once and touches nothing.
 *   - A Go panic never crosses this line: it becomes SAGECOMM_INTERNAL and the group is unusable from then on.
 *
 * Handles are 64-bit numbers made of an index and a generation; 0 is never valid and a stale one is refused.
 */
#ifndef SAGECOMM_H
#define SAGECOMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when anything below changes incompatibly; fields and functions are appended without raising it. */
#define SAGECOMM_ABI_VERSION 3
/* Of this header and of the library that was built with it. */
#define SAGECOMM_VERSION "0.1.0"

typedef uint64_t sagecomm_group;
typedef uint64_t sagecomm_work;

typedef enum sagecomm_status {
  SAGECOMM_OK = 0,
  SAGECOMM_PENDING = 1,       /* the operation goes on; see issue() and wait() */
  SAGECOMM_INVALID = -1,      /* the call is refused: undefined combination, bad handle, bad size. Nothing was sent. */
  SAGECOMM_PEER_FAILURE = -2, /* a rank died or left while it was needed */
  SAGECOMM_TIMEOUT = -3,      /* the operation's timeout passed; the message names the missing ranks */
  SAGECOMM_MISMATCH = -4,     /* ranks called different operations; the message names both calls */
  SAGECOMM_ABORTED = -5,      /* abort() was called, or the group was destroyed */
  SAGECOMM_SYSTEM = -6,       /* the operating system refused: memory, descriptors, permissions */
  SAGECOMM_INTERNAL = -7,     /* a fault of this library */
  SAGECOMM_FORKED = -8        /* called in a forked child */
} sagecomm_status;

typedef enum sagecomm_kind {
  SAGECOMM_ALL_REDUCE = 0,
  SAGECOMM_BROADCAST = 1,
  SAGECOMM_ALL_GATHER = 2, /* out: a block for each rank, in rank order */
  SAGECOMM_REDUCE = 3,
  SAGECOMM_BARRIER = 4,
  SAGECOMM_REDUCE_SCATTER = 5, /* in: a block for each rank, in rank order; out: the reduction of this rank's block */
  SAGECOMM_ALL_TO_ALL = 6,     /* in: a block to each rank; out: a block from each rank, in rank order */
  SAGECOMM_GATHER = 7,         /* out, on the root: a block for each rank, in rank order */
  SAGECOMM_SCATTER = 8,        /* in, on the root: a block for each rank, in rank order */
  SAGECOMM_SEND = 9,
  SAGECOMM_RECV = 10,
  SAGECOMM_KIND_COUNT
} sagecomm_kind;

typedef enum sagecomm_dtype {
  SAGECOMM_INT8 = 0,
  SAGECOMM_INT16 = 1,
  SAGECOMM_INT32 = 2,
  SAGECOMM_INT64 = 3,
  SAGECOMM_UINT8 = 4,
  SAGECOMM_UINT16 = 5,
  SAGECOMM_UINT32 = 6,
  SAGECOMM_UINT64 = 7,
  SAGECOMM_BOOL = 8,
  SAGECOMM_FLOAT16 = 9,
  SAGECOMM_BFLOAT16 = 10,
  SAGECOMM_FLOAT32 = 11,
  SAGECOMM_FLOAT64 = 12,
  SAGECOMM_COMPLEX64 = 13,
  SAGECOMM_COMPLEX128 = 14,
  /* Moved, never reduced. */
  SAGECOMM_FLOAT8_E4M3FN = 15,
  SAGECOMM_FLOAT8_E5M2 = 16,
  SAGECOMM_FLOAT8_E4M3FNUZ = 17,
  SAGECOMM_FLOAT8_E5M2FNUZ = 18,
  SAGECOMM_FLOAT8_E8M0FNU = 19,
  /* 8 bytes that describe a rank's sparse tensor. An all_gather of this type begins an all_reduce of sparse tensors,
   * and errors name it so. */
  SAGECOMM_SPARSE = 20,
  SAGECOMM_DTYPE_COUNT
} sagecomm_dtype;

typedef enum sagecomm_reduce_op {
  SAGECOMM_SUM = 0,
  SAGECOMM_AVG = 1,
  SAGECOMM_PRODUCT = 2,
  SAGECOMM_MIN = 3,
  SAGECOMM_MAX = 4,
  SAGECOMM_BAND = 5,
  SAGECOMM_BOR = 6,
  SAGECOMM_BXOR = 7,
  SAGECOMM_PREMUL_SUM = 8, /* every rank's input is multiplied by sagecomm_op.factor first */
  SAGECOMM_REDUCE_OP_COUNT
} sagecomm_reduce_op;

/* A contiguous piece of memory. A buffer is the concatenation of its segments, each of whole elements. */
typedef struct sagecomm_segment {
  void *data;
  uint64_t bytes;
} sagecomm_segment;

enum {
  SAGECOMM_ASYNC = 1, /* issue() returns without waiting for peers */
  /* Of a p2p operation of a rank with itself in issue_coalesced(): its other side is in the same call, the first recv for the first send
   * and so on, whatever their tags. A call that lacks a side is refused, and a pair on one piece of memory is left out. */
  SAGECOMM_PAIRED = 2,
};

#define SAGECOMM_ANY_SOURCE (-1)

/* sagecomm_op.device_type of host memory. Other values are numbers of c10::DeviceType, which torch fixes. */
#define SAGECOMM_HOST 0

/* When the caller's stream waits for an operation on a device. The operation itself is in streams of the library, behind
 * what the caller's stream holds now. */
typedef enum sagecomm_ordering {
  SAGECOMM_IN_STREAM = 0, /* at once: issue() makes it wait, or the caller does behind issue(), if there is a bridge */
  SAGECOMM_BESIDE = 1,    /* later, by what the bridge was told; refused without a bridge */
} sagecomm_ordering;

/* A copy in a stream. One side is memory of a device, the other one is pinned host memory. */
typedef struct sagecomm_copy {
  void *to;
  const void *from;
  uint64_t bytes;
} sagecomm_copy;

#define SAGECOMM_CAPTURED 2     /* a value of sagecomm_bridge.may_be_captured */
#define SAGECOMM_MAX_VALUE 4096 /* the largest value of sagecomm_bridge.write_value() */

/* What the library needs of the framework that owns the buffers of an operation on a device (torch: c10's streams and
 * events). All functions concern the device of that operation. They are called on the thread that calls issue(), before
 * issue() returns. They queue commands and wait for no device, apart from what the framework's allocator
 * and the first launch of a kernel do in multiply() and divide(). They return 0, or -1 with a text in
 * `why`. A stream is a number that make_stream() has given out; it stays valid until the process ends. */
typedef struct sagecomm_bridge {
  uint32_t struct_size; /* sizeof(sagecomm_bridge); `keep` came later, `multiply` and `divide` last */
  /* 0: the caller's stream is not being captured into a graph. SAGECOMM_CAPTURED: it is. Other values: the framework cannot
   * tell, so the library asks the device's runtime. */
  uint32_t may_be_captured;
  void *ctx;
  /* Makes a stream that nothing but the library uses. Numbers begin at 1. */
  int32_t (*make_stream)(void *ctx, uint64_t *stream, char *why, size_t why_n);
  /* Allocates pinned host memory, aligned to 256 bytes. */
  int32_t (*pin)(void *ctx, uint64_t bytes, void **memory, void **owner, char *why, size_t why_n);
  /* Gives pinned memory back. It is not called, and may be NULL: a driver that frees such memory may wait for the device. */
  void (*unpin)(void *owner);
  /* Makes the stream wait for what the caller's stream holds now. */
  int32_t (*fork)(void *ctx, uint64_t stream, char *why, size_t why_n);
  /* Queues a copy from the device into pinned memory. */
  int32_t (*copy_in)(void *ctx, uint64_t stream, const sagecomm_copy *copy, char *why, size_t why_n);
  /* Queues a write of a value, at most SAGECOMM_MAX_VALUE, to a word of pinned memory. Whoever sees the value sees the
   * copies in front of it. */
  int32_t (*write_value)(void *ctx, uint64_t stream, uint32_t *word, uint32_t value, char *why, size_t why_n);
  /* Makes a stream that the library has made with the device's runtime (cudaStream_t ...) known to the framework, and
   * numbers it as make_stream() does. Fails if the framework cannot order such a stream. */
  int32_t (*adopt_stream)(void *ctx, void *handle, uint64_t *stream, char *why, size_t why_n);
  /* One of the next two ends what the library queues, once for each part of a coalesced operation. They come last.
   * join(): the operation ends with what the stream holds now, so the caller can wait for it in a stream at once. */
  int32_t (*join)(void *ctx, uint64_t stream, char *why, size_t why_n);
  /* join_later(): when the operation is complete, the caller of issue() queues these copies into the device in the
   * stream, if the status is OK, and then a write of `value` to `word`, with which pinned memory is the library's again.
   * If there is nothing to copy, or the operation was not issued, the caller may store the value itself. Operations of
   * issue_coalesced(), which all have one bridge, end when the work is complete. */
  int32_t (*join_later)(void *ctx, uint64_t stream, const sagecomm_copy *copies, uint32_t n, uint32_t *word,
                        uint32_t value, char *why, size_t why_n);
  /* The name of this type of device in the framework: "cuda", "npu" ... A vendor's runtime is chosen by it. */
  const char *device_name;
  /* Gives the handle by which the device's runtime knows a stream (aclrtStream, cnrtQueue_t ...). What the framework has
   * launched so far is in the stream then, also if the framework has a launch queue: the library uses the handle for the
   * rest of this call of issue(), until it calls fork() for that stream. Fails if streams have no such handle. */
  int32_t (*stream_handle)(void *ctx, uint64_t stream, void **handle, char *why, size_t why_n);
  /* Called every 50 ms while issue() waits for peers, as it does in the first operations through a vendor's library. The caller
   * handles signals that have come meanwhile. It returns 0 to go on. Any other value ends the wait: issue() fails, or the operation
   * does if it was announced to peers. */
  int32_t (*interrupted)(void *ctx);
  /* The buffers of the operation are in use until the process ends: nobody may free them or use them for something else. The operation has
   * failed, and a vendor's library (NCCL, HCCL, CNCL) may still queue commands for it. Called in front of join(), if at all. It may be
   * absent (struct_size) or NULL, or fail. Then the library prints a warning, and the caller has to keep the buffers. */
  int32_t (*keep)(void *ctx, char *why, size_t why_n);
  /* With the next two the framework's own kernels carry out AVG and PREMUL_SUM beside a SUM of a vendor's library that has neither. Without
   * them (struct_size, or NULL) such operations go through host memory. All ranks of a group have them, or none uses them. `pieces` are parts
   * of the operation's buffers, of elements of `dtype`: float16, bfloat16, float32 or float64.
   * multiply() queues the products of the elements and a factor. *product is where they will be, one piece behind the other: memory of
   * the framework, which nobody else gets before issue() has returned. Later it may serve what comes behind the operation in the same
   * stream. keep() is for this memory as well. */
  int32_t (*multiply)(void *ctx, uint64_t stream, uint8_t dtype, const sagecomm_segment *pieces, uint32_t n,
                      double factor, void **product, char *why, size_t why_n);
  /* divide() queues the division of the elements, in place. */
  int32_t (*divide)(void *ctx, uint64_t stream, uint8_t dtype, const sagecomm_segment *pieces, uint32_t n,
                    double divisor, char *why, size_t why_n);
} sagecomm_bridge;

/* One call of one collective or p2p operation. Fill with zeros first. */
typedef struct sagecomm_op {
  uint8_t kind;        /* sagecomm_kind */
  uint8_t dtype;       /* sagecomm_dtype */
  uint8_t reduce_op;   /* sagecomm_reduce_op, for all_reduce, reduce and reduce_scatter */
  uint8_t flags;       /* SAGECOMM_ASYNC, SAGECOMM_PAIRED */
  int32_t root;        /* root of broadcast, reduce, gather and scatter, peer of send and recv (rank in the group) */
  int32_t tag;         /* of a p2p operation; negative tags are for composite operations, not for users */
  uint32_t n_in;       /* segments of the input */
  uint32_t n_out;      /* segments of the output */
  uint32_t batch_size; /* 0; issue_coalesced() counts here the operations of a batch */
  uint8_t device_type; /* of the memory of all buffers; SAGECOMM_HOST: the other device fields are ignored */
  uint8_t ordering;    /* sagecomm_ordering */
  int32_t device_index;
  void *stream; /* the caller's stream on that device, as its runtime names it (cudaStream_t, aclrtStream ...) */
  /* An operation is in place if `in` and `out` are the same memory; for all_gather, reduce_scatter, gather and
   * scatter, if the one is this rank's block of the other. An all_to_all cannot be in place. The arrays are read
   * during issue() only. */
  const sagecomm_segment *in; /* broadcast: on the root, the same memory as out; elsewhere none. scatter: on the root */
  const sagecomm_segment
      *out; /* reduce: on the root; elsewhere none, or memory that stays as it is. gather: on the root */
  /* Bytes of each rank's block, as many as the group has ranks; NULL: blocks are equal. in_blocks is for
   * reduce_scatter and all_to_all, out_blocks for all_gather and all_to_all. All ranks pass the same blocks to
   * reduce_scatter and all_gather. In an all_to_all, the length of a block that one rank sends is the length that
   * the other one expects. */
  const uint64_t *in_blocks;
  const uint64_t *out_blocks;
  double factor;       /* PREMUL_SUM */
  int64_t timeout_ns;  /* 0: the group's */
  uint64_t batch_hash; /* 0; issue_coalesced() hashes here the lengths of the operations of a batch */
  uint64_t stack;      /* the caller's stack, from group_stack(); 0: not recorded */
  /* Of an operation on a device; read during issue() only. Without one the library uses the vendor's runtime: that of CUDA,
   * and for 20, c10's PrivateUse1, that of Ascend. The operation is SAGECOMM_IN_STREAM then: the caller waits for it by
   * what it queues in `stream` afterwards. */
  const sagecomm_bridge *bridge;
} sagecomm_op;

/* The failure, and the rank that caused it. Strings are NUL-terminated and cut to fit. */
typedef struct sagecomm_error {
  int32_t status;    /* sagecomm_status */
  int32_t rank;      /* the culprit, -1 if there is none */
  int64_t pid;       /* its process, 0 if unknown */
  uint64_t sequence; /* number of the collective in the group, from 1; 0 if none was in flight */
  char op[32];       /* "all_reduce" ...; "shrink": group_shrink() has aborted the group */
  char group[128];   /* name given at creation */
  char host[128];    /* host of `rank` */
  char message[2048];
} sagecomm_error;

/* The key-value store of the rendezvous: torch's c10d::Store, or a directory (tests). All functions return 0, or -1
 * with a text in `why`. get() blocks until the key exists and hands the value to `sink`; it returns SAGECOMM_TIMEOUT
 * if and only if timeout_ns has passed without the key; with timeout_ns = 0 it looks once. Any other failure, an
 * interrupt included, ends the rendezvous at once. get_many() is get() for n keys: it blocks until all of them
 * exist, then hands the values to `sink` in the order of the keys. get_many may be NULL; then the library gets one
 * key after the other. */
typedef struct sagecomm_store {
  void *ctx;
  int32_t (*set)(void *ctx, const char *key, const void *data, size_t n, char *why, size_t why_n);
  int32_t (*get)(void *ctx, const char *key, int64_t timeout_ns, void *sink_ctx,
                 void (*sink)(void *sink_ctx, const void *data, size_t n), char *why, size_t why_n);
  int32_t (*get_many)(void *ctx, const char *const *keys, size_t n, int64_t timeout_ns, void *sink_ctx,
                      void (*sink)(void *sink_ctx, const void *data, size_t n), char *why, size_t why_n);
} sagecomm_store;

/* The same store, for as long as a group needs it: the first one of ranks that claim a key decides for all. The library reads the
 * structure during group_create() only; the functions stay valid while the process runs. It calls claim() on any of its threads, which
 * hold no lock of the caller's. */
typedef struct sagecomm_lasting_store {
  void *ctx;
  /* Called during group_create(), at most once. Sets *claimer, which claim() and release() take, for a store that has the keys of
   * sagecomm_group_config.store and in which nobody waits. Returns 0, or -1 with a text in `why` if this store cannot last. It returns within
   * sagecomm_group_config.timeout_ns, and ends early where get() of sagecomm_group_config.store would. What takes long, as a connection
   * to a server, may be left to claim(): no rank of the group goes on before prepare() has returned on all. */
  int32_t (*prepare)(void *ctx, void **claimer, char *why, size_t why_n);
  /* Stores `data` under `key` unless the key has a value, and hands the value that it has then to `sink`. Returns 0, or -1 with a text in
   * `why`. It may take any time. */
  int32_t (*claim)(void *claimer, const char *key, const void *data, size_t n, void *sink_ctx,
                   void (*sink)(void *sink_ctx, const void *data, size_t n), char *why, size_t why_n);
  /* Called once, when no claim() is under way any more, on a thread of the library. A claim() that does not return puts it off for ever.
   * It may take any time; group_destroy() waits for it for 0.5 s at most. */
  void (*release)(void *claimer);
} sagecomm_lasting_store;

typedef struct sagecomm_option {
  const char *name; /* a SAGECOMM_* variable's name in lower case without the prefix; the environment wins */
  const char *value;
} sagecomm_option;

typedef struct sagecomm_group_config {
  uint32_t struct_size; /* sizeof(sagecomm_group_config); fields behind it are absent */
  int32_t rank;
  int32_t size;
  const char *name;            /* for messages; the same on all ranks */
  int64_t timeout_ns;          /* for the rendezvous and for operations */
  const sagecomm_store *store; /* used during group_create() only */
  const sagecomm_option *options;
  uint32_t n_options;
  const int32_t *global_ranks;           /* the global rank of each group rank, for records; NULL: the same numbers */
  const sagecomm_lasting_store *lasting; /* NULL: none. Absent if struct_size ends before it */
} sagecomm_group_config;

#define SAGECOMM_ID_BYTES 128 /* of a unique id, as many as ncclUniqueId has */

/* One rank of a group that meets at a unique id, see group_join(). Fill with zeros first. */
typedef struct sagecomm_join {
  uint32_t struct_size; /* sizeof(sagecomm_join) */
  int32_t rank;
  int32_t size;
  uint32_t n_options;
  const uint8_t *id;  /* SAGECOMM_ID_BYTES of unique_id(), the same on all ranks */
  const char *name;   /* for messages; the same on all ranks */
  int64_t timeout_ns; /* for the rendezvous and for operations; SAGECOMM_TIMEOUT takes the place of both timeouts */
  const sagecomm_option *options;
  int64_t operations_ns; /* for operations; 0: timeout_ns */
  /* Once it is not 0, the call ends within 100 ms with SAGECOMM_ABORTED, unless the group is made; it is read as an atomic. NULL: nothing
   * ends the call but its timeout. */
  const int32_t *cancelled;
} sagecomm_join;

/* A value of sagecomm_child.cancelled, which may also come after another one: it ends a group_split() whose ranks still tell each other
 * their colors too, by an abort of the parent. */
#define SAGECOMM_CANCEL_COLORS 2

/* How long group_settle() waits. */
typedef enum sagecomm_settle {
  SAGECOMM_SETTLE_FULL = 0,  /* as long as group_destroy() does without it */
  SAGECOMM_SETTLE_BRIEF = 1, /* for 2 s, for operations on devices too, since the first wait that was brief */
  SAGECOMM_SETTLE_NOW = 2,   /* not at all: what is left is given up */
} sagecomm_settle;

/* Whether group_shrink() aborts the parent first. In a shrink that ends outstanding operations each rank decides for
 * itself. */
typedef enum sagecomm_aborts {
  SAGECOMM_NO_ABORT = 0,         /* 1, which let the library look for operations, is refused */
  SAGECOMM_ABORTS_HERE = 2,      /* this rank does: it has something outstanding, or calls that it has not issued yet */
  SAGECOMM_ABORTS_ELSEWHERE = 3, /* other ranks may, in the same shrink: this one has nothing outstanding */
} sagecomm_aborts;

/* This rank's part in a group that is made of ranks of another one, its parent, see group_split() and group_shrink(). Fill
 * with zeros first. */
typedef struct sagecomm_child {
  uint32_t struct_size; /* sizeof(sagecomm_child) */
  uint32_t n_options;
  sagecomm_group parent;
  int32_t color; /* of group_split(): ranks of one color form a group; below 0: this rank is in none */
  int32_t key;   /* of group_split(): ranks are ordered by it, and by their rank in the parent where keys are equal */
  const int32_t *left_out; /* of group_shrink(): ranks of the parent, in any order */
  uint32_t n_left_out;
  uint32_t aborts;                /* of group_shrink(): sagecomm_aborts */
  const char *name;               /* for messages; the same on all ranks of the new group */
  int64_t timeout_ns;             /* for the rendezvous and for operations; 0: that of operations of the parent */
  const sagecomm_option *options; /* NULL: those of the parent */
  int64_t operations_ns;          /* for operations; 0: timeout_ns */
  /* As that of sagecomm_join. The ranks of a group_split() first tell each other their colors. Of these it ends the wait only if it is
   * SAGECOMM_CANCEL_COLORS, and aborts the parent for that. */
  const int32_t *cancelled;
  /* Of group_shrink(), in place of left_out: the ranks of the parent that stay, in the order of the new group. Groups with different
   * labels may be made in any order, also of the same ranks. */
  const int32_t *members;
  uint32_t n_members;
  uint64_t label;
} sagecomm_child;

/* What a rank tells the others about its sparse tensor, of layout COO. All members but `elements` must be the same on all
 * ranks. */
typedef struct sagecomm_sparse_header {
  int64_t elements;
  int64_t sparse_dims;
  int64_t dims;
  int64_t sizes[8]; /* the first ones, the rest 0 */
  uint64_t hash;    /* of all sizes */
  char type[16];    /* the type's name for messages, padded with zeros */
} sagecomm_sparse_header;

/* An all_reduce of sparse tensors. The library copies the structure. Memory and functions are the caller's and are used until
 * the work is complete; the functions run on threads of the library, one at a time, and return 0, or -1 with a text in
 * `why`. */
typedef struct sagecomm_sparse_sum {
  uint32_t struct_size; /* sizeof(sagecomm_sparse_sum) */
  sagecomm_sparse_header header;
  sagecomm_segment indices, values; /* of this rank's elements */
  int64_t timeout_ns;               /* of each operation that it is made of; 0: the group's */
  uint64_t stack;                   /* as sagecomm_op.stack */
  void *ctx;
  /* Sets the memory for the elements of another rank, as long as that rank's: the header says how many elements. */
  int32_t (*allocate)(void *ctx, int32_t rank, int64_t elements, sagecomm_segment *indices, sagecomm_segment *values,
                      char *why, size_t why_n);
  /* Adds the elements of all ranks in rank order. They are all here. *culprit: the rank whose elements are not valid, -1 where
   * it is this rank that cannot add. */
  int32_t (*add)(void *ctx, int32_t *culprit, char *why, size_t why_n);
} sagecomm_sparse_sum;

/* Called once when a PENDING operation is complete: status is SAGECOMM_OK or below zero, err is never NULL. Runs on a
 * thread of the library or inside wait(), with no lock held; it may call any function of the table. */
typedef void (*sagecomm_done_fn)(void *ctx, int32_t status, const sagecomm_error *err);

/* A failure callback, see group_on_failure(). */
typedef void (*sagecomm_failed_fn)(void *ctx, const sagecomm_error *cause);

/* How long the caller waits for what is not the library's, at most. */
typedef struct sagecomm_waits {
  int64_t slice_ns; /* between two looks for signals, while wait() goes on */
  int64_t hooks_ns; /* for callbacks of users that run when a group, or the process, ends */
} sagecomm_waits;

typedef struct sagecomm_api {
  uint32_t abi_version; /* SAGECOMM_ABI_VERSION of the library */
  uint32_t struct_size; /* a function at an offset beyond this size is absent */
  uint32_t op_size; /* sizeof(sagecomm_op), by which arrays of operations are strided; callers compare it with theirs */

  /* Version of the library, "1.2.3". Static memory. */
  const char *(*version)(void);

  /* Creates a group. All of its `size` processes call it, with stores that hold the same keys; it returns when all
   * of them have joined. Errors: INVALID, SYSTEM, TIMEOUT. */
  int32_t (*group_create)(const sagecomm_group_config *config, sagecomm_group *out, sagecomm_error *err);

  /* Waits a bounded time for issued operations, tells the peers that this rank leaves, and frees the group. It does not
   * wait for peers to do the same. The bound is 2 s; operations on devices, and all of groups that met at a unique id, have as long as they may take.
   * A second call returns INVALID.
   * It returns OK also for a group that has failed: then *err has the first cause, which group_error() may not have had before. So it does,
   * with TIMEOUT, where the bound was over and operations on devices are not complete; they fail with ABORTED. Else the status of *err is OK. */
  int32_t (*group_destroy)(sagecomm_group group, sagecomm_error *err);

  /* Makes every operation of the group, here and on every rank, fail with ABORTED and `reason`. Idempotent. */
  int32_t (*group_abort)(sagecomm_group group, const char *reason, sagecomm_error *err);

  /* Returns OK, or the first cause of the group's failure. */
  int32_t (*group_error)(sagecomm_group group, sagecomm_error *err);

  /* Returns the number of collectives issued so far, on host memory and on devices; 0 for a bad handle. Ranks that have
   * made the same calls get the same number. Each of the two lanes numbers its own collectives: see lane_sequence(). */
  uint64_t (*group_sequence)(sagecomm_group group);

  /* Sets the timeout of later operations. */
  int32_t (*group_set_timeout)(sagecomm_group group, int64_t timeout_ns, sagecomm_error *err);

  /* Issues one operation.
   *   OK       it is complete; *work is 0, except for a recv from SAGECOMM_ANY_SOURCE, whose work has the source and
   *            must be given to release().
   *   PENDING  it is not complete; *work must be given to release() later. Buffers stay in use until wait() returns
   *            something else than PENDING or the done function has run.
   *   < 0      it was not issued, or it failed; the library does not touch the buffers any more.
   * *sequence becomes the number of the collective in its lane, counted from 1; it is 0 for p2p operations and
   * if nothing was issued. A group has one lane for host memory and one for devices. `sequence` may be NULL.
   * A synchronous operation returns PENDING when it is not complete after some tens of milliseconds, so that the
   * caller can look for signals; it then calls wait() until that returns something else. */
  int32_t (*issue)(sagecomm_group group, const sagecomm_op *op, sagecomm_work *work, uint64_t *sequence,
                   sagecomm_error *err);

  /* Waits at most timeout_ns (0: only looks) and drives the operation meanwhile. Returns PENDING if it is not
   * complete, else its status. It may be called again after that. */
  int32_t (*wait)(sagecomm_work work, int64_t timeout_ns, sagecomm_error *err);

  /* Like wait(), for about as long as it takes to wake the threads that would complete the operation otherwise:
   * waiting for an operation that is about to complete is faster than that. Returns PENDING at once if such a wait
   * would not help. */
  int32_t (*wait_briefly)(sagecomm_work work, sagecomm_error *err);

  /* Registers `done`, which is called when the operation completes. Returns PENDING if it will be called. Otherwise
   * the operation is complete already: the return value is its status and `done` is never called. It may be called
   * once per work. A caller that will not wait() for an asynchronous operation calls test() too, or release(). */
  int32_t (*on_done)(sagecomm_work work, sagecomm_done_fn done, void *ctx, sagecomm_error *err);

  /* Returns the rank from which a recv received, or -1 if it is not complete. */
  int32_t (*work_source)(sagecomm_work work);

  /* Gives the handle back. An operation that is not complete continues. It never blocks. */
  void (*release)(sagecomm_work work);

  /* Writes statistics and state of a group as JSON. Returns the bytes needed, with the closing NUL, or a status
   * below zero. If that exceeds n, the caller calls again with a larger buffer. */
  int64_t (*group_stats)(sagecomm_group group, char *json, size_t n);

  /* Returns how often operations of this process (issue, wait) have entered Go; for tests. */
  uint64_t (*go_entries)(void);

  /* Writes every configuration variable as JSON: name, type, default, value, description. Buffer and return value
   * are as of group_stats(); so they are of all functions below that write JSON or text. */
  int64_t (*describe_environment)(char *json, size_t n);

  /* Tells the peers of all groups that this process leaves, which ends all operations, and waits until their done functions have
   * returned, but no longer than hooks_ns. It is called once, before the process exits. */
  void (*shutdown)(void);

  /* Writes the flight recorder's content as JSON: the last operations of each group and how far they got. It takes no
   * lock that an operation holds while it waits, so it answers while operations hang.
   *   {"groups": [{"id", "group", "lane", "pg_id", "rank", "size", "capacity", "total", "failure"?, "config", "status",
   *     "entries"}]}
   * A group is listed from its creation until it is destroyed, also after it has failed; "id" counts the groups of this
   * process from 1. Once it has used a device it is listed twice, with the operations of its "host" and of its "device"
   * lane. Each lane has a number "pg_id" of its own, and numbers its collectives from 1; in "config" the name of the
   * device lane is that of the group with "/device" behind it. "config", "status" and "entries" are values of "pg_config" and "pg_status" and the list "entries"
   * of torch's format (FlightRecorder.hpp, version 2.10). Entries are in the order of their creation, the newest
   * `capacity` of `total`; "record_id" is 0 and "thread_name" empty; "thread_id" is the caller's pthread_t; a tensor
   * of n elements has the size [n]; p2p operations are numbered from 10^12 on.
   * The capacity is TORCH_FR_BUFFER_SIZE, else TORCH_NCCL_TRACE_BUFFER_SIZE, else 2000, as of the group's creation;
   * with 0 the group does not record and is left out. */
  int64_t (*flight_records)(char *json, size_t n);

  /* Issues several operations at once, as issue() does one. Operations that can share a collective form a batch,
   * which is packed straight into the slots; batches and other operations follow one another. One work stands for
   * all and fails with the failure of the first operation that failed. *sequence becomes the number of the last
   * collective. All ranks make the same collectives in the same order; p2p operations may differ. Operations of one
   * kind, reduction and root that stand next to each other, in any mixture of types, may run in any order, and there
   * is no order between p2p operations and collectives, nor between sends and recvs: none of them may touch memory that
   * another one of them writes, but for a send of a rank to itself and its recv on the same segments. SAGECOMM_ASYNC of
   * the first operation applies to all. If one operation is refused, none is issued. If there is no memory for a later
   * one, the group fails, because other ranks have issued it. With n = 0 the result is OK. With work NULL nothing is
   * issued, and it returns OK, or why it would be refused on this rank. */
  int32_t (*issue_coalesced)(sagecomm_group group, const sagecomm_op *ops, uint32_t n, sagecomm_work *work,
                             uint64_t *sequence, sagecomm_error *err);

  /* Adds sparse tensors: a composite operation, whose work completes once add() of *sum has run. Always asynchronous: returns
   * PENDING, or why the operation was refused; then none of *sum is used any more. *sequence is its number. */
  int32_t (*all_reduce_sparse)(sagecomm_group group, const sagecomm_sparse_sum *sum, sagecomm_work *work,
                               uint64_t *sequence, sagecomm_error *err);

  /* Sets the user's description of the group, for records and metrics. */
  int32_t (*group_describe)(sagecomm_group group, const char *text, sagecomm_error *err);

  /* Returns a number for sagecomm_op.stack that stands for these frames, innermost first, each
   * "file\tline\tfunction\n". The same frames get the same number. 0: the group records no stacks
   * (SAGECOMM_FR_STACKS), or has no room for more. With NULL it reports whether the group records stacks: 1, else 0. */
  uint64_t (*group_stack)(sagecomm_group group, const char *frames);

  /* Writes the flight recorder's content to a file for torch's analyser. Its name is `prefix` followed by the global
   * rank. With NULL, the prefix is that of dumps at failures (SAGECOMM_FR_DUMP). */
  int32_t (*flight_dump)(const char *prefix, sagecomm_error *err);

  /* Writes the statistics of all groups in Prometheus's text format. */
  int64_t (*metrics)(char *text, size_t n);

  /* Writes the state of every rank of all groups, as far as this process sees it, as JSON. It takes no lock that an
   * operation holds.
   *   {"host", "pid", "time_ns", "groups": [{"group", "desc", "rank", "size", "engine", "failure"?, "ranks":
   *     [{"rank", "global_rank", "host", "pid", "state", "issued", "op"?, "since_ns"?, "waits_for"?, "message"?,
   *     "device"?}]}]}
   * "state" says whether the rank is in its last collective, done with it, failed, idle (it has begun none), left or
   * dead. "device" is where it is in the device lane, with "state" to "message", if a rank has used that lane; its state
   * may also be late: the rank's stream has not reached its last collective. "engine" carries out operations on
   * devices. */
  int64_t (*status)(char *json, size_t n);

  /* Registers the failure callback `failed`. It is called once, on a thread of the library with no lock held: with
   * the first cause as soon as this rank knows that the group has failed, whether or not a thread waits; or with
   * NULL if the group is destroyed before that. `ctx` is not used after that call. The callback may call any
   * function of the table. Operations raise the failure when it has returned, or 20 ms after it began,
   * and group_destroy() waits for it as long. Returns OK if the callback will be called. Otherwise the group has failed
   * already, with the returned status, and the callback is never called. A group may have several callbacks. */
  int32_t (*group_on_failure)(sagecomm_group group, sagecomm_failed_fn failed, void *ctx, sagecomm_error *err);

  /* Writes as JSON the processors, memory, devices and links of this host, as its kernel reports them, and which of
   * them this process may use. It needs no group.
   *   {"host": {"name", "boot_id"}, "process": {"cpus", "memory_nodes", "cpu_quota", "device_files"}, "cpu_model",
   *    "memory_bytes", "online", "offline", "packages": [{"id", "cpus", "cores": [{"id", "cpus"}]}],
   *    "caches": [{"level", "bytes", "cpus"}], "nodes": [{"id", "cpus", "memory_bytes", "distances"}],
   *    "accelerators": [{"address", "kind", "vendor", "device", "vendor_name", "driver", "node", "cpus",
   *      "pci_gt_per_s", "bridges"}], "links": [{"kind", "class", "ends": [address, address], "path"}], "no_hccs",
   *    "gpus": {"list": [{"index", "name", "uuid", "address", "memory_bytes", "compute_capability", "node", "cpus",
   *      "nvlinks", "nvlink_version"}], "links": [{"a", "b", "class", "path", "nvlinks", "p2p"}], "why",
   *      "visible": {"setting", "devices": [{"gpu", "instance"}], "why"}},
   *    "rdma": [{"name", "address", "node", "interfaces", "ports": [{"number", "state", "link", "gbps"}]}],
   *    "interfaces": [{"name", "up", "loopback", "mbps", "mtu", "address", "node"}]}
   * "links" are those between accelerators of one maker, without pairs that "gpus" has, and "no_hccs" is why nothing is
   * known of HCCS; "gpus" is what NVIDIA's driver knows, and in it "visible" what the variable CUDA_VISIBLE_DEVICES
   * leaves. Paths have the names of `nvidia-smi topo -m`.
   * Cpus and nodes of memory are lists as the kernel writes them, "0-3,8"; ids of PCI are as in sysfs, "0x10de".
   * Fields that are unknown, false or empty are left out, except "up". */
  int64_t (*topology)(char *json, size_t n);

  /* Like group_error(), for a caller that has made a monitored barrier out of a synchronous SAGECOMM_BARRIER. If the
   * barrier timed out, the message begins with the words that torch's gloo uses. timeout_ns is the timeout of the
   * barrier; with 0 it only looked whether all ranks were there. With `all` those words name every missing rank,
   * else the lowest one; the sentences after them name all in any case. */
  int32_t (*monitored_error)(sagecomm_group group, int64_t timeout_ns, int32_t all, sagecomm_error *err);

  /* Writes as JSON the predicted time of each algorithm of a collective on a described cluster. It needs no group. A
   * call may take many seconds; nothing is kept for the next one. Returns INVALID without a question. The question,
   * JSON as well:
   *   {"cluster": "text of a description", "op": "all_reduce", "bytes", "hosts"?, "method"?}
   * "hosts" replaces the number of hosts in the description, "method" is "simulated" or "closed form";
   * docs/scaling.md has the description. "bytes" are those of the buffer, or of each rank's block. The answer:
   *   {"cluster": {...}, "op", "bytes", "ranks", "predictions": [{"algorithm", "method", "seconds", "messages",
   *   "bytes",
   *     "bus_gb_per_s", "chunk"?, "why"?}]} or {"error": "..."}
   * "messages" and "bytes" of a prediction are those of the rank that sends most. "why" says why there is no
   * prediction. */
  int64_t (*simulate)(const char *question, char *json, size_t n);

  /* Writes as JSON how a group, existing or described, carries out a collective, and why. Returns INVALID without a
   * question. The question, JSON as well:
   *   {"op": "all_reduce", "bytes", "group"?, "ranks"?, "hosts"?, "tune"?, "device"?,
   *     "dtype"?, "reduce"?, "overlap"?: {"seconds", "parts", "threads"}}
   * "group" is a handle. Without it, the settings are those of the environment, or "tune" if the environment has
   * none. "bytes" are as for simulate(). The answer lists candidates by predicted time:
   *   {"op", "bytes", "ranks", "hosts", "table", "candidates": [{"algorithm", "transport", "chunk", "seconds", "steps",
   *     "bytes", "longest", "even", "chosen", "forced", "why"}], "overlap"?, "engine"?, "engines"?, "carrier"?,
   *     "carrier_why"?, "device_links"?} or
   *   {"error": "..."}
   * "steps" and "bytes" of a candidate are the most that one rank has; "longest" is the longest possible chunk;
   * "fusion", in words, says which all_reduces share collectives where SAGECOMM_FUSION applies to the question;
   * candidates with "even" need blocks of equal length; "table" has all ranges in the grammar of SAGECOMM_TUNE. With
   * "device": true the question is about tensors on devices, and the answer has the "engine" that carries them out and
   * "engines": [{"engine", "chosen", "forced", "why"}], the most preferred one first, and "device_links": [{"class",
   * "nvlinks", "pairs", "latency", "gb_per_s"}], the closest first, what the ranks know of links between their devices.
   * "carrier" is the engine that carries out this operation, of the type and reduction with the names "dtype" (float32)
   * and "reduce" (SUM), and "carrier_why" says why it is not "engine"; of AVG and PREMUL_SUM it supposes that the
   * frameworks of all ranks have the kernels for it (sagecomm_bridge). With "device", "op" may be send or recv, which have
   * no candidates. With "overlap" the question is
   * also in how many slices a computation of so many seconds, which has at most so many parts and keeps so many threads
   * of each rank busy (0: a device computes), and the collective hide each other best:
   *   "overlap": {"slices", "whole_seconds", "seconds", "busy", "processors", "why"}
   * with the predicted times without slices and with them, and processors of the host. */
  int64_t (*explain)(const char *question, char *json, size_t n);

  /* Makes an entry of a tuning file (SAGECOMM_TUNE_FILE) from measurements in a group. The entry applies to groups of
   * the same shape on this machine. Returns INVALID without measurements, which are JSON:
   *   {"group", "name", "file", "rows": [{"op", "bytes", "algorithm", "chunk", "seconds", "ratio"}]}
   * "group" is a handle, "file" the present text of the file (empty: there is none) and "name" its name in messages.
   * "chunk" 0 is the one that the group would choose; "ratio" is the time divided by that of the group's own choice
   * in the same rounds. The answer: {"entry": {...}, "file": "text of the file with the entry"} or {"error": "..."} */
  int64_t (*tune)(const char *measurements, char *json, size_t n);

  /* How long callers wait, which have no thresholds of their own. It needs no group. */
  void (*waits)(sagecomm_waits *out);

  /* Returns the number of collectives issued so far in the lane that serves buffers on a type of device
   * (sagecomm_op.device_type), the number of the last one; 0 for a bad handle. */
  uint64_t (*lane_sequence)(sagecomm_group group, uint8_t device_type);

  /* Writes as JSON which vendors' runtimes this process can use, a line of text for each one that it cannot:
   *   [{"name": "cuda", "library": "libcuda.so.1", "devices": 0, "why"?}]
   * "name" is that of the devices in torch. It opens and starts the runtimes, which may forbid a fork afterwards. */
  int64_t (*describe_devices)(char *json, size_t n);

  /* Makes a unique id, at which the ranks of one group meet that have no store. This process serves the store of the id over
   * TCP until all ranks have joined, and where they are on several hosts as long as their group lives, or until the process
   * ends. No rank has to be in it; but then keep it until the joins of all ranks have returned. Ranks of other hosts need
   * SAGECOMM_SOCKET_IFNAME, or a MASTER_ADDR that is not of loopback, in this process. The id
   * contains a secret: whoever has it can join. An id that nobody uses costs a few hundred bytes; the oldest of more than 1024 is dropped. */
  int32_t (*unique_id)(uint8_t id[SAGECOMM_ID_BYTES], sagecomm_error *err);

  /* Creates groups as group_create() does, whose ranks meet at unique ids. One call can make several ranks of a group, which
   * are then in this process, and ranks of several groups: all of them join at the same time. Ranks of a group may also be
   * joined by calls of several threads. On an error no group was made and *groups is not changed. In the process that made
   * the id it returns only when no other rank needs the store any more, so the process may end behind it. */
  int32_t (*group_join)(const sagecomm_join *joins, uint32_t n, sagecomm_group *groups, sagecomm_error *err);

  /* Creates groups of the ranks of a parent that have the same color. All ranks of the parent call it, whatever their
   * color; it is no operation of the parent and waits for none. groups[i] becomes 0 for a rank without a group. One call can
   * serve several ranks of this process, whose groups are made at the same time. On an error no group was made. */
  int32_t (*group_split)(const sagecomm_child *children, uint32_t n, sagecomm_group *groups, sagecomm_error *err);

  /* Creates groups of the ranks of a parent without those of `left_out`, in the order of the parent, or of `members`. The ranks that
   * stay call it, all with the same list; the others do not, and may have died. The parent must have been made by group_join(),
   * group_split() or group_shrink(). It may have failed, and stays as it is, unless operations of it are aborted. Otherwise as group_split(). */
  int32_t (*group_shrink)(const sagecomm_child *children, uint32_t n, sagecomm_group *groups, sagecomm_error *err);

  /* Finds out where memory is: *device_type and *device_index become those of sagecomm_op. Memory that no vendor's runtime
   * knows as a device's is of the host, pinned memory included. It asks runtimes that this process has loaded already. */
  int32_t (*locate)(const void *pointer, uint8_t *device_type, int32_t *device_index, sagecomm_error *err);

  /* Reads one element of a type that can be reduced (not a complex one), in host memory or in that of a device, as
   * sagecomm_op.factor takes it. On a device it reads what the element is once the commands are done that `stream` holds now, and waits for
   * them on the host; a stream that is being captured is refused. */
  int32_t (*read_factor)(const void *pointer, uint8_t dtype, void *stream, double *factor, sagecomm_error *err);

  /* Returns this process's rank in a group and the number of its ranks. */
  int32_t (*group_place)(sagecomm_group group, int32_t *rank, int32_t *size, sagecomm_error *err);

  /* Waits until the operations that were issued are complete, as long as group_destroy() does, and returns how that ended: the failure
   * of the group, SAGECOMM_TIMEOUT if operations are not complete, or OK. */
  int32_t (*group_finish)(sagecomm_group group, sagecomm_error *err);

  /* Makes every operation of the group, here and on every rank, fail with this rank as the culprit, because its caller cannot go on as
   * the peers do. Of `fault` it reads `status`, which is SYSTEM or INTERNAL, `op` and `sequence` of the operation, which may be empty and 0, and
   * `message`, the reason, which the text of the failure ends with. The operation is of the lane for a type of device (sagecomm_op.device_type).
   * A group that has failed before keeps its first cause, which group_error() returns. One that is destroyed is refused. */
  int32_t (*group_fail)(sagecomm_group group, const sagecomm_error *fault, uint8_t device_type, sagecomm_error *err);

  /* Ends this rank's part of a group at once, for a caller that destroys the group next, as NCCL's abort does. If operations of this rank
   * are not complete, if it takes part in a split, or if graphs that were not destroyed have operations of the group, this is
   * group_abort(). Else it destroys the group, whose handle is not valid any more: a peer fails only if it needs this rank later. */
  int32_t (*group_leave)(sagecomm_group group, const char *reason, sagecomm_error *err);

  /* Reports whether the caller is to wait on the host for operations on devices, also where streams can wait for them
   * (SAGECOMM_BLOCKING_WAIT): 1, else 0; 0 for a bad handle. */
  int32_t (*group_blocking_wait)(sagecomm_group group);

  /* Returns 1 if a group_shrink() has aborted the group that this rank has called too, with the same ranks that stay; else 0, or the status of
   * an error. */
  int32_t (*group_shrunk)(sagecomm_group group, sagecomm_error *err);

  /* Waits until the operations that were issued are complete, but for slice_ns at most, so that a caller can look for signals. `how` is one of
   * SAGECOMM_SETTLE_*. The caller calls this until it returns something else than SAGECOMM_PENDING, and then group_destroy(), which gives up at
   * once what is left. Returns OK when nothing is left to wait for, in a group that has failed too, or INVALID if there is no such group any
   * more. */
  int32_t (*group_settle)(sagecomm_group group, int64_t slice_ns, int32_t how, sagecomm_error *err);

  /* Returns 1 if something of this rank is outstanding: operations that are not complete, a split, or graphs that were
   * not destroyed and have operations of the group; also 1 in a group that has failed; else 0, or the status of an
   * error. It waits for them for 200 ms at most, since the host learns a little later that a stream has ended an
   * operation. group_leave() asks the same. */
  int32_t (*group_outstanding)(sagecomm_group group, sagecomm_error *err);

  /* Returns 1 if the operation is complete or the handle is not valid, which in a forked child none is, else 0. Threads of the
   * library then go on with what its caller may have left to a wait(), as MPI_Test does. Unlike wait(), it never calls a done
   * function. For callers that poll. Requires: no other thread releases the work meanwhile. */
  int32_t (*test)(sagecomm_work work);
} sagecomm_api;

/* Returns the function table of that ABI version, or NULL if the library does not support it. It starts no thread. */
const sagecomm_api *sagecomm_get_api(uint32_t abi_version);

#ifdef __cplusplus
}
#endif

#endif /* SAGECOMM_H */
