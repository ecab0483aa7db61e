#include "lazylink.h"

#include <dlfcn.h>

#include "nvml_symbols.h"

const char *lazylink_bind(lazylink_library *library, const char *path) {
  if (library->handle != NULL) return NULL;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) return dlerror();
  for (size_t i = 0; i < library->n; i++) {
    lazylink_function found = i < library->statuses ? library->missing : library->text;
    void *address = dlsym(handle, library->names[i]);
    if (address != NULL) *(void **)(void *)&found = address;
    __atomic_store_n(&library->table[i], found, __ATOMIC_RELEASE);
  }
  library->handle = handle;
  return NULL;
}

/* ---- NVML (nvml.h, nvmlReturn_t) ---- */

static int nvml_not_loaded(void) { return 1; } /* NVML_ERROR_UNINITIALIZED */
static int nvml_missing(void) { return 13; }   /* NVML_ERROR_FUNCTION_NOT_FOUND */
static const char *nvml_text(void) { return "an error of NVML"; }

#define STATUS(name) (lazylink_function)nvml_not_loaded,
#define TEXT(name) (lazylink_function)nvml_text,
#define NAME(name) #name,
#define COUNT(name) +1
__attribute__((visibility("hidden"))) lazylink_function lazylink_nvml_table[] = {NVML_FUNCTIONS(STATUS) NVML_TEXTS(TEXT)};
static const char *const nvml_names[] = {NVML_FUNCTIONS(NAME) NVML_TEXTS(NAME)};

lazylink_library lazylink_nvml = {.table = lazylink_nvml_table,
                                  .names = nvml_names,
                                  .n = sizeof nvml_names / sizeof *nvml_names,
                                  .statuses = NVML_FUNCTIONS(COUNT),
                                  .missing = (lazylink_function)nvml_missing,
                                  .text = (lazylink_function)nvml_text};
