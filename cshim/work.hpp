// work.hpp: one operation as torch sees it.
//
// A Work is born complete (the common, synchronous case: no lock, no Future, no handle) or attached to an operation of
// the core. In the second case the core holds a reference until the operation has finished, and with it the tensors, so
// that the user may drop the Work at any time.
//
// Completing happens once, by whoever is first: the core's done function, or a waiter that the core told about the end
// (it need not wait for a callback that may be queued behind others). Order: staged outputs are written back, profiler
// ranges end, waiters wake up, tensors are released, hooks are called, Futures run their callbacks.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "ephemeral.hpp"
#include "hooks.hpp"
#include "sagecomm.h"
#include "tensors.hpp"

namespace sagecomm {

// What Works know about their group, which may be gone before them.
struct GroupInfo {
  std::string name;
  int rank;
  std::shared_ptr<Hooks> hooks;
  std::shared_ptr<EphemeralTimeout> ephemeral;
};

// What is known about an operation when it is issued.
struct OpInfo {
  c10d::OpType type;
  const char* name; // "all_reduce"; static
  const char* profilingTitle; // "sagecomm:all_reduce", see titles.hpp; static
};

// What getFutureResult() tells; null: success.
c10d::WorkResult resultOf(const sagecomm_error* error);

class Work final : public c10d::Work {
 public:
  // `title`, which stays valid, and `profiledInputs` open a profiler range; nullptr when nobody records.
  Work(
      int rank,
      const OpInfo& op,
      c10::ArrayRef<at::Tensor> outputs,
      std::chrono::milliseconds timeout,
      const char* title = nullptr,
      const std::vector<at::Tensor>* profiledInputs = nullptr);
  ~Work() override;

  // --- for ProcessGroupSagecomm, before anybody else knows this Work ---

  // What the hooks are told, when it has succeeded: without this call, nothing. `parts` as in Success.
  void tell(const Stopwatch& watch, std::vector<uint64_t>&& parts);
  // The operation finished inside issue(). `handle` may be 0.
  void finishInline(sagecomm_work handle, Buffers& buffers, uint64_t sequence, int source, const Hooks& hooks);
  // The operation goes on; takes over what it needs. Throws nothing: the core is using the buffers by now.
  void attach(
      sagecomm_work handle,
      Buffers&& buffers,
      c10::ArrayRef<at::Tensor> inputs,
      std::shared_ptr<const GroupInfo> group,
      int source) noexcept;
  // After attach(): what ends with it.
  void own(EphemeralTimeout::Share&& ephemeral) {
    ephemeral_ = std::move(ephemeral);
  }
  // Ends the profiler range: of an asynchronous operation when it has been issued, of a synchronous one at its end.
  void endProfiling();
  // Asynchronous: has the core complete this Work.
  void completeLater();
  // Synchronous: drives the operation to its end. A signal handler that raises leaves it to completeLater().
  void drive();

  // --- c10d::Work ---

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  // kNoTimeout: the operation's own timeout decides. A timeout that expires raises and leaves the operation running.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;
  std::chrono::milliseconds getTimeout() const; // virtual in newer torch
  uint64_t getCompletionKey() const; // virtual in newer torch

 private:
  static void doneCallback(void* ctx, int32_t status, const sagecomm_error* error) noexcept;

  void complete(int32_t status, const sagecomm_error* error);
  void succeeded(const Hooks& hooks) const;
  void cannotWrite(const char* why);
  // Returns false if the deadline passed first.
  bool waitUntilDone(std::chrono::milliseconds timeout);
  void finishSoon();
  void unregister();
  [[noreturn]] void raiseWaitTimeout(std::chrono::milliseconds timeout) const;
  void finishFuture(c10::ivalue::Future& future) const;
  void finishResult(c10::ivalue::Future& future) const;

  bool done() const {
    return done_.load(std::memory_order_acquire);
  }

  template <class Finish>
  c10::intrusive_ptr<c10::ivalue::Future> futureIn(
      c10::intrusive_ptr<c10::ivalue::Future>& place, c10::TypePtr type, Finish&& finish);

  const char* const name_;
  const std::chrono::milliseconds timeout_; // the operation's, for getTimeout()
  sagecomm_work handle_ = 0; // given back by the destructor: no waiter can be using it then
  uint64_t sequence_ = 0;
  int source_ = -1;

  std::atomic<bool> claimed_{false}; // somebody is completing or has completed
  std::atomic<bool> done_{false}; // outputs are final; set under mutex_ unless nobody can wait yet
  std::unique_ptr<sagecomm_error> error_; // null: success; written before done_
  c10::SmallVector<at::Tensor, 1> outputs_;

  // Guarded by mutex_, and created when asked for.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> futureResult_;

  // Only while the operation goes on; after attach() it belongs to the one who completes.
  struct Pending {
    Buffers buffers;
    std::vector<at::Tensor> inputs;
  };
  std::unique_ptr<Pending> pending_;

  CompletionKey key_;
  Stopwatch watch_;
  bool told_ = false; // somebody is given this Work: hooks hear of it
  std::vector<uint64_t> parts_;
  std::shared_ptr<const GroupInfo> group_; // for messages; set by attach()
  EphemeralTimeout::Share ephemeral_; // of group_
};

} // namespace sagecomm
