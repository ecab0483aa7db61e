/* acl.h declares what this library calls of AscendCL, libascendcl.so. The declarations are our own. Each row names the line of
 * include/external/acl/acl_rt.h at commit 681ef761 of github.com/hicann/runtime that it follows.
 *
 * Addresses of devices, streams, events and contexts are numbers here, because Go's garbage collector may take a pointer for
 * one into its heap. All functions return aclError, an int, 0 for success. */
#ifndef SAGECOMM_ACL_H
#define SAGECOMM_ACL_H

#include <stddef.h>
#include <stdint.h>

#define ACL_NEEDED(X)                                                                                            \
  X(aclInit, (const char *config), (config))                 /* :1091 */                                         \
  X(aclrtGetDeviceCount, (uint32_t *count), (count))         /* :1692 */                                         \
  X(aclrtSetDevice, (int32_t device), (device))              /* :1549 */                                         \
  X(aclrtGetCurrentContext, (uintptr_t *context), (context)) /* :1477 */                                         \
  X(aclrtSetCurrentContext, (uintptr_t context), (context))  /* :1459 */                                         \
  X(aclrtCreateStreamWithConfig, (uintptr_t *stream, uint32_t priority, uint32_t flag),                          \
    (stream, priority, flag))                                                        /* :2759 */                 \
  X(aclrtSynchronizeStreamWithTimeout, (uintptr_t stream, int32_t ms), (stream, ms)) /* :2822 */                 \
  X(aclrtCreateEventExWithFlag, (uintptr_t *event, uint32_t flag), (event, flag))    /* :1727 */                 \
  X(aclrtRecordEvent, (uintptr_t event, uintptr_t stream), (event, stream))          /* :1759 */                 \
  X(aclrtStreamWaitEvent, (uintptr_t stream, uintptr_t event), (stream, event))      /* :2872 */                 \
  X(aclrtDestroyEvent, (uintptr_t event), (event))                                   /* :1747 */                 \
  X(aclrtMallocHost, (void **memory, size_t bytes), (memory, bytes))                 /* :2184 */                 \
  X(aclrtFreeHost, (void *memory), (memory))                                         /* :2217 */                 \
  X(aclrtHostRegister, (void *memory, uint64_t bytes, int32_t type, uintptr_t *device),                          \
    (memory, bytes, type, device)) /* :2052 */                                                                   \
  X(aclrtMemcpyAsync, (uintptr_t to, size_t room, uintptr_t from, size_t bytes, int32_t kind, uintptr_t stream), \
    (to, room, from, bytes, kind, stream)) /* :2311 */                                                           \
  X(aclrtValueWrite, (uintptr_t at, uint64_t value, uint32_t flag, uintptr_t stream),                            \
    (at, value, flag, stream)) /* :3804 */                                                                       \
  X(aclrtValueWait, (uintptr_t at, uint64_t value, uint32_t flag, uintptr_t stream),                             \
    (at, value, flag, stream)) /* :3816 */

/* A release without the first has no captures; without the next three its devices take no kernels of HCCL from this library;
 * without the last it does not tell what is memory of a device. */
#define ACL_OPTIONAL(X)                                                                                    \
  X(aclmdlRICaptureGetInfo, (uintptr_t stream, int32_t *status, uintptr_t *model),                         \
    (stream, status, model))                                                                   /* :4721 */ \
  X(aclrtMalloc, (uintptr_t *memory, size_t bytes, int32_t policy), (memory, bytes, policy))   /* :1905 */ \
  X(aclrtFree, (uintptr_t memory), (memory))                                                   /* :2164 */ \
  X(aclrtGetPhyDevIdByLogicDevId, (int32_t device, int32_t *physical), (device, physical))     /* :5143 */ \
  X(aclrtPointerGetAttributes, (uintptr_t memory, acl_location *location), (memory, location)) /* :2006 */

enum {
  acl_repeat_initialize = 100002,      /* acl_base_rt.h:69, ACL_ERROR_REPEAT_INITIALIZE */
  acl_stream_fast_launch = 0x1,        /* :36 */
  acl_stream_fast_sync = 0x2,          /* :37 */
  acl_event_sync = 0x1,                /* :28 */
  acl_memcpy_host_to_device = 1,       /* :146 */
  acl_memcpy_device_to_host = 2,       /* :147 */
  acl_memcpy_device_to_device = 3,     /* :148 */
  acl_mem_malloc_huge_first = 0,       /* :178 */
  acl_location_device = 1,             /* :316 */
  acl_location_managed = 3,            /* :318 */
  acl_host_register_mapped = 0,        /* :192 */
  acl_stream_wait_value_geq = 0,       /* :43: (int64_t)(*at - value) >= 0 */
  acl_model_ri_capture_status_none = 0 /* :414 */
};

typedef struct acl_location { /* aclrtPtrAttributes, :327 */
  uint32_t device;
  int32_t kind; /* acl_location_ ... */
  uint32_t page_bytes, reserved[4];
} acl_location;

#define X(name, parameters, arguments) int32_t(*name) parameters;
typedef struct acl_table {
  ACL_NEEDED(X) ACL_OPTIONAL(X)
} acl_table;
#undef X

/* The functions of the library by their names, each of type void *; NULL for one that the library does not have. */
extern acl_table acl;
/* The names of the functions in the order of the table, and how many of them are needed: they come first. */
extern const char *const acl_names[];
extern const size_t acl_functions, acl_needed;

/* call_NAME() calls a function. Requires: the library has it. */
#define X(name, parameters, arguments) \
  static inline int32_t call_##name parameters { return acl.name arguments; }
ACL_NEEDED(X) ACL_OPTIONAL(X)
#undef X

#endif
