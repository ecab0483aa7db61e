/* nccl_play.h: the frame of the programs over libsagecomm_nccl.so whose ranks are processes and play one case on host
 * memory. It is included once in a program, before anything else. */
#include "nccl_ranks.h"

#include <signal.h>

/* No rank begins before all know that they have joined. */
static inline ncclComm_t communicator(int size, int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  ncclComm_t comm = NULL;
  settle(comm, ncclCommInitRankConfig(&comm, size, unique_id(), my_rank, &config) == ncclInternalError
                   ? ncclInternalError
                   : ncclInProgress);
  meet();
  return comm;
}

struct play {
  const char *name;
  void (*play)(int size);
};

/* Plays the case that the first argument names, with so many ranks as the second says. */
static int play(int argc, char **argv, const struct play *cases, size_t n) {
  int size = argc == 3 ? atoi(argv[2]) : 0, worst = 0;
  void (*played)(int) = NULL;
  for (size_t i = 0; size >= 1 && size <= 8 && i < n; i++) {
    if (strcmp(argv[1], cases[i].name) == 0) played = cases[i].play;
  }
  if (played == NULL) {
    fprintf(stderr, "usage: %s CASE RANKS\n", argv[0]);
    return 2;
  }
  share_among(size);
  pid_t child[8];
  for (int rank = 0; rank < size; rank++) {
    child[rank] = fork();
    if (child[rank] < 0) return 2;
    if (child[rank] != 0) continue;
    my_rank = rank;
    take_host(rank);
    played(size);
    _exit(0);
  }
  for (int rank = 0; rank < size; rank++) {
    int status = 0;
    if (wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    for (int i = 0; i < size && worst == 0; i++) kill(child[i], SIGKILL); /* the others may wait for it */
    worst = 1;
  }
  if (worst == 0) printf("%d ranks agree\n", size);
  return worst;
}
