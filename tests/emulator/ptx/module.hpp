// module.hpp runs kernels of PTX, the assembler of NVIDIA's GPUs, on the CPU. It knows the part of PTX that compilers write for
// kernels whose threads do not meet: no shared memory, no barrier, no atomics, no calls. parse.cpp reads the text, which has one
// statement in a line, and operations.cpp makes of each instruction a function and its registers. A text with anything that
// is not known here is refused as a whole.
//
// A thread has one array of registers of 64 bits. Constants, special registers and the addresses of parameters lie in it as
// well, so an operand is always the number of a register.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

// A text that is not understood. The message begins with the number of the line.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a running kernel did that a device does not survive.
struct Trap : std::runtime_error {
  enum Kind { illegal_address, misaligned_address, endless } kind;
  Trap(Kind kind_, const std::string &what) : std::runtime_error(what), kind(kind_) {}
};

// The global memory of a kernel.
class Memory {
 public:
  virtual ~Memory() = default;
  // Returns where the bytes at an address lie for the CPU. It throws a Trap if the kernel may not use them.
  virtual void *at(uint64_t address, size_t bytes, bool write) = 0;
};

struct Instruction;

// A thread while it runs.
struct Thread {
  uint64_t *registers;
  const unsigned char *parameters;
  size_t parameter_bytes;
  Memory *memory;
  size_t next;  // instruction
  uint64_t jumps;

  template <class T>
  T get(uint32_t number) const;
  template <class T>
  void set(uint32_t number, T value);
};

constexpr uint32_t no_guard = UINT32_MAX;

struct Instruction {
  void (*run)(Thread &, const Instruction &) = nullptr;
  uint32_t guard = no_guard;  // the predicate without which it is left out
  bool unless = false;        // the guard is negated
  std::array<uint32_t, 4> to{};
  std::array<uint32_t, 4> from{};
  size_t count = 1;    // of registers that are loaded or stored, or that a word falls into
  int64_t offset = 0;  // of an address
  size_t target = 0;   // of a branch
};

struct Parameter {
  size_t offset, size;
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  size_t parameter_bytes = 0;
  uint32_t most_threads = 1024;  // of a block
  std::vector<Instruction> instructions;
  std::vector<uint64_t> registers;  // as a thread finds them

  // Runs all threads of a one-dimensional grid, one after the other.
  void run(uint32_t blocks, uint32_t threads, const std::vector<unsigned char> &arguments, Memory &memory) const;
};

// The first registers of each kernel.
enum Special : uint32_t { tid_x, ntid_x, ctaid_x, nctaid_x, special_registers };

using Module = std::map<std::string, Kernel>;
Module parse(std::string_view text);  // throws Refused

// An instruction as its text says it, with registers for names.
struct Text {
  std::string name;                             // "add"
  std::vector<std::string> suffixes;            // "rn", "f32"
  std::vector<std::vector<uint32_t>> operands;  // more than one register for operands in braces
  int64_t offset = 0;                           // of the operand that is an address
};
// Returns the instruction without its guard; `run` is null if it is not known.
Instruction decode(const Text &text);

}  // namespace ptx
