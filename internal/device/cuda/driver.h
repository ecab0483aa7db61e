/* driver.h: the functions of the CUDA driver that the library calls. They are looked up in libcuda.so.1 when the first operation
 * needs them, so the library neither links the driver nor needs its header. Types and constants are those of cuda.h. */
#ifndef SAGECOMM_CUDA_DRIVER_H
#define SAGECOMM_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

enum {
  CU_STREAM_NON_BLOCKING = 1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_MEMHOSTALLOC_PORTABLE = 1,
  CU_STREAM_WAIT_VALUE_GEQ = 0,
  CU_STREAM_CAPTURE_STATUS_NONE = 0
};

/* Each entry is a type of result, a name as it is linked, and the parameters. */
#define CUDA_FUNCTIONS(X)                                                                       \
  X(cuInit, (unsigned flags))                                                                   \
  X(cuGetErrorName, (CUresult error, const char **name))                                        \
  X(cuDeviceGet, (CUdevice * device, int ordinal))                                              \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                           \
  X(cuCtxPushCurrent_v2, (CUcontext context))                                                   \
  X(cuCtxPopCurrent_v2, (CUcontext * context))                                                  \
  X(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                              \
  X(cuMemFreeHost, (void *memory))                                                              \
  X(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))          \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))    \
  X(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))              \
  X(cuCtxGetStreamPriorityRange, (int *least, int *greatest))                                   \
  X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                        \
  X(cuStreamIsCapturing, (CUstream stream, int *status))                                        \
  X(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags))  \
  X(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags)) \
  X(cuEventCreate, (CUevent * event, unsigned flags))                                           \
  X(cuEventDestroy_v2, (CUevent event))                                                         \
  X(cuEventRecord, (CUevent event, CUstream stream))

/* Loads the driver once. Returns NULL, or why there is none. */
const char *cuda_load(void);

/* The functions below make the device's primary context current for their calls and give back the thread's own context
 * afterwards. They return 0, or the driver's error, whose name goes to `why`. */
/* Makes a stream of the greatest priority for role 0, of the next one for role 1. Streams of different priorities do not share a
 * queue of the hardware. A device with two priorities has one for both roles: the lesser one is that of other streams. */
CUresult cuda_make_stream(int device, int role, CUstream *stream, const char **why);
CUresult cuda_pin(int device, size_t bytes, void **memory, const char **why);
CUresult cuda_unpin(int device, void *memory, const char **why);
/* `then` waits for what `first` holds now. */
CUresult cuda_order(int device, CUstream first, CUstream then, const char **why);
CUresult cuda_capturing(int device, CUstream stream, int *status, const char **why);
CUresult cuda_copy_in(int device, CUstream stream, void *to, CUdeviceptr from, size_t bytes, const char **why);
CUresult cuda_copy_out(int device, CUstream stream, CUdeviceptr to, const void *from, size_t bytes, const char **why);
CUresult cuda_write_value(int device, CUstream stream, uint32_t *word, uint32_t value, const char **why);
CUresult cuda_wait_value(int device, CUstream stream, uint32_t *word, uint32_t value, const char **why);

#endif
