/* cncl.h declares what this library calls of CNCL, libcncl.so. The declarations are our own. Each row names the group of cncl.h
 * 1.25.0, which Cambricon publishes with a permissive licence, where the function stands; counts are elements. Lines move from
 * release to release; groups stay.
 *
 * Addresses of devices, queues and communicators are numbers here, because Go's garbage collector may take a pointer for one into
 * its heap. All functions return cnclResult_t, an int, 0 for success. */
#ifndef SAGECOMM_CNCL_H
#define SAGECOMM_CNCL_H

#include <stddef.h>
#include <stdint.h>

/* struct cnclCliqueId */
typedef struct cncl_id {
  char data[128];
  uint64_t hash;
} cncl_id;

/* Of cnclGetCommAsyncError(), which returns the state itself: CNCL_RET_ASYNC_IN_PROGRESS */
enum { cncl_in_progress = 0x06 };

#define CNCL_FUNCTIONS(X)                                                                                              \
  X(cnclGetCliqueId, (void *id), (id)) /* Communication Context Management */                                          \
  X(cnclInitComms, (uintptr_t *comms, int n, const int *devices, const int *ranks, int size, const void *id),          \
    (comms, n, devices, ranks, size, id))            /* Communication Context Management */                            \
  X(cnclFreeComm, (uintptr_t comm), (comm))          /* Communication Context Management */                            \
  X(cnclAbortComm, (uintptr_t comm), (comm))         /* Communication Context Management */                            \
  X(cnclGetCommAsyncError, (uintptr_t comm), (comm)) /* Error Handling */                                              \
  X(cnclGroupStart, (void), ())                      /* Group Operations */                                            \
  X(cnclGroupEnd, (void), ())                        /* Group Operations */                                            \
  X(cnclAllReduce,                                                                                                     \
    (uintptr_t from, uintptr_t to, size_t count, int32_t type, int32_t op, uintptr_t comm, uintptr_t queue),           \
    (from, to, count, type, op, comm, queue)) /* Collective Communication */                                           \
  X(cnclBroadcast,                                                                                                     \
    (uintptr_t from, uintptr_t to, size_t count, int32_t type, int root, uintptr_t comm, uintptr_t queue),             \
    (from, to, count, type, root, comm, queue)) /* Collective Communication */                                         \
  X(cnclReduce,                                                                                                        \
    (uintptr_t from, uintptr_t to, size_t count, int32_t type, int32_t op, int root, uintptr_t comm, uintptr_t queue), \
    (from, to, count, type, op, root, comm, queue)) /* Collective Communication */                                     \
  X(cnclAllGather, (uintptr_t from, uintptr_t to, size_t count, int32_t type, uintptr_t comm, uintptr_t queue),        \
    (from, to, count, type, comm, queue)) /* Collective Communication */                                               \
  X(cnclReduceScatter,                                                                                                 \
    (uintptr_t from, uintptr_t to, size_t count, int32_t type, int32_t op, uintptr_t comm, uintptr_t queue),           \
    (from, to, count, type, op, comm, queue)) /* Collective Communication */                                           \
  X(cnclSend, (uintptr_t at, size_t count, int32_t type, int peer, uintptr_t comm, uintptr_t queue),                   \
    (at, count, type, peer, comm, queue)) /* Point-to-Point Communication */                                           \
  X(cnclRecv, (uintptr_t at, size_t count, int32_t type, int peer, uintptr_t comm, uintptr_t queue),                   \
    (at, count, type, peer, comm, queue)) /* Point-to-Point Communication */

/* This project's own library with the interface of CNCL has this symbol. It calls the engine, so the engine must not call it. */
#define CNCL_FACADE "sagecomm_cncl_facade"

#define X(name, parameters, arguments) int32_t(*name) parameters;
typedef struct cncl_table {
  CNCL_FUNCTIONS(X)
  const char *(*cnclGetErrorStr)(int32_t); /* Error Handling */
  void *facade;
} cncl_table;
#undef X

/* The functions of the library, each of type void *, and their names in the same order; the facade comes last. */
extern cncl_table cncl;
extern const char *const cncl_names[];
extern const size_t cncl_functions;

/* call_NAME() calls a function. Requires: the library was opened and has all functions. */
#define X(name, parameters, arguments) \
  static inline int32_t call_##name parameters { return cncl.name arguments; }
CNCL_FUNCTIONS(X)
#undef X

static inline const char *call_cnclGetErrorStr(int32_t code) { return cncl.cnclGetErrorStr(code); }

#endif
