/* driver.c: functions of AscendCL, by name, where the process has loaded it. Each row names the line of
 * include/external/acl/acl_rt.h at commit 681ef761 of github.com/hicann/runtime that it follows. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "../facade/facade.h"

/* Name, parameters. All return 0 or the number of an error. */
#define FUNCTIONS(X)                                                                       \
  X(aclrtGetDevice, (int32_t *))                                               /* :1618 */ \
  X(aclrtSetDevice, (int32_t))                                                 /* :1549 */ \
  X(aclrtGetCurrentContext, (void **))                                         /* :1477 */ \
  X(aclrtSetCurrentContext, (void *))                                          /* :1459 */ \
  X(aclrtMemcpyAsync, (void *, size_t, const void *, size_t, int32_t, void *)) /* :2311 */ \
  X(aclrtSynchronizeStreamWithTimeout, (void *, int32_t))                      /* :2822 */ \
  X(aclrtCreateEventExWithFlag, (void **, uint32_t))                           /* :1727 */ \
  X(aclrtRecordEvent, (void *, void *))                                        /* :1759 */ \
  X(aclrtStreamWaitEvent, (void *, void *))                                    /* :2872 */ \
  X(aclrtDestroyEvent, (void *))                                               /* :1747 */

enum {
  DEVICE_TO_DEVICE = 3, /* :148, ACL_MEMCPY_DEVICE_TO_DEVICE */
  EVENT_SYNC = 1,       /* :28, ACL_EVENT_SYNC */
  NOT_SUPPORTED = 207000
};

static struct {
#define FIELD(name, parameters) int32_t(*name) parameters;
  FUNCTIONS(FIELD)
#undef FIELD
  int32_t (*aclmdlRICaptureGetInfo)(void *, int32_t *, void **); /* :4721; older releases have none, and no captures */
} driver;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool opened;
static uint64_t loads; /* when the library was looked for last */

static bool find_all(void) {
  void *library = dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == NULL) return false;
#define FIND(name, parameters)                    \
  *(void **)&driver.name = dlsym(library, #name); \
  if (driver.name == NULL) return false;
  FUNCTIONS(FIND)
#undef FIND
  *(void **)&driver.aclmdlRICaptureGetInfo = dlsym(library, "aclmdlRICaptureGetInfo");
  return true;
}

bool driver_present(void) {
  pthread_mutex_lock(&opening);
  if (!opened && loads_since(&loads)) opened = find_all(); /* again and again: a program may load it later */
  bool answer = opened;
  pthread_mutex_unlock(&opening);
  return answer;
}

void *driver_context(void) {
  void *context = NULL;
  return driver_present() && driver.aclrtGetCurrentContext(&context) == 0 ? context : NULL;
}

/* A device's default context stays until the process ends. */
void *driver_context_of(int device) {
  void *before = driver_context(), *context = NULL;
  if (!driver_present() || driver.aclrtSetDevice(device) != 0) return NULL;
  context = driver_context();
  if (before != NULL) driver.aclrtSetCurrentContext(before);
  return context;
}

void *driver_enter(void *context) {
  if (context == NULL) return NULL;
  void *before = driver_context();
  if (before != context) driver.aclrtSetCurrentContext(context);
  return before;
}

/* AscendCL cannot take the context from a thread that had none. */
void driver_leave(void *before, void *context) {
  if (before != NULL && before != context) driver.aclrtSetCurrentContext(before);
}

int driver_device(void) {
  int32_t device = -1;
  return driver_context() != NULL && driver.aclrtGetDevice(&device) == 0 ? device : -1;
}

int driver_copy(void *to, const void *from, size_t bytes, void *stream) {
  if (!driver_present()) return NOT_SUPPORTED;
  return driver.aclrtMemcpyAsync(to, bytes, from, bytes, DEVICE_TO_DEVICE, stream);
}

int driver_synchronize(void *stream) {
  return driver_context() == NULL ? 0 : driver.aclrtSynchronizeStreamWithTimeout(stream, -1);
}

int driver_order(void *first, void *then) {
  void *event = NULL;
  if (!driver_present()) return NOT_SUPPORTED;
  int code = driver.aclrtCreateEventExWithFlag(&event, EVENT_SYNC);
  if (code != 0) return code;
  code = driver.aclrtRecordEvent(event, first);
  if (code == 0) code = driver.aclrtStreamWaitEvent(then, event);
  driver.aclrtDestroyEvent(event); /* the runtime keeps it until the wait is done */
  return code;
}

bool driver_captures(void *stream) {
  int32_t status = 0;
  void *model = NULL;
  if (driver_context() == NULL || driver.aclmdlRICaptureGetInfo == NULL) return false;
  return driver.aclmdlRICaptureGetInfo(stream, &status, &model) != 0 ||
         status != 0; /* an error: it cannot be waited for */
}
