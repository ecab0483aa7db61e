/* nccl.c is compiled with NVIDIA's nccl.h and linked to libsagecomm_nccl.so. Its ranks, processes or threads, call each
 * function of the library on host memory. As `leaves`, rank 0 of 3 exits without a farewell, and the others go on.
 * Usage: nccl processes|threads|leaves RANKS */
#include "nccl_ranks.h"

#include "nccl_collectives.h"
#include "nccl_communicators.h"

/* ---- what is refused, and failures ---- */

static void wrong_arguments(ncclComm_t comm, int size) {
  int32_t value = 0, *buffer = &value;
  ncclComm_t none = NULL;
  ncclUniqueId bad;
  memset(&bad, 'x', sizeof bad);
  expect(ncclGetUniqueId(NULL), ncclInvalidArgument, NULL, "NULL");
  expect(ncclGetVersion(NULL), ncclInvalidArgument, NULL, "NULL");
  expect(ncclCommInitRank(&none, size, bad, my_rank), ncclInvalidUsage, NULL, "sagecomm");
  CHECK(none == NULL);
  expect(ncclCommInitRank(&none, size, bad, size), ncclInvalidArgument, NULL, "rank");
  expect(ncclCommInitRank(NULL, size, bad, 0), ncclInvalidArgument, NULL, "NULL");
  ncclConfig_t config;
  memset(&config, 0, sizeof config);
  expect(ncclCommInitRankConfig(&none, size, bad, my_rank, &config), ncclInvalidArgument, NULL,
         "NCCL_CONFIG_INITIALIZER");
  expect(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, NULL, NULL), ncclInvalidArgument, NULL, "comm is NULL");
  expect(ncclAllReduce(buffer, buffer, 1, ncclInt32, ncclSum, (ncclComm_t)buffer, NULL), ncclInvalidArgument, NULL,
         "no communicator of this process");
  expect(ncclAllReduce(NULL, buffer, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument, comm, "sendbuff is NULL");
  expect(ncclAllReduce(buffer, NULL, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument, comm, "recvbuff is NULL");
  expect(ncclBroadcast(buffer, buffer, 1, ncclInt32, size, comm, NULL), ncclInvalidArgument, comm, "outside");
  expect(ncclSend(buffer, 1, ncclInt32, -1, comm, NULL), ncclInvalidArgument, comm, "outside");
  expect(ncclAllReduce(buffer, buffer, SIZE_MAX, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument, comm,
         "too large");
  expect(ncclRedOpCreatePreMulSum(NULL, buffer, ncclFloat32, ncclScalarHostImmediate, comm), ncclInvalidArgument, NULL,
         "NULL");
  expect(ncclCommCount(comm, NULL), ncclInvalidArgument, NULL, "NULL");
  CHECK(sum(comm, 1) == size); /* none of these did any harm */
}

#define REFUSED(call) expect(call, ncclInvalidUsage, NULL, "sagecomm: ncc")

static void not_supported(ncclComm_t comm) {
  int32_t value = 0;
  ncclWindow_t window = NULL;
  ncclWaitSignalDesc_t signal = {0};
  void *pointer = NULL;
  ncclComm_t grown = NULL;
  REFUSED(ncclWinGetUserPtr(comm, window, &pointer));
  REFUSED(ncclPutSignal(&value, 1, ncclInt32, 0, window, 0, 0, 0, 0, comm, NULL));
  REFUSED(ncclSignal(0, 0, 0, 0, comm, NULL));
  REFUSED(ncclWaitSignal(1, &signal, comm, NULL));
  REFUSED(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  REFUSED(ncclCommGetUniqueId(comm, &shared->id));
  REFUSED(ncclCommGrow(comm, 9, NULL, -1, &grown, NULL));
  REFUSED(ncclDevCommCreate(comm, NULL, NULL));
  REFUSED(ncclDevCommDestroy(comm, NULL));
  REFUSED(ncclGetLsaMultimemDevicePointer(window, 0, &pointer));
  REFUSED(ncclGetPeerDevicePointer(window, 0, 0, &pointer));
  REFUSED(ncclGetLsaDevicePointer(window, 0, 0, &pointer));
  CHECK(ncclTeamLsa(comm).nRanks == 1);
  ncclCommProperties_t properties = {.size = sizeof properties, .magic = NCCL_API_MAGIC, .version = NCCL_VERSION_CODE};
  OK(ncclCommQueryProperties(comm, &properties));
  CHECK(properties.rank == my_rank && !properties.deviceApiSupport && properties.ginType == NCCL_GIN_TYPE_NONE);
}

/* A communicator has no memory that it could give back, and can be used as before. */
static void suspends(ncclComm_t comm, int size) {
  uint64_t bytes = 1;
  expect(ncclCommSuspend(comm, 77), ncclInvalidArgument, comm, "expected NCCL_SUSPEND_MEM");
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  CHECK(sum(comm, 1) == size);
  OK(ncclCommResume(comm));
  OK(ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
  CHECK(bytes == 0 && sum(comm, 1) == size);
  expect(ncclCommMemStats(comm, ncclStatGpuMemTotal, NULL), ncclInvalidArgument, comm, "value is NULL");
  expect(ncclCommResume(NULL), ncclInvalidArgument, NULL, "comm is NULL");
}

static void memory(ncclComm_t comm) {
  void *at = NULL, *handle = NULL;
  OK(ncclMemAlloc(&at, 100));
  memset(at, 1, 100);
  OK(ncclCommRegister(comm, at, 100, &handle));
  OK(ncclCommDeregister(comm, handle));
  ncclWindow_t window = at;
  OK(ncclCommWindowRegister(comm, at, 100, &window, NCCL_WIN_COLL_SYMMETRIC));
  CHECK(window == NULL);
  OK(ncclCommWindowDeregister(comm, window));
  expect(ncclCommWindowDeregister(comm, at), ncclInvalidArgument, comm, "there is no such window");
  OK(ncclMemFree(at));
  expect(ncclMemFree(at), ncclInvalidArgument, NULL, "is not from ncclMemAlloc()");
  expect(ncclMemAlloc(NULL, 1), ncclInvalidArgument, NULL, "NULL");
  expect(ncclMemAlloc(&at, SIZE_MAX), ncclSystemError, NULL, "out of memory");
}

/* Rank 0 aborts with nothing outstanding while the others wait for it: it has left. */
static void aborts(int size) {
  ncclComm_t comm = NULL;
  OK(ncclCommInitRank(&comm, size, unique_id(), my_rank));
  if (my_rank == 0) {
    OK(ncclCommAbort(comm));
  } else {
    int32_t value = 1;
    ncclResult_t state = ncclSuccess;
    expect(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL), ncclRemoteError, comm, " left");
    OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, " left");
    OK(ncclCommAbort(comm));
  }
  expect(ncclCommDestroy(comm), ncclInvalidArgument, NULL, "or was destroyed");
  float factor = 1;
  expect(ncclRedOpCreatePreMulSum(NULL, &factor, ncclFloat32, ncclScalarHostImmediate, comm), ncclInvalidArgument, NULL,
         "op is NULL");
}

/* A thread aborts a communicator while another one waits in it for ever. */
static void *aborting(void *comm) {
  meet(); /* all ranks but the last are about to wait; an abort before they do so ends their call as well */
  OK(ncclCommAbort(comm));
  return NULL;
}

static void aborts_of_threads(int size) {
  ncclComm_t comm = NULL;
  OK(ncclCommInitRank(&comm, size, unique_id(), my_rank));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, aborting, comm) == 0);
  int32_t value = 1;
  ncclResult_t result =
      my_rank == size - 1 ? ncclRemoteError : ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL);
  CHECK(result == ncclRemoteError || result == ncclInvalidArgument || result == ncclInvalidUsage);
  CHECK(pthread_join(thread, NULL) == 0);
}

/* ---- several ranks in one thread ---- */

static void in_one_thread(int size) {
  ncclComm_t comms[8], parts[8];
  int32_t values[8], sums[8], from[8], got[8];
  OK(ncclCommInitAll(comms, size, NULL));
  OK(ncclGroupStart());
  for (int rank = 0; rank < size; rank++) {
    values[rank] = rank;
    OK(ncclAllReduce(&values[rank], &sums[rank], 1, ncclInt32, ncclSum, comms[rank], NULL));
  }
  OK(ncclGroupEnd());
  for (int rank = 0; rank < size; rank++) CHECK(sums[rank] == size * (size - 1) / 2);
  OK(ncclGroupStart());
  for (int rank = 0; rank < size; rank++) {
    from[rank] = 10 + rank;
    OK(ncclSend(&from[rank], 1, ncclInt32, (rank + 1) % size, comms[rank], NULL));
    OK(ncclRecv(&got[rank], 1, ncclInt32, (rank + size - 1) % size, comms[rank], NULL));
  }
  OK(ncclGroupEnd());
  for (int rank = 0; rank < size; rank++) CHECK(got[rank] == 10 + (rank + size - 1) % size);
  OK(ncclGroupStart());
  for (int rank = 0; rank < size; rank++) OK(ncclCommSplit(comms[rank], 0, -rank, &parts[rank], NULL));
  OK(ncclGroupEnd());
  for (int rank = 0; rank < size; rank++) {
    int place = -1;
    OK(ncclCommUserRank(parts[rank], &place));
    CHECK(place == size - 1 - rank);
    OK(ncclCommDestroy(parts[rank]));
    OK(pncclCommDestroy(comms[rank]));
  }
}

static void run(int rank, int size, bool threads) {
  my_rank = rank;
  int version = 0;
  OK(ncclGetVersion(&version));
  CHECK(version >= 22700 && strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0);
  ncclComm_t comm = NULL, second = NULL;
  OK(ncclCommInitRank(&comm, size, unique_id(), rank));
  ncclUniqueId ids[2] = {unique_id()};
  ids[1] = ids[0];
  OK(ncclCommInitRankScalable(&second, size, rank, 2, ids, NULL));
  ask(comm, rank, size);
  reductions(comm, size);
  moves(comm, size);
  groups(comm, size);
  wrong_arguments(comm, size);
  not_supported(comm);
  memory(comm);
  suspends(comm, size);
  int32_t value = 1;
  cudaStream_t own = (cudaStream_t)2; /* cudaStreamPerThread */
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, own));
  OK(ncclGroupStart());
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, own));
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, second, NULL));
  expect(ncclGroupEnd(), ncclInvalidUsage, NULL, "per-thread default stream");
  CHECK(sum(second, 2) == 2 * size && sum(comm, 3) == 3 * size);
  splits(comm, size);
  in_progress(size);
  children_in_progress(comm, size);
  shrinks_after_a_failure(size);
  aborts_under_way(size);
  aborts_a_shrink(comm, size);
  if (!threads) forks_under_way(size);
  OK(ncclCommFinalize(comm));
  expect(ncclAllReduce(&version, &version, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidUsage, comm, "was finalized");
  OK(ncclCommDestroy(comm));
  OK(ncclCommDestroy(second));
  aborts(size);
  if (!threads) aborts_of_threads(size); /* the barrier counts one thread a rank */
  meet();
  if (threads && rank == 0) in_one_thread(size);
}

/* Rank 0 exits and destroys nothing, which is no failure to the others. `gone` ends when its process has. */
static void leaves(int rank, int gone) {
  my_rank = rank;
  ncclComm_t comm = NULL;
  OK(ncclCommInitRank(&comm, 3, unique_id(), rank));
  CHECK(sum(comm, 1) == 3);
  if (rank == 0) exit(0);
  char nothing;
  CHECK(read(gone, &nothing, 1) == 0);
  pid_t child = fork(); /* its exit ends no communicator */
  if (child == 0) exit(0);
  int status = 1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  for (int i = 0; i < 100; i++) {
    int32_t from = i + rank, to = 0;
    OK(ncclGroupStart());
    OK(ncclSend(&from, 1, ncclInt32, 3 - rank, comm, NULL));
    OK(ncclRecv(&to, 1, ncclInt32, 3 - rank, comm, NULL));
    OK(ncclGroupEnd());
    CHECK(to == i + 3 - rank);
  }
  int32_t value = 1;
  expect(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL), ncclRemoteError, comm, " left");
  exit(0);
}

static int ranks;

static void *thread_main(void *argument) {
  run((int)(intptr_t)argument, ranks, true);
  return NULL;
}

int main(int argc, char **argv) {
  ranks = argc == 3 ? atoi(argv[2]) : 0;
  bool threads = argc == 3 && strcmp(argv[1], "threads") == 0, leave = argc == 3 && strcmp(argv[1], "leaves") == 0;
  if (ranks < 1 || ranks > 8 || (leave && ranks != 3) || (!threads && !leave && strcmp(argv[1], "processes") != 0)) {
    fprintf(stderr, "usage: %s processes|threads|leaves RANKS\n", argv[0]);
    return 2;
  }
  share_among(ranks);
  pthread_t thread[8];
  pid_t first = 0;
  int gone[2];
  if (pipe(gone) != 0) return 2;
  for (int rank = 0; rank < ranks; rank++) {
    if (threads) {
      if (pthread_create(&thread[rank], NULL, thread_main, (void *)(intptr_t)rank) != 0) return 2;
      continue;
    }
    pid_t child = fork();
    if (child < 0) return 2;
    if (rank == 0) first = child;
    if (child == 0) {
      close(gone[1]);
      take_host(rank);
      if (leave) leaves(rank, gone[0]);
      run(rank, ranks, false);
      _exit(0);
    }
  }
  int worst = 0;
  siginfo_t ended;
  if (leave && waitid(P_PID, (id_t)first, &ended, WEXITED | WNOWAIT) != 0) return 2;
  close(gone[1]);
  for (int rank = 0; rank < ranks; rank++) {
    int status = 0;
    if (threads) {
      pthread_join(thread[rank], NULL);
    } else if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      worst = 1;
    }
  }
  if (worst == 0) printf("%d ranks agree\n", ranks);
  return worst;
}
