// operators.hpp runs torch's operators on the emulator: one boxed function is the kernel of each operator that the test
// device does not implement itself. It queues the operator's CPU kernel on the stream that is current.
//
// A process has one test device. Its extension calls set_device_type() and then one of the two functions that install.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../core/runtime.hpp"

namespace operators {

// What is queued: a call of the emulator with the stream that it goes to.
using StreamCall = std::function<emulator::Status(emulator::StreamHandle)>;

struct DeviceType {
  c10::DispatchKey key;
  c10::DeviceType type;
  // Returns the emulator's stream that is current for the calling thread on a device. It is called under a device guard.
  emulator::StreamHandle (*current_stream)(c10::DeviceIndex device);
  // Returns the seed of one operator's random numbers and moves the generator on. No generator: the device's default one.
  uint64_t (*random_seed)(c10::DeviceIndex device, const std::optional<at::Generator> &generator);

  // The following may be null.
  // Replaces the plain call with the current stream, for a device with a launch queue of its own. With `now` the call is made
  // before submit() returns. Errors are the submitter's to raise.
  void (*submit)(c10::DeviceIndex device, const std::string &what, const StreamCall &call, bool now);
  // Waits for the current stream of a device. If null, emulator::stream_synchronize().
  void (*synchronize)(c10::DeviceIndex device);
};

void set_device_type(const DeviceType &type);

// The boxed function is the kernel of every operator that has none for the device's dispatch key.
void install_fallback();

// The boxed function replaces the kernels that are registered for the dispatch key, except those of views and those that
// `keep` names without the overload, such as "aten::record_stream". Returns how many it replaces.
size_t install_over_kernels(const std::function<bool(std::string_view name)> &keep);

// Returns and forgets the errors of operators that failed when they ran and for which nobody waited.
std::vector<std::string> take_errors();

// Queues a function of the caller's as a kernel, with the memory that it reads and writes.
void launch(c10::DeviceIndex device, const std::string &what, const std::vector<emulator::Range> &reads,
            const std::vector<emulator::Range> &writes, std::function<void()> run);

}  // namespace operators
