/* nccl_misuse.c is compiled with NVIDIA's nccl.h and linked to libsagecomm_nccl.so. Its ranks are processes and play
 * one case on host memory: a wrong call is refused on the rank that makes it, no other communicator waits for it, and
 * none is harmed.
 * Usage: nccl_misuse joins|calls|exchange|mismatch|buffers|aligns|reductions|finalizes|arguments|threads|destroys|
 *                    states|prints RANKS */
#include "nccl_play.h"

static ncclResult_t settled(ncclComm_t comm, ncclResult_t result) {
  while (result == ncclInProgress) OK(ncclCommGetAsyncError(comm, &result));
  return result;
}

/* Two ranks of one process join in a group call, and the id of one was damaged: the other one does not wait for it. */
static void joins(int size) {
  (void)size;
  for (int blocking = 0; blocking < 2; blocking++) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    ncclUniqueId id, damaged;
    ncclComm_t one = NULL, other = NULL;
    OK(ncclGetUniqueId(&id));
    damaged = id;
    damaged.internal[60] ^= 1;
    OK(ncclGroupStart());
    CHECK(ncclCommInitRankConfig(&one, 2, id, 0, &config) == ncclSuccess);
    CHECK(ncclCommInitRankConfig(&other, 2, damaged, 1, &config) == ncclSuccess);
    ncclResult_t result = ncclGroupEnd();
    if (blocking) {
      expect(result, ncclInvalidUsage, NULL, "damaged on its way");
      CHECK(one == NULL && other == NULL);
      continue;
    }
    CHECK(result == ncclInProgress);
    expect(settled(other, result), ncclInvalidUsage, other, "damaged on its way");
    expect(settled(one, result), ncclRemoteError, one, "another communicator of the same group call could not be made");
    OK(ncclCommAbort(one));
    OK(ncclCommAbort(other));
  }
}

/* Two ranks of one process, and a call of one is refused: the other one issues none of its own. */
static void calls(int size) {
  (void)size;
  ncclComm_t comms[2];
  int32_t value[2] = {1, 1};
  OK(ncclCommInitAll(comms, 2, NULL));
  OK(ncclGroupStart());
  OK(ncclAllReduce(&value[0], &value[0], 1, ncclInt32, ncclSum, comms[0], NULL));
  OK(ncclSend(&value[1], 1, ncclInt32, 1, comms[1], NULL));
  expect(ncclGroupEnd(), ncclInvalidUsage, NULL, "has 1 sends to itself and 0 recvs");
  CHECK(value[0] == 1);
  OK(ncclGroupStart());
  for (int i = 0; i < 2; i++) OK(ncclAllReduce(&value[i], &value[i], 1, ncclInt32, ncclSum, comms[i], NULL));
  OK(ncclGroupEnd());
  CHECK(value[0] == 2 && value[1] == 2);
  for (int i = 0; i < 2; i++) OK(ncclCommDestroy(comms[i]));
}

/* A buffer is sent and overwritten in one group call. */
static void exchange(int size) {
  ncclComm_t comm = communicator(size, 1);
  int32_t value[4] = {my_rank, 1, 2, 3};
  int next = (my_rank + 1) % size, last = (my_rank + size - 1) % size;
  for (int by = 0; by < 2; by++) {
    OK(ncclGroupStart());
    OK(ncclSend(value, 2, ncclInt32, next, comm, NULL));
    OK(ncclRecv(value + by, 2, ncclInt32, last, comm, NULL));
    expect(ncclGroupEnd(), ncclInvalidUsage, comm, "share memory that one of them writes");
  }
  OK(ncclGroupStart());
  OK(ncclSend(value, 2, ncclInt32, next, comm, NULL));
  OK(ncclRecv(value + 2, 2, ncclInt32, last, comm, NULL));
  OK(ncclGroupEnd());
  CHECK(value[2] == last && value[3] == 1 && sum(comm, 1) == size);
  OK(ncclCommDestroy(comm));
}

/* A send of rank 0 to itself and its recv differ, which is nobody else's concern. */
static void mismatch(int size) {
  ncclComm_t comm = communicator(size, 1);
  int32_t value = 1, other = 0;
  if (my_rank == 0) {
    OK(ncclGroupStart());
    OK(ncclSend(&value, 1, ncclInt32, 0, comm, NULL));
    OK(ncclRecv(&other, 1, ncclFloat32, 0, comm, NULL));
    expect(ncclGroupEnd(), ncclInvalidUsage, comm,
           "rank 0 sends itself 4 bytes of int32, and its recv for them takes 4 bytes of float32");
  }
  meet();
  CHECK(sum(comm, 1) == size);
  OK(ncclCommDestroy(comm));
}

/* Collectives of ints whose root is the rank that calls. */
enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, GATHER, REDUCE_SCATTER, SCATTER, ALL_TO_ALL, COLLECTIVES };

static ncclResult_t collective(int which, const int32_t *from, int32_t *to, size_t count, ncclComm_t comm) {
  switch (which) {
    case ALL_REDUCE:
      return ncclAllReduce(from, to, count, ncclInt32, ncclSum, comm, NULL);
    case REDUCE:
      return ncclReduce(from, to, count, ncclInt32, ncclSum, my_rank, comm, NULL);
    case BROADCAST:
      return ncclBroadcast(from, to, count, ncclInt32, my_rank, comm, NULL);
    case ALL_GATHER:
      return ncclAllGather(from, to, count, ncclInt32, comm, NULL);
    case GATHER:
      return ncclGather(from, to, count, ncclInt32, my_rank, comm, NULL);
    case REDUCE_SCATTER:
      return ncclReduceScatter(from, to, count, ncclInt32, ncclSum, comm, NULL);
    case SCATTER:
      return ncclScatter(from, to, count, ncclInt32, my_rank, comm, NULL);
    default:
      return ncclAlltoAll(from, to, count, ncclInt32, comm, NULL);
  }
}

/* Buffers that overlap, other than in place, are refused, whoever else calls what; those that touch each other are not.
 */
static void buffers(int size) {
  enum { COUNT = 6 };
  ncclComm_t comm = communicator(size, 1);
  int32_t memory[(2 * 8 + 2) * COUNT] = {0}, *at = memory + COUNT;
  for (int which = 0; which < COLLECTIVES; which++) {
    bool gathers = which == ALL_GATHER || which == GATHER, scatters = which == REDUCE_SCATTER || which == SCATTER;
    int sent = scatters || which == ALL_TO_ALL ? size * COUNT : COUNT;
    int received = gathers || which == ALL_TO_ALL ? size * COUNT : COUNT;
    int32_t *recv = scatters ? at + my_rank * COUNT : at, *send = gathers ? at + my_rank * COUNT : at;
    const char *text = which == ALL_TO_ALL ? "cannot be done in place"
                       : gathers           ? "or this rank's block of recvbuff as sendbuff"
                       : scatters          ? "or this rank's block of sendbuff as recvbuff"
                                           : "or the same address";
    for (int by = -1; by <= 1; by++) {
      if (by != 0 || which == ALL_TO_ALL)
        expect(collective(which, send + by, recv, COUNT, comm), ncclInvalidArgument, comm, text);
      OK(collective(which, send + by, recv, 0, comm)); /* no memory */
    }
    for (int block = 0; block < size; block++) { /* another rank's place */
      if (block == my_rank || !(gathers || scatters)) continue;
      expect(collective(which, gathers ? at + block * COUNT : at, scatters ? at + block * COUNT : at, COUNT, comm),
             ncclInvalidArgument, comm, text);
    }
    expect(collective(which, at, at + sent - 1, COUNT, comm), ncclInvalidArgument, comm, text);
    OK(ncclGroupStart());
    OK(ncclAllReduce(memory, memory, COUNT, ncclInt32, ncclSum, comm, NULL));
    expect(collective(which, at + received - 1, at, COUNT, comm), ncclInvalidArgument, comm, text);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
  }
  for (int i = 0; i < size; i++) at[i] = my_rank;
  OK(ncclAllReduce(at, at + size, (size_t)size, ncclInt32, ncclSum, comm, NULL));
  for (int i = 0; i < size; i++) CHECK(at[i] == my_rank && at[size + i] == size * (size - 1) / 2);
  OK(ncclAllGather(at, at + 1, 1, ncclInt32, comm, NULL));
  for (int i = 0; i < size; i++) CHECK(at[1 + i] == i);
  OK(ncclBroadcast(my_rank == 0 ? at : at + 1, at + 1, 1, ncclInt32, 0, comm, NULL));
  OK(ncclReduce(at, my_rank == 0 ? at + 1 : (int32_t *)((char *)at + 1), 1, ncclInt32, ncclSum, 0, comm, NULL));
  OK(ncclCommDestroy(comm));
}

/* A reduction takes addresses of elements. Data that only move may lie anywhere. */
static void aligns(int size) {
  ncclComm_t comm = communicator(size, 1);
  _Alignas(8) char memory[128] = {0};
  char *odd = memory + 3;
  static const ncclDataType_t types[] = {ncclFloat16, ncclBfloat16, ncclInt32, ncclFloat32, ncclInt64, ncclFloat64};
  static const char *const widths[] = {"multiple of 2", "multiple of 2", "multiple of 4",
                                       "multiple of 4", "multiple of 8", "multiple of 8"};
  for (int i = 0; i < 6; i++) {
    expect(ncclAllReduce(odd, odd, 1, types[i], ncclSum, comm, NULL), ncclInvalidArgument, comm, widths[i]);
    expect(ncclAllReduce(memory + 64, odd, 1, types[i], ncclSum, comm, NULL), ncclInvalidArgument, comm, "recvbuff is");
    expect(ncclReduce(odd, memory + 64, 1, types[i], ncclSum, my_rank, comm, NULL), ncclInvalidArgument, comm,
           "sendbuff is");
    expect(ncclReduceScatter(memory, memory + 65, 1, types[i], ncclSum, comm, NULL), ncclInvalidArgument, comm,
           "recvbuff is");
    OK(ncclAllReduce(odd, odd, 0, types[i], ncclSum, comm, NULL));
  }
  *odd = (char)(1 + my_rank);
  OK(ncclAllReduce(odd, odd, 1, ncclUint8, ncclSum, comm, NULL));
  CHECK(*odd == size * (size + 1) / 2);
  const int32_t mine = 100 + my_rank;
  memcpy(odd, &mine, sizeof mine);
  OK(ncclAllGather(odd, memory + 33, 1, ncclInt32, comm, NULL));
  for (int32_t rank = 0, got; rank < size; rank++) {
    memcpy(&got, memory + 33 + 4 * rank, sizeof got);
    CHECK(got == 100 + rank);
  }
  OK(ncclGroupStart());
  OK(ncclSend(odd, 1, ncclInt32, (my_rank + 1) % size, comm, NULL));
  OK(ncclRecv(memory + 33, 1, ncclInt32, (my_rank + size - 1) % size, comm, NULL));
  OK(ncclGroupEnd());
  int32_t got;
  memcpy(&got, memory + 33, sizeof got);
  CHECK(got == 100 + (my_rank + size - 1) % size);
  OK(ncclCommDestroy(comm));
}

/* An op is of one communicator, and its number is not given out again. */
static void reductions(int size) {
  ncclComm_t comm = communicator(size, 1), other = communicator(size, 1);
  float two = 2, ten = 10, from = 1, to = 0;
  ncclRedOp_t of_comm, of_other, again;
  expect(ncclRedOpCreatePreMulSum(&again, &two, ncclFloat32, (ncclScalarResidence_t)2, comm), ncclInvalidArgument, comm,
         "residence 2, expected 0 or 1");
  OK(ncclRedOpCreatePreMulSum(&of_comm, &two, ncclFloat32, ncclScalarHostImmediate, comm));
  OK(ncclRedOpCreatePreMulSum(&of_other, &ten, ncclFloat32, ncclScalarHostImmediate, other));
  expect(ncclAllReduce(&from, &to, 1, ncclFloat32, of_comm, other, NULL), ncclInvalidArgument, other,
         "was not made for this");
  expect(ncclRedOpDestroy(of_comm, other), ncclInvalidArgument, other, "was not made for this");
  OK(ncclRedOpDestroy(of_comm, comm));
  OK(ncclRedOpCreatePreMulSum(&again, &ten, ncclFloat32, ncclScalarHostImmediate, comm));
  expect(ncclAllReduce(&from, &to, 1, ncclFloat32, of_comm, comm, NULL), ncclInvalidArgument, comm,
         "was not made for this");
  OK(ncclAllReduce(&from, &to, 1, ncclFloat32, again, comm, NULL));
  CHECK(to == 10 * (float)size);
  OK(ncclCommDestroy(comm));
  OK(ncclCommDestroy(other));
}

/* The text of a communicator's state stays that of the call which has failed, whatever is refused later, and is not
 * that of another one. */
static void states(int size) {
  ncclComm_t comm = communicator(size, 0), other = communicator(size, 1);
  static const char *const cause = "all_reduce";
  int32_t value[2] = {1, 1};
  ncclResult_t state = ncclAllReduce(value, value, my_rank == 0 ? 2 : 1, ncclInt32, ncclSum, comm, NULL);
  expect(settled(comm, state), ncclInvalidUsage, comm, cause);
  expect(ncclRedOpDestroy(77, comm), ncclInvalidArgument, comm, "was not made for this");
  expect(ncclAllReduce(value, value, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidUsage, comm, cause);
  expect(ncclRedOpDestroy(77, comm), ncclInvalidArgument, comm, "was not made for this");
  expect(ncclCommCount(NULL, value), ncclInvalidArgument, NULL, "comm is NULL");
  OK(ncclCommGetAsyncError(comm, &state));
  expect(state, ncclInvalidUsage, comm, cause);
  expect(state, ncclInvalidUsage, NULL, cause);
  expect(ncclRedOpDestroy(78, other), ncclInvalidArgument, other, "op 78");
  CHECK(strstr(ncclGetLastError(comm), "op 78") == NULL);
  OK(ncclCommAbort(comm));
  OK(ncclCommAbort(other));
}

/* A failure is printed once, however often a program asks for it, and so is for each communicator that it is not ready
 * yet. A wrong call between is printed. */
static void prints(int size) {
  ncclComm_t comm = communicator(size, 1), child = NULL, next = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t state = ncclSuccess;
  char file[] = "/tmp/printed-XXXXXX", text[4096] = "";
  int fd = mkstemp(file), before = dup(2), lines = 0, asked = -1;
  int32_t value = 1;
  CHECK(fd >= 0 && unlink(file) == 0 && setenv("NCCL_DEBUG", "WARN", 1) == 0 && dup2(fd, 2) == 2);
  config.blocking = 0;
  if (my_rank != 0) meet();
  CHECK(ncclCommSplit(comm, 0, my_rank, &child, &config) == ncclInProgress);
  CHECK(ncclCommSplit(comm, 0, my_rank, &next, &config) == ncclInProgress);
  for (int i = 0; my_rank == 0 && i < 10; i++) { /* the others have not begun */
    expect(ncclCommCount(child, &asked), ncclInvalidArgument, child, "ncclCommCount: the previous call");
    expect(ncclCommUserRank(next, &asked), ncclInvalidArgument, next, "ncclCommUserRank: the previous call");
    if (i == 5) CHECK(ncclCommCount(child, NULL) == ncclInvalidArgument);
  }
  if (my_rank == 0) meet();
  settle(child, ncclInProgress);
  settle(next, ncclInProgress);
  CHECK(ncclCommCount(child, &asked) == ncclSuccess && asked == size);
  OK(ncclCommDestroy(child));
  OK(ncclCommDestroy(next));
  meet();
  if (my_rank == 0) OK(ncclCommAbort(comm));
  if (my_rank != 0) {
    CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL) == ncclRemoteError);
    for (int i = 0; i < 10; i++) OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclRemoteError);
    for (int i = 0; i < 2; i++) CHECK(ncclCommCount(comm, NULL) == ncclInvalidArgument); /* each is printed */
    OK(ncclCommGetAsyncError(comm, &state));
    OK(ncclCommAbort(comm));
  }
  CHECK(dup2(before, 2) == 2 && pread(fd, text, sizeof text - 1, 0) >= 0);
  for (const char *at = text; (at = strstr(at, "NCCL WARN")) != NULL; at++) lines++;
  if (lines != 3) fprintf(stderr, "%s\n", text);
  CHECK(lines == 3);
}

/* A communicator whose finalization has failed gives that error from then on. */
static void finalizes(int size) {
  ncclComm_t comm = communicator(size, 1);
  int32_t value = 1;
  if (my_rank == 0) {
    OK(ncclCommAbort(comm));
    return;
  }
  expect(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL), ncclRemoteError, comm, " left");
  ncclResult_t finalized = ncclCommFinalize(comm), state = ncclSuccess;
  CHECK(finalized == ncclRemoteError || finalized == ncclSuccess); /* a call behind the failure is not outstanding */
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == finalized);
  OK(ncclCommDestroy(comm));
}

static void arguments(int size) {
  ncclComm_t comm = communicator(size, 0), child = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  for (int blocking = -3; blocking <= 2; blocking += 5) {
    config.blocking = blocking;
    expect(ncclCommInitRankConfig(&child, 1, id, 0, &config), ncclInvalidArgument, NULL, "expected 0 or 1");
  }
  int excluded = size;
  expect(ncclCommShrink(comm, &excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT), ncclInvalidArgument, comm,
         "is outside the communicator");
  excluded = my_rank;
  expect(ncclCommShrink(comm, &excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT), ncclInvalidArgument, comm,
         "is to be left out");

  expect(ncclCommShrink(comm, &excluded, INT32_MAX, &child, NULL, NCCL_SHRINK_DEFAULT), ncclInvalidArgument, comm,
         "2147483647 ranks are to be left out of");

  /* A configuration that leaves it open stands for 1, also for a child of a parent that does not block. */
  config.blocking = NCCL_CONFIG_UNDEF_INT;
  OK(ncclCommSplit(comm, 0, my_rank, &child, &config));
  int32_t value = 1;
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, child, NULL));
  CHECK(value == size);

  OK(ncclGroupStart());
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, child, NULL));
  expect(ncclCommFinalize(child), ncclInvalidUsage, NULL, "is in the same group call");
  OK(ncclGroupEnd());
  CHECK(value == size * size);
  OK(ncclCommDestroy(child));

  /* To ask for the last error of a communicator that is no more is no error of its own. */
  expect(ncclCommCount(comm, NULL), ncclInvalidArgument, NULL, "ncclCommCount");
  expect(ncclInvalidArgument, ncclInvalidArgument, child, "ncclCommCount");
  expect(ncclInvalidArgument, ncclInvalidArgument, NULL, "ncclCommCount");
  OK(ncclCommDestroy(comm));
}

static void *open_a_group(void *comm) {
  static int32_t value = 1;
  OK(ncclGroupStart());
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  return NULL;
}

/* A thread of rank 0 ends inside a group call. Its calls hold the communicator no longer than that. */
static void threads(int size) {
  ncclComm_t comm = communicator(size, 1);
  if (my_rank == 0) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, open_a_group, comm) == 0 && pthread_join(thread, NULL) == 0);
  } else {
    int32_t value = 1;
    expect(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL), ncclRemoteError, comm, " left");
  }
  OK(ncclCommDestroy(comm));
  meet(); /* rank 0 has not left by its end */
}

/* A communicator that does not block is destroyed while it joins: its thread does not wait for the others. */
static void destroys(int size) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = NULL;
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  CHECK(ncclCommInitRankConfig(&comm, size, id, 0, &config) == ncclInProgress);
  OK(ncclCommDestroy(comm));
  while (strstr(ncclGetLastError(NULL), "aborted while its ranks met") == NULL) sched_yield();
}

static const struct play cases[] = {{"joins", joins},           {"calls", calls},         {"exchange", exchange},
                                    {"mismatch", mismatch},     {"buffers", buffers},     {"aligns", aligns},
                                    {"reductions", reductions}, {"finalizes", finalizes}, {"arguments", arguments},
                                    {"threads", threads},       {"destroys", destroys},   {"states", states},
                                    {"prints", prints}};

int main(int argc, char **argv) { return play(argc, argv, cases, sizeof cases / sizeof cases[0]); }
