// relaxed.hpp permits calls to a device's runtime which graphs forbid while they are captured: to allocate, or to ask an event.
#pragma once

#include <c10/core/DeviceType.h>

namespace sagecomm {

// Relaxed is in force in its thread for its lifetime. Without it such a call breaks the capture of any other thread that has torch's
// default mode, "global". Only CUDA has such captures.
class Relaxed {
 public:
  explicit Relaxed(c10::DeviceType type) noexcept;
  ~Relaxed();
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  bool exchanged_ = false;
  int mode_ = 0; // of the thread, before
};

} // namespace sagecomm
