/* two_processes.c uses libsagecomm.so from C, without Python and torch: two processes, a store made of files, an
 * all_reduce with every way to wait for it, and the refusal in a forked child.
 * Usage: two_processes LIBRARY DIRECTORY [LIBRARY OF A VENDOR'S, FUNCTION THAT STARTS IT] */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "file_store.h"

/* ---- one rank ---- */

static const sagecomm_api *api;

static float value(int rank, int i) { return (float)((rank + 1) * (i % 1000)); }

static _Atomic int done;

static void on_done(void *ctx, int32_t status, const sagecomm_error *err) {
  CHECK(ctx == &done && status == SAGECOMM_OK && err != NULL);
  atomic_store(&done, 1);
}

enum { SYNCHRONOUS, WAITED, CALLED };

static void all_reduce(sagecomm_group group, int n, int how) {
  float *data = malloc((size_t)n * sizeof *data);
  CHECK(data != NULL);
  for (int i = 0; i < n; i++) data[i] = value(my_rank, i);
  int cut = n / 3;
  sagecomm_segment pieces[2] = {{data, (uint64_t)cut * 4}, {data + cut, (uint64_t)(n - cut) * 4}};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                    .dtype = SAGECOMM_FLOAT32,
                    .n_in = 2,
                    .n_out = 2,
                    .in = pieces,
                    .out = pieces,
                    .flags = how == SYNCHRONOUS ? 0 : SAGECOMM_ASYNC};
  sagecomm_work work = 0;
  sagecomm_error err;
  uint64_t before = api->group_sequence(group);
  uint64_t sequence;
  int32_t status = api->issue(group, &op, &work, &sequence, &err);
  CHECK(sequence == before + 1 && api->group_sequence(group) == sequence);
  CHECK(api->group_sequence(group) == before + 1);
  CHECK(api->lane_sequence(group, SAGECOMM_HOST) == before + 1 && api->lane_sequence(group, 1) == 0);
  if (status == SAGECOMM_PENDING) {
    CHECK(work != 0);
    atomic_store(&done, 0);
    if (how == CALLED && api->on_done(work, on_done, &done, &err) == SAGECOMM_PENDING) {
      while (atomic_load(&done) == 0) sched_yield();
    }
    do status = api->wait(work, SECOND / 10, &err);
    while (status == SAGECOMM_PENDING);
    api->release(work);
  } else {
    CHECK(work == 0);
  }
  if (status != SAGECOMM_OK) fprintf(stderr, "%s\n", err.message);
  CHECK(status == SAGECOMM_OK);
  for (int i = 0; i < n; i++) CHECK(data[i] == value(0, i) + value(1, i));
  free(data);
}

/* Every function is refused in a child that was forked from a process with a group, and none of them hangs. */
static void fork_with_group(sagecomm_group group) {
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    sagecomm_op op = {.kind = SAGECOMM_BARRIER};
    sagecomm_work work;
    sagecomm_error err;
    CHECK(api->issue(group, &op, &work, NULL, &err) == SAGECOMM_FORKED && strstr(err.message, "forked") != NULL);
    CHECK(api->group_error(group, &err) == SAGECOMM_FORKED);
    CHECK(api->group_abort(group, "no", &err) == SAGECOMM_FORKED);
    CHECK(api->group_leave(group, "no", &err) == SAGECOMM_FORKED);
    CHECK(api->group_shrunk(group, &err) == SAGECOMM_FORKED);
    CHECK(api->group_outstanding(group, &err) == SAGECOMM_FORKED);
    CHECK(api->group_fail(group, &err, SAGECOMM_HOST, &err) == SAGECOMM_FORKED);
    CHECK(api->group_destroy(group, &err) == SAGECOMM_FORKED);
    CHECK(api->group_create(NULL, &group, &err) == SAGECOMM_FORKED);
    api->shutdown();
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* One rank's caller cannot go on as the other one does: both get its reason. */
static void fail_group(sagecomm_group group) {
  sagecomm_error err;
  sagecomm_error fault = {.status = SAGECOMM_ABORTED, .op = "all_reduce", .sequence = 1, .message = "the test says so"};
  CHECK(api->group_fail(group, &fault, SAGECOMM_HOST, &err) == SAGECOMM_INVALID);
  CHECK(api->group_fail(group, NULL, SAGECOMM_HOST, &err) == SAGECOMM_INVALID);
  fault.status = SAGECOMM_INTERNAL;
  float element = 1;
  sagecomm_segment one = {&element, sizeof element};
  sagecomm_op op = {
      .kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_FLOAT32, .n_in = 1, .n_out = 1, .in = &one, .out = &one};
  for (int32_t status = SAGECOMM_OK; status == SAGECOMM_OK;) {
    sagecomm_work work = 0;
    status = api->issue(group, &op, &work, NULL, &err);
    while (status == SAGECOMM_PENDING) status = api->wait(work, SECOND / 10, &err);
    api->release(work);
    /* The other rank has begun this one, so those before it are complete there. */
    if (my_rank == 0 && status == SAGECOMM_OK)
      CHECK(api->group_fail(group, &fault, SAGECOMM_HOST, &err) == SAGECOMM_OK);
  }
  CHECK(err.status == SAGECOMM_INTERNAL && err.rank == 0 && err.sequence == 1);
  CHECK(strstr(err.message, "cannot go on as its peers do in all_reduce #1: the test says so") != NULL);
}

/* Somebody else starts a vendor's library. Each of these functions takes one argument, which is 0. */
static void start(const char *library, const char *function) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(handle != NULL);
  int (*begin)(const char *);
  *(void **)&begin = dlsym(handle, function);
  CHECK(begin != NULL);
  printf("%s returns %d\n", function, begin(NULL));
}

static void run(const char *library, char *dir) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(handle != NULL);
  const sagecomm_api *(*get_api)(uint32_t);
  *(void **)&get_api = dlsym(handle, "sagecomm_get_api");
  CHECK(get_api != NULL);
  CHECK(get_api(SAGECOMM_ABI_VERSION + 1) == NULL);
  api = get_api(SAGECOMM_ABI_VERSION);
  CHECK(api != NULL && api->abi_version == SAGECOMM_ABI_VERSION && api->struct_size >= sizeof *api);
  CHECK(api->op_size == sizeof(sagecomm_op));
  CHECK(strcmp(api->version(), SAGECOMM_VERSION) == 0);

  sagecomm_store store = {.ctx = dir, .set = store_set, .get = store_get};
  sagecomm_option option = {"debug", "WARN"};
  /* Rank 1 is as if it was compiled when the configuration had no field `lasting`. */
  sagecomm_group_config config = {
      .struct_size = my_rank == 1 ? offsetof(sagecomm_group_config, lasting) : sizeof config,
      .rank = my_rank,
      .size = 2,
      .name = "two",
      .timeout_ns = 60 * SECOND,
      .store = &store,
      .options = &option,
      .n_options = 1};
  sagecomm_group group = 0;
  sagecomm_error err = {0};
  if (api->group_create(&config, &group, &err) != SAGECOMM_OK) fprintf(stderr, "%s\n", err.message);
  CHECK(group != 0 && api->group_sequence(group) == 0 && api->group_error(group, &err) == SAGECOMM_OK);
  static const int lengths[] = {1, 1000, 300000};
  for (int round = 0; round < 20; round++) {
    for (int how = SYNCHRONOUS; how <= CALLED; how++) all_reduce(group, lengths[round % 3], how);
  }
  fork_with_group(group);
  all_reduce(group, 1000, SYNCHRONOUS); /* the parent goes on */

  /* A refusal copies its text into the caller's error. */
  sagecomm_op wrong = {.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_BOOL, .reduce_op = SAGECOMM_AVG};
  sagecomm_work work;
  CHECK(api->issue(group, &wrong, &work, NULL, &err) == SAGECOMM_INVALID && err.status == SAGECOMM_INVALID);
  CHECK(strcmp(err.message, "sagecomm: all_reduce: AVG is not defined for bool") == 0);
  char json[1 << 14];
  CHECK(api->group_stats(group, json, sizeof json) > 0 && strstr(json, "\"all_reduce\"") != NULL);

  sagecomm_child child = {
      .struct_size = sizeof child, .parent = group, .aborts = 1}; /* which had another meaning once */
  sagecomm_group made = 0;
  CHECK(api->group_shrink(&child, 1, &made, &err) == SAGECOMM_INVALID && strstr(err.message, "aborts is 1") != NULL);

  fail_group(group);
  CHECK(api->group_destroy(group, &err) == SAGECOMM_OK && err.status == SAGECOMM_INTERNAL);
  CHECK(api->group_destroy(group, &err) == SAGECOMM_INVALID);
  CHECK(api->group_leave(group, "no", &err) == SAGECOMM_INVALID);
  CHECK(api->group_shrunk(group, &err) == SAGECOMM_INVALID);
  CHECK(api->group_outstanding(group, &err) == SAGECOMM_INVALID);
  CHECK(api->issue(group, &wrong, &work, NULL, NULL) == SAGECOMM_INVALID); /* err may be NULL */
  CHECK(api->wait(work, 0, &err) == SAGECOMM_INVALID);
  api->shutdown();
}

int main(int argc, char **argv) {
  if (argc != 3 && argc != 5) return 2;
  /* Forks before the library is loaded, because a process that has loaded it cannot be forked into another rank. */
  pid_t child = fork();
  if (child < 0) return 2;
  my_rank = child == 0;
  if (argc == 5) start(argv[3], argv[4]);
  run(argv[1], argv[2]);
  if (child == 0) return 0;
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  printf("two processes agree\n");
  return 0;
}
