/* core.c: opens libsagecomm.so, and gives errors the vendor's numbers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facade.h"

/* The last error of this thread, and when that was in the order of all errors. */
static _Thread_local char last[TEXT_BYTES];
static _Thread_local uint64_t last_number;
static _Thread_local facade_result last_result;
static _Thread_local comm_t last_comm; /* whose error it is, which may be gone; NULL: of none */
static atomic_uint_least64_t errors;

/* The last error of a job that nobody waits for; protected by the lock of comm.c. */
static char published[TEXT_BYTES];
static uint64_t published_number;

/* A communicator's text may change meanwhile, so the caller gets a copy, which is valid until this thread asks
 * again. */
static _Thread_local char shown[TEXT_BYTES];

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static const sagecomm_api *api;
static char why_not[TEXT_BYTES];

pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;

static const sagecomm_api *functions_of(void *library) {
  const sagecomm_api *(*get)(uint32_t);
  *(void **)&get = dlsym(library, "sagecomm_get_api");
  const sagecomm_api *found = get == NULL ? NULL : get(SAGECOMM_ABI_VERSION);
  if (found == NULL || found->struct_size < sizeof(sagecomm_api) || found->op_size != sizeof(sagecomm_op)) return NULL;
  return found;
}

/* Leaves all groups, so that peers do not take the end of a process that destroys no communicator for a failure. It
 * does nothing in a forked child, and nothing that is left to do after the backend `sagecomm` has done so. Exit
 * handlers run in reverse order: this one runs before those of the vendor's runtime, which the process has opened
 * before. The library stays loaded until then (-z nodelete). */
static void say_goodbye(void) { api->shutdown(); }

/* A process has one Go runtime: the core that it has loaded is used, whoever loaded it. Otherwise it is the one beside
 * this library. */
static void open_core(void) {
  void *library = dlopen("libsagecomm.so", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  char file[PATH_MAX], path[PATH_MAX + 16] = "libsagecomm.so";
  Dl_info self;
  if (library == NULL && dladdr(&FACADE_MARK, &self) != 0 && realpath(self.dli_fname, file) != NULL) {
    snprintf(path, sizeof path, "%.*slibsagecomm.so", (int)(strrchr(file, '/') - file) + 1, file);
  }
  if (library == NULL) library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(why_not, sizeof why_not, "sagecomm: the core cannot be opened: %s", dlerror());
    return;
  }
  api = functions_of(library);
  if (api == NULL) {
    snprintf(why_not, sizeof why_not,
             "sagecomm: the libsagecomm.so of this process is not of the version of this " FACADE_FILE
             ": install both from one wheel");
    return;
  }
  atexit(say_goodbye); /* without memory for it, peers see a process that has ended */
}

static int loads_of(struct dl_phdr_info *info, size_t size, void *loads) {
  (void)size;
  *(uint64_t *)loads = info->dlpi_adds;
  return 1; /* each entry has the same */
}

bool loads_since(uint64_t *then) {
  uint64_t before = *then;
  dl_iterate_phdr(loads_of, then);
  return *then != before;
}

const sagecomm_api *core(void) {
  pthread_once(&opened, open_core);
  if (api == NULL) fail(NULL, RESULT_SYSTEM, "%s", why_not);
  return api;
}

void remember(comm_t comm, facade_result result, const char *text) {
  snprintf(last, sizeof last, "%s", text);
  last_number = atomic_fetch_add(&errors, 1) + 1;
  last_result = result;
  last_comm = comm;
}

const char *last_error(void) { return last; }

void publish_error(void) {
  pthread_mutex_lock(&comm_lock);
  if (last_number > published_number) {
    memcpy(published, last, sizeof published);
    published_number = last_number;
  }
  pthread_mutex_unlock(&comm_lock);
}

static const char *own_error(void) { return memcpy(shown, last, sizeof shown); }

const char *newest_error(comm_t comm) {
  own_error();
  if (comm != NULL && !comm_find(comm)) return shown;
  pthread_mutex_lock(&comm_lock);
  const char *other = comm != NULL ? comm->text : published;
  uint64_t number = comm != NULL ? comm->text_number : published_number;
  bool of_another = comm != NULL && last_comm != NULL && last_comm != comm;
  if (number > (of_another ? 0 : last_number)) memcpy(shown, other, sizeof shown);
  pthread_mutex_unlock(&comm_lock);
  if (comm != NULL) comm_release(comm);
  return shown;
}

const char *error_behind(facade_result result) {
  return last_number != 0 && result == last_result ? own_error() : NULL;
}

static void print(const char *text) {
  pthread_mutex_lock(&printing);
  facade_print(text);
  pthread_mutex_unlock(&printing);
}

/* Makes the last error of this thread that of a communicator. Requires: the lock of comm.c. */
static void note(comm_t comm) {
  memcpy(comm->text, last, sizeof comm->text);
  comm->text_number = last_number;
}

facade_result fail(comm_t comm, facade_result result, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char text[TEXT_BYTES]; /* `last` may be one of the arguments */
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  remember(comm, result, text);
  if (comm != NULL) {
    pthread_mutex_lock(&comm_lock);
    note(comm);
    pthread_mutex_unlock(&comm_lock);
  }
  print(text);
  return result;
}

static facade_result result_of(int32_t status) {
  switch (status) {
    case SAGECOMM_INVALID:
    case SAGECOMM_MISMATCH:
    case SAGECOMM_FORKED:
      return RESULT_USAGE;
    case SAGECOMM_PEER_FAILURE:
    case SAGECOMM_ABORTED:
      return RESULT_REMOTE;
    case SAGECOMM_TIMEOUT:
      return RESULT_TIMEOUT;
    case SAGECOMM_SYSTEM:
      return RESULT_SYSTEM;
    default:
      return RESULT_INTERNAL;
  }
}

facade_result failed(comm_t comm, int32_t status, const sagecomm_error *err) {
  return fail(comm, result_of(status), "%s", err->message);
}

facade_result failed_before(comm_t comm, int32_t status, const sagecomm_error *err) {
  remember(comm, result_of(status), err->message);
  pthread_mutex_lock(&comm_lock);
  bool printed = comm->failure_printed || strcmp(comm->text, last) == 0;
  comm->failure_printed = true;
  note(comm);
  pthread_mutex_unlock(&comm_lock);
  if (!printed) print(last);
  return result_of(status);
}

facade_result asked_early(comm_t comm, const char *function) {
  char text[TEXT_BYTES];
  snprintf(text, sizeof text, "sagecomm: %s: " FACADE_IN_PROGRESS, function);
  remember(comm, RESULT_ARGUMENT, text);
  pthread_mutex_lock(&comm_lock);
  bool printed = comm->early_printed;
  comm->early_printed = true;
  note(comm);
  pthread_mutex_unlock(&comm_lock);
  if (!printed) print(text);
  return RESULT_ARGUMENT;
}

facade_result unique_id(uint8_t id[SAGECOMM_ID_BYTES]) {
  if (core() == NULL) return RESULT_SYSTEM;
  sagecomm_error err = {0};
  int32_t status = core()->unique_id(id, &err);
  return status < 0 ? failed(NULL, status, &err) : RESULT_OK;
}
