/* join.c makes groups at unique ids, without a store of its own: ranks as processes, as threads of one process, and all
 * in one call; the id comes from a process that is no rank, or from the last rank. Groups are split, and made anew
 * without a rank that has died.
 * Usage: join LIBRARY processes|threads|call|brief|server-dies|rank-dies RANKS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../export/sagecomm.h"
#include "hosts.h"

#define SECOND INT64_C(1000000000)
#define MOST 8

#define CHECK(condition)                                                                                   \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      fprintf(stderr, "pid %d: %s:%d: %s does not hold\n", (int)getpid(), __FILE__, __LINE__, #condition); \
      _exit(1);                                                                                            \
    }                                                                                                      \
  } while (0)

static const sagecomm_api *api;
static int size;

static void load(const char *library) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(handle != NULL);
  const sagecomm_api *(*get_api)(uint32_t);
  *(void **)&get_api = dlsym(handle, "sagecomm_get_api");
  CHECK(get_api != NULL);
  api = get_api(SAGECOMM_ABI_VERSION);
  CHECK(api != NULL && api->struct_size >= sizeof *api);
}

static void ok(int32_t status, const sagecomm_error *err) {
  if (status != SAGECOMM_OK) fprintf(stderr, "%d: %s\n", status, err->message);
  CHECK(status == SAGECOMM_OK);
}

/* Issues an all_reduce of one number, which is complete when finish() has returned. */
typedef struct sum {
  int32_t value;
  sagecomm_segment piece;
  sagecomm_work work;
  int32_t status;
  sagecomm_error err;
} sum;

static void begin(sum *s, sagecomm_group group, int32_t mine) {
  *s = (sum){.value = mine};
  s->piece = (sagecomm_segment){&s->value, 4};
  sagecomm_op op = {.kind = SAGECOMM_ALL_REDUCE,
                    .dtype = SAGECOMM_INT32,
                    .flags = SAGECOMM_ASYNC,
                    .n_in = 1,
                    .n_out = 1,
                    .in = &s->piece,
                    .out = &s->piece};
  s->status = api->issue(group, &op, &s->work, NULL, &s->err);
}

static int32_t finish(sum *s) {
  sagecomm_work work = s->status == SAGECOMM_PENDING ? s->work : 0;
  while (s->status == SAGECOMM_PENDING) s->status = api->wait(work, SECOND / 10, &s->err);
  if (work != 0) api->release(work);
  return s->status;
}

static sagecomm_join description(const uint8_t *id, int rank) {
  return (sagecomm_join){.struct_size = sizeof(sagecomm_join),
                         .rank = rank,
                         .size = size,
                         .id = id,
                         .name = "joined",
                         .timeout_ns = 60 * SECOND};
}

/* Checks the groups of n ranks of this process, and what is made of them. */
static void use(sagecomm_group *groups, const int *ranks, int n, bool dies) {
  sagecomm_error err = {0};
  sum sums[MOST];
  for (int i = 0; i < n; i++) begin(&sums[i], groups[i], ranks[i] + 1);
  for (int i = 0; i < n; i++) {
    ok(finish(&sums[i]), &sums[i].err);
    CHECK(sums[i].value == size * (size + 1) / 2);
    int32_t rank = -1, ranks_of = -1;
    ok(api->group_place(groups[i], &rank, &ranks_of, &err), &err);
    CHECK(rank == ranks[i] && ranks_of == size);
  }

  /* Even and odd ranks, in descending order. The last rank is in no group. */
  sagecomm_child children[MOST] = {{0}};
  sagecomm_group parts[MOST] = {0};
  for (int i = 0; i < n; i++) {
    children[i] = (sagecomm_child){.struct_size = sizeof children[i],
                                   .parent = groups[i],
                                   .color = ranks[i] == size - 1 ? -1 : ranks[i] % 2,
                                   .key = -ranks[i],
                                   .name = "part"};
  }
  ok(api->group_split(children, (uint32_t)n, parts, &err), &err);
  for (int i = 0; i < n; i++) {
    if (parts[i] != 0) begin(&sums[i], parts[i], 1 << ranks[i]);
  }
  for (int i = 0; i < n; i++) {
    if (ranks[i] == size - 1) {
      CHECK(parts[i] == 0);
      continue;
    }
    ok(finish(&sums[i]), &sums[i].err);
    int want = 0, members = 0, before = 0;
    for (int r = ranks[i] % 2; r < size - 1; r += 2) {
      want |= 1 << r;
      members++;
      before += r > ranks[i];
    }
    int32_t rank = -1, of = -1;
    ok(api->group_place(parts[i], &rank, &of, &err), &err);
    CHECK(sums[i].value == want && rank == before && of == members);
    ok(api->group_destroy(parts[i], &err), &err);
  }

  /* Rank 0 dies, or just stays away; the others make a group without it, though theirs has failed. */
  if (dies && ranks[0] == 0) _exit(0);
  const int32_t out[] = {0};
  int m = 0;
  for (int i = 0; i < n; i++) {
    if (ranks[i] == 0) continue;
    if (dies) {
      begin(&sums[i], groups[i], 1);
      CHECK(finish(&sums[i]) == SAGECOMM_PEER_FAILURE);
    }
    children[m++] = (sagecomm_child){
        .struct_size = sizeof children[i], .parent = groups[i], .left_out = out, .n_left_out = 1, .name = "rest"};
  }
  ok(api->group_shrink(children, (uint32_t)m, parts, &err), &err);
  for (int i = 0; i < m; i++) begin(&sums[i], parts[i], 1);
  for (int i = 0; i < m; i++) {
    ok(finish(&sums[i]), &sums[i].err);
    CHECK(sums[i].value == size - 1);
  }
  for (int i = 0; i < m; i++) ok(api->group_destroy(parts[i], &err), &err);
  for (int i = 0; i < n; i++) ok(api->group_destroy(groups[i], &err), &err);
}

static void small_things(void) {
  sagecomm_error err = {0};
  uint8_t id[SAGECOMM_ID_BYTES] = {0}, type = 9;
  int32_t index = 9;
  ok(api->locate(&err, &type, &index, &err), &err);
  CHECK(type == SAGECOMM_HOST && index == 0);
  CHECK(api->locate(&err, NULL, &index, &err) == SAGECOMM_INVALID && strstr(err.message, "no memory for the result"));
  CHECK(api->locate(&err, &type, NULL, &err) == SAGECOMM_INVALID);
  CHECK(api->group_place(0, NULL, &index, &err) == SAGECOMM_INVALID && strstr(err.message, "no memory for the result"));
  double factor = 0;
  float quarter = 0.25F;
  uint16_t half = 0xc100, bf16 = 0x4049;
  ok(api->read_factor(&quarter, SAGECOMM_FLOAT32, NULL, &factor, &err), &err);
  CHECK(factor == 0.25);
  CHECK(api->read_factor(&quarter, SAGECOMM_FLOAT32, NULL, NULL, &err) == SAGECOMM_INVALID);
  ok(api->read_factor(&half, SAGECOMM_FLOAT16, NULL, &factor, &err), &err);
  CHECK(factor == -2.5);
  ok(api->read_factor(&bf16, SAGECOMM_BFLOAT16, NULL, &factor, &err), &err);
  CHECK(factor == 3.140625);
  CHECK(api->read_factor(&half, SAGECOMM_FLOAT8_E5M2, NULL, &factor, &err) == SAGECOMM_INVALID);
  sagecomm_join join = description(id, 0);
  sagecomm_group group = 7;
  CHECK(api->group_join(&join, 1, &group, &err) == SAGECOMM_INVALID && strstr(err.message, "no unique id of sagecomm"));
  CHECK(group == 7);
  ok(api->unique_id(id, &err), &err);
  join.timeout_ns = SECOND / 5;
  join.size = 3;
  CHECK(api->group_join(&join, 1, &group, &err) == SAGECOMM_TIMEOUT && strstr(err.message, "ranks 1-2"));
  id[40] ^= 1;
  CHECK(api->group_join(&join, 1, &group, &err) == SAGECOMM_INVALID && strstr(err.message, "was damaged"));
}

/* ---- ranks as processes ---- */

static void give_id(int to) {
  uint8_t id[SAGECOMM_ID_BYTES];
  sagecomm_error err = {0};
  ok(api->unique_id(id, &err), &err);
  for (int i = 0; i < size; i++) CHECK(write(to, id, sizeof id) == (ssize_t)sizeof id);
}

/* The id is of rank from, or of this process, which is no rank, if that is -1. brief: ranks make no operation, and end. */
static void processes(const char *library, int from, bool brief) {
  int ids[2], over[2];
  CHECK(pipe(ids) == 0 && pipe(over) == 0);
  pid_t pids[MOST];
  for (int rank = 0; rank < size; rank++) {
    pids[rank] = fork();
    CHECK(pids[rank] >= 0);
    if (pids[rank] != 0) continue;
    take_host(rank);
    close(over[1]);
    load(library);
    if (rank == from) give_id(ids[1]);
    uint8_t id[SAGECOMM_ID_BYTES];
    CHECK(read(ids[0], id, sizeof id) == (ssize_t)sizeof id);
    sagecomm_join join = description(id, rank);
    sagecomm_group group = 0;
    sagecomm_error err = {0};
    ok(api->group_join(&join, 1, &group, &err), &err);
    if (brief)
      ok(api->group_destroy(group, &err), &err);
    else
      use(&group, &rank, 1, true);
    api->shutdown();
    _exit(0);
  }
  if (from < 0) {
    load(library); /* after the forks */
    give_id(ids[1]);
  }
  for (int rank = 0; rank < size; rank++) {
    int status;
    CHECK(waitpid(pids[rank], &status, 0) == pids[rank] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  for (int i = 0; i < 2; i++) CHECK(close(ids[i]) == 0 && close(over[i]) == 0);
}

/* The last rank makes the id and dies: at once, so that the store is gone, or as a rank that another process waits for. */
static void deaths(const char *library, bool server) {
  int ids[2];
  CHECK(pipe(ids) == 0);
  pid_t pids[MOST];
  for (int rank = 0; rank < size; rank++) {
    pids[rank] = fork();
    CHECK(pids[rank] >= 0);
    if (pids[rank] != 0) continue;
    take_host(rank);
    load(library);
    if (rank == size - 1) {
      if (server) give_id(ids[1]);
      _exit(0);
    }
    uint8_t id[SAGECOMM_ID_BYTES];
    CHECK(read(ids[0], id, sizeof id) == (ssize_t)sizeof id);
    sagecomm_join join = description(id, rank);
    if (!server) join.timeout_ns = SECOND;
    sagecomm_group group = 0;
    sagecomm_error err = {0};
    int32_t status = api->group_join(&join, 1, &group, &err);
    bool named = server ? status == SAGECOMM_PEER_FAILURE &&
                              strstr(err.message, "the process that made the unique id: it has ended")
                        : status == SAGECOMM_TIMEOUT && strstr(err.message, "rank 2;");
    if (!named) fprintf(stderr, "%d: %s\n", status, err.message);
    CHECK(named && group == 0);
    api->shutdown();
    _exit(0);
  }
  if (!server) {
    load(library);
    give_id(ids[1]);
  }
  for (int rank = 0; rank < size; rank++) {
    int status;
    CHECK(waitpid(pids[rank], &status, 0) == pids[rank] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

/* ---- ranks in one process ---- */

static uint8_t shared_id[SAGECOMM_ID_BYTES];

static void *one_rank(void *number) {
  int rank = (int)(intptr_t)number;
  sagecomm_join join = description(shared_id, rank);
  sagecomm_group group = 0;
  sagecomm_error err = {0};
  ok(api->group_join(&join, 1, &group, &err), &err);
  use(&group, &rank, 1, false);
  return NULL;
}

static void threads(void) {
  pthread_t list[MOST];
  for (int rank = 0; rank < size; rank++)
    CHECK(pthread_create(&list[rank], NULL, one_rank, (void *)(intptr_t)rank) == 0);
  for (int rank = 0; rank < size; rank++) CHECK(pthread_join(list[rank], NULL) == 0);
}

static void one_call(void) {
  sagecomm_join joins[MOST];
  sagecomm_group groups[MOST];
  int ranks[MOST];
  for (int i = 0; i < size; i++) {
    ranks[i] = size - 1 - i;
    joins[i] = description(shared_id, ranks[i]);
  }
  sagecomm_error err = {0};
  ok(api->group_join(joins, (uint32_t)size, groups, &err), &err);
  use(groups, ranks, size, false);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  size = atoi(argv[3]);
  CHECK(size >= 2 && size <= MOST);
  if (strcmp(argv[2], "processes") == 0) {
    processes(argv[1], size - 1, false);
    processes(argv[1], -1, false);
    printf("all ranks agree\n");
    return 0;
  }
  if (strcmp(argv[2], "brief") == 0) {
    for (int start = 0; start < 20; start++) processes(argv[1], 0, true);
    printf("all ranks agree\n");
    return 0;
  }
  if (strstr(argv[2], "-dies") != NULL) {
    deaths(argv[1], strcmp(argv[2], "server-dies") == 0);
    printf("all ranks agree\n");
    return 0;
  }
  load(argv[1]);
  small_things();
  sagecomm_error err = {0};
  ok(api->unique_id(shared_id, &err), &err);
  if (strcmp(argv[2], "threads") == 0)
    threads();
  else
    one_call();
  api->shutdown();
  printf("all ranks agree\n");
  return 0;
}
