// device_memory.cpp is what a DeviceWork does behind issue() for others than its waiters: it holds the memory of the operation as long as
// the device may use it, and tells whether the device still works. See device_work.hpp.
//
// The allocator of the device is told which streams use the memory, if it listens. Some do not: those of other libraries whose memory comes
// by dlpack or by handles of other processes, and pluggable ones without a function for it. So the memory is held, too.
#include <algorithm>
#include <cstdio>
#include <utility>

#include <c10/core/DeviceGuard.h>

#include "compat.hpp"
#include "core.hpp"
#include "device_work.hpp"
#include "errors.hpp"
#include "in_flight.hpp"
#include "relaxed.hpp"

namespace sagecomm {

bool DeviceWork::mayRelease() const {
  return waited_ && ended_.load(std::memory_order_relaxed);
}

// Memory is given back without the mutex, because an allocator may wait.
void DeviceWork::release() noexcept {
  std::vector<at::Tensor> tensors;
  std::lock_guard<std::mutex> lock(memory_);
  tensors.swap(tensors_);
}

void DeviceWork::ended() noexcept {
  bool may = false;
  {
    std::lock_guard<std::mutex> lock(memory_);
    ended_.store(true, std::memory_order_release);
    may = mayRelease();
  }
  if (may) {
    release();
  }
}

void DeviceWork::waited() noexcept {
  bool may = false;
  try {
    const bool own = caller_ && *caller_ == current();
    std::lock_guard<std::mutex> lock(memory_);
    waited_ = waited_ || own;
    may = mayRelease();
  } catch (const std::exception&) { // the device does not tell its current stream
  }
  if (may) {
    release();
  }
}

void DeviceWork::releaseIfPassed() noexcept {
  if (!hasEnded()) {
    return;
  }
  try {
    if (!passed()) {
      return;
    }
  } catch (const std::exception&) {
    abandon();
  }
  release();
}

void DeviceWork::abandon() noexcept {
  std::lock_guard<std::mutex> lock(memory_);
  leak();
}

void DeviceWork::leak() noexcept {
  for (at::Tensor& t : tensors_) {
    static_cast<void>(t.unsafeReleaseTensorImpl());
  }
  tensors_.clear();
}

bool DeviceWork::isOver() const noexcept {
  std::lock_guard<std::mutex> lock(memory_);
  return ended_.load(std::memory_order_relaxed) && tensors_.empty();
}

bool DeviceWork::writes(const Footprint& memory) const {
  if (!joined() && !hasEnded()) {
    return false;
  }
  std::lock_guard<std::mutex> lock(memory_);
  return !tensors_.empty() && std::any_of(outputs_.begin(), outputs_.end(), [&](const Footprint& output) {
    return overlap(output, memory);
  });
}

std::optional<std::string> DeviceWork::fault() const {
  if (!start_ || isInCapture() || forked()) {
    return std::nullopt;
  }
  const c10::OptionalDeviceGuard on(device_);
  try {
    if (captureOf(current()) == Capture::kYes) {
      return std::nullopt;
    }
  } catch (const c10::Error&) { // of this device, or a capture of another thread refuses the question: the event tells
  }
  try {
    const Relaxed captures(device_.type());
    start_->query();
    return std::nullopt;
  } catch (const c10::Error&) {
    return firstLine(reasonOf(std::current_exception()));
  }
}

bool DeviceWork::failIfBroken(sagecomm_group group, const char* op, uint64_t sequence) noexcept {
  try {
    const std::optional<std::string> why = fault();
    if (!why) {
      return false;
    }
    sagecomm_error fault;
    fillError(fault, SAGECOMM_INTERNAL, op, "", *why);
    fault.sequence = sequence;
    std::snprintf(
        fault.message,
        sizeof fault.message,
        "%s is out of order: %s; work that was queued there before has broken it, so look for that, and restart the "
        "job",
        device_.str().c_str(),
        why->c_str());
    abandon();
    InFlight::abandon(device_); // in front of the failure, by which other threads give up tensors
    static_cast<void>(core().group_fail(group, &fault, static_cast<uint8_t>(device_.type()), nullptr));
    return true;
  } catch (const std::exception&) { // no memory for the text
    return false;
  }
}

} // namespace sagecomm
