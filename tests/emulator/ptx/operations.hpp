// operations.hpp: what instructions compute with one or more values, with the results that PTX documents. A result that is a NaN
// of 32 bits is always the same one; PTX keeps the payloads of doubles, as the CPU does.
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "module.hpp"

namespace ptx {

template <class T>
T Thread::get(uint32_t number) const {
  const uint64_t bits = registers[number];
  if constexpr (std::is_same_v<T, bool>)
    return bits != 0;
  else if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(static_cast<uint32_t>(bits));
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<double>(bits);
  else if constexpr (std::is_same_v<T, _Float16>)
    return std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
  else
    return static_cast<T>(bits);
}

// Integers are extended to 64 bits, of which readers take the lower ones.
template <class T>
void Thread::set(uint32_t number, T value) {
  if constexpr (std::is_same_v<T, float>)
    registers[number] = std::bit_cast<uint32_t>(value);
  else if constexpr (std::is_same_v<T, double>)
    registers[number] = std::bit_cast<uint64_t>(value);
  else if constexpr (std::is_same_v<T, _Float16>)
    registers[number] = std::bit_cast<uint16_t>(value);
  else
    registers[number] = static_cast<uint64_t>(value);
}

template <class T>
constexpr bool is_float = !std::is_integral_v<T>;

template <class T>
T computed(T value) {
  if constexpr (std::is_same_v<T, float>)
    return value != value ? std::bit_cast<float>(0x7fffffffu) : value;
  else
    return value;
}

// Integers wrap, also signed ones, and those that the CPU would compute as int.
template <class T>
using Wrapping = std::conditional_t<
    is_float<T>, std::type_identity<T>,
    std::conditional_t<sizeof(T) == 8, std::type_identity<uint64_t>, std::type_identity<uint32_t>>>::type;

struct Add {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct Subtract {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
  }
};
struct Multiply {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
// A division of integers by zero gives something that PTX does not say.
struct Divide {
  template <class T>
  static T of(T a, T b) {
    if constexpr (is_float<T>) return a / b;
    if (b == T{}) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>)
      if (b == T(-1)) return Subtract::of(T{}, a);
    return static_cast<T>(a / b);
  }
};
// For floats: the other one if one is a NaN; -0 is less than +0.
struct Least {
  template <class T>
  static T of(T a, T b) {
    if constexpr (is_float<T>) {
      if (a != a || b != b) return a != a ? b : a;
      if (a == b) return std::signbit(a) ? a : b;
    }
    return b < a ? b : a;
  }
};
struct Greatest {
  template <class T>
  static T of(T a, T b) {
    if constexpr (is_float<T>) {
      if (a != a || b != b) return a != a ? b : a;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return b > a ? b : a;
  }
};
struct And {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
// Shifts by the number of bits or more give 0, or the sign.
struct Left {
  template <class T>
  static T of(T a, uint32_t by) {
    return by >= sizeof(T) * 8 ? T{} : static_cast<T>(static_cast<uint64_t>(a) << by);
  }
};
struct Right {
  template <class T>
  static T of(T a, uint32_t by) {
    if (by >= sizeof(T) * 8) return a < T{} ? static_cast<T>(-1) : T{};
    return static_cast<T>(a >> by);
  }
};

struct Equal {
  template <class T>
  static bool of(T a, T b) {
    return a == b;
  }
};
struct NotEqual {  // false for a NaN
  template <class T>
  static bool of(T a, T b) {
    return a < b || a > b;
  }
};
struct Less {
  template <class T>
  static bool of(T a, T b) {
    return a < b;
  }
};
struct LessOrEqual {
  template <class T>
  static bool of(T a, T b) {
    return a <= b;
  }
};
// One of the two is a NaN.
struct Unordered {
  template <class T>
  static bool of(T a, T b) {
    return a != a || b != b;
  }
};

// A float becomes the nearest integer towards zero that the type has, a NaN 0.
template <class To, class From>
To converted(From value) {
  if constexpr (is_float<From> && !is_float<To>) {
    if (value != value) return To{};
    // The limits as floats: a power of two for the upper one.
    const From low = static_cast<From>(std::numeric_limits<To>::min());
    const From high = std::ldexp(From(1), std::numeric_limits<To>::digits);
    if (value <= low) return std::numeric_limits<To>::min();
    if (value >= high) return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  } else if constexpr (std::is_same_v<To, _Float16>) {
    return value != value ? std::bit_cast<_Float16>(uint16_t{0x7fff}) : static_cast<_Float16>(value);
  } else {
    return computed(static_cast<To>(value));
  }
}

}  // namespace ptx
