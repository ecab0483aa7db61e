/* notes.c: what one all_reduce costs at the C ABI, alone and with a second process, for a library that is named: once with
 * the flight recorder and the statistics compiled in and once without, in turns. Built and run by notes.py.
 * Usage: notes LIBRARY DIRECTORY BYTES RANKS; prints ns a call, the median of blocks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "../tests/cabi/file_store.h"

#define BLOCKS 41
#define CALLS 20000

static const sagecomm_api *api;

static int by_value(const void *a, const void *b) { return *(const double *)a > *(const double *)b ? 1 : -1; }

static void rank(int me, int size, const char *dir, uint64_t bytes) {
  sagecomm_store store = {.ctx = (void *)(uintptr_t)dir, .set = store_set, .get = store_get};
  sagecomm_group_config config = {.struct_size = sizeof config,
                                  .rank = me,
                                  .size = size,
                                  .name = "bench",
                                  .timeout_ns = 60 * SECOND,
                                  .store = &store};
  sagecomm_group group;
  sagecomm_error err;
  if (api->group_create(&config, &group, &err) != SAGECOMM_OK) {
    fprintf(stderr, "%s\n", err.message);
    _exit(1);
  }
  sagecomm_segment s = {calloc(1, bytes + 4096), bytes};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE, .dtype = SAGECOMM_FLOAT32, .n_in = 1, .n_out = 1, .in = &s, .out = &s};
  double took[BLOCKS];
  for (int block = -1; block < BLOCKS; block++) {
    int64_t began = now();
    for (int call = 0; call < CALLS; call++) {
      sagecomm_work work = 0;
      int32_t status = api->issue(group, &op, &work, NULL, &err);
      while (status == SAGECOMM_PENDING) {
        status = api->wait(work, SECOND / 10, &err);
        if (status != SAGECOMM_PENDING) api->release(work);
      }
      if (status != SAGECOMM_OK) {
        fprintf(stderr, "%s\n", err.message);
        _exit(1);
      }
    }
    if (block >= 0) took[block] = (double)(now() - began) / CALLS;
  }
  api->group_destroy(group, &err);
  qsort(took, BLOCKS, sizeof took[0], by_value);
  if (me == 0) printf("%.2f\n", took[BLOCKS / 2]);
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: notes LIBRARY DIRECTORY BYTES RANKS\n");
    return 2;
  }
  int size = atoi(argv[4]), status = 0, failed = 0;
  for (int me = 0; me < size; me++) {
    if (me + 1 < size && fork() != 0) continue; /* the last rank is this process */
    void *library = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
    const sagecomm_api *(*get_api)(uint32_t) = NULL;
    if (library) *(void **)&get_api = dlsym(library, "sagecomm_get_api");
    if (!get_api || !(api = get_api(SAGECOMM_ABI_VERSION))) {
      fprintf(stderr, "%s: no such library\n", argv[1]);
      return 1;
    }
    rank(me, size, argv[2], strtoull(argv[3], NULL, 10));
    if (me + 1 < size) {
      fflush(stdout);
      _exit(0);
    }
  }
  while (wait(&status) > 0) failed |= status;
  return failed != 0;
}
