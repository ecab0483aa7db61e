// device.hpp has the devices of simdev and what all of its parts need: torch's current device of a thread, errors, and
// the Python lock around waits.
//
// The emulator is set up with the rules of ACL and CNRT and not with those of CUDA, so that code which only knows
// CUDA's fails here: a thread without a current device, a stream of another device, an asynchronous copy between two
// places of host memory are errors, and no stream waits for the default stream by itself.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

#include "../../core/runtime.hpp"

namespace simdev {

constexpr c10::DeviceType device_type = c10::DeviceType::PrivateUse1;

// Sets the rules of the emulator. Requires: no call of the emulator came before in this process.
void configure();

// Raises c10::Error for a status other than success. `what` names the call.
void check(emulator::Status status, const char *what);

// Returns 0 in a process that is a fork of one that used the devices.
int device_count() noexcept;
int current_device();  // of this thread; 0 if it has chosen none
void set_device(int device);
int exchange_device(int device);
// Returns the device's index; the current one for a device without an index. Raises if there is no such device.
int index_of(c10::Device device);
inline c10::Device device_of(int index) { return {device_type, static_cast<c10::DeviceIndex>(index)}; }

// Makes a device the emulator's current one during a scope of the calling thread. It does not change torch's.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice &) = delete;
  OnDevice &operator=(const OnDevice &) = delete;

 private:
  int device_;
};

// Releases the Python lock during a scope if the calling thread holds it. Work that the thread waits for may have to
// drop a tensor that has a Python object.
class WithoutPython {
 public:
  WithoutPython();
  ~WithoutPython();
  WithoutPython(const WithoutPython &) = delete;
  WithoutPython &operator=(const WithoutPython &) = delete;

 private:
  void *saved_;
};

}  // namespace simdev
