/* nccl.c is compiled with NVIDIA's nccl.h and linked to libsagecomm_nccl.so. Its ranks, processes or threads, call each function of the
 * library on host memory.
 * As `leaves`, rank 0 of 3 exits without a farewell, and the others go on.
 * Usage: nccl processes|threads|leaves RANKS */
#include "nccl_ranks.h"

/* ---- values of all types ---- */

static const size_t widths[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
enum { COUNT = 37, MOST = 8 * COUNT };

/* Small numbers are exact in every type. */
static void put(void *at, ncclDataType_t type, size_t i, double value) {
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  switch (type) {
    case ncclInt8:
      ((int8_t *)at)[i] = (int8_t)value;
      break;
    case ncclUint8:
      ((uint8_t *)at)[i] = (uint8_t)value;
      break;
    case ncclInt32:
      ((int32_t *)at)[i] = (int32_t)value;
      break;
    case ncclUint32:
      ((uint32_t *)at)[i] = (uint32_t)value;
      break;
    case ncclInt64:
      ((int64_t *)at)[i] = (int64_t)value;
      break;
    case ncclUint64:
      ((uint64_t *)at)[i] = (uint64_t)value;
      break;
    case ncclFloat16: {
      uint16_t half = 0;
      if (value != 0) half = (uint16_t)(((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023));
      ((uint16_t *)at)[i] = half;
      break;
    }
    case ncclFloat32:
      ((float *)at)[i] = single;
      break;
    case ncclFloat64:
      ((double *)at)[i] = value;
      break;
    case ncclBfloat16:
      ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
      break;
    default:
      ((uint8_t *)at)[i] = (uint8_t)value;
      break; /* moved only */
  }
}

static void fill(void *at, ncclDataType_t type, size_t n, int from, size_t first) {
  for (size_t i = 0; i < n; i++) put(at, type, i, (double)((from + 1) * ((first + i) % 3 + 1)));
}

static void same(const void *at, const void *wanted, size_t bytes, const char *what, ncclDataType_t type) {
  if (memcmp(at, wanted, bytes) == 0) return;
  fprintf(stderr, "rank %d: %s of type %d has a wrong result\n", my_rank, what, type);
  _exit(1);
}

static double reduced(ncclRedOp_t op, int size, size_t i, double factor) {
  double value = 0;
  for (int rank = 0; rank < size; rank++) {
    double one = (double)((rank + 1) * (int)(i % 3 + 1));
    switch (op) {
      case ncclProd:
        value = rank == 0 ? one : value * one;
        break;
      case ncclMax:
        value = rank == 0 || one > value ? one : value;
        break;
      case ncclMin:
        value = rank == 0 || one < value ? one : value;
        break;
      default:
        value += one;
        break;
    }
  }
  if (op == ncclAvg) value /= size;
  return op > ncclAvg ? value * factor : value;
}

/* ---- collectives ---- */

static bool floating(ncclDataType_t type) {
  return type == ncclFloat16 || type == ncclFloat32 || type == ncclFloat64 || type == ncclBfloat16;
}

static void reductions(ncclComm_t comm, int size) {
  static _Thread_local uint64_t from[MOST], to[MOST], wanted[MOST];
  for (ncclDataType_t type = 0; type < ncclFloat8e4m3; type++) {
    for (int op = 0; op <= ncclNumOps; op++) {
      ncclRedOp_t with = (ncclRedOp_t)op;
      double factor = 0.5;
      char scalar[8];
      if (op == ncclAvg && (!floating(type) || (size & (size - 1)) != 0)) continue; /* does not come out even */
      if (op == ncclProd && size > 4) continue;                                     /* too large for 8 bits */
      if (op == ncclNumOps) {
        put(scalar, type, 0, factor);
        ncclScalarResidence_t residence = type == ncclFloat32 ? ncclScalarDevice : ncclScalarHostImmediate;
        ncclResult_t made = ncclRedOpCreatePreMulSum(&with, scalar, type, residence, comm);
        OK(made);
        if (!floating(type)) {
          expect(ncclAllReduce(from, to, 1, type, with, comm, NULL), ncclInvalidUsage, comm,
                 "PREMUL_SUM is not defined for");
          OK(ncclRedOpDestroy(with, comm));
          continue;
        }
      }
      size_t all = (size_t)size * COUNT, block = COUNT * widths[type];
      fill(from, type, all, my_rank, 0);
      for (size_t i = 0; i < all; i++) put(wanted, type, i, reduced((ncclRedOp_t)op, size, i, factor));

      OK(ncclAllReduce(from, to, all, type, with, comm, NULL));
      same(to, wanted, all * widths[type], "AllReduce", type);
      memcpy(to, from, all * widths[type]);
      OK(ncclAllReduce(to, to, all, type, with, comm, NULL));
      same(to, wanted, all * widths[type], "AllReduce in place", type);

      int root = size - 1;
      OK(ncclReduce(from, my_rank == root ? to : NULL, all, type, with, root, comm, NULL));
      if (my_rank == root) same(to, wanted, all * widths[type], "Reduce", type);
      memcpy(to, from, all * widths[type]);
      OK(ncclReduce(to, to, all, type, with, root, comm, NULL));
      if (my_rank == root) same(to, wanted, all * widths[type], "Reduce in place", type);

      char *mine = (char *)to + (size_t)my_rank * block, *part = (char *)wanted + (size_t)my_rank * block;
      OK(ncclReduceScatter(from, to, COUNT, type, with, comm, NULL));
      same(to, part, block, "ReduceScatter", type);
      memcpy(to, from, all * widths[type]);
      OK(ncclReduceScatter(to, mine, COUNT, type, with, comm, NULL));
      same(mine, part, block, "ReduceScatter in place", type);
      if (op == ncclNumOps) {
        ncclDataType_t other = type == ncclFloat64 ? ncclFloat32 : ncclFloat64;
        expect(ncclAllReduce(from, to, 1, other, with, comm, NULL), ncclInvalidArgument, comm,
               "was made for data type");
        OK(ncclRedOpDestroy(with, comm));
        expect(ncclRedOpDestroy(with, comm), ncclInvalidArgument, comm, "was not made for this communicator");
        expect(ncclAllReduce(from, to, 1, type, with, comm, NULL), ncclInvalidArgument, comm, "was not made for this");
      }
    }
  }
  expect(ncclAllReduce(from, to, 1, ncclFloat8e4m3, ncclSum, comm, NULL), ncclInvalidUsage, comm,
         "SUM is not defined for");
}

static void moves(ncclComm_t comm, int size) {
  static _Thread_local uint64_t from[MOST], to[MOST], wanted[MOST];
  for (ncclDataType_t type = 0; type < ncclNumTypes; type++) {
    size_t all = (size_t)size * COUNT, block = COUNT * widths[type];
    for (int rank = 0; rank < size; rank++) fill((char *)wanted + (size_t)rank * block, type, COUNT, rank, 0);
    char *mine = (char *)to + (size_t)my_rank * block;
    fill(from, type, COUNT, my_rank, 0);
    OK(ncclAllGather(from, to, COUNT, type, comm, NULL));
    same(to, wanted, all * widths[type], "AllGather", type);
    memset(to, 0, sizeof to);
    memcpy(mine, from, block);
    OK(ncclAllGather(mine, to, COUNT, type, comm, NULL));
    same(to, wanted, all * widths[type], "AllGather in place", type);

    int root = size / 2;
    char *of_root = (char *)wanted + (size_t)root * block;
    memset(to, 0, sizeof to);
    OK(ncclBroadcast(my_rank == root ? from : NULL, to, COUNT, type, root, comm, NULL));
    same(to, of_root, block, "Broadcast", type);
    memcpy(to, from, block);
    OK(ncclBroadcast(to, to, COUNT, type, root, comm, NULL));
    same(to, of_root, block, "Broadcast in place", type);
    memcpy(to, from, block);
    OK(ncclBcast(to, COUNT, type, root, comm, NULL));
    same(to, of_root, block, "Bcast", type);

    memset(to, 0, sizeof to);
    OK(ncclGather(from, my_rank == root ? to : NULL, COUNT, type, root, comm, NULL));
    if (my_rank == root) same(to, wanted, all * widths[type], "Gather", type);
    memset(to, 0, sizeof to);
    memcpy(mine, from, block);
    OK(ncclGather(mine, to, COUNT, type, root, comm, NULL));
    if (my_rank == root) same(to, wanted, all * widths[type], "Gather in place", type);
    OK(ncclScatter(my_rank == root ? wanted : NULL, to, COUNT, type, root, comm, NULL));
    same(to, (char *)wanted + (size_t)my_rank * block, block, "Scatter", type);
    memcpy(to, wanted, all * widths[type]);
    if (my_rank != root) memset(to, 0, sizeof to);
    OK(ncclScatter(to, mine, COUNT, type, root, comm, NULL));
    same(mine, (char *)wanted + (size_t)my_rank * block, block, "Scatter in place", type);

    for (int rank = 0; rank < size; rank++) { /* block i is for rank i and has numbers of its own */
      fill((char *)from + (size_t)rank * block, type, COUNT, my_rank, (size_t)rank);
      fill((char *)wanted + (size_t)rank * block, type, COUNT, rank, (size_t)my_rank);
    }
    OK(ncclAlltoAll(from, to, COUNT, type, comm, NULL));
    same(to, wanted, all * widths[type], "AlltoAll", type);
    if (size > 1) expect(ncclAlltoAll(to, to, COUNT, type, comm, NULL), ncclInvalidUsage, comm, "in place");

    memset(to, 0, sizeof to);
    OK(ncclGroupStart());
    for (int rank = 0; rank < size; rank++) {
      OK(ncclRecv((char *)to + (size_t)rank * block, COUNT, type, rank, comm, NULL));
      OK(ncclSend((char *)from + (size_t)rank * block, COUNT, type, rank, comm, NULL));
    }
    OK(ncclGroupEnd());
    same(to, wanted, all * widths[type], "Send and Recv", type);
  }
  OK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, comm, NULL));
}

/* Blocks of different lengths, as torch and TurboMind gather and scatter them, in groups inside groups. */
static void groups(ncclComm_t comm, int size) {
  int32_t mine[8], all[64], sums[64], start[9] = {0};
  for (int rank = 0; rank < size; rank++) start[rank + 1] = start[rank] + rank + 1;
  for (int i = 0; i <= my_rank; i++) mine[i] = 100 * my_rank + i;
  for (int i = 0; i < start[size]; i++) sums[i] = i * (my_rank + 1);
  OK(ncclGroupStart());
  for (int root = 0; root < size; root++) {
    OK(ncclGroupStart());
    OK(ncclBroadcast(my_rank == root ? mine : NULL, all + start[root], (size_t)root + 1, ncclInt32, root, comm, NULL));
    OK(ncclGroupEnd());
  }
  OK(ncclGroupEnd());
  for (int rank = 0; rank < size; rank++) {
    for (int i = 0; i <= rank; i++) CHECK(all[start[rank] + i] == 100 * rank + i);
  }
  int32_t got[8];
  OK(ncclGroupStart());
  for (int root = 0; root < size; root++) {
    OK(ncclReduce(sums + start[root], root == my_rank ? got : NULL, (size_t)root + 1, ncclInt32, ncclSum, root, comm,
                  NULL));
  }
  OK(ncclGroupEnd());
  for (int i = 0; i <= my_rank; i++) CHECK(got[i] == (start[my_rank] + i) * size * (size + 1) / 2);

  /* A call that is refused makes the whole group fail, and nothing is sent. */
  OK(ncclGroupStart());
  OK(ncclAllReduce(mine, all, 1, ncclInt32, ncclSum, comm, NULL));
  expect(ncclAllReduce(mine, all, 1, (ncclDataType_t)77, ncclSum, comm, NULL), ncclInvalidArgument, comm,
         "data type 77");
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  expect(ncclGroupEnd(), ncclInvalidUsage, NULL, "no ncclGroupStart() came before it");
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  OK(ncclGroupStart());
  expect(ncclGroupSimulateEnd(&info), ncclInvalidUsage, NULL, "is not supported");
  OK(ncclGroupStart());
  OK(ncclGroupEnd());
}

/* ---- communicators ---- */

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
  expect(ncclCommFinalize(comm), ncclInvalidUsage, NULL, "was finalized");
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

/* Rank 0 forks while a thread of it is inside an operation. The child can end the communicator for itself and use nothing. */
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
  uint64_t bytes = 0;
  ncclComm_t grown = NULL;
  REFUSED(ncclCommWindowRegister(comm, &value, 4, &window, NCCL_WIN_DEFAULT));
  REFUSED(ncclCommWindowDeregister(comm, window));
  REFUSED(ncclWinGetUserPtr(comm, window, &pointer));
  REFUSED(ncclPutSignal(&value, 1, ncclInt32, 0, window, 0, 0, 0, 0, comm, NULL));
  REFUSED(ncclSignal(0, 0, 0, 0, comm, NULL));
  REFUSED(ncclWaitSignal(1, &signal, comm, NULL));
  REFUSED(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  REFUSED(ncclCommGetUniqueId(comm, &shared->id));
  REFUSED(ncclCommGrow(comm, 9, NULL, -1, &grown, NULL));
  REFUSED(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  REFUSED(ncclCommResume(comm));
  REFUSED(ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
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

static void memory(ncclComm_t comm) {
  void *at = NULL, *handle = NULL;
  OK(ncclMemAlloc(&at, 100));
  memset(at, 1, 100);
  OK(ncclCommRegister(comm, at, 100, &handle));
  OK(ncclCommDeregister(comm, handle));
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
