// work_wait.cpp waits for Works, on the host and in streams of a device. See work.hpp.
#include <algorithm>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "work.hpp"

namespace sagecomm {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

namespace {

// Returns the end of a wait of `timeout`, without overflow.
Clock::time_point deadlineAfter(milliseconds timeout) {
  constexpr milliseconds kForever = std::chrono::hours(24 * 365);
  return Clock::now() + std::min(timeout, kForever);
}

} // namespace

bool Work::failIfBroken() const noexcept {
  return device_ && device_->failIfBroken(group_->group, name_, sequence_);
}

// What does not end in a slice may wait for a stream, which does not go on if its device is out of order.
bool Work::waitUntilDone(milliseconds timeout) {
  const bool bounded = timeout > kNoTimeout;
  const auto deadline = bounded ? deadlineAfter(timeout) : Clock::time_point::max();
  bool finished = false; // the core has finished the operation, and another thread is completing this Work
  bool broken = false;
  while (!done()) {
    nanoseconds slice(waits().slice_ns);
    if (bounded) {
      slice = std::min(slice, std::max(nanoseconds(0), nanoseconds(deadline - Clock::now())));
    }
    if (!finished) {
      sagecomm_error error;
      const int32_t status = core().wait(handle_, slice.count(), &error);
      if (status != SAGECOMM_PENDING) {
        complete(status, &error);
        finished = true;
        continue;
      }
      broken = broken || failIfBroken();
    } else {
      std::unique_lock<std::mutex> lock(mutex_);
      cv_.wait_for(lock, slice, [this] { return done(); });
    }
    if (done()) {
      return true;
    }
    checkSignals();
    if (bounded && Clock::now() >= deadline) {
      return false;
    }
  }
  return true;
}

void Work::drive() {
  WithoutGil unlocked;
  try {
    waitUntilDone(kNoTimeout);
  } catch (...) {
    endProfiling();
    completeLater(); // peers may still read and write these tensors
    if (!hostWaits()) {
      device_->awaitAfterError(); // the caller has no Work that could order its stream
    }
    throw;
  }
  awaitOnDevice();
  raiseError();
}

// The error of the operation comes before one of the device: what has failed may have put the device out of order.
void Work::awaitOnDevice() const {
  if (device_ == nullptr) {
    return;
  }
  if (hasFailed()) {
    device_->awaitAfterError();
  } else {
    device_->awaitInCurrentStream();
  }
}

// The operations of a group that has failed end at once, and the thread that completes them comes a moment later.
bool Work::groupHasFailed() const {
  return core().group_error(group_->group, nullptr) < 0;
}

bool Work::wait(milliseconds timeout) {
  if (!done()) {
    WithoutGil unlocked;
    if ((hostWaits() || group_->blocks || timeout > kNoTimeout || groupHasFailed()) && !waitUntilDone(timeout)) {
      raiseWaitTimeout(timeout);
    }
  }
  if (C10_UNLIKELY(device_ != nullptr) && !hasFailed()) {
    refuseInForkedChild(); // the device's driver does not exist there
    refuseInCapture();
  }
  unregister();
  // The host has waited for a barrier outside of graphs, so there is nothing left that a stream could wait for.
  if (C10_UNLIKELY(device_ != nullptr) && (opType_ != c10d::OpType::BARRIER || device_->captured())) {
    awaitOnDevice();
  }
  if (done()) {
    raiseError();
  }
  return true;
}

// The capture goes on.
void Work::refuseInCapture() const {
  TORCH_CHECK(
      !device_->refusesCapture(),
      "sagecomm: ",
      name_,
      ": rank ",
      rank_,
      ": the current stream is being captured into a graph, which cannot wait for an operation that was issued before; "
      "call wait() before the capture begins");
}

void Work::raiseWaitTimeout(milliseconds timeout) const {
  TORCH_CHECK(
      false,
      "Operation timed out! sagecomm: ",
      name_,
      ": rank ",
      group_->rank,
      " of group ",
      group_->name,
      ": not complete ",
      timeout.count(),
      " ms after wait(timeout=...) began; the operation goes on, wait() can be called again");
}

// Torch keeps a Work that its compiler may see as a graph input in a registry until it was waited for.
void Work::unregister() {
  if (C10_UNLIKELY(c10d::allow_inflight_collective_as_graph_input())) {
    c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(this));
  }
}

void Work::synchronize() {
  if (device_) {
    wait(kNoTimeout);
  } else {
    unregister(); // on cpu there is no stream to order
  }
}

} // namespace sagecomm
