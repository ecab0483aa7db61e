/* hccl.c is linked to libsagecomm_hccl.so. Its ranks, processes or threads, call each function of the library, on host
 * memory or, as `npu`, on memory of devices of AscendCL. As `leaves`, rank 0 of 3 exits without a farewell, and the
 * others go on.
 * Usage: hccl processes|threads|leaves|npu RANKS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../hccl/hccl.h"
#include "hosts.h"

static _Thread_local int my_rank;

#define CHECK(condition)                                                                              \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      fprintf(stderr, "rank %d: %s:%d: %s does not hold\n", my_rank, __FILE__, __LINE__, #condition); \
      _exit(1);                                                                                       \
    }                                                                                                 \
  } while (0)

#define OK(call)                                                                               \
  do {                                                                                         \
    HcclResult ok_ = (call);                                                                   \
    if (ok_ != HCCL_SUCCESS) {                                                                 \
      fprintf(stderr, "rank %d: %s:%d: %s: %d: %s\n", my_rank, __FILE__, __LINE__, #call, ok_, \
              HcclGetErrorString(ok_));                                                        \
      _exit(1);                                                                                \
    }                                                                                          \
  } while (0)

/* What the ranks share: a barrier that the library under test knows nothing of, and root infos. */
static struct shared {
  pthread_barrier_t barrier;
  HcclRootInfo root;
} *shared;

static void meet(void) { pthread_barrier_wait(&shared->barrier); }

static HcclRootInfo *root_info(void) {
  meet();
  if (my_rank == 0) OK(HcclGetRootInfo(&shared->root));
  meet();
  return &shared->root;
}

static void expect(HcclResult result, HcclResult wanted, const char *text) {
  if (result == wanted && strstr(HcclGetErrorString(result), text) != NULL) return;
  fprintf(stderr, "rank %d: result %d, expected %d with %s: %s\n", my_rank, result, wanted, text,
          HcclGetErrorString(result));
  _exit(1);
}

/* ---- memory: of the host, or of a device ---- */

static struct {
  int32_t (*init)(const char *), (*set_device)(int32_t), (*allocate)(void **, size_t, int32_t), (*make_stream)(void **);
  int32_t (*copy)(void *, size_t, const void *, size_t, int32_t, void *), (*synchronize)(void *);
  int32_t (*allocate_host)(void **, size_t), (*wait_value)(void *, uint64_t, uint32_t, void *);
} acl;

static bool on_device;
static _Thread_local HcclStream stream;

static void open_device(void) {
  void *library = dlopen("libascendcl.so", RTLD_NOW | RTLD_GLOBAL);
  CHECK(library != NULL);
#define FIND(field, name)                      \
  *(void **)&acl.field = dlsym(library, name); \
  CHECK(acl.field != NULL)
  FIND(init, "aclInit");
  FIND(set_device, "aclrtSetDevice");
  FIND(allocate, "aclrtMalloc");
  FIND(make_stream, "aclrtCreateStream");
  FIND(copy, "aclrtMemcpyAsync");
  FIND(synchronize, "aclrtSynchronizeStream");
  FIND(allocate_host, "aclrtMallocHost");
#undef FIND
  CHECK(acl.init(NULL) == 0 && acl.set_device(my_rank % 2) == 0 && acl.make_stream(&stream) == 0);
}

enum { BYTES = 16384 };

/* A buffer, and the host's view of it. */
typedef struct buffer {
  void *at, *host;
} buffer;

static buffer make(void) {
  buffer b;
  if (on_device) {
    CHECK(acl.allocate_host(&b.host, BYTES) == 0 && acl.allocate(&b.at, BYTES, 0) == 0);
  } else {
    b.at = b.host = calloc(1, BYTES);
  }
  CHECK(b.host != NULL);
  memset(b.host, 0, BYTES);
  return b;
}

static void push(buffer b) {
  if (on_device) CHECK(acl.copy(b.at, BYTES, b.host, BYTES, 1, stream) == 0);
}

static void pull(buffer b) {
  if (on_device) CHECK(acl.copy(b.host, BYTES, b.at, BYTES, 2, stream) == 0 && acl.synchronize(stream) == 0);
}

static void fill(buffer b, size_t n, int from) {
  for (size_t i = 0; i < n; i++) ((int32_t *)b.host)[i] = (from + 1) * 1000 + (int32_t)i;
  push(b);
}

/* ---- collectives ---- */

enum { COUNT = 37 };

static void reductions(HcclComm comm, int size) {
  buffer from = make(), to = make();
  const int32_t *got = to.host;
  for (int op = HCCL_REDUCE_SUM; op <= HCCL_REDUCE_MIN; op++) {
    int32_t *mine = from.host;
    for (int i = 0; i < COUNT * size; i++) mine[i] = my_rank + 1 + i % 3;
    push(from);
    int32_t wanted[3];
    for (int i = 0; i < 3; i++) {
      wanted[i] = op == HCCL_REDUCE_PROD ? 1 : op == HCCL_REDUCE_MIN ? 1 << 30 : 0;
      for (int rank = 0; rank < size; rank++) {
        int32_t one = rank + 1 + i;
        if (op == HCCL_REDUCE_SUM) wanted[i] += one;
        if (op == HCCL_REDUCE_PROD) wanted[i] *= one;
        if (op == HCCL_REDUCE_MAX && one > wanted[i]) wanted[i] = one;
        if (op == HCCL_REDUCE_MIN && one < wanted[i]) wanted[i] = one;
      }
    }
    OK(HcclAllReduce(from.at, to.at, COUNT, HCCL_INT32, op, comm, stream));
    pull(to);
    for (int i = 0; i < COUNT; i++) CHECK(got[i] == wanted[i % 3]);
    OK(HcclReduce(from.at, to.at, COUNT, HCCL_INT32, op, (uint32_t)(size - 1), comm, stream));
    pull(to);
    for (int i = 0; i < COUNT && my_rank == size - 1; i++) CHECK(got[i] == wanted[i % 3]);
    OK(HcclReduceScatter(from.at, to.at, COUNT, HCCL_INT32, op, comm, stream));
    pull(to);
    for (int i = 0; i < COUNT; i++) CHECK(got[i] == wanted[(my_rank * COUNT + i) % 3]);
    OK(HcclAllReduce(from.at, from.at, COUNT, HCCL_INT32, op, comm, stream)); /* in place */
    pull(from);
    for (int i = 0; i < COUNT; i++) CHECK(mine[i] == wanted[i % 3]);
  }
  for (int i = 0; i < COUNT * size; i++) ((int32_t *)from.host)[i] = my_rank + 1 + i % 3;
  push(from);
  int32_t *own = (int32_t *)from.at + my_rank * COUNT; /* this rank's block, in place */
  OK(HcclReduceScatter(from.at, own, COUNT, HCCL_INT32, HCCL_REDUCE_SUM, comm, stream));
  pull(from);
  for (int i = 0; i < COUNT; i++) {
    int at = my_rank * COUNT + i;
    CHECK(((int32_t *)from.host)[at] == size * (size + 1) / 2 + size * (at % 3));
  }

  uint64_t counts[8], offsets[8]; /* blocks of different lengths, with gaps */
  for (int rank = 0; rank < size; rank++) counts[rank] = (uint64_t)rank + 1, offsets[rank] = (uint64_t)rank * 10;
  fill(from, 100, 0);
  OK(HcclReduceScatterV(from.at, counts, offsets, to.at, counts[my_rank], HCCL_INT32, HCCL_REDUCE_SUM, comm, stream));
  pull(to);
  for (int i = 0; i <= my_rank; i++) CHECK(got[i] == size * (1000 + my_rank * 10 + i));
  expect(HcclAllReduce(from.at, to.at, 1, HCCL_FP8E4M3, HCCL_REDUCE_SUM, comm, stream), HCCL_E_NOT_SUPPORT,
         "is moved and cannot be reduced");
  expect(HcclAllReduce(from.at, to.at, 1, HCCL_INT32, 4, comm, stream), HCCL_E_PARA, "reduction 4, expected 0 to 3");
  expect(HcclAllReduce(from.at, to.at, 1, 13, HCCL_REDUCE_SUM, comm, stream), HCCL_E_PARA, "data type 13");
  OK(HcclAllReduce(NULL, NULL, 0, HCCL_INT32, HCCL_REDUCE_SUM, comm, stream));
}

static void moves(HcclComm comm, int size) {
  static const int types[] = {HCCL_INT8,   HCCL_INT16, HCCL_INT32,   HCCL_FP16,    HCCL_FP32,   HCCL_INT64,
                              HCCL_UINT64, HCCL_UINT8, HCCL_UINT16,  HCCL_UINT32,  HCCL_FP64,   HCCL_BFP16,
                              HCCL_INT128, HCCL_HIF8,  HCCL_FP8E4M3, HCCL_FP8E5M2, HCCL_FP8E8M0};
  static const int widths[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2, 16, 1, 1, 1, 1};
  buffer from = make(), to = make();
  unsigned char *mine = from.host, *got = to.host;
  for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
    size_t block = (size_t)(COUNT * widths[t]);
    if (block * (size_t)size > BYTES) continue;
    for (size_t i = 0; i < block; i++) mine[i] = (unsigned char)(my_rank * 50 + (int)i % 7);
    push(from);
    OK(HcclAllGather(from.at, to.at, COUNT, types[t], comm, stream));
    pull(to);
    for (int rank = 0; rank < size; rank++) {
      for (size_t i = 0; i < block; i++)
        CHECK(got[(size_t)rank * block + i] == (unsigned char)(rank * 50 + (int)i % 7));
    }
  }
  const int32_t *word = to.host;
  uint32_t root = (uint32_t)size / 2;
  memset(to.host, 0, BYTES);
  fill(from, COUNT, my_rank);
  memcpy((int32_t *)to.host + my_rank * COUNT, from.host, COUNT * 4);
  push(to);
  OK(HcclAllGather((int32_t *)to.at + my_rank * COUNT, to.at, COUNT, HCCL_INT32, comm, stream)); /* in place */
  pull(to);
  for (int i = 0; i < COUNT * size; i++) CHECK(word[i] == (i / COUNT + 1) * 1000 + i % COUNT);
  OK(HcclBroadcast(from.at, COUNT, HCCL_INT32, root, comm, stream));
  pull(from);
  for (int i = 0; i < COUNT; i++) CHECK(((int32_t *)from.host)[i] == (int32_t)(root + 1) * 1000 + i);
  fill(from, (size_t)(COUNT * size), my_rank);
  OK(HcclScatter(from.at, to.at, COUNT, HCCL_INT32, root, comm, stream));
  pull(to);
  for (int i = 0; i < COUNT; i++) CHECK(word[i] == (int32_t)(root + 1) * 1000 + my_rank * COUNT + i);
  OK(HcclAlltoAll(from.at, COUNT, HCCL_INT32, to.at, COUNT, HCCL_INT32, comm, stream));
  pull(to);
  for (int i = 0; i < COUNT * size; i++) CHECK(word[i] == (i / COUNT + 1) * 1000 + my_rank * COUNT + i % COUNT);
  if (size > 1) {
    expect(HcclAlltoAll(to.at, COUNT, HCCL_INT32, to.at, COUNT, HCCL_INT32, comm, stream), HCCL_E_PARA, "in place");
  }
  expect(HcclAlltoAll(from.at, COUNT, HCCL_INT32, to.at, COUNT, HCCL_FP32, comm, stream), HCCL_E_PARA,
         "differ in type or count");

  /* Rank r sends r + s + 1 numbers to rank s. */
  uint64_t counts[8], offsets[8], to_counts[8], to_offsets[8], matrix[64], at = 0;
  for (int r = 0; r < size; r++) {
    counts[r] = to_counts[r] = (uint64_t)(my_rank + r + 1);
    offsets[r] = (uint64_t)r * COUNT;
    to_offsets[r] = (uint64_t)(size - 1 - r) * COUNT; /* the other way round */
    for (int s = 0; s < size; s++) matrix[r * size + s] = (uint64_t)(r + s + 1);
  }
  OK(HcclAlltoAllV(from.at, counts, offsets, HCCL_INT32, to.at, to_counts, to_offsets, HCCL_INT32, comm, stream));
  pull(to);
  for (int r = 0; r < size; r++) {
    for (int i = 0; i < my_rank + r + 1; i++) {
      CHECK(word[to_offsets[r] + (uint64_t)i] == (r + 1) * 1000 + my_rank * COUNT + i);
    }
  }
  OK(HcclAlltoAllVC(from.at, matrix, HCCL_INT32, to.at, HCCL_INT32, comm, stream));
  pull(to);
  for (int r = 0; r < size; r++) {
    int first = 0; /* of this rank's block in the packed buffer of rank r */
    for (int s = 0; s < my_rank; s++) first += r + s + 1;
    for (int i = 0; i < my_rank + r + 1; i++) CHECK(word[at++] == (r + 1) * 1000 + first + i);
  }
  /* The last rank has no elements on either side, and no memory. */
  bool none = my_rank == size - 1;
  for (int r = 0; r < size; r++) {
    counts[r] = none || r == size - 1 ? 0 : (uint64_t)(my_rank + r + 1);
    offsets[r] = to_offsets[r] = (uint64_t)r * COUNT;
  }
  OK(HcclAlltoAllV(none ? NULL : from.at, counts, offsets, HCCL_INT32, none ? NULL : to.at, counts, to_offsets,
                   HCCL_INT32, comm, stream));
  pull(to);
  for (int r = 0; !none && r < size - 1; r++) {
    for (int i = 0; i < my_rank + r + 1; i++) CHECK(word[r * COUNT + i] == (r + 1) * 1000 + my_rank * COUNT + i);
  }
  for (int r = 0; r < size; r++) counts[r] = (uint64_t)(2 * r), offsets[r] = (uint64_t)r * 20; /* rank 0 has none */
  OK(HcclAllGatherV(from.at, counts[my_rank], to.at, counts, offsets, HCCL_INT32, comm, stream));
  pull(to);
  for (int r = 0; r < size; r++) {
    for (int i = 0; i < 2 * r; i++) CHECK(word[r * 20 + i] == (r + 1) * 1000 + i);
  }
  for (int r = 0; r < size; r++) offsets[r] = (uint64_t)(size - 1 - r) * 20; /* the other way round */
  OK(HcclAllGatherV(from.at, counts[my_rank], to.at, counts, offsets, HCCL_INT32, comm, stream));
  pull(to);
  for (int r = 0; r < size; r++) {
    for (int i = 0; i < 2 * r; i++) CHECK(word[(size - 1 - r) * 20 + i] == (r + 1) * 1000 + i);
  }
  expect(HcclAllGatherV(from.at, 77, to.at, counts, offsets, HCCL_INT32, comm, stream), HCCL_E_PARA,
         "HcclAllGatherV: the count of this rank");
  for (int r = 0; r < size; r++) counts[r] = 2, offsets[r] = (uint64_t)(size - 1 - r);
  if (size > 1) {
    expect(HcclAllGatherV(from.at, 2, to.at, counts, offsets, HCCL_INT32, comm, stream), HCCL_E_PARA,
           "blocks of recvbuff overlap");
  }
  expect(HcclAllGatherV(from.at, 1, to.at, NULL, NULL, HCCL_INT32, comm, stream), HCCL_E_PTR,
         "a list of counts is NULL");
  OK(HcclBarrier(comm, stream));
}

/* Blocks of one side between those of the other one, in place, and on top of them, which is refused. */
static void overlaps(HcclComm comm, int size) {
  buffer both = make();
  int32_t *at = both.at;
  const int32_t *word = both.host;
  uint64_t counts[8], offsets[8], to_offsets[8];
  for (int r = 0; r < size; r++) {
    counts[r] = COUNT;
    offsets[r] = (uint64_t)(2 * r) * COUNT;
    to_offsets[r] = offsets[r] + COUNT;
  }
  fill(both, (size_t)(2 * COUNT * size), my_rank);
  OK(HcclAlltoAllV(at, counts, offsets, HCCL_INT32, at, counts, to_offsets, HCCL_INT32, comm, stream));
  pull(both);
  for (int i = 0; i < COUNT * size; i++)
    CHECK(word[2 * (i / COUNT) * COUNT + COUNT + i % COUNT] ==
          (i / COUNT + 1) * 1000 + 2 * my_rank * COUNT + i % COUNT);
  to_offsets[size - 1]--; /* the last number of the last block that is sent */
  expect(HcclAlltoAllV(at, counts, offsets, HCCL_INT32, at, counts, to_offsets, HCCL_INT32, comm, stream), HCCL_E_PARA,
         "overlap: give them memory apart");

  fill(both, (size_t)(2 * COUNT * size), my_rank);
  OK(HcclAllGatherV(at + offsets[my_rank], COUNT, at, counts, offsets, HCCL_INT32, comm, stream));
  pull(both);
  for (int i = 0; i < COUNT * size; i++)
    CHECK(word[2 * (i / COUNT) * COUNT + i % COUNT] == (i / COUNT + 1) * 1000 + 2 * (i / COUNT) * COUNT + i % COUNT);
  expect(HcclAllGatherV(at + offsets[my_rank] + 1, COUNT, at, counts, offsets, HCCL_INT32, comm, stream), HCCL_E_PARA,
         "or this rank's block of recvbuff as sendbuff");

  fill(both, (size_t)(2 * COUNT * size), 0);
  OK(HcclReduceScatterV(at, counts, offsets, at + offsets[my_rank], COUNT, HCCL_INT32, HCCL_REDUCE_SUM, comm, stream));
  pull(both);
  for (int i = 0; i < COUNT; i++) {
    int mine = 2 * my_rank * COUNT + i;
    CHECK(word[mine] == size * (1000 + mine));
  }
  expect(HcclReduceScatterV(at, counts, offsets, at + offsets[my_rank] + 1, COUNT, HCCL_INT32, HCCL_REDUCE_SUM, comm,
                            stream),
         HCCL_E_PARA, "or this rank's block of sendbuff as recvbuff");
  if (size > 1) { /* a block of another rank is the same memory */
    offsets[(my_rank + 1) % size] = offsets[my_rank];
    expect(HcclReduceScatterV(at, counts, offsets, at + offsets[my_rank], COUNT, HCCL_INT32, HCCL_REDUCE_SUM, comm,
                              stream),
           HCCL_E_PARA, "overlap");
  }
  expect(HcclAllReduce((char *)both.at + 2, at, 1, HCCL_INT32, HCCL_REDUCE_SUM, comm, stream), HCCL_E_PARA,
         "expected a multiple of 4");
}

static void exchanges(HcclComm comm, int size) {
  buffer from = make(), to = make();
  const int32_t *word = to.host;
  fill(from, (size_t)(COUNT * size), my_rank);
  HcclSendRecvItem items[16];
  for (int r = 0; r < size; r++) {
    items[2 * r] = (HcclSendRecvItem){HCCL_SEND, (int32_t *)from.at + r * COUNT, COUNT, HCCL_INT32, (uint32_t)r};
    items[2 * r + 1] = (HcclSendRecvItem){HCCL_RECV, (int32_t *)to.at + r * COUNT, COUNT, HCCL_INT32, (uint32_t)r};
  }
  OK(HcclBatchSendRecv(items, 2 * (uint32_t)size, comm, stream));
  pull(to);
  for (int i = 0; i < COUNT * size; i++) CHECK(word[i] == (i / COUNT + 1) * 1000 + my_rank * COUNT + i % COUNT);
  items[0].type = 7;
  expect(HcclBatchSendRecv(items, 2, comm, stream), HCCL_E_PARA, "item 0 is neither a send nor a recv");
  if (size > 1 && my_rank == 0) OK(HcclSend(from.at, COUNT, HCCL_INT32, 1, comm, stream));
  if (size > 1 && my_rank == 1) {
    OK(HcclRecv(to.at, COUNT, HCCL_INT32, 0, comm, stream));
    pull(to);
    for (int i = 0; i < COUNT; i++) CHECK(word[i] == 1000 + i);
  }
  OK(HcclGroupStart());
  OK(HcclRecv(to.at, COUNT, HCCL_INT32, (uint32_t)((my_rank + size - 1) % size), comm, stream));
  OK(HcclSend(from.at, COUNT, HCCL_INT32, (uint32_t)((my_rank + 1) % size), comm, stream));
  OK(HcclGroupEnd());
  pull(to);
  for (int i = 0; i < COUNT; i++) CHECK(word[i] == ((my_rank + size - 1) % size + 1) * 1000 + i);
  expect(HcclGroupEnd(), HCCL_E_PARA, "no HcclGroupStart() came before it");
  expect(HcclSend(from.at, 1, HCCL_INT32, (uint32_t)size, comm, stream), HCCL_E_PARA, "is outside the communicator");
}

/* ---- communicators ---- */

static int32_t sum(HcclComm comm, int32_t value) {
  static _Thread_local buffer b;
  if (b.at == NULL) b = make();
  *(int32_t *)b.host = value;
  push(b);
  OK(HcclAllReduce(b.at, b.at, 1, HCCL_INT32, HCCL_REDUCE_SUM, comm, stream));
  pull(b);
  return *(int32_t *)b.host;
}

/* Two communicators in one group call and in one stream, whose operations must stand in it in the same order on all ranks. */
static void in_one_stream(HcclComm comm, int size) {
  HcclComm second = NULL;
  OK(HcclCommInitRootInfo((uint32_t)size, root_info(), (uint32_t)my_rank, &second));
  buffer one = make(), other = make();
  for (int i = 0; i < 40; i++) {
    *(int32_t *)one.host = i;
    *(int32_t *)other.host = my_rank;
    push(one);
    push(other);
    OK(HcclGroupStart());
    OK(HcclAllReduce(one.at, one.at, 1, HCCL_INT32, HCCL_REDUCE_SUM, comm, stream));
    OK(HcclAllReduce(other.at, other.at, 1, HCCL_INT32, HCCL_REDUCE_SUM, second, stream));
    OK(HcclGroupEnd());
    pull(one);
    pull(other);
    CHECK(*(int32_t *)one.host == i * size && *(int32_t *)other.host == size * (size - 1) / 2);
  }
  OK(HcclCommDestroy(second));
}

static void *joins_without_a_device(void *argument) {
  struct joining {
    HcclComm comm;
    int rank, size;
  } *j = argument;
  my_rank = j->rank;
  OK(HcclCommInitRootInfo((uint32_t)j->size, root_info(), (uint32_t)my_rank, &j->comm));
  return NULL;
}

/* A communicator that was made on a thread without a device, in a group call with another one: its operations on pinned
 * memory come behind what the stream of the caller's device holds. */
static void made_without_a_device(HcclComm comm, int size) {
  struct joining {
    HcclComm comm;
    int rank, size;
  } j = {NULL, my_rank, size};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, joins_without_a_device, &j) == 0 && pthread_join(thread, NULL) == 0);
  buffer from = make(), one = make(), other = make();
  for (int i = 1; i < 10; i++) {
    *(int32_t *)from.host = i;
    push(from);
    CHECK(acl.copy(one.host, BYTES, from.at, BYTES, 2, stream) == 0);
    CHECK(acl.copy(other.host, BYTES, from.at, BYTES, 2, stream) == 0);
    OK(HcclGroupStart());
    OK(HcclAllReduce(one.host, one.host, 1, HCCL_INT32, HCCL_REDUCE_SUM, j.comm, stream));
    OK(HcclAllReduce(other.host, other.host, 1, HCCL_INT32, HCCL_REDUCE_SUM, comm, stream));
    OK(HcclGroupEnd());
    CHECK(*(int32_t *)one.host == i * size && *(int32_t *)other.host == i * size);
  }
  CHECK(sum(j.comm, 1) == size);
  OK(HcclCommDestroy(j.comm));
}

static void ask(HcclComm comm, int rank, int size) {
  uint32_t answer = 99;
  HcclResult state = HCCL_E_INTERNAL;
  OK(HcclGetRankSize(comm, &answer));
  CHECK(answer == (uint32_t)size);
  OK(HcclGetRankId(comm, &answer));
  CHECK(answer == (uint32_t)rank);
  OK(HcclGetCommAsyncError(comm, &state));
  CHECK(state == HCCL_SUCCESS);
}

static HcclCommConfig configuration(const char *name) {
  HcclCommConfig config = {.size = sizeof config, .magic = HCCL_CONFIG_MAGIC, .version = 10, .exec_timeout = -1};
  config.buffer_size = config.deterministic = HCCL_NOT_SET;
  snprintf(config.name, sizeof config.name, "%s", name);
  return config;
}

/* Only the ranks of a new communicator call the function. One group call makes several, on each rank in another order. */
static void children(HcclComm comm, int size) {
  HcclComm pairs[2] = {NULL, NULL}, rest = NULL, none = comm;
  HcclCommConfig config = configuration("turned");
  char name[128] = "";
  OK(HcclGetCommName(comm, name));
  CHECK(strncmp(name, "hccl-", 5) == 0);
  if (size > 1 && my_rank < 2) {
    uint32_t turned[] = {1, 0}, straight[] = {0, 1};
    OK(HcclGroupStart());
    for (int i = 0; i < 2; i++) {
      if ((i + my_rank) % 2 == 0) {
        OK(HcclCreateSubCommConfig(&comm, 2, turned, 11, (uint32_t)(1 - my_rank), &config, &pairs[0]));
      } else {
        OK(HcclCreateSubCommConfig(&comm, 2, straight, 12, (uint32_t)my_rank, NULL, &pairs[1]));
      }
    }
    OK(HcclGroupEnd());
    ask(pairs[0], 1 - my_rank, 2);
    ask(pairs[1], my_rank, 2);
    OK(HcclGetCommName(pairs[0], name));
    CHECK(strcmp(name, "turned") == 0);
    CHECK(sum(pairs[0], 10 + my_rank) == 21 && sum(pairs[1], my_rank) == 1);
    OK(HcclCommDestroy(pairs[0]));
    OK(HcclCommDestroy(pairs[1]));
  }
  if (my_rank > 0) {
    uint32_t ranks[8];
    for (int rank = 1; rank < size; rank++) ranks[rank - 1] = (uint32_t)rank;
    for (int again = 0; again < 2; again++) { /* the same ranks and the same id */
      OK(HcclCreateSubCommConfig(&comm, (uint32_t)size - 1, ranks, 13, (uint32_t)my_rank - 1, NULL, &rest));
      CHECK(sum(rest, 1) == size - 1);
      OK(HcclCommDestroy(rest));
    }
    expect(HcclCreateSubCommConfig(&comm, 1, ranks, 14, 5, NULL, &rest), HCCL_E_PARA,
           "of which this one is to be rank 5");
  }
  OK(HcclCreateSubCommConfig(&comm, 0, NULL, 0xffffffff, 0, NULL, &none));
  CHECK(none == NULL);
  CHECK(sum(comm, 1) == size);
}

static void refusals(HcclComm comm) {
  HcclConfigValue value = {0};
  void *handle = NULL;
  bool backup = false;
  uint32_t rank = 0;
  HcclComm made = NULL;
  OK(HcclGetConfig(HCCL_DETERMINISTIC, &value));
  CHECK(value.value == 1);
  OK(HcclSetConfig(HCCL_DETERMINISTIC, value));
  expect(HcclSetConfig(HCCL_ACCELERATOR, value), HCCL_E_NOT_SUPPORT, "HcclSetConfig: setting 1 is not supported");
  expect(HcclGetConfig(HCCL_ACCELERATOR, &value), HCCL_E_NOT_SUPPORT, "HcclGetConfig: setting 1 is not supported");
  CHECK(HcclGetCommConfigCapability() == 9);
  expect(HcclCommInitClusterInfo("table.json", 0, &made), HCCL_E_NOT_SUPPORT, "unset RANK_TABLE_FILE");
  expect(HcclCommInitClusterInfoConfig("table.json", 0, NULL, &made), HCCL_E_NOT_SUPPORT, "rank tables");
  expect(HcclCommRegister(comm, &value, 4, &handle, 0), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommDeregister(comm, handle), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommExchangeMem(comm, handle, &rank, 1), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommSymWinRegister(comm, &value, 4, &handle, 1), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommSymWinDeregister(handle), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommSetMemoryRange(comm, &value, 4, 0, 0), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommUnsetMemoryRange(comm, &value), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommActivateCommMemory(comm, &value, 4, 0, handle, 0), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommDeactivateCommMemory(comm, &value), HCCL_E_NOT_SUPPORT, "windows are not supported");
  expect(HcclCommSuspend(comm), HCCL_E_NOT_SUPPORT, "cannot be suspended");
  expect(HcclCommResume(comm), HCCL_E_NOT_SUPPORT, "no communicator was suspended");
  expect(HcclCommWorkingDevNicSet(comm, &rank, &backup, 1), HCCL_E_NOT_SUPPORT, "networks of devices");
  HcclRootInfo changed = shared->root;
  memset(changed.internal, 'x', 64);
  expect(HcclCommInitRootInfo(1, &changed, 0, &made), HCCL_E_PARA, "unique id");
  expect(HcclCommInitRootInfo(2, &changed, 2, &made), HCCL_E_PARA, "rank 2 of 2 ranks");
  HcclCommConfig config = {0};
  expect(HcclCommInitRootInfoConfig(1, &changed, 0, &config, &made), HCCL_E_PARA, "is not initialised by");
  CHECK(strcmp(HcclGetErrorString(HCCL_E_TIMEOUT), "timeout") == 0);
  CHECK(strcmp(HcclGetErrorString(HCCL_SUCCESS), "no error") == 0);
  for (int code = 0; code < HCCL_E_RESERVED; code++) {
    CHECK(strcmp(HcclGetErrorString((HcclResult)code), "unknown result code") != 0);
  }
  HcclSendRecvItem none[1] = {0};
  expect(HcclBatchSendRecv(none, 0, (HcclComm)none, stream), HCCL_E_PARA, "no communicator of this process");
}

/* ---- ranks ---- */

static void rank(int size) {
  if (on_device) open_device();
  HcclComm comm = NULL, more[3] = {NULL};
  HcclCommConfig config = configuration("");
  OK(HcclCommInitRootInfo((uint32_t)size, root_info(), (uint32_t)my_rank, &comm));
  ask(comm, my_rank, size);
  reductions(comm, size);
  moves(comm, size);
  overlaps(comm, size);
  exchanges(comm, size);
  in_one_stream(comm, size);
  if (on_device) made_without_a_device(comm, size);
  children(comm, size);
  refusals(comm);
  OK(HcclCommDestroy(comm));
  expect(HcclAllReduce(&size, &size, 1, HCCL_INT32, 0, comm, stream), HCCL_E_PARA, "or was destroyed");
  expect(HcclCommDestroy(NULL), HCCL_E_PTR, "comm is NULL");

  OK(HcclCommInitRootInfoConfig((uint32_t)size, root_info(), (uint32_t)my_rank, &config, &comm));
  CHECK(sum(comm, 2) == 2 * size);
  OK(HcclCommDestroy(comm));
  meet();
  if (my_rank == 0) OK(HcclGetRootInfoScalable(&shared->root));
  meet();
  OK(HcclCommInitRootInfoScalable((uint32_t)size, 1, &shared->root, (uint32_t)my_rank, 0, &config, &comm));
  CHECK(sum(comm, 3) == 3 * size);
  OK(HcclCommDestroy(comm));

  if (!on_device) { /* several ranks in one thread */
    int32_t devices[] = {0, 1, 0}, values[] = {1, 2, 3};
    OK(HcclCommInitAll(3, devices, more));
    OK(HcclGroupStart());
    for (int i = 0; i < 3; i++) OK(HcclAllReduce(&values[i], &values[i], 1, HCCL_INT32, 0, more[i], NULL));
    OK(HcclGroupEnd());
    for (int i = 0; i < 3; i++) {
      CHECK(values[i] == 6);
      OK(HcclCommDestroy(more[i]));
    }
  }
}

/* Rank 0 ends without a farewell. The others get an error that names it, and so does who asks afterwards. */
static void left_alone(int size) {
  HcclComm comm = NULL;
  HcclResult state = HCCL_SUCCESS;
  OK(HcclCommInitRootInfo((uint32_t)size, root_info(), (uint32_t)my_rank, &comm));
  CHECK(sum(comm, 1) == size);
  if (my_rank == 0) _exit(0);
  int32_t value = 1;
  expect(HcclAllReduce(&value, &value, 1, HCCL_INT32, 0, comm, NULL), HCCL_E_REMOTE, "rank 0");
  OK(HcclGetCommAsyncError(comm, &state));
  CHECK(state == HCCL_E_REMOTE && strstr(HcclGetErrorString(state), "rank 0") != NULL);
  uint32_t ranks[] = {1, 2};
  HcclComm rest = NULL;
  OK(HcclCreateSubCommConfig(&comm, 2, ranks, 1, (uint32_t)my_rank - 1, NULL, &rest));
  CHECK(sum(rest, 1) == 2);
  OK(HcclCommDestroy(comm));
  OK(HcclCommDestroy(rest));
}

static int ranks_n;

static void *rank_of_a_thread(void *argument) {
  my_rank = (int)(intptr_t)argument;
  rank(ranks_n);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  bool threads = strcmp(argv[1], "threads") == 0, leaves = strcmp(argv[1], "leaves") == 0;
  ranks_n = atoi(argv[2]);
  on_device = strcmp(argv[1], "npu") == 0;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  CHECK(pthread_barrier_init(&shared->barrier, &attributes, (unsigned)ranks_n) == 0);
  if (threads) {
    pthread_t all[8];
    for (int i = 0; i < ranks_n; i++) {
      CHECK(pthread_create(&all[i], NULL, rank_of_a_thread, (void *)(intptr_t)i) == 0);
    }
    for (int i = 0; i < ranks_n; i++) pthread_join(all[i], NULL);
  } else {
    pid_t all[8];
    for (int i = 0; i < ranks_n; i++) {
      all[i] = fork();
      if (all[i] != 0) continue;
      my_rank = i;
      take_host(i);
      if (leaves) {
        left_alone(ranks_n);
      } else {
        rank(ranks_n);
      }
      exit(0);
    }
    bool well = true;
    for (int i = 0; i < ranks_n; i++) {
      int status = 0;
      well = waitpid(all[i], &status, 0) == all[i] && status == 0 && well;
    }
    if (!well) return 1;
  }
  puts("ranks agree");
  return 0;
}
