// Ranks of one communicator on the emulated libnccl.so.2, each a process with a device of its own: `nccl RANKS`.
#include <cuda.h>
#include <nccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 1000

static int rank, ranks;
static ncclComm_t comm;
static cudaStream_t stream;

#define CHECK(condition)                                                                                 \
  do {                                                                                                   \
    if (!(condition)) {                                                                                  \
      fprintf(stderr, "rank %d: line %d: %s: %s\n", rank, __LINE__, #condition, ncclGetLastError(NULL)); \
      _exit(1);                                                                                          \
    }                                                                                                    \
  } while (0)
#define CUDA(call) CHECK((call) == CUDA_SUCCESS)
#define NCCL(call) CHECK((call) == ncclSuccess)

static CUdeviceptr in, out;

static void *pointer(CUdeviceptr address) { return (void *)address; }

// The input of a rank is rank + 1, rank + 2, ...
static void fill(size_t count, int by) {
  int *values = malloc(count * sizeof *values);
  for (size_t i = 0; i < count; i++) values[i] = by + (int)i;
  CUDA(cuMemcpyHtoDAsync(in, values, count * sizeof *values, stream));
  CUDA(cuMemsetD32Async(out, 0, (size_t)N * (size_t)ranks, stream));
  free(values);
}

static int at(size_t index) {
  int value;
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuMemcpyDtoH(&value, out + index * sizeof value, sizeof value));
  return value;
}

// Each is the sum of rank + 1 over the ranks for the first element, and grows by `ranks`.
static void collectives(void) {
  const int sum = ranks * (ranks + 1) / 2;
  fill(N, rank + 1);
  NCCL(ncclAllReduce(pointer(in), pointer(out), N, ncclInt32, ncclSum, comm, stream));
  CHECK(at(0) == sum && at(N - 1) == sum + ranks * (N - 1));
  NCCL(ncclAllReduce(pointer(in), pointer(out), N, ncclInt32, ncclMax, comm, stream));
  CHECK(at(5) == ranks + 5);
  ncclRedOp_t op;
  int two = 2;
  NCCL(ncclRedOpCreatePreMulSum(&op, &two, ncclInt32, ncclScalarHostImmediate, comm));
  NCCL(ncclAllReduce(pointer(in), pointer(out), N, ncclInt32, op, comm, stream));
  NCCL(ncclRedOpDestroy(op, comm));
  CHECK(at(0) == 2 * sum);
  fill(N, rank + 1);
  NCCL(ncclReduce(pointer(in), pointer(out), N, ncclInt32, ncclSum, ranks - 1, comm, stream));
  CHECK(at(0) == (rank == ranks - 1 ? sum : 0));
  NCCL(ncclBroadcast(pointer(in), pointer(out), N, ncclInt32, ranks - 1, comm, stream));
  CHECK(at(0) == ranks && at(N - 1) == ranks + N - 1);
  NCCL(ncclAllGather(pointer(in), pointer(out), N, ncclInt32, comm, stream));
  for (int i = 0; i < ranks; i++) CHECK(at((size_t)i * N) == i + 1);
  fill((size_t)N * (size_t)ranks, rank);
  NCCL(ncclReduceScatter(pointer(in), pointer(out), N, ncclInt32, ncclSum, comm, stream));
  CHECK(at(0) == sum - ranks + ranks * rank * N);
}

// A send and a recv make progress together inside of a group only.
static void exchange(void) {
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  for (int i = 0; i < 200; i++) {
    fill(N, 1000 * rank + i);
    NCCL(ncclGroupStart());
    NCCL(ncclSend(pointer(in), N, ncclInt32, next, comm, stream));
    NCCL(ncclRecv(pointer(out), N, ncclInt32, previous, comm, stream));
    NCCL(ncclGroupEnd());
    if (i % 50 == 0) CHECK(at(1) == 1000 * previous + i + 1);
  }
  CHECK(at(0) == 1000 * previous + 199);
}

// An operation that the ranks call differently ends by an abort only.
static void abort_ends_it(void) {
  NCCL(ncclAllReduce(pointer(in), pointer(out), (size_t)(N - rank), ncclInt32, ncclSum, comm, stream));
  usleep(20000);
  CHECK(ranks == 1 || cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  NCCL(ncclCommAbort(comm));
  CUDA(cuStreamSynchronize(stream));
}

static void await(ncclComm_t of) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) NCCL(ncclCommGetAsyncError(of, &state));
  CHECK(state == ncclSuccess);
}

static void without_blocking(ncclUniqueId id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResult_t begun = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  CHECK(begun == ncclInProgress || begun == ncclSuccess);
  await(comm);
  fill(N, rank + 1);
  CHECK(ncclAllReduce(pointer(in), pointer(out), N, ncclInt32, ncclSum, comm, stream) == ncclInProgress);
  CHECK(at(0) == 0);  // nothing is queued before somebody asks
  await(comm);
  CHECK(at(0) == ranks * (ranks + 1) / 2);
  begun = ncclCommFinalize(comm);
  CHECK(begun == ncclInProgress || begun == ncclSuccess);
  await(comm);
  NCCL(ncclCommDestroy(comm));
}

static void one_device_for_two(ncclUniqueId id) {
  CHECK(ncclCommInitRank(&comm, ranks, id, rank) == ncclInvalidUsage);
  CHECK(strstr(ncclGetLastError(NULL), "Duplicate GPU detected") != NULL);
}

static void use_device(int device) {
  CUcontext context;
  CUDA(cuDevicePrimaryCtxRetain(&context, device));
  CUDA(cuCtxSetCurrent(context));
}

// The first rank makes the ids and gives them to the others.
static void id_of(ncclUniqueId *id, int (*pipes)[2]) {
  if (rank == 0) {
    NCCL(ncclGetUniqueId(id));
    for (int i = 1; i < ranks; i++) CHECK(write(pipes[i][1], id, sizeof *id) == sizeof *id);
  } else {
    CHECK(read(pipes[rank][0], id, sizeof *id) == sizeof *id);
  }
}

static void run(int (*pipes)[2]) {
  ncclUniqueId first, second, third;
  id_of(&first, pipes);
  id_of(&second, pipes);
  id_of(&third, pipes);
  CUDA(cuInit(0));
  if (ranks > 1) {
    use_device(0);
    one_device_for_two(first);
  }
  use_device(rank);
  CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUDA(cuMemAlloc(&in, sizeof(int) * N * (size_t)ranks));
  CUDA(cuMemAlloc(&out, sizeof(int) * N * (size_t)ranks));
  without_blocking(second);
  NCCL(ncclCommInitRank(&comm, ranks, third, rank));
  collectives();
  exchange();
  abort_ends_it();
}

int main(int count, char **arguments) {
  ranks = count > 1 ? atoi(arguments[1]) : 2;
  int pipes[16][2], failed = 0;
  for (int i = 0; i < ranks; i++)
    if (pipe(pipes[i]) != 0) return 1;
  for (int i = 1; i < ranks; i++)
    if (fork() == 0) {
      rank = i;
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // NCCL waits for ever for a rank that has ended; the first one is killed then
      run(pipes);
      _exit(0);
    }
  run(pipes);
  for (int i = 1, status; i < ranks; i++) failed += wait(&status) < 0 || status != 0;
  return failed;
}
