// work_future.cpp makes and completes the Futures of Works. See work.hpp.
#include <optional>

#include <ATen/core/ivalue_inl.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "core.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "work.hpp"

namespace sagecomm {

// Returns the Future in `place`, or makes it. complete() completes a Future that was made before the operation's end. One
// that is made later is completed here, outside the lock: an error takes the GIL, and a thread that holds the GIL may be
// waiting for the lock.
template <class Finish>
c10::intrusive_ptr<c10::ivalue::Future> Work::futureIn(
    c10::intrusive_ptr<c10::ivalue::Future>& place, c10::TypePtr type, Finish&& finish) {
  std::vector<c10::Device> devices;
  if (device_) {
    devices.push_back(device_->device());
  }
  auto future = c10::make_intrusive<c10::ivalue::Future>(std::move(type), std::move(devices));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (place) {
      return place;
    }
    if (!done()) {
      place = future;
      return future;
    }
  }
  finish(*future);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!place) {
    place = std::move(future);
  }
  return place;
}

// A thread that waits for a Future cannot drive the operation as Work::wait() does. So the Work waits briefly for an
// operation that is about to complete, for as long as wait_briefly() of the core allows, before it returns the
// Future. Nobody has to wait on the host for a joined operation, unless its group has failed.
void Work::waitBriefly() {
  if (done() || handle_ == 0) {
    return;
  }
  WithoutGil unlocked;
  if (!hostWaits()) {
    if (groupHasFailed()) {
      waitUntilDone(kNoTimeout);
    }
    return;
  }
  sagecomm_error error;
  const int32_t status = core().wait_briefly(handle_, &error);
  if (status != SAGECOMM_PENDING) {
    complete(status, &error);
    raiseEnding();
  }
}

// That of a joined operation is complete, and is replaced where the operation has failed since.
c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  waitBriefly();
  if (device_ && !hostWaits() && ordered_) {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool failed = done() && error_ != nullptr;
    if (!future_ && !failed) {
      future_ = ordered_;
    }
    if (future_ && (!failed || future_->hasError())) {
      return future_;
    }
    future_.reset();
  }
  return futureIn(future_, c10::ListType::create(c10::TensorType::get()), [this](auto& f) { finishFuture(f); });
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFutureResult() {
  if (!done() && handle_ != 0) {
    core().test(handle_); // a thread that waits for the Future cannot drive the operation
  }
  return futureIn(futureResult_, c10::AnyEnumType::get(), [this](auto& f) { finishResult(f); });
}

// A Future records its events in the streams that are current. So those of a device are behind the outputs. It must not stay open
// where the device refuses an event, because whoever waits for it waits without a time limit. An error needs no stream.
void Work::finishFuture(c10::ivalue::Future& future) const {
  if (error_) {
    if (group_) {
      group_->failure->told(group_->group);
    }
    future.setError(toException(*error_));
    return;
  }
  std::optional<c10::StreamGuard> behindOutputs;
  try {
    if (device_) {
      const c10::Stream stream = device_->stream();
      c10::Event(stream.device_type()).record(stream); // markCompleted() wakes nobody if it finds out that this fails
      behindOutputs.emplace(stream);
    }
  } catch (const std::exception&) {
    future.setError(std::current_exception());
    return;
  }
  future.markCompleted(c10::IValue(std::vector<at::Tensor>(outputs_.begin(), outputs_.end())));
}

void Work::finishResult(c10::ivalue::Future& future) const {
  if (error_ && group_) {
    group_->failure->told(group_->group);
  }
  future.markCompleted(c10::IValue(static_cast<int64_t>(resultOf(error_.get()))));
}

} // namespace sagecomm
