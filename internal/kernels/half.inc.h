/* half.inc.h: conversion of fp16 and bf16 to fp32 and back. fp16 widens from half a register to a whole one. bf16
 * widens from one register to two, one with the even and one with the odd elements, so that no element changes its
 * lane.
 *
 * Narrowing rounds to nearest even and keeps denormals; a NaN becomes quiet and keeps its upper bits. The portable
 * fp16 code follows the conversion instructions bit for bit.
 * */

#define SCR_SPLAT32(x) ((v_u32){0} + (uint32_t)(x))

typedef struct vpair {
  vreg even, odd;
} vpair;

SCR_INLINE vpair widen_bf16(vreg v) {
  const v_u32 u = (v_u32)v;
  return (vpair){(vreg)(u << 16), (vreg)(u & SCR_SPLAT32(0xffff0000))};
}

/* Rounds to bf16 in the upper half of each lane; the lower half is undefined. A NaN is made quiet and not rounded,
 * because rounding could turn it into infinity. */
SCR_INLINE v_u32 round_bf16(vreg f) {
  const v_u32 u = (v_u32)f, nan = (v_u32)((v_f32)f != (v_f32)f);
  const v_u32 up = SCR_SPLAT32(0x7fff) + ((u >> 16) & SCR_SPLAT32(1));
  return (u | (nan & SCR_SPLAT32(0x00400000))) + (up & ~nan);
}
SCR_INLINE vreg narrow_bf16(vpair f) {
  return (vreg)((round_bf16(f.even) >> 16) | (round_bf16(f.odd) & SCR_SPLAT32(0xffff0000)));
}

#if SCR_VB == 32
SCR_INLINE v_f32 widen_fp16(vhalf h) { return (v_f32)_mm256_cvtph_ps((__m128i)h); }
SCR_INLINE vhalf narrow_fp16(v_f32 f) {
  return (vhalf)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif SCR_VB == 64
SCR_INLINE v_f32 widen_fp16(vhalf h) { return (v_f32)_mm512_cvtph_ps((__m256i)h); }
SCR_INLINE vhalf narrow_fp16(v_f32 f) {
  return (vhalf)_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__aarch64__)
SCR_INLINE v_f32 widen_fp16(vhalf h) { return (v_f32)vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(h))); }
SCR_INLINE vhalf narrow_fp16(v_f32 f) { return vget_lane_u64(vreinterpret_u64_f16(vcvt_f16_f32((float32x4_t)f)), 0); }
#else
/* Widening of 16-bit lanes to 32 bits, and narrowing of 32-bit lanes with values below 65536. Written with
 * intrinsics, because the compiler splits __builtin_convertvector() into single lanes here. */
SCR_INLINE v_u32 widen_lanes(vhalf h) {
  return (v_u32)_mm_unpacklo_epi16(_mm_cvtsi64_si128((long long)h), _mm_setzero_si128());
}
SCR_INLINE vhalf narrow_lanes(v_u32 v) { /* there is no unsigned pack: sign-extend the lanes, so that none saturates */
  const __m128i x = _mm_srai_epi32(_mm_slli_epi32((__m128i)v, 16), 16);
  return (vhalf)_mm_cvtsi128_si64(_mm_packs_epi32(x, x));
}
/* Returns mask ? a : b by lane. The bits of a lane of the mask are all 0 or all 1. */
SCR_INLINE v_u32 select32(v_i32 mask, v_u32 a, v_u32 b) { return ((v_u32)mask & a) | (~(v_u32)mask & b); }

/* Both conversions handle denormals with one exact or correctly rounded fp32 addition (after F. Giesen's
 * half_to_float and float_to_half, public domain); the rest is integer arithmetic. */
SCR_INLINE v_f32 widen_fp16(vhalf h) {
  const v_u32 bits = widen_lanes(h);
  const v_u32 magnitude = (bits & SCR_SPLAT32(0x7fff)) << 13;
  const v_u32 exponent = magnitude & SCR_SPLAT32(0x7c00 << 13);
  const v_u32 normal = magnitude + SCR_SPLAT32(112 << 23);
  const v_u32 tiny = (v_u32)((v_f32)(magnitude + SCR_SPLAT32(113 << 23)) - (v_f32)SCR_SPLAT32(113 << 23));
  v_u32 special = magnitude | SCR_SPLAT32(0x7f800000); /* infinity or NaN */
  special |= (v_u32)(special > SCR_SPLAT32(0x7f800000)) & SCR_SPLAT32(0x00400000);
  v_u32 r = select32(exponent == SCR_SPLAT32(0), tiny, normal);
  r = select32(exponent == SCR_SPLAT32(0x7c00 << 13), special, r);
  return (v_f32)(r | (bits & SCR_SPLAT32(0x8000)) << 16);
}
SCR_INLINE vhalf narrow_fp16(v_f32 f) {
  const v_u32 u = (v_u32)f, sign = u & SCR_SPLAT32(0x80000000), magnitude = u ^ sign;
  const v_u32 magic = SCR_SPLAT32((127 - 15 + 23 - 10 + 1) << 23);
  const v_u32 tiny = (v_u32)((v_f32)magnitude + (v_f32)magic) - magic;
  const v_u32 odd = (magnitude >> 13) & SCR_SPLAT32(1);
  const v_u32 normal = (magnitude - SCR_SPLAT32(112 << 23) + SCR_SPLAT32(0xfff) + odd) >> 13;
  const v_u32 nan = SCR_SPLAT32(0x7e00) | ((magnitude >> 13) & SCR_SPLAT32(0x3ff));
  v_u32 r = select32(magnitude < SCR_SPLAT32(113 << 23), tiny, normal);
  r = select32(magnitude >= SCR_SPLAT32(143 << 23), SCR_SPLAT32(0x7c00), r); /* 65536 and more */
  r = select32(magnitude > SCR_SPLAT32(0x7f800000), nan, r);
  return narrow_lanes(r | sign >> 16);
}
#endif
