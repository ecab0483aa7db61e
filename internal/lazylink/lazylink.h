/* lazylink.h: libraries of vendors whose functions are bound at run time. */
#ifndef SAGECOMM_LAZYLINK_H
#define SAGECOMM_LAZYLINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*lazylink_function)(void);

/* A library. Each of the three lists has n entries. */
typedef struct lazylink_library {
  lazylink_function *table; /* what a trampoline jumps to; at first what reports that the library is not loaded */
  const char *const *names;
  const lazylink_function *missing; /* reports that the library has no such function */
  size_t n;
  void *handle; /* NULL: not bound */
} lazylink_library;

extern lazylink_library lazylink_nvml, lazylink_cu;

/* Opens a library and points its table to its functions. Returns NULL, or why the library cannot be opened, in a text that is
 * valid until the thread's next call of a function of dlfcn.h. Does nothing if the library is bound.
 * Requires: no other thread is in a function of this header. */
const char *lazylink_bind(lazylink_library *library, const char *path);

/* Whether the library is bound and has a function. */
bool lazylink_has(const lazylink_library *library, const char *name);

/* How many libraries this process has loaded so far, those that are no longer loaded among them. It looks into no folder. */
uint64_t lazylink_adds(void);

/* Whether this process has loaded a library, by whomever. Where it has not, the dynamic linker looks for the file in all its folders. */
bool lazylink_loaded(const char *path);

/* Opens a library for good and stores the addresses of n functions, NULL for those that it does not have. Returns NULL, or why
 * the library cannot be opened, as lazylink_bind() does. */
const char *lazylink_open(const char *path, const char *const *names, void **addresses, size_t n);

#endif
