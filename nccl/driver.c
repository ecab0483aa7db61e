/* driver.c: functions of CUDA's driver, by name, where the process has loaded it. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "driver.h"

/* Name, parameters. All return 0 or the number of an error. */
#define FUNCTIONS(X)                                       \
  X(cuCtxGetCurrent, (void **))                            \
  X(cuCtxSetCurrent, (void *))                             \
  X(cuCtxGetDevice, (int *))                               \
  X(cuDevicePrimaryCtxRetain, (void **, int))              \
  X(cuDevicePrimaryCtxGetState, (int, unsigned *, int *))  \
  X(cuMemAlloc_v2, (uintptr_t *, size_t))                  \
  X(cuMemFree_v2, (uintptr_t))                             \
  X(cuMemcpyAsync, (uintptr_t, uintptr_t, size_t, void *)) \
  X(cuStreamSynchronize, (void *))                         \
  X(cuStreamIsCapturing, (void *, int *))                  \
  X(cuEventCreate, (void **, unsigned))                    \
  X(cuEventRecord, (void *, void *))                       \
  X(cuStreamWaitEvent, (void *, void *, unsigned))         \
  X(cuEventDestroy_v2, (void *))

enum { CU_SUCCESS = 0, CU_NOT_SUPPORTED = 801, CU_EVENT_DISABLE_TIMING = 2 };

static struct {
#define FIELD(name, parameters) int(*name) parameters;
  FUNCTIONS(FIELD)
#undef FIELD
} driver;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool opened;
static uint64_t loads; /* when the library was looked for last */

static bool find_all(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == NULL) return false;
#define FIND(name, parameters)                    \
  *(void **)&driver.name = dlsym(library, #name); \
  if (driver.name == NULL) return false;
  FUNCTIONS(FIND)
#undef FIND
  return true;
}

bool driver_present(void) {
  pthread_mutex_lock(&opening);
  if (!opened && loads_since(&loads)) opened = find_all(); /* again and again: a program may load the driver later */
  bool answer = opened;
  pthread_mutex_unlock(&opening);
  return answer;
}

void *driver_context(void) {
  void *context = NULL;
  return driver_present() && driver.cuCtxGetCurrent(&context) == CU_SUCCESS ? context : NULL;
}

/* A device is its number here, as in CUDA's runtime. Its context stays until the process ends. */
void *driver_context_of(int device) {
  void *context = NULL;
  return driver_present() && driver.cuDevicePrimaryCtxRetain(&context, device) == CU_SUCCESS ? context : NULL;
}

bool driver_is_used(int device) {
  unsigned flags = 0;
  int active = 0;
  return driver_present() && driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CU_SUCCESS && active != 0;
}

void *driver_enter(void *context) {
  if (context == NULL) return NULL;
  void *before = driver_context();
  if (before != context) driver.cuCtxSetCurrent(context);
  return before;
}

void driver_leave(void *before, void *context) {
  if (context != NULL && before != context) driver.cuCtxSetCurrent(before);
}

int driver_device(void) {
  int device = -1;
  return driver_context() != NULL && driver.cuCtxGetDevice(&device) == CU_SUCCESS ? device : -1;
}

int driver_allocate(void **memory, size_t bytes) {
  uintptr_t at = 0;
  int code = driver.cuMemAlloc_v2(&at, bytes);
  *memory = (void *)at;
  return code;
}

int driver_free(void *memory) { return driver.cuMemFree_v2((uintptr_t)memory); }

int driver_copy(void *to, const void *from, size_t bytes, void *stream) {
  if (!driver_present()) return CU_NOT_SUPPORTED;
  return driver.cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, stream);
}

int driver_synchronize(void *stream) {
  return driver_context() == NULL ? CU_SUCCESS : driver.cuStreamSynchronize(stream);
}

int driver_order(void *first, void *then) {
  void *event = NULL;
  if (!driver_present()) return CU_NOT_SUPPORTED;
  int code = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (code != CU_SUCCESS) return code;
  code = driver.cuEventRecord(event, first);
  if (code == CU_SUCCESS) code = driver.cuStreamWaitEvent(then, event, 0);
  driver.cuEventDestroy_v2(event); /* the driver keeps it until the wait is done */
  return code;
}

bool driver_captures(void *stream) {
  int status = 0;
  if (driver_context() == NULL) return false;
  return driver.cuStreamIsCapturing(stream, &status) != CU_SUCCESS ||
         status != 0; /* an error: it cannot be waited for */
}
