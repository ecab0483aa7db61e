/* core.c: opens libsagecomm.so, and gives errors NCCL's numbers and texts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "facade.h"

/* The engine of NVIDIA's library must not call this one: internal/engine/nccl looks for this symbol. */
int sagecomm_nccl_facade = 1;

/* The last error of this thread, and when that was in the order of all errors. */
static _Thread_local char last[TEXT_BYTES];
static _Thread_local uint64_t last_number;
static atomic_uint_least64_t errors;

/* A communicator's text may change meanwhile, so the caller gets a copy, which is valid until this thread asks again. */
static _Thread_local char shown[TEXT_BYTES];

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static const sagecomm_api *api;
static char why_not[TEXT_BYTES];

static const sagecomm_api *functions_of(void *library) {
  const sagecomm_api *(*get)(uint32_t);
  *(void **)&get = dlsym(library, "sagecomm_get_api");
  const sagecomm_api *found = get == NULL ? NULL : get(SAGECOMM_ABI_VERSION);
  if (found == NULL || found->struct_size < sizeof(sagecomm_api) || found->op_size != sizeof(sagecomm_op)) return NULL;
  return found;
}

/* Leaves all groups, so that peers do not take the end of a process that destroys no communicator for a failure. It does nothing in a
 * forked child, and nothing that is left to do after the backend `sagecomm` has done so. Exit handlers run in reverse order: this one
 * runs before those of CUDA, which the process has opened before. The library stays loaded until then (-z nodelete). */
static void say_goodbye(void) { api->shutdown(); }

/* A process has one Go runtime: the core that it has loaded is used, whoever loaded it. Otherwise it is the one beside this library. */
static void open_core(void) {
  void *library = dlopen("libsagecomm.so", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  char file[PATH_MAX], path[PATH_MAX + 16] = "libsagecomm.so";
  Dl_info self;
  if (library == NULL && dladdr(&sagecomm_nccl_facade, &self) != 0 && realpath(self.dli_fname, file) != NULL) {
    snprintf(path, sizeof path, "%.*slibsagecomm.so", (int)(strrchr(file, '/') - file) + 1, file);
  }
  if (library == NULL) library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(why_not, sizeof why_not, "sagecomm: the core cannot be opened: %s", dlerror());
    return;
  }
  api = functions_of(library);
  if (api == NULL) {
    snprintf(
        why_not, sizeof why_not,
        "sagecomm: the libsagecomm.so of this process is not of the version of this libsagecomm_nccl.so: install both "
        "from one wheel");
    return;
  }
  atexit(say_goodbye); /* without memory for it, peers see a process that has ended */
}

const sagecomm_api *core(void) {
  pthread_once(&opened, open_core);
  if (api == NULL) fail(NULL, ncclSystemError, "%s", why_not);
  return api;
}

/* NCCL prints its errors where NCCL_DEBUG is set, and its users look for them there. */
static bool prints(void) {
  const char *level = getenv("NCCL_DEBUG");
  return level != NULL && (!strcasecmp(level, "WARN") || !strcasecmp(level, "INFO") || !strcasecmp(level, "TRACE"));
}

void remember(const char *text) {
  snprintf(last, sizeof last, "%s", text);
  last_number = atomic_fetch_add(&errors, 1) + 1;
}

const char *last_error(void) { return last; }

ncclResult_t fail(ncclComm_t comm, ncclResult_t result, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char text[TEXT_BYTES]; /* `last` may be one of the arguments */
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  remember(text);
  if (comm != NULL) {
    pthread_mutex_lock(&comm_lock);
    memcpy(comm->text, text, sizeof comm->text);
    comm->text_number = last_number;
    pthread_mutex_unlock(&comm_lock);
  }
  if (prints()) fprintf(stderr, "NCCL WARN %s\n", text);
  return result;
}

static ncclResult_t result_of(int32_t status) {
  switch (status) {
    case SAGECOMM_INVALID:
    case SAGECOMM_MISMATCH:
    case SAGECOMM_FORKED:
      return ncclInvalidUsage;
    case SAGECOMM_PEER_FAILURE:
    case SAGECOMM_TIMEOUT:
    case SAGECOMM_ABORTED:
      return ncclRemoteError;
    case SAGECOMM_SYSTEM:
      return ncclSystemError;
    default:
      return ncclInternalError;
  }
}

ncclResult_t failed(ncclComm_t comm, int32_t status, const sagecomm_error *err) {
  return fail(comm, result_of(status), "%s", err->message);
}

ncclResult_t ncclGetVersion(int *version) {
  if (version == NULL) return fail(NULL, ncclInvalidArgument, "sagecomm: ncclGetVersion: version is NULL");
  *version = FACADE_NCCL_VERSION;
  return ncclSuccess;
}
EXPORTED(GetVersion);

const char *ncclGetErrorString(ncclResult_t result) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                      "internal error - please report this issue to the sagecomm developers",
                                      "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                      "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress",
                                      "timeout"};
  _Static_assert(sizeof texts / sizeof texts[0] == ncclNumResults, "a text for each result");
  return (int)result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}
EXPORTED(GetErrorString);

const char *ncclGetLastError(ncclComm_t comm) {
  memcpy(shown, last, sizeof shown);
  if (comm != NULL && comm_hold(comm, "ncclGetLastError") == ncclSuccess) {
    pthread_mutex_lock(&comm_lock);
    if (comm->text_number > last_number) memcpy(shown, comm->text, sizeof shown);
    pthread_mutex_unlock(&comm_lock);
    comm_release(comm);
  }
  return shown;
}
EXPORTED(GetLastError);
