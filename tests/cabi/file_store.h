/* file_store.h: a store for processes of one machine: one file per key in a directory, renamed into place so that
 * readers see all of it or nothing. */
#ifndef FILE_STORE_H
#define FILE_STORE_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../export/sagecomm.h"

#define SECOND INT64_C(1000000000)

static void path_of(const char *dir, const char *key, char *out, size_t n) {
  int at = snprintf(out, n, "%s/", dir);
  for (; *key && (size_t)at + 1 < n; key++) out[at++] = *key == '/' ? '_' : *key;
  out[at] = 0;
}

static int32_t store_set(void *ctx, const char *key, const void *data, size_t n, char *why, size_t why_n) {
  char path[4096], temporary[4200];
  path_of(ctx, key, path, sizeof path);
  snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
  FILE *f = fopen(temporary, "w");
  bool ok = f != NULL && fwrite(data, 1, n, f) == n;
  if (f != NULL && fclose(f) != 0) ok = false;
  if (ok && rename(temporary, path) == 0) return 0;
  snprintf(why, why_n, "%s: %s", path, strerror(errno));
  return -1;
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}

static int32_t store_get(void *ctx, const char *key, int64_t timeout_ns, void *sink_ctx,
                         void (*sink)(void *sink_ctx, const void *data, size_t n), char *why, size_t why_n) {
  char path[4096];
  path_of(ctx, key, path, sizeof path);
  for (int64_t end = now() + timeout_ns;;) {
    FILE *f = fopen(path, "r");
    if (f != NULL) {
      static char value[1 << 16];
      size_t n = fread(value, 1, sizeof value, f);
      bool whole = n < sizeof value && !ferror(f);
      fclose(f);
      if (!whole) {
        snprintf(why, why_n, "%s: cannot be read, or has %zu bytes or more", path, sizeof value);
        return -1;
      }
      sink(sink_ctx, value, n);
      return 0;
    }
    int cause = errno;
    if (cause != ENOENT || now() >= end) {
      snprintf(why, why_n, "%s: %s", path, strerror(cause));
      return cause == ENOENT ? SAGECOMM_TIMEOUT : -1;
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
}

#endif
