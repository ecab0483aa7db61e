/* device.c calls collectives, sends and recvs on memory of a CUDA device from C, without torch and without a bridge: the library orders them by
 * the driver, libcuda.so.1. Two processes, several operations in one stream that nobody waits for on the host, and a stream
 * that is late.
 * Usage: device LIBRARY DIRECTORY */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "check.h"
#include "file_store.h"

/* ---- the driver; types as in cuda.h ---- */

typedef unsigned long long address;

static struct {
  int (*init)(unsigned);
  int (*retain)(void **context, int device);
  int (*push)(void *context);
  int (*allocate)(address *to, size_t bytes);
  int (*make_stream)(void **stream, unsigned flags);
  int (*copy_in)(address to, const void *from, size_t bytes, void *stream);
  int (*copy_out)(void *to, address from, size_t bytes, void *stream);
  int (*synchronize)(void *stream);
  int (*wait_value)(void *stream, address at, uint32_t value, unsigned flags);
  int (*allocate_host)(void **memory, size_t bytes, unsigned flags);
} cu;

static void *driver;

static void *function(const char *name) {
  void *f = dlsym(driver, name);
  if (f == NULL) fprintf(stderr, "the driver has no %s\n", name);
  CHECK(f != NULL);
  return f;
}

static void load_driver(void) {
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (driver == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(driver != NULL);
  *(void **)&cu.init = function("cuInit");
  *(void **)&cu.retain = function("cuDevicePrimaryCtxRetain");
  *(void **)&cu.push = function("cuCtxPushCurrent_v2");
  *(void **)&cu.allocate = function("cuMemAlloc_v2");
  *(void **)&cu.make_stream = function("cuStreamCreate");
  *(void **)&cu.copy_in = function("cuMemcpyHtoDAsync_v2");
  *(void **)&cu.copy_out = function("cuMemcpyDtoHAsync_v2");
  *(void **)&cu.synchronize = function("cuStreamSynchronize");
  *(void **)&cu.wait_value = function("cuStreamWaitValue32_v2");
  *(void **)&cu.allocate_host = function("cuMemHostAlloc");
  void *context = NULL;
  CHECK(cu.init(0) == 0 && cu.retain(&context, 0) == 0 && cu.push(context) == 0);
}

/* ---- one rank ---- */

static const sagecomm_api *api;

static int32_t issue(sagecomm_group group, address data, uint64_t bytes, void *stream, sagecomm_work *work,
                     sagecomm_error *err) {
  sagecomm_segment piece = {(void *)(uintptr_t)data, bytes};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .n_in = 1,
                    .n_out = 1,
                    .in = &piece,
                    .out = &piece,
                    .device_type = 1,
                    .stream = stream};
  return api->issue(group, &op, work, NULL, err);
}

#define OPS 6
#define MOST 300000

static void all_reduces(sagecomm_group group, void *stream, volatile uint32_t *late) {
  static const int lengths[OPS] = {1, 1000, MOST, 17, 70000, 4};
  int32_t *host[OPS];
  address data[OPS];
  if (late != NULL) {
    *late = 0;
    CHECK(cu.wait_value(stream, (address)(uintptr_t)late, 1, 0) == 0);
  }
  for (int k = 0; k < OPS; k++) {
    size_t bytes = (size_t)lengths[k] * 4;
    void *memory = NULL;
    CHECK(cu.allocate(&data[k], bytes) == 0 && cu.allocate_host(&memory, bytes, 0) == 0);
    host[k] = memory;
    for (int i = 0; i < lengths[k]; i++) host[k][i] = (my_rank + 1) * (i + k + 1);
    CHECK(cu.copy_in(data[k], host[k], bytes, stream) == 0);
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
    CHECK(cu.copy_out(host[k], data[k], bytes, stream) == 0);
  }
  if (late != NULL) *late = 1;
  CHECK(cu.synchronize(stream) == 0);
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
                    .device_type = 1,
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

/* Sends and recvs in one stream, alone and in one call with an all_reduce, of which the recv comes first. What one round
 * receives the next one sends. */
static void exchanges(sagecomm_group group, void *stream) {
  static const int lengths[] = {1, 1000, 100000};
  for (int k = 0; k < 3; k++) {
    size_t bytes = (size_t)lengths[k] * 4;
    void *memory = NULL;
    address a = 0, b = 0, sum = 0;
    CHECK(cu.allocate(&a, bytes) == 0 && cu.allocate(&b, bytes) == 0 && cu.allocate(&sum, bytes) == 0);
    CHECK(cu.allocate_host(&memory, 2 * bytes, 0) == 0);
    int32_t *host = memory;
    for (int i = 0; i < lengths[k]; i++) host[i] = (my_rank + 1) * (i + k + 1);
    CHECK(cu.copy_in(a, host, bytes, stream) == 0 && cu.copy_in(sum, host, bytes, stream) == 0);
    sagecomm_segment of_a = {(void *)(uintptr_t)a, bytes}, of_b = {(void *)(uintptr_t)b, bytes},
                     of_sum = {(void *)(uintptr_t)sum, bytes};
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
                            .device_type = 1,
                            .stream = stream}};
      accept(api->issue_coalesced(group, all, 3, &work, NULL, &err), work, &err);
    }
    CHECK(cu.copy_out(host, a, bytes, stream) == 0 && cu.copy_out(host + lengths[k], sum, bytes, stream) == 0);
    CHECK(cu.synchronize(stream) == 0);
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

/* A bridge that lacks any of its functions is refused, and none of the others is called. */
static void bridges_that_lack_a_function(sagecomm_group group, void *stream) {
  enum { FIRST = offsetof(sagecomm_bridge, make_stream), EACH = sizeof(void (*)(void)) };
  sagecomm_segment piece = {&piece, 4}; /* never read */
  for (size_t lacking = FIRST; lacking < sizeof(sagecomm_bridge); lacking += EACH) {
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
                      .device_type = 1,
                      .stream = stream,
                      .bridge = &bridge};
    sagecomm_work work = 0;
    int32_t status = api->issue(group, &op, &work, NULL, &err);
    if (status != SAGECOMM_INVALID) fprintf(stderr, "%d %s\n", status, err.message);
    CHECK(status == SAGECOMM_INVALID && strstr(err.message, "lacks a function") != NULL);
  }
}

/* The group goes down while the stream of an operation is late: the stream goes on. */
static void abort_while_late(sagecomm_group group, void *stream, volatile uint32_t *late) {
  address data = 0;
  sagecomm_error err = {0};
  sagecomm_work work = 0;
  CHECK(cu.allocate(&data, 4096) == 0);
  *late = 0;
  CHECK(cu.wait_value(stream, (address)(uintptr_t)late, 1, 0) == 0);
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
  CHECK(cu.synchronize(stream) == 0);
}

static void run(const char *library, char *dir) {
  load_driver(); /* first, so that the library finds the emulator's annotations if this is the emulator */
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(handle != NULL);
  const sagecomm_api *(*get_api)(uint32_t);
  *(void **)&get_api = dlsym(handle, "sagecomm_get_api");
  CHECK(get_api != NULL);
  api = get_api(SAGECOMM_ABI_VERSION);
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
  void *stream = NULL, *late = NULL;
  CHECK(cu.make_stream(&stream, 1) == 0 && cu.allocate_host(&late, 4, 0) == 0);
  bridges_that_lack_a_function(group, stream);
  all_reduces(group, stream, NULL);
  all_reduces(group, stream, late);
  all_reduces(group, NULL, NULL);
  CHECK(api->lane_sequence(group, 1) == 3 * 3 * OPS && api->lane_sequence(group, SAGECOMM_HOST) == 0);
  CHECK(api->group_sequence(group) == 3 * 3 * OPS);
  exchanges(group, stream);
  exchanges(group, NULL);
  abort_while_late(group, stream, late);
  api->group_destroy(group, &err);
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
  if (argc != 3) {
    fprintf(stderr, "usage: %s LIBRARY DIRECTORY\n", argv[0]);
    return 2;
  }
  pid_t child = fork();
  if (child < 0) return 2;
  my_rank = child == 0;
  run(argv[1], argv[2]);
  if (child == 0) _exit(0);
  int status;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
