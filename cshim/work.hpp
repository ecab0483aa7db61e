// work.hpp is one operation as torch sees it: sagecomm's c10d::Work. ProcessGroupSagecomm makes it on the calling
// thread; afterwards any thread may use it, with or without the GIL.
//
// A Work is either complete when it is made (the common, synchronous case: no lock, no Future, no handle) or
// attached to an operation of the core. In the second case the core holds a reference to the Work, and so to the
// tensors, until the operation has finished: the user may drop the Work at any time. A Work is completed once, by
// the first of two threads: the one that runs the core's done function, or a waiter to which the core has returned
// the final status (the done function may be queued behind others). Then staged outputs are written back, the
// profiler range ends, waiters wake up, tensors are released, hooks run, and Futures run their callbacks, in this
// order. The outputs of an operation on a device are only queued to be written by then, in a stream that whoever
// waits makes its own stream wait for (device_work.hpp). Where that is so when the call returns, the operation is
// joined: wait() does not wait on the host, and where one stream is behind it, its Future is complete when the call returns.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "device_work.hpp"
#include "errors.hpp"
#include "ephemeral_timeout.hpp"
#include "failure_report.hpp"
#include "hooks.hpp"
#include "sagecomm.h"
#include "sparse.hpp"
#include "tensors.hpp"

namespace sagecomm {

// GroupInfo is what a Work needs of its group. Works share it, because they may outlive the group.
struct GroupInfo {
  std::string name;
  int rank;
  std::shared_ptr<Hooks> hooks;
  std::shared_ptr<EphemeralTimeout> ephemeralTimeout;
  sagecomm_group group = 0; // its handle
  bool blocks = false; // who waits for an operation on a device waits on the host (SAGECOMM_BLOCKING_WAIT)
  std::shared_ptr<FailureReport> failure;
};

// OpInfo names an operation. All instances are constants.
struct OpInfo {
  c10d::OpType type;
  const char* name; // "all_reduce"
  const char* profilerName; // "sagecomm:all_reduce", see profiler_names.hpp
};

// Returns the value of getFutureResult(). A null `error` is success.
c10d::WorkResult resultOf(const sagecomm_error* error);

class Work final : public c10d::Work {
 public:
  // `profilerName`, which is never freed, and `profiledInputs` open a profiler range; both are null when nobody records.
  Work(
      int rank,
      const OpInfo& op,
      c10::ArrayRef<at::Tensor> outputs,
      std::chrono::milliseconds timeout,
      const char* profilerName = nullptr,
      const std::vector<at::Tensor>* profiledInputs = nullptr);
  ~Work() override;

  // --- for ProcessGroupSagecomm, before any other thread has this Work ---

  // Makes completion hooks run when the operation has succeeded; without this call none run. `memberKeys` as in
  // Success.
  void notifyHooks(const Stopwatch& watch, std::vector<uint64_t>&& memberKeys);
  // Makes it the Work of an operation on a device. Requires: none of the following functions was called.
  void own(std::shared_ptr<DeviceWork> device) {
    ordered_ = device->takeFuture();
    device_ = std::move(device);
  }
  // Completes a Work whose operation finished inside issue(). `handle` may be 0. An output that cannot be written becomes the error
  // of the Work, as it does in an operation that ends later. `group` may be null where no output is written here. The current stream of a
  // device waits for the outputs of a synchronous operation.
  void finishInline(
      sagecomm_work handle,
      Buffers& buffers,
      uint64_t sequence,
      int source,
      const Hooks& hooks,
      const std::shared_ptr<const GroupInfo>& group,
      bool async);
  // Attaches a Work whose operation goes on, and takes over the memory that the operation uses. Throws nothing, because the
  // core is using the buffers by now.
  void attach(
      sagecomm_work handle,
      uint64_t sequence,
      Buffers&& buffers,
      c10::ArrayRef<at::Tensor> inputs,
      std::shared_ptr<const GroupInfo> group,
      int source) noexcept;
  // Hands over what ends with the operation: a part of the ephemeral timeout, and the memory of a sparse sum, which may be
  // null. Requires: attach() was called.
  void own(EphemeralTimeout::Share&& share, std::unique_ptr<SparseSum>&& sparse) {
    ephemeralShare_ = std::move(share);
    pending_->sparse = std::move(sparse);
  }
  // Ends the profiler range: once an asynchronous operation was issued, or when a synchronous one has ended.
  void endProfiling();
  // Whether the host has to wait for the end of the operation, even on a device whose streams could wait for it.
  bool hostWaits() const {
    return device_ == nullptr || !device_->joined() || device_->tellsTheHost();
  }
  // Registers the done function, with which the core completes this Work. For asynchronous operations.
  void completeLater();
  // Drives the operation to its end. For synchronous operations. If a signal handler raises, completeLater() takes over.
  void drive();
  // Raises the error of an operation that has ended, if it has one.
  void raiseError() {
    if (C10_UNLIKELY(error_ != nullptr)) {
      raiseFailure();
    }
  }
  // Whether the call raises the error of an operation that it has ended, even if the operation is asynchronous: what is meant to end
  // the program, and an error in a capture, of which nobody would learn who drops the Work. Requires: finishInline() was called.
  bool raisesAtOnce() const {
    return C10_UNLIKELY(error_ != nullptr) && (ending_ != nullptr || (device_ != nullptr && device_->isInCapture()));
  }

  // --- c10d::Work ---

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  // Waits for the operation's end, on a device whose streams can wait for it only in the current stream, unless the group blocks. So a later
  // failure is raised by the group's next operation; one that the group has had by now is raised here. kNoTimeout leaves the limit to the
  // operation's own timeout. A timeout that expires raises and leaves the operation running.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;
  std::chrono::milliseconds getTimeout() const; // virtual in newer torch
  uint64_t getCompletionKey() const; // virtual in newer torch

 private:
  void finishOutputs(Buffers& buffers, const GroupInfo& group);
  static void doneCallback(void* ctx, int32_t status, const sagecomm_error* error) noexcept;

  void complete(int32_t status, const sagecomm_error* error);
  void raiseEnding();
  [[noreturn]] void raiseFailure();
  void runHooks(const Hooks& hooks) const;
  void reportEnd() const;
  void cannotWrite(const GroupInfo& group, const std::string& why);
  // Returns false if the timeout expired first. Requires: not the GIL.
  bool waitUntilDone(std::chrono::milliseconds timeout);
  bool groupHasFailed() const; // requires: the operation has not ended; not the GIL
  void refuseInCapture() const; // requires: device_; the operation is joined or has ended
  void waitBriefly();
  void unregister();
  [[noreturn]] void raiseWaitTimeout(std::chrono::milliseconds timeout) const;
  void awaitOnDevice() const;
  bool failIfBroken() const noexcept;
  void finishFuture(c10::ivalue::Future& future) const;
  void finishResult(c10::ivalue::Future& future) const;

  // Whether the operation has ended. Those outputs that a device writes may not be there yet.
  bool done() const {
    return done_.load(std::memory_order_acquire);
  }
  bool hasFailed() const {
    return done() && error_ != nullptr;
  }

  template <class Finish>
  c10::intrusive_ptr<c10::ivalue::Future> futureIn(
      c10::intrusive_ptr<c10::ivalue::Future>& place, c10::TypePtr type, Finish&& finish);

  const char* const name_;
  const std::chrono::milliseconds timeout_; // the operation's, for getTimeout()
  sagecomm_work handle_ = 0; // given back by the destructor, when no waiter can be using it
  uint64_t sequence_ = 0;
  int source_ = -1;

  std::atomic<bool> claimed_{false}; // a thread completes or has completed this Work
  std::atomic<bool> done_{false}; // outputs are final; set under mutex_ unless nobody can wait yet
  std::unique_ptr<sagecomm_error> error_; // null: success; written before done_
  // What was raised while outputs were written and is meant to end the program. The main thread raises it in place of the error, once, or
  // the thread on which it was raised. Written before done_, guarded by mutex_ after that.
  struct Ending {
    std::exception_ptr raised;
    std::thread::id by;
  };
  std::unique_ptr<Ending> ending_;
  c10::SmallVector<at::Tensor, 1> outputs_;

  // Guarded by mutex_; made on request.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> ordered_; // see DeviceWork::takeFuture()
  c10::intrusive_ptr<c10::ivalue::Future> futureResult_;

  // The memory that the core uses while the operation goes on. After attach() it belongs to the thread that
  // completes the Work.
  struct Pending {
    Buffers buffers;
    std::vector<at::Tensor> inputs;
    std::unique_ptr<SparseSum> sparse;
  };
  std::unique_ptr<Pending> pending_;

  std::shared_ptr<DeviceWork> device_; // null: the tensors are on the CPU

  CompletionKey key_;
  Stopwatch watch_;
  bool notifiesHooks_ = false;
  std::vector<uint64_t> memberKeys_; // see Success
  std::shared_ptr<const GroupInfo> group_; // set by attach(), and by finishInline() if the operation has failed
  EphemeralTimeout::Share ephemeralShare_; // of group_
};

} // namespace sagecomm
