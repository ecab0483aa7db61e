/* memory.c: ncclMemAlloc(), registration, windows, and what communicators give back while they exist. The core needs
 * the next two not, and keeps its memory, so they are accepted and do nothing. */
#include <stdlib.h>

#include "driver.h"

/* One allocation, so that ncclMemFree() knows whose it is. */
typedef struct allocation {
  struct allocation *next;
  void *memory;
  void *context; /* of the device; NULL: it is memory of the host */
} allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static allocation *allocations;

enum { PAGE = 4096, CU_OUT_OF_MEMORY = 2 };

/* Memory of the current device, or of the host where the process uses none. A thread that has not chosen a device is on
 * the first one, as with CUDA's runtime, if the process uses that. */
ncclResult_t ncclMemAlloc(void **memory, size_t bytes) {
  if (memory == NULL || bytes == 0) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: ncclMemAlloc: %s", memory == NULL ? "ptr is NULL" : "size is 0");
  }
  ncclResult_t refusal = refused_to_child();
  if (refusal != ncclSuccess) return refusal;
  allocation *made = calloc(1, sizeof *made);
  if (made == NULL) return out_of_memory("ncclMemAlloc");
  made->context = driver_context();
  if (made->context == NULL && driver_is_used(0)) made->context = driver_context_of(0);
  int code = 0;
  if (made->context != NULL) {
    void *before = driver_enter(made->context);
    code = driver_allocate(&made->memory, bytes);
    driver_leave(before, made->context);
  } else if (bytes <= SIZE_MAX - PAGE) {
    made->memory = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
  }
  if (code != 0 || made->memory == NULL) {
    free(made);
    if (code == 0) return out_of_memory("ncclMemAlloc");
    return fail(NULL, ncclUnhandledCudaError, "sagecomm: ncclMemAlloc: CUDA's driver returned error %d%s for %zu bytes",
                code, code == CU_OUT_OF_MEMORY ? ", out of memory," : "", bytes);
  }
  *memory = made->memory;
  pthread_mutex_lock(&lock);
  made->next = allocations;
  allocations = made;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}
EXPORTED(MemAlloc);

ncclResult_t ncclMemFree(void *memory) {
  if (memory == NULL) return ncclSuccess;
  ncclResult_t refusal = refused_to_child();
  if (refusal != ncclSuccess) return refusal;
  pthread_mutex_lock(&lock);
  allocation **at = &allocations;
  while (*at != NULL && (*at)->memory != memory) at = &(*at)->next;
  allocation *found = *at;
  if (found != NULL) *at = found->next;
  pthread_mutex_unlock(&lock);
  if (found == NULL) {
    return fail(NULL, ncclInvalidArgument,
                "sagecomm: ncclMemFree: the memory is not from ncclMemAlloc(), or was given back");
  }
  int code = 0;
  if (found->context != NULL) {
    void *before = driver_enter(found->context); /* the thread may have none */
    code = driver_free(memory);
    driver_leave(before, found->context);
  } else {
    free(memory);
  }
  if (code == 0) {
    free(found);
    return ncclSuccess;
  }
  pthread_mutex_lock(&lock);
  found->next = allocations; /* the user has it still */
  allocations = found;
  pthread_mutex_unlock(&lock);
  return fail(NULL, ncclUnhandledCudaError, "sagecomm: ncclMemFree: CUDA's driver returned error %d", code);
}
EXPORTED(MemFree);

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle) {
  ncclResult_t result = comm_hold(comm, "ncclCommRegister");
  if (result != ncclSuccess) return result;
  if (handle == NULL || memory == NULL || bytes == 0) {
    result = fail(comm, ncclInvalidArgument, "sagecomm: ncclCommRegister: %s",
                  handle == NULL ? "handle is NULL" : "there is no memory");
  } else {
    *handle = memory;
  }
  comm_release(comm);
  return result;
}
EXPORTED(CommRegister);

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
  (void)handle;
  ncclResult_t result = comm_hold(comm, "ncclCommDeregister");
  if (result == ncclSuccess) comm_release(comm);
  return result;
}
EXPORTED(CommDeregister);

/* As NCCL does where devices cannot reach each other's memory: no window, and no error. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int flags) {
  static const char *const function = "ncclCommWindowRegister";
  (void)flags;
  ncclResult_t result = comm_hold(comm, function);
  if (result != ncclSuccess) return refused(result);
  if (window != NULL) *window = NULL;
  if (window == NULL || memory == NULL || bytes == 0) {
    result = refused(fail(comm, ncclInvalidArgument, "sagecomm: %s: %s", function,
                          window == NULL ? "win is NULL" : "there is no memory"));
  }
  comm_release(comm);
  return result;
}
EXPORTED(CommWindowRegister);

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  static const char *const function = "ncclCommWindowDeregister";
  ncclResult_t result = comm_hold(comm, function);
  if (result != ncclSuccess) return refused(result);
  if (window != NULL)
    result = refused(fail(comm, ncclInvalidArgument, "sagecomm: %s: there is no such window", function));
  comm_release(comm);
  return result;
}
EXPORTED(CommWindowDeregister);

static ncclResult_t check_flags(ncclComm_t comm, const char *function, int flags) {
  if (flags == NCCL_SUSPEND_MEM) return ncclSuccess;
  return fail(comm, ncclInvalidArgument, "sagecomm: %s: flags are %d, expected NCCL_SUSPEND_MEM", function, flags);
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  static const char *const function = "ncclCommSuspend";
  ncclResult_t result = comm_enter(comm, function);
  if (result != ncclSuccess) return refused(result);
  result = check_flags(comm, function, flags);
  comm_release(comm);
  return refused(result);
}
EXPORTED(CommSuspend);

ncclResult_t ncclCommResume(ncclComm_t comm) {
  ncclResult_t result = comm_enter(comm, "ncclCommResume");
  if (result == ncclSuccess) comm_release(comm);
  return refused(result);
}
EXPORTED(CommResume);

/* Nothing can be given back and nothing was, by NCCL's counting. */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t statistic, uint64_t *value) {
  static const char *const function = "ncclCommMemStats";
  ncclResult_t result = comm_enter(comm, function);
  if (result != ncclSuccess) return result;
  if (value == NULL || (int)statistic < 0 || statistic > ncclStatGpuMemTotal) {
    result = fail(comm, ncclInvalidArgument, "sagecomm: %s: %s", function,
                  value == NULL ? "value is NULL" : "there is no such statistic");
  } else {
    *value = 0;
  }
  comm_release(comm);
  return result;
}
EXPORTED(CommMemStats);
