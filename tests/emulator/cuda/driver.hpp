// driver.hpp is what the files of libcuda.so.1 share: how a call begins, statuses, contexts and handles. The library has the
// ABI of NVIDIA's driver and runs the emulator of ../core. Signatures come from NVIDIA's public header, so that a version that
// changes one fails to compile here.
//
// A handle of a stream, event or graph is the emulator's handle of it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "../core/runtime.hpp"
#include "../skin/record.hpp"

namespace driver {

// Begins a call of a function: refuses calls before cuInit(), and what the fault plan says. `function` is __func__; the fault
// plan has the name without its version.
CUresult begin(const char *function);
// Also refuses calls of threads without a current context.
CUresult begin_in_context(const char *function);

// The result of both if the fault plan has the call do nothing and report success.
constexpr CUresult left_out = static_cast<CUresult>(-1);

#define RETURN_UNLESS_BEGUN(begun) \
  if (begun != CUDA_SUCCESS) return begun == driver::left_out ? CUDA_SUCCESS : begun
// Each function begins with its arguments, which are written down (../skin/record.hpp). What an argument points to follows in
// lines of its own.
#define BEGIN_AS(begins, ...)                        \
  skin::record(__func__ __VA_OPT__(, ) __VA_ARGS__); \
  const CUresult begun = driver::begins(__func__);   \
  RETURN_UNLESS_BEGUN(begun)
#define BEGIN(...) BEGIN_AS(begin __VA_OPT__(, ) __VA_ARGS__)
#define BEGIN_IN_CONTEXT(...) BEGIN_AS(begin_in_context __VA_OPT__(, ) __VA_ARGS__)
// Returns the value from the function if the condition does not hold.
#define REQUIRE(condition, otherwise) \
  if (!(condition)) return otherwise

CUresult result(emulator::Status status);

// Writes down what a call gives back, and returns its status.
template <class T>
CUresult given(CUresult status, T value) {
  skin::given(status, value);
  return status;
}

// Returns the number by which records know the bytes of a handle of IPC: FNV-1a of 64 bits.
template <class Bytes>
uint64_t fingerprint(const Bytes &of) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < sizeof of; i++)
    hash = (hash ^ reinterpret_cast<const unsigned char *>(&of)[i]) * 0x100000001b3;
  return hash;
}

// ---- contexts; the current one is the top of a stack that belongs to the thread

struct Context {
  int device;
  bool primary;
};
// Returns the device of the thread's current context, -1 without one.
int current_device();
CUcontext primary_context(int device);
bool is_device(CUdevice device);

// ---- graphs

bool has_executables(CUgraph graph);

// ---- handles

inline emulator::StreamHandle stream(CUstream handle) { return reinterpret_cast<emulator::StreamHandle>(handle); }
inline emulator::EventHandle event(CUevent handle) { return reinterpret_cast<emulator::EventHandle>(handle); }
inline void *pointer(CUdeviceptr address) { return reinterpret_cast<void *>(address); }
inline CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

constexpr int least_priority = 0;
int greatest_priority();  // FAKE_CUDA_PRIORITIES says how many there are

}  // namespace driver
