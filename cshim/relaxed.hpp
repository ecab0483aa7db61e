// relaxed.hpp permits calls to a device's runtime which graphs forbid while they are captured: to allocate, or to ask an event.
#pragma once

#include <c10/core/DeviceType.h>

namespace sagecomm {

// Relaxed is in force in its thread for its lifetime. Without it such a call breaks the capture of any other thread that has torch's
// default mode, "global". CUDA, ROCm and Ascend have such captures. It does nothing where the runtime cannot change the mode.
class Relaxed {
 public:
  explicit Relaxed(c10::DeviceType type) noexcept;
  ~Relaxed();
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  using Exchange = int (*)(int* mode);
  static Exchange exchangeOf(c10::DeviceType type);

  Exchange exchange_; // null: the mode was not changed
  int mode_; // of the thread, before
};

} // namespace sagecomm
