/* driver.c: see driver.h. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#define DECLARE(name, parameters) static CUresult(*name) parameters;
CUDA_FUNCTIONS(DECLARE)

static const char *missing;
static char reason[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(reason, sizeof reason, "no CUDA driver: %s", dlerror());
    missing = reason;
    return;
  }
#define LOOK_UP(name, parameters)                                                                  \
  *(void **)(void *)&name = dlsym(library, #name);                                                 \
  if (name == NULL && missing == NULL) {                                                           \
    snprintf(reason, sizeof reason, "the CUDA driver has no %s: it is older than CUDA 12", #name); \
    missing = reason;                                                                              \
  }
  CUDA_FUNCTIONS(LOOK_UP)
  if (missing != NULL) return;
  const char *name = "an unknown error";
  CUresult rc = cuInit(0);
  if (rc == 0) return;
  cuGetErrorName(rc, &name);
  snprintf(reason, sizeof reason, "the CUDA driver does not start: cuInit: %s", name);
  missing = reason;
}

const char *cuda_load(void) {
  pthread_once(&once, load);
  return missing;
}

/* ---- the context of a device ---- */

#define MOST_DEVICES 64

static struct {
  pthread_mutex_t lock;
  CUcontext context[MOST_DEVICES]; /* primary contexts, kept as long as the process lives */
} devices = {.lock = PTHREAD_MUTEX_INITIALIZER};

static CUresult enter(int device) {
  if (device < 0 || device >= MOST_DEVICES) return 101; /* CUDA_ERROR_INVALID_DEVICE */
  pthread_mutex_lock(&devices.lock);
  CUresult rc = 0;
  if (devices.context[device] == NULL) {
    CUdevice handle;
    rc = cuDeviceGet(&handle, device);
    if (rc == 0) rc = cuDevicePrimaryCtxRetain(&devices.context[device], handle);
  }
  CUcontext context = devices.context[device];
  pthread_mutex_unlock(&devices.lock);
  return rc ? rc : cuCtxPushCurrent_v2(context);
}

static CUresult leave(CUresult rc, const char **why) {
  CUcontext own;
  if (rc == 0) return cuCtxPopCurrent_v2(&own);
  *why = "an unknown error";
  cuGetErrorName(rc, why);
  cuCtxPopCurrent_v2(&own);
  return rc;
}

static CUresult outside(CUresult rc, const char **why) {
  *why = "an unknown error";
  cuGetErrorName(rc, why);
  return rc;
}

#define ON_DEVICE(call)            \
  CUresult rc = enter(device);     \
  if (rc) return outside(rc, why); \
  return leave(call, why)

/* ---- calls ---- */

static CUresult make_stream(int role, CUstream *stream) {
  int least = 0, greatest = 0; /* the greatest priority is the smallest number */
  CUresult rc = cuCtxGetStreamPriorityRange(&least, &greatest);
  if (rc) return rc;
  int priority = greatest + (role != 0);
  return cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, priority < least ? priority : greatest);
}

CUresult cuda_make_stream(int device, int role, CUstream *stream, const char **why) {
  ON_DEVICE(make_stream(role, stream));
}

CUresult cuda_pin(int device, size_t bytes, void **memory, const char **why) {
  ON_DEVICE(cuMemHostAlloc(memory, bytes, CU_MEMHOSTALLOC_PORTABLE));
}

CUresult cuda_unpin(int device, void *memory, const char **why) { ON_DEVICE(cuMemFreeHost(memory)); }

/* A wait refers to the record that is the newest when it is queued, and an event may be destroyed while one is pending. */
static CUresult order(CUstream first, CUstream then) {
  CUevent event;
  CUresult rc = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (rc) return rc;
  rc = cuEventRecord(event, first);
  if (rc == 0) rc = cuStreamWaitEvent(then, event, 0);
  CUresult destroyed = cuEventDestroy_v2(event);
  return rc ? rc : destroyed;
}

CUresult cuda_order(int device, CUstream first, CUstream then, const char **why) { ON_DEVICE(order(first, then)); }

CUresult cuda_capturing(int device, CUstream stream, int *status, const char **why) {
  ON_DEVICE(cuStreamIsCapturing(stream, status));
}

CUresult cuda_copy_in(int device, CUstream stream, void *to, CUdeviceptr from, size_t bytes, const char **why) {
  ON_DEVICE(cuMemcpyDtoHAsync_v2(to, from, bytes, stream));
}

CUresult cuda_copy_out(int device, CUstream stream, CUdeviceptr to, const void *from, size_t bytes, const char **why) {
  ON_DEVICE(cuMemcpyHtoDAsync_v2(to, from, bytes, stream));
}

/* Pinned memory has the same address on the device: all of it is portable, in a unified address space. */
CUresult cuda_write_value(int device, CUstream stream, uint32_t *word, uint32_t value, const char **why) {
  ON_DEVICE(cuStreamWriteValue32_v2(stream, (CUdeviceptr)(uintptr_t)word, value, 0));
}

CUresult cuda_wait_value(int device, CUstream stream, uint32_t *word, uint32_t value, const char **why) {
  ON_DEVICE(cuStreamWaitValue32_v2(stream, (CUdeviceptr)(uintptr_t)word, value, CU_STREAM_WAIT_VALUE_GEQ));
}
