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
  std::vector<c10::Storage> memory;
  std::vector<c10::Storage> products;
  std::lock_guard<std::mutex> lock(held_);
  memory.swap(memory_);
  products.swap(products_);
}

// What reads the products is queued in the stream in which they were made, behind which the allocator orders who gets their memory next.
void DeviceWork::dropProducts() noexcept {
  std::vector<c10::Storage> products;
  std::lock_guard<std::mutex> lock(held_);
  products.swap(products_);
}

// In a forked child a thread of the parent may have had the mutex, and the memory is the parent's.
void DeviceWork::ended(bool failed) noexcept {
  if (forked()) {
    return;
  }
  bool may = false;
  {
    std::lock_guard<std::mutex> lock(held_);
    ended_.store(true, std::memory_order_release);
    may = mayRelease();
  }
  if (may && failed) {
    releaseIfPassed();
  } else if (may) {
    release();
  }
}

void DeviceWork::waited() noexcept {
  if (forked()) {
    return;
  }
  bool may = false;
  try {
    const bool own = caller_ && *caller_ == current();
    std::lock_guard<std::mutex> lock(held_);
    waited_ = waited_ || own;
    may = mayRelease();
  } catch (const std::exception&) { // the device does not tell its current stream
  }
  if (may) {
    release();
  }
}

bool DeviceWork::releaseIfPassed() noexcept {
  try {
    if (!hasEnded() || !passed()) {
      return false;
    }
  } catch (
      const std::exception&) { // such as a lack of events, or a device that is out of order: a later look asks again
    return false;
  }
  release();
  return true;
}

void DeviceWork::abandon() noexcept {
  std::lock_guard<std::mutex> lock(held_);
  leak();
}

void DeviceWork::leak() noexcept {
  for (c10::Storage& storage : memory_) {
    static_cast<void>(storage.unsafeReleaseStorageImpl());
  }
  memory_.clear();
  for (c10::Storage& product : products_) {
    static_cast<void>(product.unsafeReleaseStorageImpl());
  }
  products_.clear();
}

bool DeviceWork::isOver() const noexcept {
  std::lock_guard<std::mutex> lock(held_);
  return ended_.load(std::memory_order_relaxed) && memory_.empty();
}

bool DeviceWork::writes(const Footprint& memory) const {
  if (!joined() && !hasEnded()) {
    return false;
  }
  std::lock_guard<std::mutex> lock(held_);
  return !memory_.empty() && std::any_of(outputs_.begin(), outputs_.end(), [&](const Footprint& output) {
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
    // This operation is among them. In front of the failure, by which other threads give memory back.
    InFlight::abandon(device_);
    static_cast<void>(core().group_fail(group, &fault, static_cast<uint8_t>(device_.type()), nullptr));
    return true;
  } catch (const std::exception&) { // no memory for the text
    return false;
  }
}

} // namespace sagecomm
