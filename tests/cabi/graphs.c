/* graphs.c captures collectives into CUDA graphs from C, without torch, and launches them again and again with other
 * inputs.
 * Usage: graphs LIBRARY DIRECTORY RANKS [LAUNCH], where the last rank dies in that launch */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "file_store.h"
#include "vendor.h"

static const sagecomm_api *api;
static int ranks;
static int dies_in; /* the launch in which the last rank dies; 0: it does not */

static int (*begin_capture)(void *stream, int mode);
static int (*end_capture)(void *stream, void **graph);
static int (*instantiate)(void **executable, void *graph, unsigned long long flags);
static int (*launch)(void *executable, void *stream);

static int32_t issue(sagecomm_group group, sagecomm_kind kind, uintptr_t in, uint64_t in_bytes, uintptr_t out,
                     uint64_t out_bytes, void *stream, sagecomm_error *err) {
  /* Long inputs have two segments, which the library gathers in memory that it allocates during the capture. */
  uint64_t first = in_bytes > 4096 ? 4096 : in_bytes;
  sagecomm_segment from[] = {{(void *)in, first}, {(void *)(in + first), in_bytes - first}};
  sagecomm_segment to = {(void *)out, out_bytes};
  sagecomm_op op = {.kind = (uint8_t)kind,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .n_in = first < in_bytes ? 2 : 1,
                    .n_out = 1,
                    .in = from,
                    .out = &to,
                    .device_type = vendor.device_type,
                    .stream = stream};
  sagecomm_work work = 0;
  int32_t status = api->issue(group, &op, &work, NULL, err);
  if (work != 0) api->release(work);
  return status;
}

enum { LAUNCHES = 20, SUM = 3000, LONG = 700000, BLOCK = 500 }; /* elements */

static int32_t value(int rank, int launch_number, int i) { return (rank + 1) * (i % 97) + launch_number * 5; }

static int32_t total(int launch_number, int i) {
  int32_t sum = 0;
  for (int rank = 0; rank < ranks; rank++) sum += value(rank, launch_number, i);
  return sum;
}

/* Two graphs, launched in turns. Nobody waits for them on the host until the last one. */
static void launches(sagecomm_group group, void *stream) {
  size_t sum_bytes = SUM * 4, long_bytes = LONG * 4, block = BLOCK * 4, blocks = block * (size_t)ranks;
  uintptr_t sum = vendor.allocate(sum_bytes), longer = vendor.allocate(long_bytes), in = vendor.allocate(block),
            out = vendor.allocate(blocks), again = vendor.allocate(sum_bytes);
  sagecomm_error err = {0};
  int32_t status = 0;
  void *graph[2], *executable[2];
  for (int k = 0; k < 2; k++) {
    CHECK(begin_capture(stream, 1) == 0);
    if (k == 0) {
      status = issue(group, SAGECOMM_ALL_REDUCE, sum, sum_bytes, again, sum_bytes, stream, &err);
      if (status != SAGECOMM_OK) fprintf(stderr, "%d %s\n", status, err.message);
      CHECK(status == SAGECOMM_OK);
      CHECK(issue(group, SAGECOMM_ALL_GATHER, in, block, out, blocks, stream, &err) == SAGECOMM_OK);
    } else {
      CHECK(issue(group, SAGECOMM_ALL_REDUCE, longer, long_bytes, longer, long_bytes, stream, &err) == SAGECOMM_OK);
    }
    CHECK(end_capture(stream, &graph[k]) == 0 && instantiate(&executable[k], graph[k], 0) == 0);
  }
  int32_t *host[LAUNCHES];
  for (int n = 0; n < LAUNCHES; n++) {
    int32_t *h = host[n] = vendor.allocate_host(2 * sum_bytes + long_bytes + 2 * blocks);
    for (int i = 0; i < SUM; i++) h[i] = value(my_rank, n, i);
    for (int i = 0; i < BLOCK; i++) h[SUM + i] = value(my_rank, n, i + 1);
    vendor.copy_in(sum, h, sum_bytes, stream);
    vendor.copy_in(in, h + SUM, block, stream);
    CHECK(launch(executable[0], stream) == 0);
    if (n % 4 == 0) {
      int32_t *l = h + 2 * SUM;
      for (int i = 0; i < LONG; i++) l[i] = value(my_rank, n, i);
      vendor.copy_in(longer, l, long_bytes, stream);
      CHECK(launch(executable[1], stream) == 0);
      vendor.copy_out(l, longer, long_bytes, stream);
    }
    status = issue(group, SAGECOMM_ALL_REDUCE, again, sum_bytes, again, sum_bytes, stream, &err); /* in no graph */
    CHECK(status == SAGECOMM_OK || status == SAGECOMM_PENDING);
    vendor.copy_out(h, again, sum_bytes, stream);
    vendor.copy_out(h + SUM, out, blocks, stream);
  }
  vendor.synchronize(stream);
  for (int n = 0; n < LAUNCHES; n++) {
    for (int i = 0; i < SUM; i++) CHECK(host[n][i] == ranks * total(n, i));
    for (int i = 0; i < BLOCK * ranks; i++) CHECK(host[n][SUM + i] == value(i / BLOCK, n, i % BLOCK + 1));
    for (int i = 0; n % 4 == 0 && i < LONG; i++) CHECK(host[n][2 * SUM + i] == total(n, i));
  }
}

/* Waits on the host until all ranks are here. */
static void meet(sagecomm_group group) {
  sagecomm_op barrier = {.kind = SAGECOMM_BARRIER};
  sagecomm_work work = 0;
  sagecomm_error err = {0};
  int32_t met = api->issue(group, &barrier, &work, NULL, &err);
  while (met == SAGECOMM_PENDING) met = api->wait(work, SECOND / 10, &err);
}

/* Graphs that wait for a rank which launches nothing go on when the group is aborted. So do later launches. */
static void abort_while_waiting(sagecomm_group group, void *stream) {
  uintptr_t data = vendor.allocate(4096);
  sagecomm_error err = {0};
  void *graph, *executable;
  CHECK(begin_capture(stream, 1) == 0);
  for (int i = 0; i < 10; i++)
    CHECK(issue(group, SAGECOMM_ALL_REDUCE, data, 4096, data, 4096, stream, &err) == SAGECOMM_OK);
  CHECK(end_capture(stream, &graph) == 0 && instantiate(&executable, graph, 0) == 0);
  if (my_rank > 0) CHECK(launch(executable, stream) == 0);
  meet(group);
  if (my_rank == 0) api->group_abort(group, "for the test", &err);
  vendor.synchronize(stream);
  CHECK(launch(executable, stream) == 0);
  vendor.synchronize(stream);
  while (api->group_error(group, &err) == SAGECOMM_OK) usleep(1000);
  CHECK(issue(group, SAGECOMM_ALL_REDUCE, data, 4096, data, 4096, stream, &err) == SAGECOMM_ABORTED);
  api->group_destroy(group, &err);
  CHECK(launch(executable, stream) == 0);
  vendor.synchronize(stream);
}

/* Streams go on when a peer has died, and the next operation fails. */
static void a_peer_dies(sagecomm_group group, void *stream) {
  uintptr_t data = vendor.allocate(400000);
  sagecomm_error err = {0};
  void *graph, *executable;
  CHECK(begin_capture(stream, 1) == 0);
  for (int i = 0; i < 10; i++)
    CHECK(issue(group, SAGECOMM_ALL_REDUCE, data, 400000, data, 400000, stream, &err) == SAGECOMM_OK);
  CHECK(end_capture(stream, &graph) == 0 && instantiate(&executable, graph, 0) == 0);
  meet(group); /* a rank must not die while others capture */
  for (int n = 1; n <= 30; n++) {
    if (n == dies_in && my_rank == ranks - 1) kill(getpid(), SIGKILL);
    CHECK(launch(executable, stream) == 0);
    if (n % 3 == 0) vendor.synchronize(stream);
  }
  vendor.synchronize(stream);
  while (api->group_error(group, &err) == SAGECOMM_OK) usleep(1000);
  CHECK(err.status == SAGECOMM_PEER_FAILURE && err.rank == ranks - 1);
  CHECK(issue(group, SAGECOMM_ALL_REDUCE, data, 4, data, 4, stream, &err) == SAGECOMM_PEER_FAILURE);
  CHECK(launch(executable, stream) == 0);
  vendor.synchronize(stream);
}

static void run(const char *library, char *dir) {
  load_vendor("cuda");
  *(void **)&begin_capture = vendor_function("cuStreamBeginCapture_v2");
  *(void **)&end_capture = vendor_function("cuStreamEndCapture");
  *(void **)&instantiate = vendor_function("cuGraphInstantiateWithFlags");
  *(void **)&launch = vendor_function("cuGraphLaunch");
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(handle != NULL);
  const sagecomm_api *(*get_api)(uint32_t);
  *(void **)&get_api = dlsym(handle, "sagecomm_get_api");
  CHECK(get_api != NULL);
  api = get_api(SAGECOMM_ABI_VERSION);
  sagecomm_store store = {.ctx = dir, .set = store_set, .get = store_get};
  sagecomm_option engine = {"engine", "cuda"};
  sagecomm_group_config config = {.struct_size = sizeof config,
                                  .rank = my_rank,
                                  .size = ranks,
                                  .name = "graphs",
                                  .timeout_ns = 60 * SECOND,
                                  .store = &store,
                                  .options = &engine,
                                  .n_options = 1};
  sagecomm_group group = 0;
  sagecomm_error err = {0};
  if (api->group_create(&config, &group, &err) != SAGECOMM_OK) fprintf(stderr, "%s\n", err.message);
  CHECK(group != 0);
  void *stream = vendor.make_stream(), *graph = NULL;
  uintptr_t first = vendor.allocate(4);
  CHECK(begin_capture(stream, 1) == 0);
  CHECK(issue(group, SAGECOMM_ALL_REDUCE, first, 4, first, 4, stream, &err) == SAGECOMM_INVALID);
  CHECK(strstr(err.message, "call a collective of the group on this device once before the capture") != NULL);
  CHECK(end_capture(stream, &graph) == 0);
  int32_t status = issue(group, SAGECOMM_ALL_REDUCE, first, 4, first, 4, stream, &err);
  if (status < 0) fprintf(stderr, "%s\n", err.message);
  CHECK(status >= 0);
  vendor.synchronize(stream);
  if (dies_in > 0) {
    a_peer_dies(group, stream);
    return;
  }
  launches(group, stream);
  CHECK(api->group_sequence(group) == 1 + LAUNCHES);
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
  abort_while_waiting(group, stream);
}

int main(int argc, char **argv) {
  if (argc != 4 && argc != 5) {
    fprintf(stderr, "usage: %s LIBRARY DIRECTORY RANKS [LAUNCH]\n", argv[0]);
    return 2;
  }
  ranks = atoi(argv[3]);
  dies_in = argc == 5 ? atoi(argv[4]) : 0;
  for (int rank = 1; rank < ranks; rank++) {
    pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
      my_rank = rank;
      run(argv[1], argv[2]);
      _exit(0);
    }
  }
  run(argv[1], argv[2]);
  int failed = 0, killed = 0, status;
  while (wait(&status) > 0) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      killed++;
    else
      failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  }
  return failed || killed != (dies_in > 0);
}
