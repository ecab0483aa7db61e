/* device.c calls collectives, sends and recvs on memory of a device from C, without torch and without a bridge: the
 * library orders them by the vendor's runtime. Two processes, several operations in one stream that nobody waits for on
 * the host, and a stream that is late, and what the library finds out about memory.
 * Usage: device LIBRARY DIRECTORY cuda|npu */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "check.h"
#include "file_store.h"
#include "vendor.h"

/* ---- one rank ---- */

static const sagecomm_api *api;

static int32_t issue(sagecomm_group group, uintptr_t data, uint64_t bytes, void *stream, sagecomm_work *work,
                     sagecomm_error *err) {
  sagecomm_segment piece = {(void *)data, bytes};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .n_in = 1,
                    .n_out = 1,
                    .in = &piece,
                    .out = &piece,
                    .device_type = vendor.device_type,
                    .stream = stream};
  return api->issue(group, &op, work, NULL, err);
}

#define OPS 6
#define MOST 300000

static void all_reduces(sagecomm_group group, void *stream, volatile uint32_t *late) {
  static const int lengths[OPS] = {1, 1000, MOST, 17, 70000, 4};
  int32_t *host[OPS];
  uintptr_t data[OPS];
  if (late != NULL) {
    *late = 0;
    vendor.wait_value(stream, late, 1);
  }
  for (int k = 0; k < OPS; k++) {
    size_t bytes = (size_t)lengths[k] * 4;
    data[k] = vendor.allocate(bytes);
    host[k] = vendor.allocate_host(bytes);
    for (int i = 0; i < lengths[k]; i++) host[k][i] = (my_rank + 1) * (i + k + 1);
    vendor.copy_in(data[k], host[k], bytes, stream);
    /* Three times: the result of one is the input of the next. */
    for (int round = 0; round < 3; round++) {
      sagecomm_error err = {0};
      sagecomm_work work = 0;
      int32_t status = issue(group, data[k], bytes, stream, &work, &err);
      if (status < 0) fprintf(stderr, "%s\n", err.message);
      CHECK(status == SAGECOMM_OK || status == SAGECOMM_PENDING);
      CHECK(late == NULL || status == SAGECOMM_PENDING);
      if (status == SAGECOMM_PENDING) api->release(work);
    }
    vendor.copy_out(host[k], data[k], bytes, stream);
  }
  if (late != NULL) *late = 1;
  vendor.synchronize(stream);
  for (int k = 0; k < OPS; k++) {
    for (int i = 0; i < lengths[k]; i++) CHECK(host[k][i] == 12 * (i + k + 1));
  }
}

static sagecomm_op p2p(sagecomm_kind kind, int tag, sagecomm_segment *piece, void *stream) {
  sagecomm_op op = {.kind = (uint8_t)kind,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .root = 1 - my_rank,
                    .tag = tag,
                    .device_type = vendor.device_type,
                    .stream = stream};
  if (kind == SAGECOMM_SEND) {
    op.n_in = 1;
    op.in = piece;
  } else {
    op.n_out = 1;
    op.out = piece;
  }
  return op;
}

static void accept(int32_t status, sagecomm_work work, const sagecomm_error *err) {
  if (status < 0) fprintf(stderr, "%s\n", err->message);
  CHECK(status == SAGECOMM_OK || status == SAGECOMM_PENDING);
  if (status == SAGECOMM_PENDING) api->release(work);
}

/* Sends and recvs in one stream, alone and in one call with an all_reduce, of which the recv comes first. What one
 * round receives the next one sends. */
static void exchanges(sagecomm_group group, void *stream) {
  static const int lengths[] = {1, 1000, 100000};
  for (int k = 0; k < 3; k++) {
    size_t bytes = (size_t)lengths[k] * 4;
    uintptr_t a = vendor.allocate(bytes), b = vendor.allocate(bytes), sum = vendor.allocate(bytes);
    int32_t *host = vendor.allocate_host(2 * bytes);
    for (int i = 0; i < lengths[k]; i++) host[i] = (my_rank + 1) * (i + k + 1);
    vendor.copy_in(a, host, bytes, stream);
    vendor.copy_in(sum, host, bytes, stream);
    sagecomm_segment of_a = {(void *)a, bytes}, of_b = {(void *)b, bytes}, of_sum = {(void *)sum, bytes};
    for (int round = 0; round < 3; round++) {
      sagecomm_error err = {0};
      sagecomm_work work = 0;
      bool sends = my_rank == 0; /* then the other way round */
      for (int i = 0; i < 2; i++, sends = !sends) {
        sagecomm_op op = p2p(sends ? SAGECOMM_SEND : SAGECOMM_RECV, round, sends ? &of_a : &of_b, stream);
        accept(api->issue(group, &op, &work, NULL, &err), work, &err);
      }
      sagecomm_op all[] = {p2p(SAGECOMM_RECV, 7, &of_a, stream),
                           p2p(SAGECOMM_SEND, 7, &of_b, stream),
                           {.kind = SAGECOMM_ALL_REDUCE,
                            .dtype = SAGECOMM_INT32,
                            .flags = SAGECOMM_ASYNC,
                            .n_in = 1,
                            .n_out = 1,
                            .in = &of_sum,
                            .out = &of_sum,
                            .device_type = vendor.device_type,
                            .stream = stream}};
      accept(api->issue_coalesced(group, all, 3, &work, NULL, &err), work, &err);
    }
    vendor.copy_out(host, a, bytes, stream);
    vendor.copy_out(host + lengths[k], sum, bytes, stream);
    vendor.synchronize(stream);
    for (int i = 0; i < lengths[k]; i++) {
      CHECK(host[i] == (my_rank + 1) * (i + k + 1)); /* there and back */
      CHECK(host[lengths[k] + i] == 12 * (i + k + 1));
    }
  }
}

static int32_t unused(void *ctx, void *a, uint64_t *b, char *why, size_t why_n) {
  (void)ctx, (void)a, (void)b, (void)why, (void)why_n;
  CHECK(false);
  return -1;
}

/* A bridge that lacks any of its functions but unpin() and keep() is refused, and none of the others is called. */
static void bridges_that_lack_a_function(sagecomm_group group, void *stream) {
  enum { FIRST = offsetof(sagecomm_bridge, make_stream), EACH = sizeof(void (*)(void)) };
  sagecomm_segment piece = {&piece, 4}; /* never read */
  for (size_t lacking = FIRST; lacking < offsetof(sagecomm_bridge, keep); lacking += EACH) {
    if (lacking == offsetof(sagecomm_bridge, unpin) || lacking == offsetof(sagecomm_bridge, device_name)) continue;
    sagecomm_bridge bridge = {.struct_size = sizeof bridge};
    for (size_t at = FIRST; at < sizeof bridge; at += EACH) {
      int32_t (*function)(void *, void *, uint64_t *, char *, size_t) = at == lacking ? NULL : unused;
      memcpy((char *)&bridge + at, &function, EACH);
    }
    sagecomm_error err = {0};
    sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                      .dtype = SAGECOMM_INT32,
                      .n_in = 1,
                      .n_out = 1,
                      .in = &piece,
                      .out = &piece,
                      .device_type = vendor.device_type,
                      .stream = stream,
                      .bridge = &bridge};
    sagecomm_work work = 0;
    int32_t status = api->issue(group, &op, &work, NULL, &err);
    if (status != SAGECOMM_INVALID) fprintf(stderr, "%d %s\n", status, err.message);
    CHECK(status == SAGECOMM_INVALID && strstr(err.message, "lacks a function") != NULL);
  }
}

/* Memory is where the vendor's runtime says, and a factor in it is what the stream leaves there, also if the stream is late. */
static void *open_gate(void *late) {
  sched_yield(); /* whether the stream is late decides nothing: the factor must be right in both cases */
  *(volatile uint32_t *)late = 1;
  return NULL;
}

static void places_and_factors(void *stream, volatile uint32_t *late) {
  sagecomm_error err = {0};
  uint8_t type = 99;
  int32_t index = -1;
  uintptr_t data = vendor.allocate(4096);
  float *host = vendor.allocate_host(16);
  int here;
  CHECK(api->locate((void *)(data + 100), &type, &index, &err) == SAGECOMM_OK);
  CHECK(type == vendor.device_type && index == 0);
  CHECK(api->locate(host, &type, &index, &err) == SAGECOMM_OK && type == SAGECOMM_HOST && index == 0);
  CHECK(api->locate(&here, &type, &index, &err) == SAGECOMM_OK && type == SAGECOMM_HOST && index == 0);
  for (int i = 0; i < 3; i++) {
    *late = 0;
    vendor.wait_value(stream, late, 1);
    *host = 0.5F + (float)i;
    vendor.copy_in(data + 8, host, 4, stream);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, open_gate, (void *)late) == 0);
    double factor = 0;
    int32_t status = api->read_factor((void *)(data + 8), SAGECOMM_FLOAT32, stream, &factor, &err);
    if (status != SAGECOMM_OK) fprintf(stderr, "%s\n", err.message);
    CHECK(status == SAGECOMM_OK && factor == 0.5 + i);
    CHECK(pthread_join(thread, NULL) == 0);
  }
}

/* The group goes down while the stream of an operation is late: the stream goes on. */
static void abort_while_late(sagecomm_group group, void *stream, volatile uint32_t *late) {
  uintptr_t data = vendor.allocate(4096);
  sagecomm_error err = {0};
  sagecomm_work work = 0;
  *late = 0;
  vendor.wait_value(stream, late, 1);
  CHECK(issue(group, data, 4096, stream, &work, &err) == SAGECOMM_PENDING);
  sagecomm_op barrier = {.kind = SAGECOMM_BARRIER}; /* both ranks have issued it */
  sagecomm_work none = 0;
  int32_t met = api->issue(group, &barrier, &none, NULL, &err);
  while (met == SAGECOMM_PENDING) met = api->wait(none, SECOND / 10, &err);
  if (met == SAGECOMM_OK) api->group_abort(group, "for the test", &err);
  int32_t status = SAGECOMM_PENDING;
  while (status == SAGECOMM_PENDING) status = api->wait(work, SECOND / 10, &err);
  CHECK(status == SAGECOMM_ABORTED);
  api->release(work);
  CHECK(issue(group, data, 4096, stream, &work, &err) == SAGECOMM_ABORTED);
  *late = 1;
  vendor.synchronize(stream);
}

static void collectives(char *dir, void *stream, volatile uint32_t *late) {
  sagecomm_store store = {.ctx = dir, .set = store_set, .get = store_get};
  sagecomm_group_config config = {.struct_size = sizeof config,
                                  .rank = my_rank,
                                  .size = 2,
                                  .name = "devices",
                                  .timeout_ns = 60 * SECOND,
                                  .store = &store};
  sagecomm_group group = 0;
  sagecomm_error err = {0};
  if (api->group_create(&config, &group, &err) != SAGECOMM_OK) fprintf(stderr, "%s\n", err.message);
  CHECK(group != 0);
  bridges_that_lack_a_function(group, stream);
  all_reduces(group, stream, NULL);
  all_reduces(group, stream, late);
  all_reduces(group, NULL, NULL);
  CHECK(api->lane_sequence(group, vendor.device_type) == 3 * 3 * OPS && api->lane_sequence(group, SAGECOMM_HOST) == 0);
  CHECK(api->group_sequence(group) == 3 * 3 * OPS);
  exchanges(group, stream);
  exchanges(group, NULL);
  abort_while_late(group, stream, late);
  api->group_destroy(group, &err);
}

/* A thread without a context asks about memory on device 1, and the question makes no context on device 0. */
static void *ask_elsewhere(void *data) {
  sagecomm_error err = {0};
  uint8_t type = 99;
  int32_t index = -1;
  int here;
  int32_t status = api->locate((char *)data + 100, &type, &index, &err);
  if (status != SAGECOMM_OK) fprintf(stderr, "%s\n", err.message);
  CHECK(status == SAGECOMM_OK && type == 1 && index == 1);
  CHECK(api->locate(&here, &type, &index, &err) == SAGECOMM_OK && type == SAGECOMM_HOST);
  return NULL;
}

static void elsewhere(void) {
  int (*init)(unsigned), (*retain)(void **, int), (*push)(void *), (*allocate)(unsigned long long *, size_t);
  int (*state)(int, unsigned *, int *);
  open_vendor("libcuda.so.1");
  *(void **)&init = vendor_function("cuInit");
  *(void **)&retain = vendor_function("cuDevicePrimaryCtxRetain");
  *(void **)&state = vendor_function("cuDevicePrimaryCtxGetState");
  *(void **)&push = vendor_function("cuCtxPushCurrent_v2");
  *(void **)&allocate = vendor_function("cuMemAlloc_v2");
  void *context = NULL;
  unsigned long long data = 0;
  CHECK(init(0) == 0 && retain(&context, 1) == 0 && push(context) == 0 && allocate(&data, 4096) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, ask_elsewhere, (void *)(uintptr_t)data) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  unsigned flags = 0;
  int active[2] = {-1, -1};
  CHECK(state(0, &flags, &active[0]) == 0 && state(1, &flags, &active[1]) == 0);
  CHECK(active[0] == 0 && active[1] != 0);
}

static void load_core(const char *library) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(handle != NULL);
  const sagecomm_api *(*get_api)(uint32_t);
  *(void **)&get_api = dlsym(handle, "sagecomm_get_api");
  CHECK(get_api != NULL);
  api = get_api(SAGECOMM_ABI_VERSION);
}

/* A process runs one part: a group opens the runtimes of all vendors, and those of the emulator have one memory. */
static void run(const char *library, char *dir, const char *name, bool places) {
  load_vendor(name); /* first, so that the library finds the emulator's annotations if this is the emulator */
  load_core(library);
  void *stream = vendor.make_stream();
  volatile uint32_t *late = vendor.allocate_host(8);
  if (places)
    places_and_factors(stream, late);
  else
    collectives(dir, stream, late);
  size_t (*reports)(void) = NULL;
  *(void **)&reports = dlsym(RTLD_DEFAULT, "emulator_reports");
  if (reports != NULL && reports() != 0) { /* what the emulator's checker has found */
    size_t (*text)(char *, size_t) = NULL;
    *(void **)&text = dlsym(RTLD_DEFAULT, "emulator_report_text");
    char found[8192];
    text(found, sizeof found);
    fprintf(stderr, "%s\n", found);
    CHECK(false);
  }
}

int main(int argc, char **argv) {
  if (argc == 5 && strcmp(argv[4], "elsewhere") == 0) {
    load_core(argv[1]);
    elsewhere();
    return 0;
  }
  bool places = argc == 5 && strcmp(argv[4], "places") == 0;
  if (!places && (argc != 5 || strcmp(argv[4], "collectives") != 0)) {
    fprintf(stderr, "usage: %s LIBRARY DIRECTORY cuda|npu collectives|places|elsewhere\n", argv[0]);
    return 2;
  }
  pid_t child = fork();
  if (child < 0) return 2;
  my_rank = child == 0;
  run(argv[1], argv[2], argv[3], places);
  if (child == 0) _exit(0);
  int status;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
