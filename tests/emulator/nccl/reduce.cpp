#include "reduce.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fake_nccl {
namespace {

struct Half {
  _Float16 value;
  operator float() const { return static_cast<float>(value); }
  static Half of(float from) { return {static_cast<_Float16>(from)}; }
};

struct BFloat {
  uint16_t bits;
  operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static BFloat of(float from) {
    uint32_t all = std::bit_cast<uint32_t>(from);
    return {static_cast<uint16_t>((all + 0x7fff + (all >> 16 & 1)) >> 16)};
  }
};

template <class T>
constexpr bool is_short = std::is_same_v<T, Half> || std::is_same_v<T, BFloat>;

template <class T>
T load(const void *at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void reduce_typed(const std::vector<const char *> &inputs, char *to, size_t count, Reduction reduction) {
  using Sum = std::conditional_t<is_short<T>, float, T>;
  // Integers wrap.
  using Wide =
      typename std::conditional_t<std::is_integral_v<Sum>, std::type_identity<uint64_t>, std::type_identity<Sum>>::type;
  for (size_t i = 0; i < count; i++) {
    Sum sum{};
    for (size_t rank = 0; rank < inputs.size(); rank++) {
      Sum value = load<T>(inputs[rank] + i * sizeof(T));
      if (reduction.scale != 1) value = static_cast<Sum>(value * static_cast<Sum>(reduction.scale));
      if (rank == 0)
        sum = value;
      else if (reduction.op == ncclProd)
        sum = static_cast<Sum>(static_cast<Wide>(sum) * static_cast<Wide>(value));
      else if (reduction.op == ncclMax)
        sum = std::max(sum, value);
      else if (reduction.op == ncclMin)
        sum = std::min(sum, value);
      else
        sum = static_cast<Sum>(static_cast<Wide>(sum) + static_cast<Wide>(value));
    }
    if (reduction.op == ncclAvg) sum = static_cast<Sum>(sum / static_cast<Sum>(inputs.size()));
    T result;
    if constexpr (is_short<T>)
      result = T::of(sum);
    else
      result = sum;
    memcpy(to + i * sizeof(T), &result, sizeof result);
  }
}

// Calls `use` with a value of the type. False: it has no arithmetic.
template <class Use>
bool with_type(ncclDataType_t type, Use use) {
  switch (static_cast<int>(type)) {
    case only_int16:
      use(int16_t{});
      return true;
    case only_uint16:
      use(uint16_t{});
      return true;
    case ncclInt8:
      use(int8_t{});
      return true;
    case ncclUint8:
      use(uint8_t{});
      return true;
    case ncclInt32:
      use(int32_t{});
      return true;
    case ncclUint32:
      use(uint32_t{});
      return true;
    case ncclInt64:
      use(int64_t{});
      return true;
    case ncclUint64:
      use(uint64_t{});
      return true;
    case ncclFloat16:
      use(Half{});
      return true;
    case ncclFloat32:
      use(float{});
      return true;
    case ncclFloat64:
      use(double{});
      return true;
    case ncclBfloat16:
      use(BFloat{});
      return true;
    default:
      return false;
  }
}

}  // namespace

size_t size_of(ncclDataType_t type) {
  if (type == ncclFloat8e4m3 || type == ncclFloat8e5m2) return 1;
  size_t size = 0;
  with_type(type, [&](auto value) { size = sizeof value; });
  return size;
}

bool reduce(const std::vector<const char *> &inputs, char *to, size_t count, ncclDataType_t type, Reduction reduction) {
  return with_type(type, [&](auto value) { reduce_typed<decltype(value)>(inputs, to, count, reduction); });
}

double scalar(const void *at, ncclDataType_t type) {
  double result = 0;
  with_type(type, [&](auto value) {
    auto read = load<decltype(value)>(at);
    if constexpr (is_short<decltype(value)>)
      result = static_cast<float>(read);
    else
      result = static_cast<double>(read);
  });
  return result;
}

}  // namespace fake_nccl
