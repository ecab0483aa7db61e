/* reduce.inc.h: one function for each type and reduction, composed of the loop and the operations. */

#define SCR_ACC vreg
#define SCR_LOOP_NAME reduce_loop
#include "loop.inc.h"

#define SCR_ACC vpair
#define SCR_LOOP_NAME reduce_loop_pair
#include "loop.inc.h"

#define SCR_CALL_LOOP(loop, format, dst, dst2, src, nsrc, n, divisor, op, post)                                      \
  loop(dst, dst2, src, nsrc, n, divisor, step_##format, load_##format, load_part_##format, op, post, store_##format, \
       store_part_##format)

/* Integers, bits and bool do not depend on the floating-point mode. */
#define SCR_REDUCE(name, format, size, op, post)                                                                     \
  static void reduce_##name(void *dst, void *dst2, const void *const *src, int nsrc, size_t count, double divisor) { \
    SCR_CALL_LOOP(reduce_loop, format, dst, dst2, src, nsrc, count * (size), divisor, op, post);                     \
  }
#define SCR_FLOAT_REDUCE(name, loop, format, size, op, post)                                                         \
  static void reduce_##name(void *dst, void *dst2, const void *const *src, int nsrc, size_t count, double divisor) { \
    const fp_mode mode = fp_enter(&divisor);                                                                         \
    SCR_CALL_LOOP(loop, format, dst, dst2, src, nsrc, count * (size), divisor, op, post);                            \
    fp_leave(mode);                                                                                                  \
  }
#define SCR_SCALE(name, loop, format, size, op, post)                                  \
  static void scale_##name(void *dst, const void *src, size_t count, double factor) {  \
    const fp_mode mode = fp_enter(&factor);                                            \
    SCR_CALL_LOOP(loop, format, dst, NULL, &src, 1, count * (size), factor, op, post); \
    fp_leave(mode);                                                                    \
  }

#define SCR_REDUCES_OF_WIDTH(bits)                                         \
  SCR_REDUCE(sum_##bits, full, bits / 8, op_sum_##bits, post_none)         \
  SCR_REDUCE(product_##bits, full, bits / 8, op_product_##bits, post_none) \
  SCR_REDUCE(and_##bits, full, bits / 8, op_and, post_none)                \
  SCR_REDUCE(or_##bits, full, bits / 8, op_or, post_none)                  \
  SCR_REDUCE(xor_##bits, full, bits / 8, op_xor, post_none)
SCR_REDUCES_OF_WIDTH(8)
SCR_REDUCES_OF_WIDTH(16)
SCR_REDUCES_OF_WIDTH(32)
SCR_REDUCES_OF_WIDTH(64)

#define SCR_REDUCES_OF_INTEGER(name, bits)                               \
  SCR_REDUCE(avg_##name, full, bits / 8, op_sum_##bits, post_avg_##name) \
  SCR_REDUCE(min_##name, full, bits / 8, op_min_##name, post_none)       \
  SCR_REDUCE(max_##name, full, bits / 8, op_max_##name, post_none)
SCR_REDUCES_OF_INTEGER(i8, 8)
SCR_REDUCES_OF_INTEGER(i16, 16)
SCR_REDUCES_OF_INTEGER(i32, 32)
SCR_REDUCES_OF_INTEGER(i64, 64)
SCR_REDUCES_OF_INTEGER(u8, 8)
SCR_REDUCES_OF_INTEGER(u16, 16)
SCR_REDUCES_OF_INTEGER(u32, 32)
SCR_REDUCES_OF_INTEGER(u64, 64)

SCR_REDUCE(and_bool, bool, 1, op_and, post_none)
SCR_REDUCE(or_bool, bool, 1, op_or, post_none)
SCR_REDUCE(xor_bool, bool, 1, op_xor, post_none)

#define SCR_REDUCES_OF_FLOAT(name, loop, format, size, prefix, arith)                                 \
  SCR_FLOAT_REDUCE(sum_##name, loop, format, size, prefix##op_sum_##arith, prefix##post_none)         \
  SCR_FLOAT_REDUCE(avg_##name, loop, format, size, prefix##op_sum_##arith, prefix##post_avg_##arith)  \
  SCR_FLOAT_REDUCE(product_##name, loop, format, size, prefix##op_product_##arith, prefix##post_none) \
  SCR_FLOAT_REDUCE(min_##name, loop, format, size, prefix##op_min_##arith, prefix##post_none)         \
  SCR_FLOAT_REDUCE(max_##name, loop, format, size, prefix##op_max_##arith, prefix##post_none)         \
  SCR_SCALE(name, loop, format, size, prefix##op_sum_##arith, prefix##post_scale_##arith)
SCR_REDUCES_OF_FLOAT(fp16, reduce_loop, fp16, 2, , f32)
SCR_REDUCES_OF_FLOAT(bf16, reduce_loop_pair, bf16, 2, pair_, f32)
SCR_REDUCES_OF_FLOAT(fp32, reduce_loop, full, 4, , f32)
SCR_REDUCES_OF_FLOAT(fp64, reduce_loop, full, 8, , f64)

/* Sums, quotients and scaled values of complex numbers are computed on their parts. */
#define SCR_REDUCES_OF_COMPLEX(name, size, arith)                                         \
  SCR_FLOAT_REDUCE(sum_##name, reduce_loop, full, size, op_sum_##arith, post_none)        \
  SCR_FLOAT_REDUCE(avg_##name, reduce_loop, full, size, op_sum_##arith, post_avg_##arith) \
  SCR_FLOAT_REDUCE(product_##name, reduce_loop, full, size, op_product_##name, post_none) \
  SCR_SCALE(name, reduce_loop, full, size, op_sum_##arith, post_scale_##arith)
SCR_REDUCES_OF_COMPLEX(c64, 8, f32)
SCR_REDUCES_OF_COMPLEX(c128, 16, f64)
