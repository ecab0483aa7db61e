// sparse_work.cpp is what torch sees of an all_reduce of sparse tensors: waiting, Futures, properties. Any thread may call
// it, with or without the GIL.
#include "sparse_work.hpp"

#include <ATen/core/ivalue_inl.h>

#include "core.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

bool SparseWork::isCompleted() {
  return done_.load(std::memory_order_acquire);
}

bool SparseWork::isSuccess() const {
  return done_.load(std::memory_order_acquire) && error_ == nullptr;
}

std::exception_ptr SparseWork::exception() const {
  return done_.load(std::memory_order_acquire) && error_ != nullptr ? toException(*error_) : nullptr;
}

std::vector<at::Tensor> SparseWork::result() {
  return {output_};
}

void SparseWork::synchronize() {
}

void SparseWork::abort() {
  TORCH_CHECK(
      false,
      "sagecomm: all_reduce: one operation cannot be aborted, its peers would wait for it; abort the process group");
}

bool SparseWork::wait(milliseconds timeout) {
  refuseInChild();
  WithoutGil unlocked;
  const auto begun = std::chrono::steady_clock::now();
  while (!isCompleted()) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, std::chrono::nanoseconds(waits().slice_ns), [this] { return isCompleted(); });
    }
    checkSignals();
    if (timeout > kNoTimeout && !isCompleted() && std::chrono::steady_clock::now() - begun >= timeout) {
      TORCH_CHECK(
          false,
          "Operation timed out! sagecomm: all_reduce: not complete ",
          timeout.count(),
          " ms after wait(timeout=...) began; the operation goes on, wait() can be called again");
    }
  }
  if (error_) {
    raise(*error_);
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> SparseWork::getFuture() {
  return futureIn(future_, c10::ListType::create(c10::TensorType::get()), [this](auto& f) { finishFuture(f); });
}

c10::intrusive_ptr<c10::ivalue::Future> SparseWork::getFutureResult() {
  return futureIn(futureResult_, c10::AnyEnumType::get(), [this](auto& f) { finishResult(f); });
}

uint64_t SparseWork::getSequencenumber() const {
  return sequence_;
}

float SparseWork::getDuration() const {
  TORCH_CHECK(
      done_.load(std::memory_order_acquire), "sagecomm: all_reduce: its duration is not known before it is complete");
  return watch_.duration("all_reduce");
}

milliseconds SparseWork::getTimeout() const {
  return timeout_;
}

uint64_t SparseWork::getCompletionKey() const {
  return key_.get();
}

void SparseWork::refuseInChild() const {
  if (!forked()) {
    return;
  }
  sagecomm_error error;
  fillError(
      error,
      SAGECOMM_FORKED,
      "all_reduce",
      group_.info->name,
      "this process was forked from the one that began the operation, where it goes on; wait for it there");
  raise(error);
}

void SparseWork::finishFuture(c10::ivalue::Future& future) const {
  if (error_) {
    future.setError(toException(*error_));
  } else {
    future.markCompleted(c10::IValue(std::vector<at::Tensor>{output_}));
  }
}

void SparseWork::finishResult(c10::ivalue::Future& future) const {
  future.markCompleted(c10::IValue(static_cast<int64_t>(resultOf(error_.get()))));
}

template <class Finish>
c10::intrusive_ptr<c10::ivalue::Future> SparseWork::futureIn(
    c10::intrusive_ptr<c10::ivalue::Future>& place, c10::TypePtr type, Finish&& finish) {
  refuseInChild();
  auto future = c10::make_intrusive<c10::ivalue::Future>(std::move(type));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (place) {
      return place;
    }
    place = future;
    if (!isCompleted()) {
      return future;
    }
  }
  finish(*future);
  return future;
}

void SparseWork::complete() {
  watch_.stop();
  if (issued_) {
    ephemeralShare_.end();
  }
  c10::intrusive_ptr<c10::ivalue::Future> future;
  c10::intrusive_ptr<c10::ivalue::Future> futureResult;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_.store(true, std::memory_order_release);
    future = future_;
    futureResult = futureResult_;
  }
  core().group_hold(group_.group, -1, nullptr);
  changed_.notify_all();
  if (exiting_.load()) {
    return;
  }
  if (!failed_.load()) {
    group_.info->hooks->succeeded({opType_, sequence_, key_, watch_, {}});
  }
  try {
    if (future) {
      finishFuture(*future);
    }
    if (futureResult) {
      finishResult(*futureResult);
    }
  } catch (const std::exception& e) {
    LOG(ERROR) << "sagecomm: all_reduce: a callback of this operation's Future raised: " << e.what();
  }
  group_.info->hooks->ended();
}

} // namespace sagecomm
