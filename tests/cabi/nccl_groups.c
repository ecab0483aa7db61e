/* nccl_groups.c is compiled with NVIDIA's nccl.h and linked to libsagecomm_nccl.so. Its ranks are processes and play
 * one case on host memory: what a group call that fails leaves, and what a shrink that aborts has to do with other
 * calls.
 * Usage: nccl_groups colors|colorless|queued|aborted|issues|beside|collected|late|later|others|stuck|dropped|crosses RANKS */
#include "nccl_play.h"

/* An id that is refused at once. */
static ncclUniqueId damaged_id(void) {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  id.internal[60] ^= 1;
  return id;
}

/* A split whose other ranks do not come ends when the join beside it fails. Half of an exchange cannot be taken back,
 * so the parent fails. */
static void colors(int size) {
  for (int color = 0; color >= -1; color--) {
    ncclComm_t comm = communicator(size, 1), joined = NULL, child = NULL;
    ncclResult_t state = ncclSuccess;
    if (my_rank == 0) {
      OK(ncclGroupStart());
      CHECK(ncclCommInitRank(&joined, 2, damaged_id(), 0) == ncclSuccess);
      CHECK(ncclCommSplit(comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, 0, &child, NULL) == ncclSuccess);
      expect(ncclGroupEnd(), ncclInvalidUsage, NULL, "damaged on its way");
      CHECK(joined == NULL && child == NULL);
    }
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, "was aborted by rank 0: another group of the same call could not be made");
    OK(ncclCommDestroy(comm));
    meet();
  }
}

/* A rank that gets no communicator of a split learns that the split cannot be, and the join beside it ends. */
static void colorless(int size) {
  ncclComm_t comm = communicator(size, 1), joined = NULL, child = NULL;
  ncclResult_t state = ncclSuccess;
  if (my_rank == 1) {
    OK(ncclGroupStart());
    CHECK(ncclCommInitRank(&joined, 2, damaged_id(), 0) == ncclSuccess);
    CHECK(ncclCommSplit(comm, 0, 0, &child, NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInvalidUsage); /* and the parent fails */
  }
  while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
  if (my_rank == 0) {
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    CHECK(ncclCommInitRank(&joined, 2, id, 0) == ncclSuccess);
    CHECK(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &child, NULL) == ncclSuccess);
    expect(ncclGroupEnd(), ncclRemoteError, NULL, "was aborted by rank 1");
    CHECK(joined == NULL && child == NULL);
  }
  OK(ncclCommDestroy(comm));
}

/* A split that ends before its turn comes fails the parent: its other ranks would take the next split for it. */
static void queued(int size) {
  for (int in_group = 0; in_group < 2; in_group++) {
    ncclComm_t comm = communicator(size, 1), first = NULL, second = NULL, joined = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclSuccess;
    config.blocking = 0;
    if (my_rank == 0) {
      CHECK(ncclCommSplit(comm, 0, 0, &first, &config) == ncclInProgress);
      if (in_group) {
        OK(ncclGroupStart());
        CHECK(ncclCommInitRank(&joined, 2, damaged_id(), 0) == ncclSuccess);
        CHECK(ncclCommSplit(comm, 0, 0, &second, NULL) == ncclSuccess);
        CHECK(ncclGroupEnd() == ncclInvalidUsage); /* the newest text may be that of the first split, which ends too */
        CHECK(second == NULL);
      } else {
        CHECK(ncclCommSplit(comm, 0, 0, &second, &config) == ncclInProgress);
        OK(ncclCommAbort(second));
      }
    }
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm,
           in_group ? "was aborted by rank 0: another group of the same call could not be made"
                    : "was aborted by rank 0: the new communicator was aborted before its split or shrink began");
    if (first != NULL) OK(ncclCommAbort(first));
    OK(ncclCommDestroy(comm));
    meet();
  }
}

/* A split whose communicator was aborted still ends when the join beside it fails. */
static void aborted(int size) {
  ncclComm_t comm = communicator(size, 1), joined = NULL, child = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t state = ncclSuccess;
  config.blocking = 0;
  if (my_rank == 0) {
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    ncclCommInitRankConfig(&joined, 2, id, 0, &config);
    ncclCommSplit(comm, 0, 0, &child, &config);
    CHECK(ncclGroupEnd() == ncclInProgress);
    OK(ncclCommAbort(child));
    OK(ncclCommAbort(joined));
  }
  while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
  expect(state, ncclRemoteError, comm, "was aborted by rank 0: another group of the same call could not be made");
  OK(ncclCommDestroy(comm));
}

/* A group call in which a communicator cannot be made issues nothing. One that was made by then stays, for its user to
 * end. */
static void issues(int size) {
  (void)size;
  ncclUniqueId id;
  ncclComm_t alone = NULL, joined = NULL;
  int32_t from = 1, to = -1;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&alone, 1, id, 0));
  OK(ncclGroupStart());
  OK(ncclAllReduce(&from, &to, 1, ncclInt32, ncclSum, alone, NULL));
  CHECK(ncclCommInitRank(&joined, 2, damaged_id(), 0) == ncclSuccess);
  expect(ncclGroupEnd(), ncclInvalidUsage, NULL, "damaged on its way");
  CHECK(joined == NULL && to == -1);
  OK(ncclAllReduce(&from, &to, 1, ncclInt32, ncclSum, alone, NULL));
  CHECK(to == 1);
  OK(ncclCommDestroy(alone));
}

/* A shrink that aborts a communicator does not stand beside calls of it. */
static void beside(int size) {
  ncclComm_t comm = communicator(size, 1), child = NULL;
  int32_t value = 1;
  int last = size - 1;
  if (my_rank != last) {
    OK(ncclGroupStart());
    OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
    expect(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT), ncclInvalidUsage, comm,
           "shrink it afterwards");
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    OK(ncclGroupStart());
    CHECK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclSuccess);
    expect(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidUsage, comm,
           "a shrink that aborts this communicator is in the same group call");
    CHECK(ncclGroupEnd() == ncclInvalidUsage && child == NULL);
  }
  meet();
  CHECK(value == 1 && sum(comm, 1) == size);
  OK(ncclCommDestroy(comm));
}

static pthread_barrier_t both;

static void *collect(void *comm) {
  int32_t value = 1;
  OK(ncclGroupStart());
  OK(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  pthread_barrier_wait(&both);
  pthread_barrier_wait(&both);
  OK(ncclGroupEnd());
  return (void *)(intptr_t)value;
}

/* A call that another thread has only collected is not outstanding: a shrink leaves the parent as it is. */
static void collected(int size) {
  ncclComm_t comm = communicator(size, 1), child = NULL;
  pthread_t thread;
  int last = size - 1;
  pthread_barrier_init(&both, NULL, 2);
  if (my_rank == 0) {
    CHECK(pthread_create(&thread, NULL, collect, comm) == 0);
    pthread_barrier_wait(&both);
  }
  if (my_rank != last) {
    OK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT));
    OK(ncclCommDestroy(child));
  }
  meet();
  if (my_rank == 0) {
    void *value = NULL;
    pthread_barrier_wait(&both);
    CHECK(pthread_join(thread, &value) == 0 && (intptr_t)value == size);
  } else {
    CHECK(sum(comm, 1) == size);
  }
  OK(ncclCommDestroy(comm));
}

static int32_t collected_value = 1;

static void *collect_late(void *comm) {
  OK(ncclGroupStart());
  OK(ncclAllReduce(&collected_value, &collected_value, 1, ncclInt32, ncclSum, comm, NULL));
  pthread_barrier_wait(&both);
  pthread_barrier_wait(&both);
  CHECK(ncclGroupEnd() == ncclInProgress);
  return NULL;
}

/* A call that was only collected before a shrink aborts the communicator, and begins later, has failed. */
static void late(int size) {
  ncclComm_t comm = communicator(size, 0), child = NULL;
  ncclResult_t state = ncclInProgress;
  pthread_t thread;
  int32_t value = -1;
  int last = size - 1;
  if (my_rank == 0) {
    pthread_barrier_init(&both, NULL, 2);
    CHECK(pthread_create(&thread, NULL, collect_late, comm) == 0);
    pthread_barrier_wait(&both);
    CHECK(ncclRecv(&value, 1, ncclInt32, last, comm, NULL) == ncclInProgress);
  }
  if (my_rank != last) {
    CHECK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
    settle(child, ncclInProgress);
    OK(ncclCommDestroy(child));
    settle(comm, ncclInProgress);
  }
  if (my_rank == 0) {
    pthread_barrier_wait(&both);
    CHECK(pthread_join(thread, NULL) == 0);
    while (state == ncclInProgress) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, "it is shrunk");
  }
  meet();
  OK(ncclCommAbort(comm));
}

/* A call behind a shrink is not outstanding for it, also where the shrink waits for its turn: the idle parent stays as
 * it is. The call waits for rank 1, which makes it when the shrink is complete. */
static void later(int size) {
  ncclComm_t comm = communicator(size, 0), first = NULL, child = NULL;
  int32_t value = my_rank == 1 ? 7 : -1;
  int last = size - 1;
  if (size > 2 && my_rank != last) {
    if (my_rank > 0) meet();
    CHECK(ncclCommShrink(comm, &last, 1, &first, NULL, NCCL_SHRINK_DEFAULT) == ncclInProgress);
    CHECK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
    if (my_rank == 0) {
      CHECK(ncclRecv(&value, 1, ncclInt32, 1, comm, NULL) == ncclInProgress);
      meet();
    }
    settle(first, ncclInProgress);
    settle(child, ncclInProgress);
    if (my_rank == 1) settle(comm, ncclSend(&value, 1, ncclInt32, 0, comm, NULL));
    settle(comm, ncclInProgress);
    CHECK(my_rank > 1 || value == 7);
    OK(ncclCommDestroy(first));
    OK(ncclCommDestroy(child));
  } else {
    meet();
  }
  meet();
  CHECK(sum(comm, 1) == size);
  OK(ncclCommDestroy(comm));
}

/* A rank that was shrunk once, and is left out when others shrink and abort the communicator later, hears of that. */
static void others(int size) {
  if (size < 3) return;
  int last = size - 1;
  ncclComm_t comm = communicator(size, 0), child = NULL;
  ncclResult_t state = ncclSuccess;
  int32_t value = -1;
  if (my_rank != last) {
    CHECK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
    settle(child, ncclInProgress);
    OK(ncclCommDestroy(child));
  }
  meet();
  if (my_rank > 0 && my_rank != last) {
    int out[] = {0, last};
    if (my_rank == 1) CHECK(ncclRecv(&value, 1, ncclInt32, last, comm, NULL) == ncclInProgress);
    CHECK(ncclCommShrink(comm, out, 2, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
    settle(child, ncclInProgress);
    settle(comm, ncclInProgress);
    OK(ncclCommDestroy(child));
  } else {
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, "it is shrunk");
  }
  meet();
  OK(ncclCommAbort(comm));
}

/* A shrink that aborts the parent ends the splits that go on, which the last rank does not call. No rank shrinks it
 * before all have begun their splits: one that begins later fails for the abort. */
static void stuck(int size) {
  ncclComm_t comm = communicator(size, 0), first = NULL, second = NULL, child = NULL;
  ncclResult_t state = ncclSuccess;
  int last = size - 1;
  if (my_rank != last) {
    CHECK(ncclCommSplit(comm, 0, my_rank, &first, NULL) == ncclInProgress);
    if (my_rank == 0) CHECK(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &second, NULL) == ncclInProgress);
    if (my_rank != 0) CHECK(ncclCommSplit(comm, 0, my_rank, &second, NULL) == ncclInProgress);
    meet();
    CHECK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
    settle(child, ncclInProgress);
    CHECK(sum(child, 1) == size - 1);
    ncclComm_t ended[] = {first, second};
    for (int i = 0; i < (my_rank == 0 ? 1 : 2); i++) {
      state = ncclInProgress;
      while (state == ncclInProgress) OK(ncclCommGetAsyncError(ended[i], &state));
      expect(state, ncclRemoteError, ended[i], " shrunk"); /* by this rank, or by a peer that was first */
      OK(ncclCommAbort(ended[i]));
    }
    settle(comm, ncclInProgress);
    OK(ncclCommDestroy(child));
  } else {
    meet();
    while (state == ncclSuccess) OK(ncclCommGetAsyncError(comm, &state));
    expect(state, ncclRemoteError, comm, "it is shrunk");
  }
  meet();
  OK(ncclCommAbort(comm));
}

/* A shrink that aborts the parent, which its user ends while it waits for an earlier one, aborts the parent all the
 * same, and that is an error on this rank too: the parent is not shrunk. */
static void dropped(int size) {
  if (size < 3) return;
  ncclComm_t comm = communicator(size, 0), first = NULL, child = NULL;
  ncclResult_t state = ncclSuccess;
  int32_t value = -1;
  int last = size - 1;
  if (my_rank == 0) {
    CHECK(ncclRecv(&value, 1, ncclInt32, last, comm, NULL) == ncclInProgress);
    CHECK(ncclCommShrink(comm, &last, 1, &first, NULL, NCCL_SHRINK_DEFAULT) == ncclInProgress);
    CHECK(ncclCommShrink(comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT) == ncclInProgress);
    OK(ncclCommAbort(child));
  }
  while (state == ncclSuccess || state == ncclInProgress) OK(ncclCommGetAsyncError(comm, &state));
  expect(state, ncclRemoteError, comm, "the new communicator was aborted before its split or shrink began");
  if (my_rank == 0) OK(ncclCommAbort(first));
  meet();
  OK(ncclCommAbort(comm));
}

/* Sends of a rank to itself and their recvs overlap in part, or cross. */
static void crosses(int size) {
  ncclComm_t comm = communicator(size, 1);
  int32_t value[3] = {1, 2, 3};
  int from[3][2] = {{0, 1}, {0, 2}, {0, 2}}, to[3][2] = {{1, -1}, {2, 0}, {0, 2}}, counts[3] = {2, 1, 1};
  for (int i = 0; i < 3; i++) {
    OK(ncclGroupStart());
    for (int k = 0; k < 2 && to[i][k] >= 0; k++) {
      OK(ncclSend(&value[from[i][k]], (size_t)counts[i], ncclInt32, my_rank, comm, NULL));
      OK(ncclRecv(&value[to[i][k]], (size_t)counts[i], ncclInt32, my_rank, comm, NULL));
    }
    ncclResult_t result = ncclGroupEnd();
    if (i < 2) expect(result, ncclInvalidUsage, comm, "share memory that one of them writes");
    if (i == 2) OK(result); /* each in its own place */
    CHECK(value[0] == 1 && value[1] == 2 && value[2] == 3);
  }
  OK(ncclCommDestroy(comm));
}

static const struct play cases[] = {
    {"colors", colors}, {"colorless", colorless}, {"queued", queued},  {"aborted", aborted}, {"issues", issues},
    {"beside", beside}, {"collected", collected}, {"late", late},      {"later", later},     {"others", others},
    {"stuck", stuck},   {"dropped", dropped},     {"crosses", crosses}};

int main(int argc, char **argv) { return play(argc, argv, cases, sizeof cases / sizeof cases[0]); }
