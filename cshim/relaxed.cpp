// relaxed.cpp changes the mode of a thread by a function of the device's runtime, which torch has opened. See relaxed.hpp.
#include "relaxed.hpp"

#include <dlfcn.h>

#include <atomic>
#include <initializer_list>

#include <ATen/Context.h>

namespace sagecomm {

namespace {

// CU_STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed and ACL_MODEL_RI_CAPTURE_MODE_RELAXED: the three runtimes number their
// modes alike, and each function puts the former mode where the new one was and returns 0.
constexpr int kRelaxed = 2;
// Ascend's answer where the device has not the feature, each time: ACL_ERROR_RT_FEATURE_NOT_SUPPORT.
constexpr int kNotSupported = 207000;

std::atomic<bool> unsupported{false};

struct Symbol {
  const char* library;
  const char* function;
};

// Returns the function of the first library that this process has loaded and that has it, null if there is none.
void* find(std::initializer_list<Symbol> symbols) {
  for (const Symbol& symbol : symbols) {
    if (void* const library = dlopen(symbol.library, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)) {
      if (void* const function = dlsym(library, symbol.function)) {
        return function;
      }
    }
  }
  return nullptr;
}

} // namespace

// Torch for ROCm calls its devices CUDA's, and the process may have loaded CUDA's driver all the same. A PrivateUse1 device is
// Ascend's if its runtime is loaded. A device is in use when this is called, so its library is loaded.
Relaxed::Exchange Relaxed::exchangeOf(c10::DeviceType type) {
  if (type == c10::DeviceType::CUDA) {
    static const auto found = reinterpret_cast<Exchange>(
        at::globalContext().hasROCM() ? find({
                                            {"libamdhip64.so.7", "hipThreadExchangeStreamCaptureMode"},
                                            {"libamdhip64.so.6", "hipThreadExchangeStreamCaptureMode"},
                                            {"libamdhip64.so", "hipThreadExchangeStreamCaptureMode"},
                                        })
                                      : find({{"libcuda.so.1", "cuThreadExchangeStreamCaptureMode"}}));
    return found;
  }
  if (type == c10::DeviceType::PrivateUse1 && !unsupported.load(std::memory_order_relaxed)) {
    static const auto found =
        reinterpret_cast<Exchange>(find({{"libascendcl.so", "aclmdlRICaptureThreadExchangeMode"}}));
    return found;
  }
  return nullptr;
}

Relaxed::Relaxed(c10::DeviceType type) noexcept : exchange_(exchangeOf(type)), mode_(kRelaxed) {
  if (exchange_ == nullptr) {
    return;
  }
  if (const int status = exchange_(&mode_); status != 0) {
    exchange_ = nullptr;
    if (status == kNotSupported) { // asking again would write to the runtime's log each time
      unsupported.store(true, std::memory_order_relaxed);
    }
  }
}

Relaxed::~Relaxed() {
  if (exchange_ != nullptr) {
    exchange_(&mode_);
  }
}

} // namespace sagecomm
