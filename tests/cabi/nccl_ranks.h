/* nccl_ranks.h: what the ranks of C programs over libsagecomm_nccl.so share. It is included once in a program, before
 * anything else. */
#define _GNU_SOURCE
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <stdio.h>
#include <unistd.h>

#include "hosts.h"

/* It declares inline functions that it does not define. */
#define inline
#include <nccl_device/core.h>
#undef inline

static _Thread_local int my_rank;

#define CHECK(condition)                                                                              \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      fprintf(stderr, "rank %d: %s:%d: %s does not hold\n", my_rank, __FILE__, __LINE__, #condition); \
      _exit(1);                                                                                       \
    }                                                                                                 \
  } while (0)

#define OK(call)                                                                                                   \
  do {                                                                                                             \
    ncclResult_t ok_ = (call);                                                                                     \
    if (ok_ != ncclSuccess) {                                                                                      \
      fprintf(stderr, "rank %d: %s:%d: %s: %s: %s\n", my_rank, __FILE__, __LINE__, #call, ncclGetErrorString(ok_), \
              ncclGetLastError(NULL));                                                                             \
      _exit(1);                                                                                                    \
    }                                                                                                              \
  } while (0)

/* What the ranks share: a barrier that the library under test knows nothing of, and unique ids. */
static struct shared {
  pthread_barrier_t barrier;
  ncclUniqueId id;
} *shared;

static void meet(void) { pthread_barrier_wait(&shared->barrier); }

static ncclUniqueId unique_id(void) {
  meet();
  if (my_rank == 0) OK(ncclGetUniqueId(&shared->id));
  meet();
  return shared->id;
}

static void expect(ncclResult_t result, ncclResult_t wanted, ncclComm_t comm, const char *text) {
  if (result != wanted || strstr(ncclGetLastError(comm), text) == NULL) {
    fprintf(stderr, "rank %d: result %d, expected %d with %s: %s\n", my_rank, result, wanted, text,
            ncclGetLastError(comm));
    _exit(1);
  }
}

static void settle(ncclComm_t comm, ncclResult_t result) {
  while (result == ncclInProgress) OK(ncclCommGetAsyncError(comm, &result));
  OK(result);
}

static inline int32_t sum(ncclComm_t comm, int32_t value) {
  int32_t total = -1;
  settle(comm, ncclAllReduce(&value, &total, 1, ncclInt32, ncclSum, comm, NULL));
  return total;
}

/* Makes what ranks share, before they begin. */
static void share_among(int ranks) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t between;
  pthread_barrierattr_init(&between);
  pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &between, (unsigned)ranks);
}
