/* variants.h: what the kernel variants share: their tables and the floating-point mode. */
#ifndef SCR_KERNELS_VARIANTS_H
#define SCR_KERNELS_VARIANTS_H

#include "../../export/sagecomm.h"
#include "kernels.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernels are written for little-endian processors"
#endif

/* clang has no `#pragma GCC target`, so a build with clang has only the portable kernels, compiled for the baseline. */
#if defined(__x86_64__) && !defined(__clang__)
#define SCR_KERNELS_X86 1
#endif

extern const scr_kernels scr_kernels_portable;
#ifdef SCR_KERNELS_X86
extern const scr_kernels scr_kernels_avx2;
extern const scr_kernels scr_kernels_avx512;
#endif

#define SCR_MAX_KERNELS 3

/* Lists the variants that this machine can run, best first, and returns how many. */
int scr_runnable_kernels(const scr_kernels *list[SCR_MAX_KERNELS]);

#define SCR_INLINE static inline __attribute__((always_inline))

/* The processor's floating-point mode controls rounding and denormals, so threads with different modes would give
 * different bits. A float kernel runs between fp_enter() and fp_leave(), which write the mode only where it is not
 * the default: reading it costs 5 ns, and writing it waits for all arithmetic in flight. The comparison ignores the
 * sticky exception flags. */
typedef struct fp_mode {
  uint64_t saved;
  int changed;
} fp_mode;

#if defined(__x86_64__)
#define SCR_MXCSR_DEFAULT 0x1f80u /* nearest even, denormals kept, every exception masked */
#define SCR_MXCSR_FLAGS 0x3fu

SCR_INLINE uint64_t fp_read(void) {
  uint32_t v;
  __asm__ volatile("stmxcsr %0" : "=m"(v));
  return v;
}
SCR_INLINE void fp_write(uint64_t mode) {
  uint32_t v = (uint32_t)mode;
  __asm__ volatile("ldmxcsr %0" : : "m"(v) : "memory");
}
SCR_INLINE int fp_is_default(uint64_t mode) { return (mode & ~(uint64_t)SCR_MXCSR_FLAGS) == SCR_MXCSR_DEFAULT; }
#define SCR_FP_DEFAULT SCR_MXCSR_DEFAULT

#elif defined(__aarch64__)
SCR_INLINE uint64_t fp_read(void) {
  uint64_t v;
  __asm__ volatile("mrs %0, fpcr" : "=r"(v));
  return v;
}
SCR_INLINE void fp_write(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
SCR_INLINE int fp_is_default(uint64_t mode) { return mode == 0; }
#define SCR_FP_DEFAULT 0

#else
#error "no floating-point mode known for this processor"
#endif

/* `operand` is an input and output of the asm statement, so the compiler cannot move arithmetic on it before the
 * change of mode; the memory clobber holds back arithmetic on loaded values. */
SCR_INLINE fp_mode fp_enter(double *operand) {
  fp_mode m = {fp_read(), 0};
  if (__builtin_expect(!fp_is_default(m.saved), 0)) {
    fp_write(SCR_FP_DEFAULT);
    m.changed = 1;
  }
  __asm__ volatile("" : "+m"(*operand) : : "memory");
  return m;
}
SCR_INLINE void fp_leave(fp_mode m) {
  if (__builtin_expect(m.changed, 0)) fp_write(m.saved);
}

#endif
