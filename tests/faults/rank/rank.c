/* rank.c: takes orders on its standard input, one a line, and answers on its standard output. Calls are made by a thread
 * of their own, in the order in which they come; `arm`, `abort` and `exit` are carried out at once, whatever that thread
 * is in.
 * Usage: rank LIBRARY */
#define _GNU_SOURCE
#include "rank.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const sagecomm_api *api;
static place at;

int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Where the last field begins, the only one that has text of the library: behind as many tabs as the format has. */
static int last_field(const char *format, const char *line, int n) {
  int tabs = 0, i = 0;
  for (; *format != 0; format++) tabs += *format == '\t';
  for (; i < n && tabs > 0; i++) tabs -= line[i] == '\t';
  return i;
}

void say(const char *format, ...) {
  char line[4000]; /* less than PIPE_BUF: lines of several threads do not mix */
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof line - 1, format, args);
  va_end(args);
  if (n > (int)sizeof line - 2) n = sizeof line - 2;
  for (int i = last_field(format, line, n); i < n; i++) {
    if (line[i] == '\n' || line[i] == '\r' || line[i] == '\t') line[i] = ' ';
  }
  line[n] = '\n';
  if (write(STDOUT_FILENO, line, (size_t)n + 1) < 0) _exit(1);
}

static void answer(const char *id, int32_t status, int ok, int64_t entered, const sagecomm_error *err) {
  bool failed = status < 0;
  say("done\t%s\t%d\t%d\t%lld\t%lld\t%d\t%lld\t%s", id, status, ok, (long long)entered, (long long)now_ns(),
      failed ? err->rank : -1, failed ? (long long)err->pid : 0, failed ? err->message : "");
}

/* ---- calls ---- */

static void do_create(const char *id, char *words) {
  char dir[2048], name[64], tune[512], attach[64], shm_dir[2048], host[64];
  int rank, size;
  long timeout_ms;
  if (sscanf(words, "%2047s %63s %d %d %ld %511s %63s %2047s %63s", dir, name, &rank, &size, &timeout_ms, tune, attach,
             shm_dir, host) != 9) {
    abort();
  }
  sagecomm_option options[] = {{"tune", strcmp(tune, "-") == 0 ? "" : tune},
                               {"shm_attach", attach},
                               {"shm_dir", shm_dir},
                               {"debug", "WARN"},
                               {"hostid", strcmp(host, "-") == 0 ? "" : host}};
  sagecomm_group_config config = {.struct_size = sizeof config,
                                  .rank = rank,
                                  .size = size,
                                  .name = name,
                                  .timeout_ns = timeout_ms * MILLISECOND,
                                  .store = faulty_store(dir),
                                  .lasting = lasting_store(),
                                  .options = options,
                                  .n_options = sizeof options / sizeof *options};
  sagecomm_error err = {0};
  at = (place){.rank = rank, .size = size};
  int64_t entered = now_ns();
  int32_t status = create(&config, &at.group, &err);
  answer(id, status, 0, entered, &err);
}

static call read_call(const char *words, int64_t *loop_ms) {
  call c = {0};
  int form, kind, dtype, reduce, async;
  unsigned long long count;
  long long timeout_ms, ms;
  if (sscanf(words, "%d %d %d %d %d %llu %d %lld %lld", &form, &kind, &dtype, &reduce, &c.root, &count, &async,
             &timeout_ms, &ms) != 9) {
    abort();
  }
  c.form = (enum form)form;
  c.kind = (sagecomm_kind)kind;
  c.dtype = (sagecomm_dtype)dtype;
  c.reduce = (sagecomm_reduce_op)reduce;
  c.count = count;
  c.async = async != 0;
  c.timeout_ns = timeout_ms * MILLISECOND;
  *loop_ms = ms;
  return c;
}

/* Once, or until one fails; for so long at most. */
static void do_call(const char *id, const char *words) {
  int64_t loop_ms, entered;
  call c = read_call(words, &loop_ms);
  sagecomm_error err = {0};
  int32_t status;
  int64_t end = now_ns() + loop_ms * MILLISECOND;
  int ok = -1;
  do {
    ok++;
    entered = now_ns();
    status = make_call(&at, &c, &err);
  } while (status == SAGECOMM_OK && now_ns() < end);
  answer(id, status, ok + (status == SAGECOMM_OK), entered, &err);
}

static void do_error(const char *id) {
  sagecomm_error err = {0};
  int64_t entered = now_ns();
  int32_t status = api->group_error(at.group, &err);
  answer(id, status, 0, entered, &err);
}

static void do_destroy(const char *id) {
  sagecomm_error err = {0};
  int64_t entered = now_ns();
  int32_t status = api->group_destroy(at.group, &err);
  answer(id, status, 0, entered, &err);
}

/* ---- what the process holds ---- */

static int entries(const char *dir) {
  DIR *d = opendir(dir);
  int n = 0;
  while (d != NULL && readdir(d) != NULL) n++;
  if (d != NULL) closedir(d);
  return n;
}

/* What earlier groups left behind goes when the next one is made and destroyed. */
static void do_snapshot(const char *id, const char *dir) {
  sagecomm_group_config config = {.struct_size = sizeof config,
                                  .size = 1,
                                  .name = "alone",
                                  .timeout_ns = 60000 * MILLISECOND,
                                  .store = faulty_store(dir)};
  sagecomm_group group;
  sagecomm_error err = {0};
  int32_t status = create(&config, &group, &err);
  if (status == SAGECOMM_OK) status = api->group_destroy(group, &err);
  if (status != SAGECOMM_OK) {
    answer(id, status, 0, now_ns(), &err);
    return;
  }
  int maps = 0;
  char line[4096];
  FILE *f = fopen("/proc/self/maps", "r");
  while (f != NULL && fgets(line, sizeof line, f) != NULL) {
    if (strstr(line, "memfd:") != NULL || strstr(line, "/sagecomm-") != NULL) maps++;
  }
  if (f != NULL) fclose(f);
  say("held\t%s\t%d\t%d\t%d\t%d", id, entries("/proc/self/fd"), entries("/proc/self/task"), maps,
      store_calls_outside());
}

/* ---- a whole life: for deaths at random moments ---- */

static uint64_t next_random(uint64_t *state) {
  *state += UINT64_C(0x9e3779b97f4a7c15);
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* Operations in which every rank needs every other one. */
static call dense_call(uint64_t *random) {
  static const sagecomm_kind kinds[] = {SAGECOMM_ALL_REDUCE, SAGECOMM_ALL_GATHER, SAGECOMM_BARRIER,
                                        SAGECOMM_REDUCE_SCATTER, SAGECOMM_ALL_TO_ALL};
  static const uint64_t counts[] = {1, 500, 6000, 60000};
  call c = {.dtype = SAGECOMM_INT32, .timeout_ns = 60000 * MILLISECOND};
  c.kind = kinds[next_random(random) % 5];
  c.form = c.kind == SAGECOMM_ALL_REDUCE && next_random(random) % 4 == 0 ? FUSED : SINGLE;
  c.count = counts[next_random(random) % 4];
  c.async = next_random(random) % 2;
  return c;
}

/* "phase" lines say where the rank is. `how` the life ends: 0 it goes on to take orders, 1 destroy and end, 2 end. */
static void do_life(const char *id, char *words) {
  int ops, how, after = 0;
  uint64_t random;
  unsigned long long seed;
  if (sscanf(words, "%d %d %llu %n", &ops, &how, &seed, &after) < 3) abort();
  char dir[2048];
  int rank, size;
  long timeout_ms;
  if (sscanf(words + after, "%2047s %d %d %ld", dir, &rank, &size, &timeout_ms) != 4) abort();
  random = seed;
  sagecomm_group_config config = {.struct_size = sizeof config,
                                  .rank = rank,
                                  .size = size,
                                  .name = "life",
                                  .timeout_ns = timeout_ms * MILLISECOND,
                                  .store = faulty_store(dir)};
  sagecomm_error err = {0};
  at = (place){.rank = rank, .size = size};
  say("phase\tinit\t0");
  int64_t entered = now_ns();
  int32_t status = create(&config, &at.group, &err);
  if (status != SAGECOMM_OK) {
    at.group = 0;
    answer(id, status, -1, entered, &err);
    return;
  }
  int i = 0;
  for (; i < ops && status == SAGECOMM_OK; i++) {
    say("phase\tcompute\t%d", i);
    int64_t end = now_ns() + (int64_t)(next_random(&random) % 2000) * 1000;
    while (now_ns() < end) {
    }
    call c = dense_call(&random);
    say("phase\top\t%d", i);
    entered = now_ns();
    status = make_call(&at, &c, &err);
  }
  answer(id, status, i, entered, &err);
  if (how == 0) return;
  if (how == 1) {
    say("phase\tdestroy\t%d", i);
    api->group_destroy(at.group, &err);
  }
  say("phase\texit\t%d", i);
  api->shutdown();
  exit(0);
}

/* ---- orders ---- */

typedef struct order {
  struct order *next;
  char *line;
} order;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t come = PTHREAD_COND_INITIALIZER;
static order *first, **last = &first;

static void carry_out(char *line) {
  char what[32], id[32];
  int used = 0;
  if (sscanf(line, "%31s %31s %n", what, id, &used) < 2) abort();
  char *rest = line + used;
  if (strcmp(what, "create") == 0) {
    do_create(id, rest);
  } else if (strcmp(what, "call") == 0) {
    do_call(id, rest);
  } else if (strcmp(what, "error") == 0) {
    do_error(id);
  } else if (strcmp(what, "destroy") == 0) {
    do_destroy(id);
  } else if (strcmp(what, "snapshot") == 0) {
    do_snapshot(id, rest);
  } else if (strcmp(what, "life") == 0) {
    do_life(id, rest);
  } else {
    abort();
  }
}

static void *caller(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&lock);
    while (first == NULL) pthread_cond_wait(&come, &lock);
    order *o = first;
    first = o->next;
    if (first == NULL) last = &first;
    pthread_mutex_unlock(&lock);
    carry_out(o->line);
    free(o->line);
    free(o);
  }
  return NULL;
}

static void queue(const char *line) {
  order *o = malloc(sizeof *o);
  if (o == NULL) abort();
  *o = (order){.line = strdup(line)};
  pthread_mutex_lock(&lock);
  *last = o;
  last = &o->next;
  pthread_cond_signal(&come);
  pthread_mutex_unlock(&lock);
}

static void at_once(const char *line) {
  char what[32], id[32], point[32], action[32];
  int nth;
  long long ms;
  sagecomm_error err = {0};
  if (sscanf(line, "%31s %31s", what, id) < 2) abort();
  if (strcmp(what, "arm") == 0) {
    if (sscanf(line, "%*s %*s %31s %d %31s %lld", point, &nth, action, &ms) != 4) abort();
    if (!faults_arm(point, nth, action, ms)) abort();
    answer(id, SAGECOMM_OK, 0, now_ns(), &err);
  } else if (strcmp(what, "abort") == 0) {
    int64_t entered = now_ns();
    answer(id, api->group_abort(at.group, "the test says so", &err), 0, entered, &err);
  } else {
    _exit(7);
  }
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const sagecomm_api *(*get_api)(uint32_t);
  *(void **)&get_api = dlsym(library, "sagecomm_get_api");
  api = get_api(SAGECOMM_ABI_VERSION);
  faults_start(library, &at.group);
  pthread_t thread;
  if (pthread_create(&thread, NULL, caller, NULL) != 0) return 1;
  static char line[1 << 14];
  while (fgets(line, sizeof line, stdin) != NULL) {
    bool now = strncmp(line, "arm ", 4) == 0 || strncmp(line, "abort ", 6) == 0 || strncmp(line, "exit ", 5) == 0;
    line[strcspn(line, "\n")] = 0;
    if (now) {
      at_once(line);
    } else {
      queue(line);
    }
  }
  api->shutdown();
  return 0;
}
