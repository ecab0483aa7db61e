// acl.hpp is what the files of libascendcl.so share. The library has the ABI of AscendCL and runs the emulator of ../core.
// Prototypes and constants follow include/external/acl of github.com/hicann/runtime at commit 681ef761, written down again here:
// no line of the library under test is included, so a mistake in either shows.
//
// It is as strict as the documentation: no device is current until a thread chooses one, a stream is used on its own device, an
// asynchronous copy between host memories is refused, memory is freed without waiting for the device, and the address of pinned
// memory on a device is another one than on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../core/runtime.hpp"
#include "../skin/record.hpp"

using aclError = int;

namespace acl {

enum : aclError {
  success = 0,
  invalid_param = 100000,
  uninitialize = 100001,
  repeat_initialize = 100002,
  stream_not_subscribe = 100034,
  rt_param_invalid = 107000,
  rt_invalid_deviceid = 107001,
  rt_context_null = 107002,
  rt_stream_context = 107003,
  rt_addr_unaligned = 107008,
  rt_invalid_handle = 107017,
  rt_wait_timeout = 107019,
  rt_capture = 107027,
  rt_feature_not_support = 207000,
  rt_memory_allocation = 207001,
  rt_no_device = 207004,
  rt_internal_error = 507000,
};

// The result of both begins if the fault plan has the call do nothing and report success.
constexpr aclError left_out = -1;

// Begins a call: refuses calls before aclInit(), and what the fault plan says.
aclError begin(const char *function);
// Also refuses calls of threads without a current context.
aclError begin_in_context(const char *function);

#define BEGIN_AS(begin, ...)                                              \
  skin::record(__func__ __VA_OPT__(, ) __VA_ARGS__);                      \
  if (const aclError begun = acl::begin(__func__); begun != acl::success) \
  return begun == acl::left_out ? acl::success : begun
#define BEGIN(...) BEGIN_AS(begin __VA_OPT__(, ) __VA_ARGS__)
#define BEGIN_IN_CONTEXT(...) BEGIN_AS(begin_in_context __VA_OPT__(, ) __VA_ARGS__)
// Returns the value from the function if the condition does not hold.
#define REQUIRE(condition, otherwise) \
  if (!(condition)) return otherwise

aclError result(emulator::Status status);

inline emulator::StreamHandle stream(void *handle) { return static_cast<emulator::StreamHandle>(handle); }
inline emulator::EventHandle event(void *handle) { return static_cast<emulator::EventHandle>(handle); }

// Returns the address on the host for one that aclrtHostRegister() has given, null if there is none.
void *host_of(void *mapped);

}  // namespace acl
