/* nccl_death.c is compiled with NVIDIA's nccl.h and linked to libsagecomm_nccl.so. Its ranks are processes that share one
 * emulated device of CUDA. The last rank dies, and the others learn it from NCCL's interface: `before` it has called the
 * second collective, or `inside` that, while its stream is held.
 * Usage: nccl_death before|inside RANKS */
#include "nccl_play.h"
#include "vendor.h"

enum { COUNT = 1 << 16 };

static int32_t *host, *memory;
static void *stream;

static ncclResult_t sum_up(ncclComm_t comm) {
  return ncclAllReduce(memory, memory, COUNT, ncclInt32, ncclSum, comm, stream);
}

/* All ranks have added up once, and their device is open. */
static ncclComm_t added_up(int size) {
  load_vendor("cuda");
  ncclComm_t comm = communicator(size, 1);
  host = vendor.allocate_host(COUNT * sizeof *host);
  for (int i = 0; i < COUNT; i++) host[i] = my_rank;
  memory = (int32_t *)vendor.allocate(COUNT * sizeof *memory);
  stream = vendor.make_stream();
  vendor.copy_in((uintptr_t)memory, host, COUNT * sizeof *host, stream);
  OK(sum_up(comm));
  vendor.copy_out(host, (uintptr_t)memory, COUNT * sizeof *host, stream);
  vendor.synchronize(stream);
  for (int i = 0; i < COUNT; i++) CHECK(host[i] == size * (size - 1) / 2);
  meet(); /* nobody dies while another one is in this collective */
  return comm;
}

/* The survivors' streams end, and the state, the text and later calls are those of the death. */
static void survive(ncclComm_t comm, int dead) {
  char name[32];
  snprintf(name, sizeof name, "rank %d (host ", dead);
  ncclResult_t state = sum_up(comm);
  if (state != ncclSuccess) expect(state, ncclRemoteError, comm, name); /* it knew before */
  for (state = ncclSuccess; state == ncclSuccess; sched_yield()) OK(ncclCommGetAsyncError(comm, &state));
  expect(state, ncclRemoteError, comm, name);
  expect(state, ncclRemoteError, comm, "died in or after all_reduce #");
  vendor.synchronize(stream);
  expect(sum_up(comm), ncclRemoteError, comm, name);
  OK(ncclCommAbort(comm));
}

static void before(int size) {
  ncclComm_t comm = added_up(size);
  if (my_rank == size - 1) _exit(0);
  survive(comm, size - 1);
}

static void inside(int size) {
  ncclComm_t comm = added_up(size);
  if (my_rank != size - 1) return survive(comm, size - 1);
  volatile uint32_t *word = vendor.allocate_host(sizeof *word);
  *word = 0;
  vendor.wait_value(stream, word, 1);
  OK(sum_up(comm));
  _exit(0);
}

static const struct play cases[] = {{"before", before}, {"inside", inside}};

int main(int argc, char **argv) { return play(argc, argv, cases, sizeof cases / sizeof cases[0]); }
