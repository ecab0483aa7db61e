#define _GNU_SOURCE
#include "lazylink.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "cu_symbols.h"
#include "nvml_symbols.h"

const char *lazylink_bind(lazylink_library *library, const char *path) {
  if (library->handle != NULL) return NULL;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) return dlerror();
  for (size_t i = 0; i < library->n; i++) {
    lazylink_function found = library->missing[i];
    void *address = dlsym(handle, library->names[i]);
    if (address != NULL) *(void **)(void *)&found = address;
    __atomic_store_n(&library->table[i], found, __ATOMIC_RELEASE);
  }
  library->handle = handle;
  return NULL;
}

bool lazylink_has(const lazylink_library *library, const char *name) {
  for (size_t i = 0; i < library->n; i++) {
    if (strcmp(library->names[i], name) == 0)
      return library->handle != NULL && library->table[i] != library->missing[i];
  }
  return false;
}

static int adds_of(struct dl_phdr_info *info, size_t size, void *adds) {
  (void)size;
  *(uint64_t *)adds = info->dlpi_adds;
  return 1; /* each entry has the same */
}

uint64_t lazylink_adds(void) {
  uint64_t adds = 0;
  dl_iterate_phdr(adds_of, &adds);
  return adds;
}

bool lazylink_loaded(const char *path) {
  void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == NULL) return false;
  dlclose(handle); /* whoever loaded it has a reference */
  return true;
}

const char *lazylink_open(const char *path, const char *const *names, void **addresses, size_t n) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) return dlerror();
  for (size_t i = 0; i < n; i++) addresses[i] = dlsym(handle, names[i]);
  return NULL;
}

#define HIDDEN __attribute__((visibility("hidden")))
#define NAME(name) #name,

/* ---- NVML (nvml.h, nvmlReturn_t) ---- */

static int nvml_not_loaded(void) { return 1; } /* NVML_ERROR_UNINITIALIZED */
static int nvml_missing(void) { return 13; }   /* NVML_ERROR_FUNCTION_NOT_FOUND */
static const char *nvml_text(void) { return "an error of NVML"; }

#define NVML_NOT_LOADED(name) (lazylink_function) nvml_not_loaded,
#define NVML_MISSING(name) (lazylink_function) nvml_missing,
#define NVML_TEXT(name) (lazylink_function) nvml_text,

HIDDEN lazylink_function lazylink_nvml_table[] = {NVML_TEXTS(NVML_TEXT) NVML_FUNCTIONS(NVML_NOT_LOADED)};
static const lazylink_function nvml_without[] = {NVML_TEXTS(NVML_TEXT) NVML_FUNCTIONS(NVML_MISSING)};
static const char *const nvml_names[] = {NVML_TEXTS(NAME) NVML_FUNCTIONS(NAME)};

lazylink_library lazylink_nvml = {lazylink_nvml_table, nvml_names, nvml_without, sizeof nvml_names / sizeof *nvml_names,
                                  NULL};

/* ---- the CUDA driver (cuda.h, CUresult) ---- */

static int cu_not_loaded(void) { return 3; } /* CUDA_ERROR_NOT_INITIALIZED */
static int cu_missing(void) { return 801; }  /* CUDA_ERROR_NOT_SUPPORTED */
static int cu_text(int error, const char **text) {
  (void)error;
  *text = "an error of CUDA";
  return 0;
}
/* gorgonia.org/cu starts the driver when the process starts, and ends the process if that fails. */
static int cu_start(unsigned flags) {
  (void)flags;
  return 0;
}

#define CU_NOT_LOADED(name) (lazylink_function) cu_not_loaded,
#define CU_MISSING(name) (lazylink_function) cu_missing,
#define CU_TEXT(name) (lazylink_function) cu_text,
#define CU_START(name) (lazylink_function) cu_start,

HIDDEN lazylink_function lazylink_cu_table[] = {CU_TEXTS(CU_TEXT) CU_STARTS(CU_START) CU_FUNCTIONS(CU_NOT_LOADED)};
static const lazylink_function cu_without[] = {CU_TEXTS(CU_TEXT) CU_STARTS(CU_MISSING) CU_FUNCTIONS(CU_MISSING)};
static const char *const cu_names[] = {CU_TEXTS(NAME) CU_STARTS(NAME) CU_FUNCTIONS(NAME)};

lazylink_library lazylink_cu = {lazylink_cu_table, cu_names, cu_without, sizeof cu_names / sizeof *cu_names, NULL};
