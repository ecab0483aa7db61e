/* lazylink.h: libraries of vendors whose functions are bound at run time. */
#ifndef SAGECOMM_LAZYLINK_H
#define SAGECOMM_LAZYLINK_H

#include <stddef.h>

typedef void (*lazylink_function)(void);

/* A library. The table has an entry for each name: at first what reports that the library is not loaded. */
typedef struct lazylink_library {
  lazylink_function *table;
  const char *const *names;
  size_t n, statuses;        /* names, and how many of them, in front, return a status; the others return a text */
  lazylink_function missing; /* reports that the library has no such function */
  lazylink_function text;    /* stands for a function that returns a text */
  void *handle;              /* NULL: not bound */
} lazylink_library;

extern lazylink_library lazylink_nvml;

/* Opens a library and points its table to its functions. Returns NULL, or why the library cannot be opened, in a text that is
 * valid until the thread's next call of a function of dlfcn.h. Does nothing if the library is bound.
 * Requires: no other thread is in this function. */
const char *lazylink_bind(lazylink_library *library, const char *path);

#endif
