/* kernels.h: copying and reducing memory. Pure functions: no flag, no waiting, no shared state.
 *
 * Every variant (portable, AVX2, AVX-512) gives the same bits for the same arguments, so ranks with different
 * processors agree; only the sign and the payload of a NaN may differ. The calling thread's floating-point mode
 * (rounding, denormals flushed to zero) has no effect and is restored. The variant is chosen once, at the first call
 * of scr_get_kernels(), and can be forced for tests.
 * */
#ifndef SCR_KERNELS_H
#define SCR_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Reduces `nsrc` >= 1 arrays of `count` elements from left to right, element by element in the order of `src`, then
 * applies `post` (AVG divides by `divisor`; other reductions ignore it):
 *     dst[i] = post(src[0][i] op src[1][i] op ...)
 * and stores the same to dst2 unless that is NULL. dst may be identical to at most one of src[], and so may dst2; any
 * other overlap is not allowed. No alignment is required.
 *
 * Integers wrap; AVG truncates the quotient of the wrapped sum, and `divisor` is a whole number from 1 to INT32_MAX.
 * Floats: MIN and MAX give NaN if any source has one; of equal values (-0 and +0) they return that of the earliest
 * source. AVG divides. fp16 and bf16 accumulate in fp32 and round once, to nearest even; denormals stay. A complex
 * product is (ac - bd, ad + bc) with every product and sum rounded. bool: any byte except 0 is true, results are 0
 * and 1. */
typedef void scr_reduce_fn(void *dst, void *dst2, const void *const *src, int nsrc, size_t count, double divisor);

/* Computes dst[i] = src[i] * factor: this rank's contribution to a PREMUL_SUM. The factor is rounded to the
 * precision that the type accumulates in (fp32 for fp16, bf16, fp32 and complex64); fp16 and bf16 round the product
 * once. dst may be identical to src. */
typedef void scr_scale_fn(void *dst, const void *src, size_t count, double factor);

/* The numbers of element types and reductions: SAGECOMM_DTYPE_COUNT and SAGECOMM_REDUCE_OP_COUNT. */
enum { SCR_TYPES = 21, SCR_REDUCTIONS = 9 };

typedef struct scr_kernels {
  const char *name; /* "portable", "avx2", "avx512" */
  /* Ordinary stores: the destination is read soon (a slot). No overlap. */
  void (*copy)(void *dst, const void *src, size_t n);
  /* Non-temporal stores where the processor has them, fenced before it returns: for destinations larger than the
   * cache. */
  void (*copy_stream)(void *dst, const void *src, size_t n);
  /* NULL where the reduction is not defined for the type. Index: sagecomm_dtype, sagecomm_reduce_op. */
  scr_reduce_fn *reduce[SCR_TYPES][SCR_REDUCTIONS];
  scr_scale_fn *scale[SCR_TYPES];
} scr_kernels;

/* Returns the best table of this machine, or the one that scr_force_kernels() chose. */
const scr_kernels *scr_get_kernels(void);

/* Chooses a variant by name, for tests. Returns 0, or -1 if this machine cannot run it.
 * Requires: no other thread uses the kernels yet. */
int scr_force_kernels(const char *name);

#endif
