/* kernels_fold.inc.h: the functions of every type and reduction, made of the loop and the operations. */

#define SCR_ACC vreg
#define SCR_LOOP_NAME fold_loop
#include "kernels_loop.inc.h"

#define SCR_ACC vpair
#define SCR_LOOP_NAME fold_loop_pair
#include "kernels_loop.inc.h"

#define SCR_CALL_LOOP(loop, format, dst, dst2, src, nsrc, n, divisor, op, post)                                      \
  loop(dst, dst2, src, nsrc, n, divisor, step_##format, load_##format, load_part_##format, op, post, store_##format, \
       store_part_##format)

/* Integers, bits, bool: the floating-point mode is of no concern. */
#define SCR_FOLD(name, format, size, op, post)                                                                     \
  static void fold_##name(void *dst, void *dst2, const void *const *src, int nsrc, size_t count, double divisor) { \
    SCR_CALL_LOOP(fold_loop, format, dst, dst2, src, nsrc, count * (size), divisor, op, post);                     \
  }
#define SCR_FLOAT_FOLD(name, loop, format, size, op, post)                                                         \
  static void fold_##name(void *dst, void *dst2, const void *const *src, int nsrc, size_t count, double divisor) { \
    const fp_mode mode = fp_enter(&divisor);                                                                       \
    SCR_CALL_LOOP(loop, format, dst, dst2, src, nsrc, count * (size), divisor, op, post);                          \
    fp_leave(mode);                                                                                                \
  }
#define SCR_SCALE(name, loop, format, size, op, post)                                  \
  static void scale_##name(void *dst, const void *src, size_t count, double factor) {  \
    const fp_mode mode = fp_enter(&factor);                                            \
    SCR_CALL_LOOP(loop, format, dst, NULL, &src, 1, count * (size), factor, op, post); \
    fp_leave(mode);                                                                    \
  }

#define SCR_FOLDS_OF_WIDTH(bits)                                         \
  SCR_FOLD(sum_##bits, full, bits / 8, op_sum_##bits, post_none)         \
  SCR_FOLD(product_##bits, full, bits / 8, op_product_##bits, post_none) \
  SCR_FOLD(and_##bits, full, bits / 8, op_and, post_none)                \
  SCR_FOLD(or_##bits, full, bits / 8, op_or, post_none)                  \
  SCR_FOLD(xor_##bits, full, bits / 8, op_xor, post_none)
SCR_FOLDS_OF_WIDTH(8)
SCR_FOLDS_OF_WIDTH(16)
SCR_FOLDS_OF_WIDTH(32)
SCR_FOLDS_OF_WIDTH(64)

#define SCR_FOLDS_OF_INTEGER(name, bits)                               \
  SCR_FOLD(avg_##name, full, bits / 8, op_sum_##bits, post_avg_##name) \
  SCR_FOLD(min_##name, full, bits / 8, op_min_##name, post_none)       \
  SCR_FOLD(max_##name, full, bits / 8, op_max_##name, post_none)
SCR_FOLDS_OF_INTEGER(i8, 8)
SCR_FOLDS_OF_INTEGER(i16, 16)
SCR_FOLDS_OF_INTEGER(i32, 32)
SCR_FOLDS_OF_INTEGER(i64, 64)
SCR_FOLDS_OF_INTEGER(u8, 8)
SCR_FOLDS_OF_INTEGER(u16, 16)
SCR_FOLDS_OF_INTEGER(u32, 32)
SCR_FOLDS_OF_INTEGER(u64, 64)

SCR_FOLD(and_bool, bool, 1, op_and, post_none)
SCR_FOLD(or_bool, bool, 1, op_or, post_none)
SCR_FOLD(xor_bool, bool, 1, op_xor, post_none)

#define SCR_FOLDS_OF_FLOAT(name, loop, format, size, prefix, arith)                                 \
  SCR_FLOAT_FOLD(sum_##name, loop, format, size, prefix##op_sum_##arith, prefix##post_none)         \
  SCR_FLOAT_FOLD(avg_##name, loop, format, size, prefix##op_sum_##arith, prefix##post_avg_##arith)  \
  SCR_FLOAT_FOLD(product_##name, loop, format, size, prefix##op_product_##arith, prefix##post_none) \
  SCR_FLOAT_FOLD(min_##name, loop, format, size, prefix##op_min_##arith, prefix##post_none)         \
  SCR_FLOAT_FOLD(max_##name, loop, format, size, prefix##op_max_##arith, prefix##post_none)         \
  SCR_SCALE(name, loop, format, size, prefix##op_sum_##arith, prefix##post_scale_##arith)
SCR_FOLDS_OF_FLOAT(fp16, fold_loop, fp16, 2, , f32)
SCR_FOLDS_OF_FLOAT(bf16, fold_loop_pair, bf16, 2, pair_, f32)
SCR_FOLDS_OF_FLOAT(fp32, fold_loop, full, 4, , f32)
SCR_FOLDS_OF_FLOAT(fp64, fold_loop, full, 8, , f64)

/* Sums, quotients and scaled values of complex numbers are those of their parts. */
#define SCR_FOLDS_OF_COMPLEX(name, size, arith)                                       \
  SCR_FLOAT_FOLD(sum_##name, fold_loop, full, size, op_sum_##arith, post_none)        \
  SCR_FLOAT_FOLD(avg_##name, fold_loop, full, size, op_sum_##arith, post_avg_##arith) \
  SCR_FLOAT_FOLD(product_##name, fold_loop, full, size, op_product_##name, post_none) \
  SCR_SCALE(name, fold_loop, full, size, op_sum_##arith, post_scale_##arith)
SCR_FOLDS_OF_COMPLEX(c64, 8, f32)
SCR_FOLDS_OF_COMPLEX(c128, 16, f64)
