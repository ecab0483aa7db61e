/* faults.c: what happens to a rank: it dies, stops, ends, lags, aborts or leaves at a moment that was armed, or its store
 * does not do what a store should. */
#define _GNU_SOURCE
#include "../../cabi/file_store.h"
#include "rank.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- what is armed ---- */

static _Atomic int armed_point, armed_left;
static const char *armed_action;
static int64_t armed_ms;
static char store_dir[2048];

static const sagecomm_group *current;
static sem_t asked, done;
static const char *request;

/* What cannot be done on the thread that reached the point, because it holds the group's locks. */
static void *servant(void *unused) {
  (void)unused;
  for (;;) {
    while (sem_wait(&asked) != 0) {
    }
    sagecomm_error err = {0};
    int64_t began = now_ns();
    bool leave = strcmp(request, "leave") == 0;
    int32_t status = leave ? api->group_destroy(*current, &err) : api->group_abort(*current, "the test says so", &err);
    say("did\t%s\t%d\t%lld\t%lld\t%s", request, status, (long long)began, (long long)now_ns(), err.message);
    sem_post(&done);
  }
  return NULL;
}

static void ask(const char *what) {
  request = what;
  sem_post(&asked);
}

static void pause_ns(int64_t ns) {
  struct timespec left = {.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
  while (nanosleep(&left, &left) != 0) {
  }
}

/* False: the write that this is about fails. */
static bool act(void) {
  const char *action = armed_action;
  say("hit\t%s\t%lld", action, (long long)now_ns());
  if (strcmp(action, "kill") == 0) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  if (strcmp(action, "exit") == 0) _exit(7);
  if (strcmp(action, "stop") == 0) syscall(SYS_tgkill, getpid(), gettid(), SIGSTOP); /* before it goes on */
  if (strcmp(action, "slow") == 0) pause_ns(armed_ms * MILLISECOND);
  if (strcmp(action, "leave") == 0) ask(action);
  if (strcmp(action, "abort") == 0) {
    ask(action);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100 * MILLISECOND;
    if (until.tv_nsec >= SECOND) {
      until.tv_sec++;
      until.tv_nsec -= SECOND;
    }
    while (sem_timedwait(&done, &until) != 0 && errno == EINTR) {
    } /* it may need what this thread holds */
  }
  if (strcmp(action, "vanish") == 0) {
    char gone[2100];
    snprintf(gone, sizeof gone, "%s.gone", store_dir);
    if (rename(store_dir, gone) != 0) abort();
  }
  return strcmp(action, "fail") != 0;
}

bool faults_reach(int point) {
  if (atomic_load(&armed_point) != point || atomic_fetch_sub(&armed_left, 1) != 1) return true;
  return act();
}

static void hook(int point) { faults_reach(1 + point); }

void faults_start(void *library, const sagecomm_group *group) {
  current = group;
  void (*_Atomic * where)(int) = dlsym(library, "sagecomm_fault_hook");
  if (where == NULL) {
    fprintf(stderr, "this library was built without the tag `faults`\n");
    exit(1);
  }
  atomic_store(where, hook);
  pthread_t thread;
  sem_init(&asked, 0, 0);
  sem_init(&done, 0, 0);
  if (pthread_create(&thread, NULL, servant, NULL) != 0) abort();
}

/* 0 where nothing is armed, so the library's points count from 1 here. */
static int point_of(const char *name) {
  if (strcmp(name, "started") == 0) return 1 + SCR_FAULT_STARTED;
  if (strcmp(name, "published") == 0) return 1 + SCR_FAULT_PUBLISHED;
  if (strcmp(name, "goodbye") == 0) return 1 + SCR_FAULT_GOODBYE;
  if (strcmp(name, "left") == 0) return 1 + SCR_FAULT_LEFT;
  if (strncmp(name, "write", 5) == 0) return BEFORE_WRITE + atoi(name + 5);
  if (strncmp(name, "wrote", 5) == 0) return AFTER_WRITE + atoi(name + 5);
  return 0;
}

bool faults_arm(const char *point, int nth, const char *action, int64_t ms) {
  static const char *const known[] = {"kill", "exit", "stop", "slow", "leave", "abort", "vanish", "fail", "tell"};
  atomic_store(&armed_point, 0);
  armed_action = NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strcmp(known[i], action) == 0) armed_action = known[i];
  }
  armed_ms = ms;
  atomic_store(&armed_left, nth);
  while (sem_trywait(&done) == 0) {
  }
  atomic_store(&armed_point, strcmp(point, "none") == 0 ? 0 : point_of(point));
  return armed_action != NULL;
}

/* ---- the store ---- */

static int writes;
static _Atomic bool creating;
static _Atomic int outside;

static bool gone(const char *dir, char *why, size_t why_n) {
  if (!atomic_load(&creating)) atomic_fetch_add(&outside, 1);
  struct stat s;
  if (stat(dir, &s) == 0) return false;
  snprintf(why, why_n, "the store is gone");
  return true;
}

static int32_t faulty_set(void *ctx, const char *key, const void *data, size_t n, char *why, size_t why_n) {
  int number = writes++;
  if (!faults_reach(BEFORE_WRITE + number)) {
    snprintf(why, why_n, "the store has failed");
    return -1;
  }
  if (gone(ctx, why, why_n)) return -1;
  int32_t status = store_set(ctx, key, data, n, why, why_n);
  faults_reach(AFTER_WRITE + number);
  return status;
}

static int32_t faulty_get(void *ctx, const char *key, int64_t timeout_ns, void *sink_ctx,
                          void (*sink)(void *sink_ctx, const void *data, size_t n), char *why, size_t why_n) {
  if (gone(ctx, why, why_n)) return -1;
  return store_get(ctx, key, timeout_ns, sink_ctx, sink, why, why_n);
}

const sagecomm_store *faulty_store(const char *dir) {
  static sagecomm_store store = {.ctx = store_dir, .set = faulty_set, .get = faulty_get};
  snprintf(store_dir, sizeof store_dir, "%s", dir);
  return &store;
}

/* ---- the store for as long as a group needs it: a file for each key, which is linked under its name when it is whole ---- */

static int32_t last_prepare(void *ctx, void **claimer, char *why, size_t why_n) {
  *claimer = strdup(ctx);
  if (*claimer != NULL) return 0;
  snprintf(why, why_n, "no memory");
  return -1;
}

static int32_t last_claim(void *claimer, const char *key, const void *data, size_t n, void *sink_ctx,
                          void (*sink)(void *sink_ctx, const void *data, size_t n), char *why, size_t why_n) {
  char name[256], path[4096], own[4200], value[8192];
  snprintf(name, sizeof name, "%s", key);
  for (char *c = name; *c != 0; c++) {
    if (*c == '/') *c = '-';
  }
  snprintf(path, sizeof path, "%s/claim-%s", (const char *)claimer, name);
  snprintf(own, sizeof own, "%s-%d", path, (int)getpid());
  FILE *f = fopen(own, "w");
  bool written = f != NULL && fwrite(data, 1, n, f) == n;
  written = f != NULL && fclose(f) == 0 && written;
  if (!written || (link(own, path) != 0 && errno != EEXIST)) {
    snprintf(why, why_n, "%s: %s", path, strerror(errno));
    unlink(own);
    return -1;
  }
  unlink(own);
  if ((f = fopen(path, "r")) == NULL) {
    snprintf(why, why_n, "%s: %s", path, strerror(errno));
    return -1;
  }
  size_t got = fread(value, 1, sizeof value, f);
  fclose(f);
  sink(sink_ctx, value, got);
  return 0;
}

static void last_release(void *claimer) { free(claimer); }

const sagecomm_lasting_store *lasting_store(void) {
  static sagecomm_lasting_store store = {
      .ctx = store_dir, .prepare = last_prepare, .claim = last_claim, .release = last_release};
  return &store;
}

int store_calls_outside(void) { return atomic_load(&outside); }

int32_t create(const sagecomm_group_config *config, sagecomm_group *group, sagecomm_error *err) {
  writes = 0;
  atomic_store(&creating, true);
  int32_t status = api->group_create(config, group, err);
  atomic_store(&creating, false);
  return status;
}
