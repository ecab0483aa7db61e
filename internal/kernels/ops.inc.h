/* ops.inc.h: operations on whole registers: the reductions, the steps after them, and the layout of each type in
 * memory. They give the same values in every variant. */

SCR_INLINE vreg op_and(vreg a, vreg b) { return a & b; }
SCR_INLINE vreg op_or(vreg a, vreg b) { return a | b; }
SCR_INLINE vreg op_xor(vreg a, vreg b) { return a ^ b; }
SCR_INLINE vreg post_none(vreg v, double divisor) {
  (void)divisor;
  return v;
}

/* Integers: sums and products wrap, so they are computed as unsigned for signed types too. */
#define SCR_WRAPPING_OPS(bits)                                                                  \
  SCR_INLINE vreg op_sum_##bits(vreg a, vreg b) { return (vreg)((v_u##bits)a + (v_u##bits)b); } \
  SCR_INLINE vreg op_product_##bits(vreg a, vreg b) { return (vreg)((v_u##bits)a * (v_u##bits)b); }
SCR_WRAPPING_OPS(8)
SCR_WRAPPING_OPS(16)
SCR_WRAPPING_OPS(32)
SCR_WRAPPING_OPS(64)

/* AVG of integers is the truncated quotient of the wrapped sum. The divisor is a number of ranks and fits in 31
 * bits, so types up to 32 bits divide in 32 bits. */
SCR_INLINE int32_t whole_divisor(double d) { return d >= 1 ? d < INT32_MAX ? (int32_t)d : INT32_MAX : 1; }

#define SCR_INTEGER_OPS(name, vtype, ctype, wide)                                       \
  SCR_INLINE vreg op_min_##name(vreg a, vreg b) {                                       \
    const vreg less = (vreg)((vtype)b < (vtype)a);                                      \
    return (less & b) | (~less & a);                                                    \
  }                                                                                     \
  SCR_INLINE vreg op_max_##name(vreg a, vreg b) {                                       \
    const vreg more = (vreg)((vtype)b > (vtype)a);                                      \
    return (more & b) | (~more & a);                                                    \
  }                                                                                     \
  SCR_INLINE vreg post_avg_##name(vreg v, double divisor) {                             \
    const wide d = (wide)whole_divisor(divisor);                                        \
    vtype x = (vtype)v;                                                                 \
    for (size_t i = 0; i < SCR_VB / sizeof(ctype); i++) x[i] = (ctype)((wide)x[i] / d); \
    return (vreg)x;                                                                     \
  }
SCR_INTEGER_OPS(i8, v_i8, int8_t, int32_t)
SCR_INTEGER_OPS(i16, v_i16, int16_t, int32_t)
SCR_INTEGER_OPS(i32, v_i32, int32_t, int32_t)
SCR_INTEGER_OPS(i64, v_i64, int64_t, int64_t)
SCR_INTEGER_OPS(u8, v_u8, uint8_t, uint32_t)
SCR_INTEGER_OPS(u16, v_u16, uint16_t, uint32_t)
SCR_INTEGER_OPS(u32, v_u32, uint32_t, uint32_t)
SCR_INTEGER_OPS(u64, v_u64, uint64_t, uint64_t)

/* Floats. MIN and MAX: NaN if either is NaN; of equal values, -0 and +0, the earlier one stays. */
#define SCR_FLOAT_OPS(name, vtype, ctype)                                                               \
  SCR_INLINE vreg op_sum_##name(vreg a, vreg b) { return (vreg)((vtype)a + (vtype)b); }                 \
  SCR_INLINE vreg op_product_##name(vreg a, vreg b) { return (vreg)((vtype)a * (vtype)b); }             \
  SCR_INLINE vreg op_min_##name(vreg a, vreg b) {                                                       \
    const vreg take = (vreg)((vtype)b < (vtype)a) | (vreg)((vtype)b != (vtype)b);                       \
    return (take & b) | (~take & a);                                                                    \
  }                                                                                                     \
  SCR_INLINE vreg op_max_##name(vreg a, vreg b) {                                                       \
    const vreg take = (vreg)((vtype)b > (vtype)a) | (vreg)((vtype)b != (vtype)b);                       \
    return (take & b) | (~take & a);                                                                    \
  }                                                                                                     \
  SCR_INLINE vreg post_avg_##name(vreg v, double divisor) { return (vreg)((vtype)v / (ctype)divisor); } \
  SCR_INLINE vreg post_scale_##name(vreg v, double factor) { return (vreg)((vtype)v * (ctype)factor); }
SCR_FLOAT_OPS(f32, v_f32, float)
SCR_FLOAT_OPS(f64, v_f64, double)

/* Complex products: (ac - bd, ad + bc), each product and each sum rounded. a - b is a + (-b), so one addition, with
 * the sign flipped in the lanes of real parts, serves both parts. A fused multiply-add would give other bits, so the
 * files of the variants switch contraction off. */
SCR_INLINE vreg op_product_c64(vreg a, vreg b) {
  const v_u64 low = (v_u64){0} + UINT64_C(0xffffffff);
  const v_f32 real = (v_f32)((a & low) | a << 32), imag = (v_f32)((a & ~low) | a >> 32);
  const v_f32 swapped = (v_f32)(b << 32 | b >> 32);
  const v_f32 direct = real * (v_f32)b, crossed = imag * swapped;
  const v_u64 minus = (v_u64){0} + UINT64_C(0x80000000);
  return (vreg)(direct + (v_f32)((v_u64)crossed ^ minus));
}

#if SCR_VB == 16
#define SCR_SLOT_SETS(x, y) {x, y}
#elif SCR_VB == 32
#define SCR_SLOT_SETS(x, y) {x, y, (x) + 2, (y) + 2}
#else
#define SCR_SLOT_SETS(x, y) {x, y, (x) + 2, (y) + 2, (x) + 4, (y) + 4, (x) + 6, (y) + 6}
#endif
#if defined(__clang__)
#define SCR_SHUFFLE(v, x, y) __builtin_shufflevector(v, v, x, y)
#else
#define SCR_SHUFFLE(v, x, y) __builtin_shuffle(v, (v_i64)SCR_SLOT_SETS(x, y))
#endif
SCR_INLINE vreg op_product_c128(vreg a, vreg b) {
  const v_f64 real = (v_f64)SCR_SHUFFLE(a, 0, 0), imag = (v_f64)SCR_SHUFFLE(a, 1, 1);
  const v_f64 swapped = (v_f64)SCR_SHUFFLE(b, 1, 0);
  const v_f64 direct = real * (v_f64)b, crossed = imag * swapped;
  v_u64 minus = {0};
  for (int i = 0; i < SCR_VB / 8; i += 2) minus[i] = UINT64_C(1) << 63;
  return (vreg)(direct + (v_f64)((v_u64)crossed ^ minus));
}

/* A register of bf16 widens to a pair of fp32 registers (vpair). These macros apply an operation to both. */
#define SCR_PAIR_OP(name) \
  SCR_INLINE vpair pair_##name(vpair a, vpair b) { return (vpair){name(a.even, b.even), name(a.odd, b.odd)}; }
#define SCR_PAIR_POST(name) \
  SCR_INLINE vpair pair_##name(vpair v, double x) { return (vpair){name(v.even, x), name(v.odd, x)}; }
SCR_PAIR_OP(op_sum_f32)
SCR_PAIR_OP(op_product_f32)
SCR_PAIR_OP(op_min_f32)
SCR_PAIR_OP(op_max_f32)
SCR_PAIR_POST(post_none)
SCR_PAIR_POST(post_avg_f32)
SCR_PAIR_POST(post_scale_f32)

/* One iteration handles step_X bytes; load_X and store_X convert between memory and registers. */
enum { step_full = SCR_VB, step_bool = SCR_VB, step_fp16 = SCR_VB / 2, step_bf16 = SCR_VB };

SCR_INLINE vreg as_bool(vreg v) { return (vreg)((v_u8)v != (v_u8){0}) & (vreg)((v_u8){0} + 1); }
SCR_INLINE vreg load_bool(const uint8_t *p) { return as_bool(load_full(p)); }
SCR_INLINE vreg load_part_bool(const uint8_t *p, size_t n) { return as_bool(load_part_full(p, n)); }
SCR_INLINE void store_bool(uint8_t *p, vreg v) { store_full(p, v); }
SCR_INLINE void store_part_bool(uint8_t *p, vreg v, size_t n) { store_part_full(p, v, n); }

SCR_INLINE vreg load_fp16(const uint8_t *p) { return (vreg)widen_fp16(load_half(p)); }
SCR_INLINE vreg load_part_fp16(const uint8_t *p, size_t n) { return (vreg)widen_fp16(load_part_half(p, n)); }
SCR_INLINE void store_fp16(uint8_t *p, vreg v) { store_half(p, narrow_fp16((v_f32)v)); }
SCR_INLINE void store_part_fp16(uint8_t *p, vreg v, size_t n) { store_part_half(p, narrow_fp16((v_f32)v), n); }

SCR_INLINE vpair load_bf16(const uint8_t *p) { return widen_bf16(load_full(p)); }
SCR_INLINE vpair load_part_bf16(const uint8_t *p, size_t n) { return widen_bf16(load_part_full(p, n)); }
SCR_INLINE void store_bf16(uint8_t *p, vpair v) { store_full(p, narrow_bf16(v)); }
SCR_INLINE void store_part_bf16(uint8_t *p, vpair v, size_t n) { store_part_full(p, narrow_bf16(v), n); }
