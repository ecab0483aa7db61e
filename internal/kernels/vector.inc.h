/* vector.inc.h: registers of SCR_VB bytes and moving 0..SCR_VB bytes into and out of them.
 *
 * Included by each variant with SCR_VB defined as 16, 32 or 64. The compiler translates arithmetic on the vector
 * types: the same C gives the widest instructions that the variant's target allows.
 *
 * Short pieces are assembled in registers (overlapping loads and shifts), never in a buffer on the stack: a wide
 * load that follows narrow stores waits about 15 cycles for them to reach the cache, and memcpy() of a variable size
 * is a call.
 * */
#include <stddef.h>
#include <stdint.h>

#define SCR_VEC(type) type __attribute__((vector_size(SCR_VB)))
typedef SCR_VEC(uint8_t) v_u8;
typedef SCR_VEC(uint16_t) v_u16;
typedef SCR_VEC(uint32_t) v_u32;
typedef SCR_VEC(uint64_t) v_u64;
typedef SCR_VEC(int8_t) v_i8;
typedef SCR_VEC(int16_t) v_i16;
typedef SCR_VEC(int32_t) v_i32;
typedef SCR_VEC(int64_t) v_i64;
typedef SCR_VEC(float) v_f32;
typedef SCR_VEC(double) v_f64;

/* The type of loads and stores, for any element type. */
typedef v_u64 vreg;

typedef uint64_t v128 __attribute__((vector_size(16)));
typedef uint64_t v256 __attribute__((vector_size(32)));

/* Memory of any type and alignment. */
#define SCR_ANY __attribute__((aligned(1), may_alias))
typedef uint16_t u16_any SCR_ANY;
typedef uint32_t u32_any SCR_ANY;
typedef uint64_t u64_any SCR_ANY;
typedef v128 v128_any SCR_ANY;
typedef v256 v256_any SCR_ANY;
typedef vreg vreg_any SCR_ANY;

SCR_INLINE uint64_t load8(const uint8_t *p) { return *(const u64_any *)p; }
SCR_INLINE v128 load16(const uint8_t *p) { return *(const v128_any *)p; }
SCR_INLINE vreg load_full(const uint8_t *p) { return *(const vreg_any *)p; }
SCR_INLINE void store8(uint8_t *p, uint64_t v) { *(u64_any *)p = v; }
SCR_INLINE void store16(uint8_t *p, v128 v) { *(v128_any *)p = v; }
SCR_INLINE void store_full(uint8_t *p, vreg v) { *(vreg_any *)p = v; }

/* partN() and store_partN() move n < N bytes; the rest of the register is zero. n may be 0 only inside this file. */
SCR_INLINE uint64_t part8(const uint8_t *p, size_t n) {
  if (n >= 4) {
    const uint64_t low = *(const u32_any *)p, high = *(const u32_any *)(p + n - 4);
    return low | high << (8 * (n - 4));
  }
  if (n >= 2) {
    const uint64_t low = *(const u16_any *)p, high = *(const u16_any *)(p + n - 2);
    return low | high << (8 * (n - 2));
  }
  return n ? *p : 0;
}
SCR_INLINE void store_part8(uint8_t *p, uint64_t v, size_t n) {
  if (n >= 4) {
    *(u32_any *)p = (uint32_t)v;
    *(u32_any *)(p + n - 4) = (uint32_t)(v >> (8 * (n - 4)));
  } else if (n >= 2) {
    *(u16_any *)p = (uint16_t)v;
    *(u16_any *)(p + n - 2) = (uint16_t)(v >> (8 * (n - 2)));
  } else if (n) {
    *p = (uint8_t)v;
  }
}

SCR_INLINE v128 part16(const uint8_t *p, size_t n) {
  if (n < 8) return (v128){part8(p, n), 0};
  if (n == 8) return (v128){load8(p), 0};
  return (v128){load8(p), load8(p + n - 8) >> (8 * (16 - n))};
}
SCR_INLINE void store_part16(uint8_t *p, v128 v, size_t n) {
  if (n < 8) {
    store_part8(p, v[0], n);
  } else {
    store8(p, v[0]);
    if (n > 8) store_part8(p + 8, v[1], n - 8);
  }
}

#if SCR_VB >= 32
#define SCR_JOIN256(low, high) ((v256)_mm256_set_m128i((__m128i)(high), (__m128i)(low)))
#define SCR_LOW128(v) ((v128)_mm256_castsi256_si128((__m256i)(v)))
#define SCR_HIGH128(v) ((v128)_mm256_extracti128_si256((__m256i)(v), 1))
SCR_INLINE v256 load32(const uint8_t *p) { return *(const v256_any *)p; }
SCR_INLINE void store32(uint8_t *p, v256 v) { *(v256_any *)p = v; }
SCR_INLINE v256 part32(const uint8_t *p, size_t n) {
  if (n < 16) return (v256)_mm256_zextsi128_si256((__m128i)part16(p, n));
  return SCR_JOIN256(load16(p), part16(p + 16, n - 16));
}
SCR_INLINE void store_part32(uint8_t *p, v256 v, size_t n) {
  if (n < 16) {
    store_part16(p, SCR_LOW128(v), n);
  } else {
    store16(p, SCR_LOW128(v));
    store_part16(p + 16, SCR_HIGH128(v), n - 16);
  }
}
#endif

/* These functions are not inlined: inlining them into every kernel tripled the code size and saved 1 ns of a short
 * call. */
#define SCR_SHARED static __attribute__((noinline))

#if SCR_VB == 16
typedef uint64_t vhalf; /* half a register: as many 16-bit elements as a register has floats */
SCR_SHARED vreg load_part_full(const uint8_t *p, size_t n) { return part16(p, n); }
SCR_SHARED void store_part_full(uint8_t *p, vreg v, size_t n) { store_part16(p, v, n); }
SCR_INLINE vhalf load_half(const uint8_t *p) { return load8(p); }
SCR_SHARED vhalf load_part_half(const uint8_t *p, size_t n) { return part8(p, n); }
SCR_INLINE void store_half(uint8_t *p, vhalf v) { store8(p, v); }
SCR_SHARED void store_part_half(uint8_t *p, vhalf v, size_t n) { store_part8(p, v, n); }
#elif SCR_VB == 32
typedef v128 vhalf;
SCR_SHARED vreg load_part_full(const uint8_t *p, size_t n) { return part32(p, n); }
SCR_SHARED void store_part_full(uint8_t *p, vreg v, size_t n) { store_part32(p, v, n); }
SCR_INLINE vhalf load_half(const uint8_t *p) { return load16(p); }
SCR_SHARED vhalf load_part_half(const uint8_t *p, size_t n) { return part16(p, n); }
SCR_INLINE void store_half(uint8_t *p, vhalf v) { store16(p, v); }
SCR_SHARED void store_part_half(uint8_t *p, vhalf v, size_t n) { store_part16(p, v, n); }
#elif SCR_VB == 64
typedef v256 vhalf;
SCR_SHARED vreg load_part_full(const uint8_t *p, size_t n) {
  if (n < 32) return (vreg)_mm512_zextsi256_si512((__m256i)part32(p, n));
  return (vreg)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)load32(p)), (__m256i)part32(p + 32, n - 32), 1);
}
SCR_SHARED void store_part_full(uint8_t *p, vreg v, size_t n) {
  const v256 low = (v256)_mm512_castsi512_si256((__m512i)v);
  if (n < 32) {
    store_part32(p, low, n);
  } else {
    store32(p, low);
    store_part32(p + 32, (v256)_mm512_extracti64x4_epi64((__m512i)v, 1), n - 32);
  }
}
SCR_INLINE vhalf load_half(const uint8_t *p) { return load32(p); }
SCR_SHARED vhalf load_part_half(const uint8_t *p, size_t n) { return part32(p, n); }
SCR_INLINE void store_half(uint8_t *p, vhalf v) { store32(p, v); }
SCR_SHARED void store_part_half(uint8_t *p, vhalf v, size_t n) { store_part32(p, v, n); }
#endif
