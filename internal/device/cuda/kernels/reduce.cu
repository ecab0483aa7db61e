// reduce.cu: the reductions of internal/kernels for devices, which give the same bits: kernels.h there says what they compute.
//
// A kernel computes out[i] = in.at[0][i] op in.at[1][i] op ... from left to right. `out` may be one of the inputs: a thread has
// read an element of all inputs before it writes that element. The first `packs` times 16 bytes go by loads of 16 bytes, for
// which all addresses are aligned; the elements behind them go one by one. Nothing waits, and no two threads meet.
//
// tools/ptx compiles this file, without the fusion of products with sums, into reduce.ptx.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using s8 = signed char;
using s16 = short;
using s32 = int;
using s64 = long long;

struct Inputs {
  const void *at[64];
};

// Formats: `Stored` is an element in memory, `Value` what is combined.

template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static __device__ T load(T x) { return x; }
  static __device__ T store(T x) { return x; }
};

// Any byte but 0 is true, and becomes 1. T has one byte or more.
template <class T>
struct Bools : Plain<T> {
  static __device__ T load(T x) {
    const T ones = T(0x01010101), low = T(0x7f7f7f7f);
    return T((((x & low) + low | x) >> 7) & ones);
  }
};

struct Half {
  using Stored = u16;
  using Value = float;
  static __device__ float load(u16 x) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
    return f;
  }
  static __device__ u16 store(float f) {
    u16 x;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(f));
    return x;
  }
};

// Rounds to nearest even. A NaN becomes quiet and is not rounded, because rounding could turn it into infinity.
struct BFloat {
  using Stored = u16;
  using Value = float;
  static __device__ float load(u16 x) { return __uint_as_float(u32(x) << 16); }
  static __device__ u16 store(float f) {
    const u32 bits = __float_as_uint(f);
    const u32 rounded = bits + 0x7fff + (bits >> 16 & 1);
    return u16((f != f ? bits | 0x400000 : rounded) >> 16);
  }
};

template <class T>
struct alignas(2 * sizeof(T)) Parts {
  T real, imaginary;
};

// Operations: combine() joins two values, first() and finish() change the inputs and the result.

template <class F>
struct Nothing {
  using Value = typename F::Value;
  static __device__ Value first(Value x, double) { return x; }
  static __device__ Value finish(Value x, double) { return x; }
};

// Sums and products of integers wrap. A product of two u16 as int could overflow.
template <class F>
struct Sum : Nothing<F> {
  using Value = typename F::Value;
  static __device__ Value combine(Value a, Value b) { return Value(a + b); }
};

template <class F>
struct Product : Nothing<F> {
  using Value = typename F::Value;
  static __device__ Value combine(Value a, Value b) { return Value(a * b); }
};
template <>
__device__ u16 Product<Plain<u16>>::combine(u16 a, u16 b) {
  return u16(u32(a) * b);
}

// (ac - bd, ad + bc)
template <class T>
struct Product<Plain<Parts<T>>> : Nothing<Plain<Parts<T>>> {
  static __device__ Parts<T> combine(Parts<T> a, Parts<T> b) {
    return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
};

// If one is a NaN, the result is. Of equal values, -0 and +0, the earlier one stays.
template <class F>
struct Min : Nothing<F> {
  using Value = typename F::Value;
  static __device__ Value combine(Value a, Value b) { return b < a || b != b ? b : a; }
};

template <class F>
struct Max : Nothing<F> {
  using Value = typename F::Value;
  static __device__ Value combine(Value a, Value b) { return b > a || b != b ? b : a; }
};

template <class F>
struct And : Nothing<F> {
  using Value = typename F::Value;
  static __device__ Value combine(Value a, Value b) { return Value(a & b); }
};

template <class F>
struct Or : Nothing<F> {
  using Value = typename F::Value;
  static __device__ Value combine(Value a, Value b) { return Value(a | b); }
};

template <class F>
struct Xor : Nothing<F> {
  using Value = typename F::Value;
  static __device__ Value combine(Value a, Value b) { return Value(a ^ b); }
};

// The type of a divisor, which has up to 31 bits.
template <class T>
struct Divisor {
  using Type = T;
};
template <>
struct Divisor<s8> : Divisor<s32> {};
template <>
struct Divisor<s16> : Divisor<s32> {};
template <>
struct Divisor<u8> : Divisor<s32> {};
template <>
struct Divisor<u16> : Divisor<s32> {};

// The operand is the divisor. Quotients of integers are truncated.
template <class F>
struct Avg : Sum<F> {
  using Value = typename F::Value;
  static __device__ Value finish(Value x, double divisor) { return Value(x / typename Divisor<Value>::Type(divisor)); }
};

// The operand is the factor of all inputs, whose products are rounded to what is stored.
template <class F>
struct Premul : Sum<F> {
  using Value = typename F::Value;
  static __device__ Value first(Value x, double factor) { return F::load(F::store(x * Value(factor))); }
};

// A loop whose bound is opaque is not compiled once more for a single input.
__device__ u32 opaque(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Packs are read as elements of Row, what stands behind them as elements of F.
template <template <class> class Op, class Row, class F>
__device__ void reduce(const Inputs &in, void *out, u64 count, u64 packs, u32 inputs, double operand) {
  constexpr u32 per = 16 / sizeof(typename Row::Stored);
  struct alignas(16) Pack {
    typename Row::Stored element[per];
  };
  const u64 thread = u64(blockIdx.x) * blockDim.x + threadIdx.x, threads = u64(gridDim.x) * blockDim.x;

#pragma unroll 1
  for (u64 i = thread; i < packs; i += threads) {
    const u32 end = opaque(inputs);
    typename Row::Value value[per];
    Pack pack = static_cast<const Pack *>(in.at[0])[i];
#pragma unroll
    for (u32 j = 0; j < per; j++) value[j] = Op<Row>::first(Row::load(pack.element[j]), operand);
#pragma unroll 1
    for (u32 k = 1; k < end; k++) {
      pack = static_cast<const Pack *>(in.at[k])[i];
#pragma unroll
      for (u32 j = 0; j < per; j++)
        value[j] = Op<Row>::combine(value[j], Op<Row>::first(Row::load(pack.element[j]), operand));
    }
#pragma unroll
    for (u32 j = 0; j < per; j++) pack.element[j] = Row::store(Op<Row>::finish(value[j], operand));
    static_cast<Pack *>(out)[i] = pack;
  }

  using Stored = typename F::Stored;
#pragma unroll 1
  for (u64 i = packs * (16 / sizeof(Stored)) + thread; i < count; i += threads) {
    const u32 end = opaque(inputs);
    typename F::Value value = Op<F>::first(F::load(static_cast<const Stored *>(in.at[0])[i]), operand);
#pragma unroll 1
    for (u32 k = 1; k < end; k++)
      value = Op<F>::combine(value, Op<F>::first(F::load(static_cast<const Stored *>(in.at[k])[i]), operand));
    static_cast<Stored *>(out)[i] = F::store(Op<F>::finish(value, operand));
  }
}

#define KERNEL_OF_ROWS(name, Op, Row, F)                                                                     \
  extern "C" __global__ void __launch_bounds__(512)                                                          \
      name(const __grid_constant__ Inputs in, void *out, u64 count, u64 packs, u32 inputs, double operand) { \
    reduce<Op, Row, F>(in, out, count, packs, inputs, operand);                                              \
  }
#define KERNEL(name, Op, F) KERNEL_OF_ROWS(name, Op, F, F)

// What does not depend on the sign.
#define BITS(bits)                                              \
  KERNEL(sum_u##bits, Sum, Plain<u##bits>)                      \
  KERNEL(product_u##bits, Product, Plain<u##bits>)              \
  KERNEL_OF_ROWS(band_u##bits, And, Plain<u32>, Plain<u##bits>) \
  KERNEL_OF_ROWS(bor_u##bits, Or, Plain<u32>, Plain<u##bits>)   \
  KERNEL_OF_ROWS(bxor_u##bits, Xor, Plain<u32>, Plain<u##bits>)
BITS(8)
BITS(16)
BITS(32)
BITS(64)

#define INTEGER(name)                  \
  KERNEL(avg_##name, Avg, Plain<name>) \
  KERNEL(min_##name, Min, Plain<name>) \
  KERNEL(max_##name, Max, Plain<name>)
INTEGER(s8)
INTEGER(s16)
INTEGER(s32)
INTEGER(s64)
INTEGER(u8)
INTEGER(u16)
INTEGER(u32)
INTEGER(u64)

KERNEL_OF_ROWS(band_bool, And, Bools<u32>, Bools<u8>)
KERNEL_OF_ROWS(bor_bool, Or, Bools<u32>, Bools<u8>)
KERNEL_OF_ROWS(bxor_bool, Xor, Bools<u32>, Bools<u8>)

#define FLOAT(name, F)               \
  KERNEL(sum_##name, Sum, F)         \
  KERNEL(avg_##name, Avg, F)         \
  KERNEL(product_##name, Product, F) \
  KERNEL(min_##name, Min, F)         \
  KERNEL(max_##name, Max, F)         \
  KERNEL(premul_sum_##name, Premul, F)
FLOAT(f16, Half)
FLOAT(bf16, BFloat)
FLOAT(f32, Plain<float>)
FLOAT(f64, Plain<double>)

KERNEL(product_c64, Product, Plain<Parts<float>>)
KERNEL(product_c128, Product, Plain<Parts<double>>)
