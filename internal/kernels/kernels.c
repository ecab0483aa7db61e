/* kernels.c: chooses the variant of the kernels for this process. */
#include "variants.h"

#include <stdatomic.h>
#include <string.h>

int scr_runnable_kernels(const scr_kernels *list[SCR_MAX_KERNELS]) {
  int n = 0;
#ifdef SCR_KERNELS_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      list[n++] = &scr_kernels_avx512;
    }
    list[n++] = &scr_kernels_avx2;
    /* Processors without VBMI2 (before Ice Lake and Zen 4) lower their clock for 64-byte registers. */
    if (n == 2 && !__builtin_cpu_supports("avx512vbmi2")) {
      list[0] = &scr_kernels_avx2;
      list[1] = &scr_kernels_avx512;
    }
  }
#endif
  list[n++] = &scr_kernels_portable;
  return n;
}

/* Two threads may both make the first call. They find the same table, so storing it twice does no harm. */
static _Atomic(const scr_kernels *) chosen;

const scr_kernels *scr_get_kernels(void) {
  const scr_kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (__builtin_expect(k == NULL, 0)) {
    const scr_kernels *list[SCR_MAX_KERNELS];
    scr_runnable_kernels(list);
    k = list[0];
    atomic_store_explicit(&chosen, k, memory_order_relaxed);
  }
  return k;
}

int scr_force_kernels(const char *name) {
  const scr_kernels *list[SCR_MAX_KERNELS];
  const int n = scr_runnable_kernels(list);
  for (int i = 0; i < n; i++) {
    if (strcmp(list[i]->name, name) == 0) {
      atomic_store_explicit(&chosen, list[i], memory_order_relaxed);
      return 0;
    }
  }
  return -1;
}
