/* coalesced.c: ten all_reduces of 2 KiB in one call against one of 20 KiB, at the C ABI: two processes, blocks of calls in
 * turn. Built and run by coalesced.py. Usage: coalesced LIBRARY DIRECTORY BYTES TENSORS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "../tests/cabi/file_store.h"

#define BLOCKS 41
#define CALLS 2000

static const sagecomm_api *api;

static void complete(int32_t status, const sagecomm_work *pending, sagecomm_error *err) {
  while (status == SAGECOMM_PENDING) {
    status = api->wait(*pending, SECOND / 10, err);
    if (status != SAGECOMM_PENDING) api->release(*pending);
  }
  if (status != SAGECOMM_OK) {
    fprintf(stderr, "%s\n", err->message);
    _exit(1);
  }
}

static int by_value(const void *a, const void *b) { return *(const double *)a > *(const double *)b ? 1 : -1; }

static void rank(int me, const char *dir, uint64_t bytes, uint32_t n) {
  sagecomm_store store = {.ctx = (void *)(uintptr_t)dir, .set = store_set, .get = store_get};
  sagecomm_group_config config = {
      .struct_size = sizeof config, .rank = me, .size = 2, .name = "bench", .timeout_ns = 60 * SECOND, .store = &store};
  sagecomm_group group;
  sagecomm_error err;
  if (api->group_create(&config, &group, &err) != SAGECOMM_OK) {
    fprintf(stderr, "%s\n", err.message);
    _exit(1);
  }
  sagecomm_segment *segments = calloc(n + 1, sizeof *segments);
  sagecomm_op *ops = calloc(n + 1, sizeof *ops);
  for (uint32_t i = 0; i <= n; i++) {
    uint64_t length = i < n ? bytes : bytes * n;
    segments[i] = (sagecomm_segment){calloc(1, length + 4096), length};
    ops[i] = (sagecomm_op){.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_FLOAT32, .n_in = 1, .n_out = 1};
    ops[i].in = ops[i].out = &segments[i];
  }
  double took[3][BLOCKS];
  for (int block = -1; block < BLOCKS; block++) {
    for (int way = 0; way < 3; way++) {
      int64_t began = now();
      for (int call = 0; call < CALLS; call++) {
        sagecomm_work work = 0;
        if (way == 0) {
          complete(api->issue_coalesced(group, ops, n, &work, NULL, &err), &work, &err);
        } else if (way == 1) {
          complete(api->issue(group, &ops[n], &work, NULL, &err), &work, &err);
        } else {
          for (uint32_t i = 0; i < n; i++) complete(api->issue(group, &ops[i], &work, NULL, &err), &work, &err);
        }
      }
      if (block >= 0) took[way][block] = (double)(now() - began) / CALLS / 1000;
    }
  }
  for (int way = 0; way < 3; way++) qsort(took[way], BLOCKS, sizeof(double), by_value);
  double coalesced = took[0][BLOCKS / 2], one = took[1][BLOCKS / 2], apart = took[2][BLOCKS / 2];
  if (me == 0) {
    printf(
        "C ABI, us (median, least): %u of %llu bytes coalesced %.2f %.2f; one of all bytes %.2f %.2f; one by one %.2f "
        "%.2f; "
        "coalesced / one of all bytes %.2f\n",
        n, (unsigned long long)bytes, coalesced, took[0][0], one, took[1][0], apart, took[2][0], coalesced / one);
  }
  api->group_destroy(group, &err);
  api->shutdown();
  exit(0);
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  for (int me = 0; me < 2; me++) {
    if (fork() != 0) continue;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    const sagecomm_api *(*get)(uint32_t) = NULL;
    *(void **)&get = dlsym(library, "sagecomm_get_api");
    api = get(SAGECOMM_ABI_VERSION);
    rank(me, argv[2], strtoull(argv[3], NULL, 10), (uint32_t)strtoul(argv[4], NULL, 10));
  }
  int failed = 0, status;
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}
