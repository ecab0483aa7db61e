/* nccl_communicators.h: the parts of nccl.c that make, derive, finalize and abort communicators. It is included once,
 * behind nccl_ranks.h. */

static void ask(ncclComm_t comm, int rank, int size) {
  int answer = -2;
  ncclResult_t state = ncclInternalError;
  OK(ncclCommCount(comm, &answer));
  CHECK(answer == size);
  OK(ncclCommUserRank(comm, &answer));
  CHECK(answer == rank);
  OK(ncclCommCuDevice(comm, &answer));
  CHECK(answer == -1); /* there is no device */
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess);
}

static void splits(ncclComm_t comm, int size) {
  ncclComm_t part = NULL;
  OK(ncclCommSplit(comm, my_rank % 2, -my_rank, &part, NULL)); /* the other way round */
  int of = (size + 1 - my_rank % 2) / 2, place = of - 1 - my_rank / 2, expected = 0;
  ask(part, place, of);
  for (int rank = my_rank % 2; rank < size; rank += 2) expected += rank;
  CHECK(sum(part, my_rank) == expected);
  CHECK(sum(comm, 1) == size);
  ncclComm_t none = part;
  OK(ncclCommSplit(comm, my_rank == 0 ? 5 : NCCL_SPLIT_NOCOLOR, 0, &none, NULL));
  CHECK((none == NULL) == (my_rank != 0));
  if (none != NULL) {
    CHECK(sum(none, 7) == 7);
    OK(ncclCommDestroy(none));
  }
  OK(ncclCommDestroy(part));
  if (my_rank > 0) {
    int excluded = 0;
    ncclComm_t rest = NULL;
    OK(ncclCommShrink(comm, &excluded, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
    ask(rest, my_rank - 1, size - 1);
    CHECK(sum(rest, 1) == size - 1);
    OK(ncclCommFinalize(rest));
    OK(ncclCommDestroy(rest));
  }
}

/* A communicator that does not block. */
static void in_progress(int size) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = NULL, child = NULL;
  settle(comm, ncclCommInitRankConfig(&comm, size, unique_id(), my_rank, &config) == ncclInProgress
                   ? ncclSuccess
                   : ncclInternalError);
  settle(comm, ncclInProgress);
  ask(comm, my_rank, size);
  for (int i = 0; i < 20; i++) CHECK(sum(comm, i) == i * size);
  ncclResult_t result = ncclCommSplit(comm, 0, my_rank, &child, NULL);
  CHECK(result == ncclInProgress || result == ncclSuccess);
  settle(child, result);
  settle(comm, result);
  ask(child, my_rank, size);
  int32_t to[16], from = my_rank;
  cudaStream_t own = (cudaStream_t)2; /* cudaStreamPerThread */
  expect(ncclAllGather(&from, to, 1, ncclInt32, comm, own), ncclInvalidUsage, NULL, "per-thread default stream");
  OK(ncclGroupStart());
  OK(ncclAllGather(&from, to, 1, ncclInt32, comm, NULL));
  OK(ncclAllGather(&from, to + 8, 1, ncclInt32, child, NULL));
  CHECK(ncclGroupEnd() == ncclInProgress);
  settle(comm, ncclInProgress);
  settle(child, ncclInProgress);
  for (int rank = 0; rank < size; rank++) CHECK(to[rank] == rank && to[8 + rank] == rank);
  settle(child, ncclCommFinalize(child));
  OK(ncclCommDestroy(child));
  result = ncclCommFinalize(comm);
  CHECK(result == ncclInProgress);
  settle(comm, result);
  expect(ncclCommFinalize(comm), ncclInvalidArgument, NULL, "was finalized already");
  OK(ncclCommDestroy(comm));
}

/* Children that do not block of a parent that blocks, which can be used meanwhile. */
static void children_in_progress(ncclComm_t parent, int size) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (int i = 0; i < 10; i++) {
    ncclComm_t child = NULL, second = NULL;
    ncclResult_t result = ncclCommSplit(parent, 0, -my_rank, &child, &config), state = ncclInternalError;
    CHECK(result == ncclInProgress);
    OK(ncclCommGetAsyncError(parent, &state));
    CHECK(state == ncclSuccess && sum(parent, 2) == 2 * size);
    settle(child, result);
    ask(child, size - 1 - my_rank, size);
    OK(ncclCommDestroy(child));

    ncclComm_t row[3]; /* one after the other, though none is waited for */
    for (int k = 0; k < 3; k++)
      CHECK(ncclCommSplit(parent, 0, k % 2 ? -my_rank : my_rank, &row[k], &config) == ncclInProgress);
    for (int k = 2; k >= 0; k--) {
      settle(row[k], ncclInProgress);
      ask(row[k], k % 2 ? size - 1 - my_rank : my_rank, size);
      OK(ncclCommDestroy(row[k]));
    }

    OK(ncclGroupStart());
    OK(ncclCommSplit(parent, 0, 0, &child, NULL));
    expect(ncclCommSplit(parent, 1, 0, &second, NULL), ncclInvalidUsage, NULL, "is in the same group call");
    CHECK(second == NULL && ncclGroupEnd() == ncclInvalidUsage && child == NULL);
  }
}

/* Rank 0 aborts, the communicator of the others fails, and they shrink it. */
static void shrinks_after_a_failure(int size) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = NULL, rest = NULL;
  ncclResult_t result = ncclCommInitRankConfig(&comm, size, unique_id(), my_rank, &config);
  settle(comm, result);
  meet();
  if (my_rank == 0) {
    OK(ncclCommAbort(comm));
    return;
  }
  int32_t value = 1;
  int excluded = 0;
  result = ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL);
  while (result == ncclInProgress) OK(ncclCommGetAsyncError(comm, &result));
  CHECK(result == ncclRemoteError);
  CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL) == ncclRemoteError);
  result = ncclCommShrink(comm, &excluded, 1, &rest, NULL, NCCL_SHRINK_ABORT);
  CHECK(result == ncclInProgress);
  settle(rest, result);
  CHECK(sum(rest, 1) == size - 1);
  OK(ncclCommGetAsyncError(comm, &result));
  CHECK(result == ncclRemoteError);
  OK(ncclCommDestroy(rest));
  OK(ncclCommAbort(comm));
}

/* Rank 0 aborts a large operation that is under way. From then on nothing touches its buffers. */
static void aborts_under_way(int size) {
  enum { BYTES = 16 << 20 };
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = NULL;
  settle(comm, ncclCommInitRankConfig(&comm, size, unique_id(), my_rank, &config) == ncclInProgress
                   ? ncclSuccess
                   : ncclInternalError);
  settle(comm, ncclInProgress);
  char *from = mmap(NULL, 2 * (size_t)BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(from != MAP_FAILED);
  char *to = from + BYTES;
  memset(from, 1, BYTES);
  meet();
  ncclResult_t result = ncclAllReduce(from, to, BYTES, ncclInt8, ncclSum, comm, NULL);
  if (my_rank == 0) {
    while (result == ncclInProgress && *(volatile char *)to == 0) OK(ncclCommGetAsyncError(comm, &result));
    OK(ncclCommAbort(comm));
    CHECK(mprotect(from, 2 * (size_t)BYTES, PROT_NONE) == 0); /* a thread that goes on ends the program */
  } else {
    while (result == ncclInProgress) OK(ncclCommGetAsyncError(comm, &result));
    CHECK(result == ncclSuccess || result == ncclRemoteError);
    OK(ncclCommAbort(comm));
  }
  meet();
  CHECK(munmap(from, 2 * (size_t)BYTES) == 0);
}

/* Rank 0 forks while a thread of it is inside an operation. The child can end the communicator for itself and use
 * nothing. */
static void forks_under_way(int size) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = NULL;
  if (size == 1) return;
  settle(comm, ncclCommInitRankConfig(&comm, size, unique_id(), my_rank, &config) == ncclInProgress
                   ? ncclSuccess
                   : ncclInternalError);
  settle(comm, ncclInProgress);
  int32_t from = 7 + my_rank, first = 0, second = 0;
  if (my_rank != 0) meet();
  OK(ncclGroupStart());
  OK(ncclBroadcast(&from, &first, 1, ncclInt32, 0, comm, NULL));
  OK(ncclBroadcast(&from, &second, 1, ncclInt32, 1, comm, NULL));
  CHECK(ncclGroupEnd() == ncclInProgress);
  if (my_rank == 0) {
    while (*(volatile int32_t *)&first == 0) sched_yield(); /* a root's buffer is copied inside the operation */
    pid_t child = fork();
    if (child == 0) {
      void *at = NULL;
      struct itimerval minute = {.it_value = {.tv_sec = 60}};
      setitimer(ITIMER_REAL, &minute, NULL); /* what waits for ever ends the child */
      expect(ncclAllReduce(&from, &from, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidUsage, NULL, "was forked");
      expect(ncclMemAlloc(&at, 8), ncclInvalidUsage, NULL, "was forked");
      expect(ncclCommInitRank(&comm, 1, shared->id, 0), ncclInvalidUsage, NULL, "was forked");
      OK(ncclCommAbort(comm));
      _exit(0);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    meet();
  }
  settle(comm, ncclInProgress);
  CHECK(first == 7 && second == 8);
  OK(ncclCommDestroy(comm));
}

/* Rank 1 aborts a shrink that rank 0 does not join: the parent can be shrunk again, and not in half an hour only. */
static void aborts_a_shrink(ncclComm_t comm, int size) {
  if (my_rank != 1) return;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  int excluded[8] = {0}, n = 0;
  for (int rank = 2; rank < size; rank++) excluded[n++] = rank;
  ncclComm_t child = NULL, alone = NULL;
  if (n == 0) return;
  CHECK(ncclCommShrink(comm, excluded, n, &child, &config, NCCL_SHRINK_DEFAULT) == ncclInProgress);
  OK(ncclCommAbort(child));
  excluded[n++] = 0;
  OK(ncclCommShrink(comm, excluded, n, &alone, NULL, NCCL_SHRINK_DEFAULT)); /* it waits until the other one has ended */
  CHECK(sum(alone, 5) == 5);
  OK(ncclCommDestroy(alone));
}
