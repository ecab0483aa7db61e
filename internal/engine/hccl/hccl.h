/* hccl.h declares what this library calls of HCCL, libhccl.so. The declarations are our own. Each row names the line of
 * third_party/hccl/inc/hccl/hccl.h at commit 9e73e708 of github.com/Ascend/pytorch that it follows; counts are elements.
 *
 * Addresses of devices, streams and communicators are numbers here, because Go's garbage collector may take a pointer for one into
 * its heap. All functions return HcclResult, an int, 0 for success. */
#ifndef SAGECOMM_HCCL_H
#define SAGECOMM_HCCL_H

#include <stddef.h>
#include <stdint.h>

enum { hccl_root_bytes = 4108 }; /* hccl_types.h:104 */

/* HcclSendRecvItem, hccl_types.h:174 */
typedef struct hccl_item {
  int32_t type; /* hccl_send, hccl_recv */
  uintptr_t at;
  uint64_t count;
  int32_t of;
  uint32_t peer;
} hccl_item;

enum { hccl_send = 0, hccl_recv = 1 }; /* hccl_types.h:168 */

#define HCCL_FUNCTIONS(X)                                                                                          \
  X(HcclGetRootInfo, (void *root), (root)) /* :67 */                                                               \
  X(HcclCommInitRootInfo, (uint32_t ranks, const void *root, uint32_t rank, uintptr_t *comm),                      \
    (ranks, root, rank, comm))                                                /* :79 */                            \
  X(HcclCommDestroy, (uintptr_t comm), (comm))                                /* :28 */                            \
  X(HcclGetCommAsyncError, (uintptr_t comm, int32_t *result), (comm, result)) /* :388 */                           \
  X(HcclAllReduce,                                                                                                 \
    (uintptr_t from, uintptr_t to, uint64_t count, int32_t type, int32_t op, uintptr_t comm, uintptr_t stream),    \
    (from, to, count, type, op, comm, stream)) /* :131 */                                                          \
  X(HcclBroadcast, (uintptr_t at, uint64_t count, int32_t type, uint32_t root, uintptr_t comm, uintptr_t stream),  \
    (at, count, type, root, comm, stream)) /* :146 */                                                              \
  X(HcclReduce,                                                                                                    \
    (uintptr_t from, uintptr_t to, uint64_t count, int32_t type, int32_t op, uint32_t root, uintptr_t comm,        \
     uintptr_t stream),                                                                                            \
    (from, to, count, type, op, root, comm, stream)) /* :360 */                                                    \
  X(HcclAllGather, (uintptr_t from, uintptr_t to, uint64_t count, int32_t type, uintptr_t comm, uintptr_t stream), \
    (from, to, count, type, comm, stream)) /* :211 */                                                              \
  X(HcclReduceScatter,                                                                                             \
    (uintptr_t from, uintptr_t to, uint64_t count, int32_t type, int32_t op, uintptr_t comm, uintptr_t stream),    \
    (from, to, count, type, op, comm, stream)) /* :162 */                                                          \
  X(HcclBatchSendRecv, (hccl_item * items, uint32_t n, uintptr_t comm, uintptr_t stream),                          \
    (items, n, comm, stream)) /* :403 */

/* This project's own library with the interface of HCCL has this symbol. It calls the engine, so the engine must not call it. */
#define HCCL_FACADE "sagecomm_hccl_facade"

#define X(name, parameters, arguments) int32_t(*name) parameters;
typedef struct hccl_table {
  HCCL_FUNCTIONS(X)
  const char *(*HcclGetErrorString)(int32_t); /* :394 */
  void *facade;
} hccl_table;
#undef X

/* The functions of the library, each of type void *, and their names in the same order; the facade comes last. */
extern hccl_table hccl;
extern const char *const hccl_names[];
extern const size_t hccl_functions;

/* call_NAME() calls a function. Requires: the library was opened and has all functions. */
#define X(name, parameters, arguments) \
  static inline int32_t call_##name parameters { return hccl.name arguments; }
HCCL_FUNCTIONS(X)
#undef X

static inline const char *call_HcclGetErrorString(int32_t code) { return hccl.HcclGetErrorString(code); }

#endif
