// Makes functions of instructions.
#include "operations.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace ptx {
namespace {

using Run = void (*)(Thread &, const Instruction &);

template <class Operation, class T>
void binary(Thread &thread, const Instruction &in) {
  thread.set<T>(in.to[0], computed(Operation::of(thread.get<T>(in.from[0]), thread.get<T>(in.from[1]))));
}

template <class Operation, class T>
void shift(Thread &thread, const Instruction &in) {
  thread.set<T>(in.to[0], Operation::of(thread.get<T>(in.from[0]), thread.get<uint32_t>(in.from[1])));
}

template <class From, class To>
void multiply_wide(Thread &thread, const Instruction &in) {
  thread.set<To>(in.to[0], static_cast<To>(thread.get<From>(in.from[0])) * thread.get<From>(in.from[1]));
}

template <class Operation, class T>
void compare(Thread &thread, const Instruction &in) {
  thread.set<bool>(in.to[0], Operation::of(thread.get<T>(in.from[0]), thread.get<T>(in.from[1])));
}

template <class Operation, class T>
void compare_swapped(Thread &thread, const Instruction &in) {
  thread.set<bool>(in.to[0], Operation::of(thread.get<T>(in.from[1]), thread.get<T>(in.from[0])));
}

template <class T>
void select(Thread &thread, const Instruction &in) {
  thread.set<T>(in.to[0], thread.get<T>(in.from[thread.get<bool>(in.from[2]) ? 0 : 1]));
}

template <class T>
void move(Thread &thread, const Instruction &in) {
  thread.set<T>(in.to[0], thread.get<T>(in.from[0]));
}

// A word becomes registers of equal size, the lowest bits first.
template <class Word>
void unpack(Thread &thread, const Instruction &in) {
  const auto bits = static_cast<uint32_t>(sizeof(Word) * 8 / in.count);
  const uint64_t word = thread.get<Word>(in.from[0]);
  for (uint32_t i = 0; i < in.count; i++) thread.registers[in.to[i]] = word >> (i * bits) & ((uint64_t{1} << bits) - 1);
}

template <class Word>
void pack(Thread &thread, const Instruction &in) {
  const auto bits = static_cast<uint32_t>(sizeof(Word) * 8 / in.count);
  uint64_t word = 0;
  for (uint32_t i = 0; i < in.count; i++)
    word |= (thread.registers[in.from[i]] & ((uint64_t{1} << bits) - 1)) << (i * bits);
  thread.set<Word>(in.to[0], static_cast<Word>(word));
}

template <class To, class From>
void convert(Thread &thread, const Instruction &in) {
  thread.set<To>(in.to[0], converted<To>(thread.get<From>(in.from[0])));
}

// Picks four of the eight bytes of two words.
void permute(Thread &thread, const Instruction &in) {
  const uint64_t bytes = uint64_t{thread.get<uint32_t>(in.from[1])} << 32 | thread.get<uint32_t>(in.from[0]);
  const uint32_t picks = thread.get<uint32_t>(in.from[2]);
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t pick = picks >> (4 * i) & 15;
    uint32_t byte = bytes >> (8 * (pick & 7)) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;  // the sign of the byte
    result |= byte << (8 * i);
  }
  thread.set<uint32_t>(in.to[0], result);
}

template <class T>
void load_parameter(Thread &thread, const Instruction &in) {
  const uint64_t at = thread.registers[in.from[0]] + static_cast<uint64_t>(in.offset);
  if (at > thread.parameter_bytes || thread.parameter_bytes - at < sizeof(T))
    throw Trap(Trap::illegal_address, "it reads behind its parameters");
  T value;
  memcpy(&value, thread.parameters + at, sizeof value);
  thread.set<T>(in.to[0], value);
}

unsigned char *global(Thread &thread, const Instruction &in, uint32_t base, size_t bytes, bool write) {
  const uint64_t at = thread.registers[base] + static_cast<uint64_t>(in.offset);
  if (at % bytes != 0)
    throw Trap(Trap::misaligned_address,
               "it uses " + std::to_string(bytes) + " bytes at an address that is not aligned to them");
  return static_cast<unsigned char *>(thread.memory->at(at, bytes, write));
}

template <class T>
void load(Thread &thread, const Instruction &in) {
  const unsigned char *at = global(thread, in, in.from[0], in.count * sizeof(T), false);
  for (size_t i = 0; i < in.count; i++) {
    T value;
    memcpy(&value, at + i * sizeof(T), sizeof value);
    thread.set<T>(in.to[i], value);
  }
}

template <class T>
void store(Thread &thread, const Instruction &in) {
  unsigned char *at = global(thread, in, in.to[0], in.count * sizeof(T), true);
  for (size_t i = 0; i < in.count; i++) {
    const T value = thread.get<T>(in.from[i]);
    memcpy(at + i * sizeof(T), &value, sizeof value);
  }
}

void branch(Thread &thread, const Instruction &in) {
  constexpr uint64_t most = uint64_t{1} << 26;
  if (++thread.jumps == most) throw Trap(Trap::endless, "a thread does not end");
  thread.next = in.target;
}

void leave(Thread &thread, const Instruction &) { thread.next = SIZE_MAX; }

template <class Use>
Run for_integer(const std::string &type, Use use) {
  if (type == "s16") return use(int16_t{});
  if (type == "s32") return use(int32_t{});
  if (type == "s64") return use(int64_t{});
  if (type == "u16" || type == "b16") return use(uint16_t{});
  if (type == "u32" || type == "b32") return use(uint32_t{});
  if (type == "u64" || type == "b64") return use(uint64_t{});
  return nullptr;
}

template <class Use>
Run for_float(const std::string &type, Use use) {
  if (type == "f32") return use(float{});
  if (type == "f64") return use(double{});
  return nullptr;
}

template <class Use>
Run for_number(const std::string &type, Use use) {
  const Run run = for_integer(type, use);
  return run != nullptr ? run : for_float(type, use);
}

// Loads, stores and conversions have bytes as well.
template <class Use>
Run for_any(const std::string &type, Use use) {
  if (type == "s8") return use(int8_t{});
  if (type == "u8" || type == "b8") return use(uint8_t{});
  return for_number(type, use);
}

// Integers without a modifier, floats with that of rounding.
template <class Operation>
Run arithmetic(const std::string &modifiers, const std::string &type) {
  auto use = [](auto value) -> Run { return binary<Operation, decltype(value)>; };
  return modifiers.empty() ? for_integer(type, use) : modifiers == "rn" ? for_float(type, use) : nullptr;
}

template <class Operation>
Run extreme(const std::string &modifiers, const std::string &type) {
  if (!modifiers.empty()) return nullptr;
  return for_number(type, [](auto value) -> Run { return binary<Operation, decltype(value)>; });
}

template <class Operation>
Run bitwise(const std::string &modifiers, const std::string &type) {
  if (!modifiers.empty()) return nullptr;
  if (type == "pred") return binary<Operation, bool>;
  return for_integer(type, [](auto value) -> Run { return binary<Operation, decltype(value)>; });
}

template <class Operation>
Run shifts(const std::string &modifiers, const std::string &type) {
  if (!modifiers.empty()) return nullptr;
  return for_integer(type, [](auto value) -> Run { return shift<Operation, decltype(value)>; });
}

Run multiplication(const std::string &modifiers, const std::string &type) {
  if (modifiers == "wide") {
    if (type == "u32") return multiply_wide<uint32_t, uint64_t>;
    if (type == "s32") return multiply_wide<int32_t, int64_t>;
    return nullptr;
  }
  return arithmetic<Multiply>(modifiers == "lo" ? "" : modifiers.empty() ? "lo" : modifiers, type);
}

Run comparison(const std::string &relation, const std::string &type) {
  return for_number(type, [&](auto value) -> Run {
    using T = decltype(value);
    if (relation == "eq") return compare<Equal, T>;
    if (relation == "ne") return compare<NotEqual, T>;
    if (relation == "lt") return compare<Less, T>;
    if (relation == "le") return compare<LessOrEqual, T>;
    if (relation == "gt") return compare_swapped<Less, T>;
    if (relation == "ge") return compare_swapped<LessOrEqual, T>;
    if (relation == "nan" && is_float<T>) return compare<Unordered, T>;
    return nullptr;
  });
}

// Reports the rounding that PTX demands where a conversion loses bits.
template <class To, class From>
constexpr const char *rounding() {
  if (is_float<From> && !is_float<To>) return "rzi";
  if (is_float<To> && (!is_float<From> || sizeof(To) < sizeof(From))) return "rn";
  return "";
}

template <class To>
Run conversion_to(const std::string &modifiers, const std::string &from) {
  auto use = [&](auto value) -> Run {
    using From = decltype(value);
    return modifiers == rounding<To, From>() ? convert<To, From> : nullptr;
  };
  if constexpr (is_float<To>)
    if (from == "f16") return use(_Float16{});
  return std::is_same_v<To, _Float16> ? for_float(from, use) : for_any(from, use);
}

Run conversion(const std::string &modifiers, const std::string &to, const std::string &from) {
  if (to == "f16") return conversion_to<_Float16>(modifiers, from);
  return for_any(to, [&](auto value) -> Run { return conversion_to<decltype(value)>(modifiers, from); });
}

Run movement(const Text &text, const std::string &type) {
  const size_t into = text.operands[0].size(), out_of = text.operands[1].size();
  if (into == 1 && out_of == 1) return for_number(type, [](auto value) -> Run { return move<decltype(value)>; });
  if (type != "b32" && type != "b64") return nullptr;
  if (into > 1 && out_of == 1) return type == "b32" ? unpack<uint32_t> : unpack<uint64_t>;
  if (into == 1) return type == "b32" ? pack<uint32_t> : pack<uint64_t>;
  return nullptr;
}

Run memory(const Text &text, const std::string &modifiers, const std::string &type, size_t count) {
  const std::string vector = count == 1 ? "" : ".v" + std::to_string(count);
  if (count == 3 || (count == 1 && modifiers.find(".v") != std::string::npos)) return nullptr;
  if (text.name == "ld" && modifiers == "param")
    return for_any(type, [](auto value) -> Run { return load_parameter<decltype(value)>; });
  if (modifiers != "global" + vector) return nullptr;
  if (text.name == "ld") return for_any(type, [](auto value) -> Run { return load<decltype(value)>; });
  return for_any(type, [](auto value) -> Run { return store<decltype(value)>; });
}

struct Shape {
  size_t operands;
  size_t suffixes = SIZE_MAX;  // any number
};

std::optional<Shape> shape_of(const std::string &name) {
  static const auto *shapes = new std::map<std::string, Shape>{
      {"add", {3}},     {"sub", {3}},  {"mul", {3}}, {"div", {3}}, {"min", {3}},     {"max", {3}},  {"and", {3}},
      {"or", {3}},      {"xor", {3}},  {"shl", {3}}, {"shr", {3}}, {"setp", {3, 2}}, {"selp", {4}}, {"cvt", {2}},
      {"cvta", {2, 3}}, {"prmt", {4}}, {"mov", {2}}, {"ld", {2}},  {"st", {2}},      {"bra", {0}},  {"ret", {0, 0}},
  };
  auto known = shapes->find(name);
  return known == shapes->end() ? std::nullopt : std::optional(known->second);
}

std::string joined(const std::vector<std::string> &words, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; i++) all += (i > 0 ? "." : "") + words[i];
  return all;
}

Run function_of(const Text &text) {
  const auto &suffixes = text.suffixes;
  if (text.name == "ret") return leave;
  if (text.name == "bra") return suffixes.empty() || joined(suffixes, suffixes.size()) == "uni" ? branch : nullptr;
  if (suffixes.empty()) return nullptr;
  const std::string &type = suffixes.back(), modifiers = joined(suffixes, suffixes.size() - 1);
  if (text.name == "add") return arithmetic<Add>(modifiers, type);
  if (text.name == "sub") return arithmetic<Subtract>(modifiers, type);
  if (text.name == "mul") return multiplication(modifiers, type);
  if (text.name == "div") return arithmetic<Divide>(modifiers, type);
  if (text.name == "min") return extreme<Least>(modifiers, type);
  if (text.name == "max") return extreme<Greatest>(modifiers, type);
  if (text.name == "and") return bitwise<And>(modifiers, type);
  if (text.name == "or") return bitwise<Or>(modifiers, type);
  if (text.name == "xor") return bitwise<Xor>(modifiers, type);
  if (text.name == "shl") return shifts<Left>(modifiers, type);
  if (text.name == "shr") return shifts<Right>(modifiers, type);
  if (text.name == "setp") return comparison(modifiers, type);
  if (text.name == "selp")
    return modifiers.empty() ? for_number(type, [](auto value) -> Run { return select<decltype(value)>; }) : nullptr;
  if (text.name == "cvt" && suffixes.size() >= 2)
    return conversion(joined(suffixes, suffixes.size() - 2), suffixes[suffixes.size() - 2], type);
  if (text.name == "cvta") return joined(suffixes, 3) == "to.global.u64" ? move<uint64_t> : nullptr;
  if (text.name == "prmt") return modifiers.empty() && type == "b32" ? permute : nullptr;
  if (text.name == "mov") return modifiers.empty() ? movement(text, type) : nullptr;
  if (text.name == "ld") return memory(text, modifiers, type, text.operands[0].size());
  if (text.name == "st") return memory(text, modifiers, type, text.operands[1].size());
  return nullptr;
}

}  // namespace

Instruction decode(const Text &text) {
  Instruction in;
  const std::optional<Shape> shape = shape_of(text.name);
  if (!shape || text.operands.size() != shape->operands) return in;
  if (shape->suffixes != SIZE_MAX && text.suffixes.size() != shape->suffixes) return in;
  const bool in_braces = text.name == "mov" || text.name == "ld" || text.name == "st";
  for (const auto &operand : text.operands)
    if (operand.size() > 1 && !in_braces) return in;
  if (!text.operands.empty()) {
    std::copy(text.operands[0].begin(), text.operands[0].end(), in.to.begin());
    if (text.operands[1].size() > 1)
      std::copy(text.operands[1].begin(), text.operands[1].end(), in.from.begin());
    else
      for (size_t i = 1; i < text.operands.size(); i++) in.from[i - 1] = text.operands[i][0];
    in.count = std::max(text.operands[0].size(), text.operands[1].size());
  }
  in.offset = text.offset;
  in.run = function_of(text);
  return in;
}

void Kernel::run(uint32_t blocks, uint32_t threads, const std::vector<unsigned char> &arguments, Memory &memory) const {
  std::vector<uint64_t> state(registers.size());
  for (uint32_t block = 0; block < blocks; block++)
    for (uint32_t number = 0; number < threads; number++) {
      state = registers;
      state[tid_x] = number, state[ntid_x] = threads, state[ctaid_x] = block, state[nctaid_x] = blocks;
      Thread thread{state.data(), arguments.data(), parameter_bytes, &memory, 0, 0};
      while (thread.next < instructions.size()) {
        const Instruction &in = instructions[thread.next++];
        if (in.guard == no_guard || thread.get<bool>(in.guard) != in.unless) in.run(thread, in);
      }
    }
}

}  // namespace ptx
