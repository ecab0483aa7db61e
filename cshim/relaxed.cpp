// relaxed.cpp changes the mode of a thread by CUDA's driver, which torch has opened. See relaxed.hpp.
#include "relaxed.hpp"

#include <dlfcn.h>

namespace sagecomm {

namespace {

constexpr int kRelaxed = 2; // CU_STREAM_CAPTURE_MODE_RELAXED

using Exchange = int (*)(int* mode);

Exchange exchange() {
  static const Exchange found = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<Exchange>(dlsym(driver, "cuThreadExchangeStreamCaptureMode"));
  }();
  return found;
}

} // namespace

Relaxed::Relaxed(c10::DeviceType type) noexcept {
  if (type == c10::DeviceType::CUDA && exchange() != nullptr) {
    mode_ = kRelaxed;
    exchanged_ = exchange()(&mode_) == 0;
  }
}

Relaxed::~Relaxed() {
  if (exchanged_) {
    exchange()(&mode_);
  }
}

} // namespace sagecomm
