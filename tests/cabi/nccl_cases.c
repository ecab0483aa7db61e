/* nccl_cases.c is compiled with NVIDIA's nccl.h and linked to libsagecomm_nccl.so. Its ranks are processes and play one
 * case on host memory.
 * Usage: nccl_cases texts|finalizes|watched|derives|itself|leaves|shrinks|shrunk|turbomind RANKS */
#include "nccl_play.h"

#include <dlfcn.h>

/* An operation that a thread of the library carries out fails. Its text is the last error of a thread that asks without
 * a communicator, if that has none that is newer. */
static void texts(int size) {
  ncclComm_t comm = communicator(size, 0);
  expect(ncclCommCount(comm, NULL), ncclInvalidArgument, NULL, "ncclCommCount");
  int32_t from[2] = {1, 1}, to[2];
  ncclResult_t result = ncclAllReduce(from, to, my_rank == 0 ? 2 : 1, ncclInt32, ncclSum, comm, NULL);
  while (result == ncclInProgress) OK(ncclCommGetAsyncError(comm, &result));
  expect(result, ncclInvalidUsage, NULL, "all_reduce");
  expect(ncclCommCount(comm, NULL), ncclInvalidArgument, NULL, "ncclCommCount");
  OK(ncclCommDestroy(comm));
}

/* Rank 0 finalizes a communicator while its split waits for the other ranks. */
static void finalizes(int size) {
  for (int blocking = 0; blocking < 2; blocking++) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = communicator(size, blocking), child = NULL;
    if (my_rank != 0 && !blocking) meet();
    CHECK(ncclCommSplit(comm, 0, -my_rank, &child, &config) == ncclInProgress);
    ncclResult_t result = ncclCommFinalize(comm);
    CHECK(result == (blocking ? ncclSuccess : ncclInProgress));
    if (my_rank == 0 && !blocking) meet();
    settle(child, ncclInProgress);
    settle(comm, result);
    CHECK(sum(child, 3) == 3 * size);
    OK(ncclCommDestroy(child));
    OK(ncclCommDestroy(comm));
  }

  ncclComm_t comm = communicator(size, 1), child = NULL;
  OK(ncclGroupStart());
  OK(ncclCommSplit(comm, 0, 0, &child, NULL));
  expect(ncclCommFinalize(comm), ncclInvalidUsage, NULL, "is in the same group call");
  OK(ncclGroupEnd());
  CHECK(sum(child, 1) == size && sum(comm, 1) == size);
  OK(ncclCommDestroy(child));

  /* An abort ends the wait of a finalization for a split that no other rank joins. */
  ncclComm_t other = communicator(size, 0);
  if (my_rank == 0) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(ncclCommSplit(other, 0, 0, &child, &config) == ncclInProgress);
    CHECK(ncclCommFinalize(other) == ncclInProgress);
    OK(ncclCommAbort(other));
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress) OK(ncclCommGetAsyncError(child, &result));
    CHECK(result != ncclSuccess);
    OK(ncclCommAbort(child));
  }
  meet();
  if (my_rank != 0) OK(ncclCommDestroy(other));
  OK(ncclCommDestroy(comm));
}

static atomic_bool watching;

static void *watch(void *comm) {
  while (atomic_load(&watching)) {
    ncclResult_t state = ncclSuccess;
    OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclSuccess, comm, "");
  }
  return NULL;
}

/* A finalization that goes well is no error to a thread that asks for errors meanwhile, and the question is none to the
 * finalization. */
static void watched(int size) {
  for (int i = 0; i < 30; i++) {
    ncclComm_t comm = communicator(size, 1);
    pthread_t thread;
    CHECK(sum(comm, 1) == size);
    atomic_store(&watching, true);
    CHECK(pthread_create(&thread, NULL, watch, comm) == 0);
    OK(ncclCommFinalize(comm));
    atomic_store(&watching, false);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(ncclCommDestroy(comm));
  }
}

/* A split and a shrink that do not block: the parent is in progress until the new communicator can be used, which has
 * no size before. */
static void derives(int size) {
  ncclComm_t comm = communicator(size, 0), child = NULL;
  int last = size - 1, n = -1;
  for (int shrink = 0; shrink < 2; shrink++) {
    int left = size - shrink;
    ncclResult_t state = ncclInternalError, result;
    if (shrink && my_rank == last) break;
    if (my_rank != 0) meet();
    result = shrink ? ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_DEFAULT)
                    : ncclCommSplit(comm, 0, my_rank, &child, NULL);
    CHECK(result == ncclInProgress);
    if (my_rank == 0 && left > 1) { /* the others have not called it */
      expect(ncclCommCount(child, &n), ncclInvalidArgument, child, "goes on");
      expect(ncclCommUserRank(child, &n), ncclInvalidArgument, child, "goes on");
      CHECK(n == -1);
      OK(ncclCommGetAsyncError(comm, &state));
      CHECK(state == ncclInProgress);
    }
    if (my_rank == 0) meet();
    settle(comm, ncclInProgress);
    OK(ncclCommCount(child, &n));
    CHECK(n == left && sum(child, 1) == left);
    OK(ncclCommDestroy(child));
    child = NULL;
    n = -1;
  }
  if (my_rank == last) meet();
  for (int i = 0; i < 100; i++) { /* success always comes with the answer */
    ncclResult_t result = ncclCommSplit(comm, 0, my_rank, &child, NULL);
    for (n = -1; result == ncclInProgress || result == ncclInvalidArgument;) result = ncclCommCount(child, &n);
    CHECK(result == ncclSuccess && n == size);
    settle(child, ncclInProgress);
    OK(ncclCommDestroy(child));
  }
  meet();
  CHECK(sum(comm, 1) == size);
  OK(ncclCommDestroy(comm));
}

/* A rank sends to itself. */
static void itself(int size) {
  ncclComm_t comm = communicator(size, 1);
  int32_t one = my_rank + 1, other = 0;
  expect(ncclSend(&one, 1, ncclInt32, my_rank, comm, NULL), ncclInvalidUsage, comm,
         "has 1 sends to itself and 0 recvs");
  expect(ncclRecv(&one, 1, ncclInt32, my_rank, comm, NULL), ncclInvalidUsage, comm,
         "has 0 sends to itself and 1 recvs");
  OK(ncclGroupStart());
  OK(ncclSend(&one, 1, ncclInt32, my_rank, comm, NULL));
  OK(ncclAllReduce(&other, &other, 1, ncclInt32, ncclSum, comm, NULL));
  expect(ncclGroupEnd(), ncclInvalidUsage, comm, "in the same group call");

  OK(ncclGroupStart());
  OK(ncclSend(&one, 1, ncclInt32, my_rank, comm, NULL));
  OK(ncclRecv(&one, 1, ncclInt32, my_rank, comm, NULL));
  OK(ncclGroupEnd());
  CHECK(one == my_rank + 1);
  OK(ncclGroupStart());
  OK(ncclRecv(&one, 1, ncclInt32, my_rank, comm, NULL)); /* the first recv is for the first send */
  OK(ncclRecv(&other, 1, ncclInt32, my_rank, comm, NULL));
  OK(ncclSend(&one, 1, ncclInt32, my_rank, comm, NULL));
  OK(ncclSend(&one, 1, ncclInt32, my_rank, comm, NULL));
  OK(ncclGroupEnd());
  CHECK(one == my_rank + 1 && other == one);
  CHECK(sum(comm, 1) == size);
  OK(ncclCommDestroy(comm));

  comm = communicator(size, 0);
  ncclResult_t result = ncclSend(&one, 1, ncclInt32, my_rank, comm, NULL);
  while (result == ncclInProgress) OK(ncclCommGetAsyncError(comm, &result));
  expect(result, ncclInvalidUsage, NULL, "has 1 sends to itself");
  OK(ncclCommDestroy(comm));
}

/* Rank 0 aborts. With nothing outstanding that is no failure to a rank that does not need it. */
static void leaves(int size) {
  ncclComm_t comm = communicator(size, 1);
  CHECK(sum(comm, 1) == size);
  meet();
  if (my_rank == 0) OK(ncclCommAbort(comm));
  meet();
  if (my_rank != 0) {
    ncclResult_t state = ncclInternalError;
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSuccess);
    int next = my_rank % (size - 1) + 1, last = (my_rank + size - 3) % (size - 1) + 1;
    int32_t from = my_rank, to = 0;
    OK(ncclGroupStart());
    OK(ncclSend(&from, 1, ncclInt32, next, comm, NULL));
    OK(ncclRecv(&to, 1, ncclInt32, last, comm, NULL));
    OK(ncclGroupEnd());
    CHECK(to == last);
    meet();
    expect(ncclAllReduce(&from, &to, 1, ncclInt32, ncclSum, comm, NULL), ncclRemoteError, comm, " left");
    OK(ncclCommAbort(comm));
  } else {
    meet();
  }

  /* With a recv that waits, the others fail. Rank 1 knows that it is posted. */
  comm = communicator(size, 0);
  int32_t value = 1, never = 0;
  if (my_rank == 0) {
    OK(ncclGroupStart());
    OK(ncclRecv(&never, 1, ncclInt32, 1, comm, NULL));
    OK(ncclSend(&value, 1, ncclInt32, 1, comm, NULL));
    CHECK(ncclGroupEnd() == ncclInProgress);
    meet();
    OK(ncclCommAbort(comm));
  } else {
    ncclResult_t state = ncclSuccess;
    if (my_rank == 1) settle(comm, ncclRecv(&value, 1, ncclInt32, 0, comm, NULL));
    meet();
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, "ncclCommAbort() was called");
    settle(comm, ncclCommFinalize(comm)); /* this rank has nothing outstanding */
    OK(ncclCommDestroy(comm));
  }
}

/* All ranks but the last shrink a communicator and abort its operations. With none outstanding it stays as it is. */
static void shrinks(int size) {
  int last = size - 1;
  ncclResult_t state = ncclInternalError;
  ncclComm_t comm = communicator(size, 1), child = NULL, again = NULL;
  if (my_rank != last) {
    OK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT));
    CHECK(sum(child, 1) == size - 1);
    OK(ncclCommDestroy(child));
  }
  meet();
  OK(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclSuccess && sum(comm, 2) == 2 * size);
  OK(ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));

  /* An operation that the last rank does not call. Ranks that have shrunk the communicator see no error of it. */
  comm = communicator(size, 0);
  int32_t value = 1;
  if (my_rank == last) {
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, "it is shrunk");
    meet();
  } else {
    CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL) == ncclInProgress);
    OK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress ? ncclSuccess
                                                                                         : ncclInternalError);
    settle(child, ncclInProgress);
    CHECK(sum(child, 1) == size - 1);
    settle(comm, ncclInProgress);
    expect(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL), ncclRemoteError, comm, "it is shrunk");
    OK(ncclCommShrink(comm, &last, 1, &again, NULL, NCCL_SHRINK_DEFAULT) == ncclInProgress ? ncclSuccess
                                                                                           : ncclInternalError);
    settle(again, ncclInProgress);
    CHECK(sum(again, 1) == size - 1);
    meet();
    OK(ncclCommDestroy(child));
    OK(ncclCommDestroy(again));
  }
  OK(ncclCommAbort(comm));
}

/* A communicator is shrunk with an abort. Rank 0 has an operation then; the others call theirs behind the shrink,
 * `at_once` or when the new communicator is ready. Only the call that began before is no error. */
static void calls_behind_a_shrink(int size, bool at_once) {
  int last = size - 1;
  ncclResult_t state = ncclSuccess;
  ncclComm_t comm = communicator(size, 0), child = NULL;
  int32_t value = 1, never = -1;
  if (my_rank == last) {
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, "it is shrunk");
  } else {
    if (my_rank == 0) CHECK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL) == ncclInProgress);
    CHECK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
    if (my_rank == 0 || !at_once) {
      settle(child, ncclInProgress);
      settle(comm, ncclInProgress);
    }
    for (int i = 0; i < 2; i++) {
      ncclResult_t result = ncclAllReduce(&value, &never, 1, ncclInt32, ncclSum, comm, NULL);
      while (result == ncclInProgress) OK(ncclCommGetAsyncError(comm, &result));
      expect(result, ncclRemoteError, comm, "it is shrunk");
    }
    CHECK(never == -1);
    settle(child, ncclInProgress);
    OK(ncclCommDestroy(child));
  }
  meet();
  OK(ncclCommAbort(comm));
}

static void shrunk(int size) {
  if (size < 3) return; /* a rank that shrinks has operations, and one has none */
  calls_behind_a_shrink(size, false);
  for (int i = 0; i < 8; i++) calls_behind_a_shrink(size, true); /* the shrink is on a thread */

  /* A shrink that aborts nothing hides no abort of a peer that comes later. */
  int last = size - 1;
  ncclResult_t state = ncclSuccess;
  ncclComm_t comm = communicator(size, 0), child = NULL;
  int32_t value = 1, never = -1;
  if (my_rank != last) {
    CHECK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
    settle(child, ncclInProgress);
    OK(ncclCommDestroy(child));
  }
  meet();
  CHECK(sum(comm, 1) == size);
  if (my_rank == last) {
    OK(ncclGroupStart());
    OK(ncclRecv(&never, 1, ncclInt32, 0, comm, NULL));
    OK(ncclSend(&value, 1, ncclInt32, 0, comm, NULL));
    CHECK(ncclGroupEnd() == ncclInProgress);
    meet();
  } else {
    state = ncclSuccess;
    if (my_rank == 0) settle(comm, ncclRecv(&value, 1, ncclInt32, last, comm, NULL)); /* so the recv is posted */
    meet();
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, "ncclCommAbort() was called");
    state = ncclAllReduce(&value, &never, 1, ncclInt32, ncclSum, comm, NULL);
    while (state == ncclInProgress) OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclRemoteError);
  }
  OK(ncclCommAbort(comm));
}

/* ---- the calls of TurboMind ---- */

static ncclUniqueId id_of_process;
static int threads_of_process;

/* With any result but success TurboMind ends. */
static void *rank_of_turbomind(void *rank) {
  enum { COUNT = 1000 };
  my_rank = (int)(intptr_t)rank;
  int version = 0, size = threads_of_process;
  ncclComm_t world = NULL, part = NULL;
  OK(ncclCommInitRank(&world, size, id_of_process, my_rank));
  OK(ncclCommSplit(world, 0, my_rank, &part, NULL));
  OK(ncclGetVersion(&version));
  void *library =
      dlopen("libnccl.so.2", RTLD_LAZY); /* newer versions are asked for windows, older ones for registrations */
  ncclResult_t (*attach)(ncclComm_t, void *, size_t, void **, int) = NULL;
  ncclResult_t (*detach)(ncclComm_t, void *) = NULL;
  CHECK(library != NULL && version >= 22700);
  *(void **)&attach = dlsym(library, "ncclCommWindowRegister");
  *(void **)&detach = dlsym(library, "ncclCommWindowDeregister");
  CHECK(attach != NULL && detach != NULL);
  void *memory = NULL, *window[2];
  ncclComm_t comms[] = {world, part};
  OK(ncclMemAlloc(&memory, 2 * COUNT * (size_t)size * sizeof(float)));
  for (int i = 0; i < 2; i++) {
    window[i] = memory;
    OK(attach(comms[i], memory, 2 * COUNT * (size_t)size * sizeof(float), &window[i], 1));
    CHECK(window[i] == NULL);
  }
  for (int i = 0; i < 2; i++) {
    float *all = memory, *sums = all + COUNT * size, *mine = all + COUNT * my_rank;
    for (int k = 0; k < COUNT; k++) mine[k] = (float)(my_rank + 1);
    OK(ncclAllGather(mine, all, COUNT, ncclFloat32, comms[i], NULL));
    OK(ncclGroupStart());
    for (int root = 0; root < size; root++) {
      float *to = root == my_rank ? sums : NULL;
      OK(ncclReduce(all + COUNT * root, to, COUNT, ncclFloat32, ncclSum, root, comms[i], NULL));
    }
    OK(ncclGroupEnd());
    for (int k = 0; k < COUNT; k++) CHECK(sums[k] == (float)(size * (my_rank + 1)));
    memcpy(mine, sums, COUNT * sizeof *sums);
    OK(ncclGroupStart());
    for (int root = 0; root < size; root++) {
      OK(ncclBroadcast(all + COUNT * root, all + COUNT * root, COUNT, ncclFloat32, root, comms[i], NULL));
    }
    OK(ncclGroupEnd());
    OK(ncclAllReduce(all, all, COUNT * (size_t)size, ncclFloat32, ncclSum, comms[i], NULL));
    for (int k = 0; k < COUNT * size; k++) CHECK(all[k] == (float)(size * size * (k / COUNT + 1)));
  }
  for (int i = 0; i < 2; i++) OK(detach(comms[i], window[i]));
  OK(ncclMemFree(memory));
  OK(ncclCommDestroy(part));
  OK(ncclCommDestroy(world));
  dlclose(library);
  return NULL;
}

/* Each process is a program whose ranks are threads. */
static void turbomind(int size) {
  pthread_t thread[8];
  threads_of_process = size;
  OK(ncclGetUniqueId(&id_of_process));
  for (int rank = 0; rank < size; rank++) {
    CHECK(pthread_create(&thread[rank], NULL, rank_of_turbomind, (void *)(intptr_t)rank) == 0);
  }
  for (int rank = 0; rank < size; rank++) CHECK(pthread_join(thread[rank], NULL) == 0);
}

static const struct play cases[] = {{"texts", texts},     {"finalizes", finalizes}, {"watched", watched},
                                    {"derives", derives}, {"itself", itself},       {"leaves", leaves},
                                    {"shrinks", shrinks}, {"shrunk", shrunk},       {"turbomind", turbomind}};

int main(int argc, char **argv) { return play(argc, argv, cases, sizeof cases / sizeof cases[0]); }
