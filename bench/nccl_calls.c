/* nccl_calls.c: the processor time of a call through NCCL's interface, of a rank alone, 4 bytes on host memory, in a process that has loaded
 * no vendor's runtime.
 *   ln -sf "$(python -m sagecomm nccl-path)" build/libnccl.so.2
 *   gcc -std=gnu11 -O2 -Inccl bench/nccl_calls.c build/libnccl.so.2 -o build/nccl_calls
 *   LD_LIBRARY_PATH=build build/nccl_calls */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "abi.h"

#define CALLS 2000

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
const char *ncclGetLastError(ncclComm_t comm);

static void check(ncclResult_t result) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s\n", ncclGetLastError(NULL));
  exit(1);
}

static double cpu_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(void) {
  ncclUniqueId id;
  ncclComm_t comm;
  int32_t from = 1, to = 0;
  check(ncclGetUniqueId(&id));
  check(ncclCommInitRank(&comm, 1, id, 0));
  for (int in_place = 0; in_place < 2; in_place++) {
    double before = cpu_us();
    for (int i = 0; i < CALLS; i++)
      check(ncclAllReduce(&from, in_place ? &from : &to, 1, ncclInt32, ncclSum, comm, NULL));
    printf("%s %.2f us\n", in_place ? "in place" : "two buffers", (cpu_us() - before) / CALLS);
  }
  return 0;
}
