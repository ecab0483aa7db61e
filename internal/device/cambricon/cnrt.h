/* cnrt.h declares what this library calls of CNRT, libcnrt.so. The declarations are our own. Each row names the group of cnrt.h
 * 6.14.1, which Cambricon publishes with a permissive licence, where the function stands; 6.0.2 has them all. Lines move from
 * release to release; groups stay.
 *
 * Addresses of devices, queues and notifiers are numbers here, because Go's garbage collector may take a pointer for one into its
 * heap. All functions return cnrtRet_t, an int, 0 for success. */
#ifndef SAGECOMM_CNRT_H
#define SAGECOMM_CNRT_H

#include <stddef.h>
#include <stdint.h>

#define CNRT_FUNCTIONS(X)                                                                                            \
  X(cnrtGetDeviceCount, (unsigned *count), (count)) /* Device Management */                                          \
  X(cnrtGetDevice, (int *device), (device))         /* Device Management */                                          \
  X(cnrtSetDevice, (int device), (device))          /* Device Management */                                          \
  X(cnrtQueueCreate, (uintptr_t *queue), (queue))   /* Queue Management */                                           \
  X(cnrtQueueWaitNotifier, (uintptr_t notifier, uintptr_t queue, unsigned flag),                                     \
    (notifier, queue, flag))                                                               /* Queue Management */    \
  X(cnrtNotifierCreateWithFlags, (uintptr_t *notifier, unsigned flags), (notifier, flags)) /* Notifier Management */ \
  X(cnrtPlaceNotifier, (uintptr_t notifier, uintptr_t queue), (notifier, queue))           /* Notifier Management */ \
  X(cnrtNotifierDestroy, (uintptr_t notifier), (notifier))                                 /* Notifier Management */ \
  X(cnrtHostMalloc, (void **memory, size_t bytes), (memory, bytes))                        /* Memory Management */   \
  X(cnrtMemcpyAsync_V2, (uintptr_t to, uintptr_t from, size_t bytes, uintptr_t queue, int direction),                \
    (to, from, bytes, queue, direction))                                             /* Memory Management */         \
  X(cnrtMalloc, (uintptr_t *memory, size_t bytes), (memory, bytes))                  /* Memory Management */         \
  X(cnrtFree, (uintptr_t memory), (memory))                                          /* Memory Management */         \
  X(cnrtDeviceGetPCIBusId, (char *id, int length, int device), (id, length, device)) /* Device Management */         \
  X(cnrtInvokeHostFunc, (uintptr_t queue, void (*function)(void *), void *argument),                                 \
    (queue, function, argument)) /* Execution Control Management */

enum {
  cnrt_notifier_disable_timing_all = 0x4, /* cnrtNotifierFlags_t */
  cnrt_memcpy_host_to_dev = 0,            /* cnrtMemTransDir_t: not the order of other runtimes */
  cnrt_memcpy_dev_to_dev = 1,
  cnrt_memcpy_dev_to_host = 2,
};

#define X(name, parameters, arguments) int32_t(*name) parameters;
typedef struct cnrt_table {
  CNRT_FUNCTIONS(X)
} cnrt_table;
#undef X

/* The functions of the library, each of type void *, and their names in the same order. */
extern cnrt_table cnrt;
extern const char *const cnrt_names[];
extern const size_t cnrt_functions;

/* call_NAME() calls a function. Requires: the library was opened and has all functions. */
#define X(name, parameters, arguments) \
  static inline int32_t call_##name parameters { return cnrt.name arguments; }
CNRT_FUNCTIONS(X)
#undef X

/* Queues a host function that stores a value to a word, behind what the queue holds. */
int32_t cnrt_store(uintptr_t queue, uint32_t *word, uint32_t value);

#endif
