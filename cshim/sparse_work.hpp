// sparse_work.hpp is the Work of an all_reduce of sparse tensors. sparse.hpp describes the protocol; sparse.cpp carries it
// out, on the calling thread and on threads of the core; sparse_work.cpp is what torch sees, on any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sparse.hpp"
#include "sparse_sum.hpp"

namespace sagecomm {

class SparseWork final : public c10d::Work {
 public:
  SparseWork(
      const SparseGroup& group,
      int64_t number,
      const at::Tensor& tensor,
      std::chrono::milliseconds timeout,
      EphemeralTimeout::Share&& share);

  // Issues the all_gather of headers. Throws if the core refuses it.
  void start();

  // --- c10d::Work ---

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;
  std::chrono::milliseconds getTimeout() const; // virtual in newer torch
  uint64_t getCompletionKey() const; // virtual in newer torch

 private:
  // The tensors of a rank that travel, each in a p2p operation of its own.
  enum Field : uint32_t { kIndices, kValues, kFields };

  // Step is one operation of the core that goes on. It keeps the Work, and so the memory that the operation uses.
  struct Step {
    c10::intrusive_ptr<SparseWork> work;
    bool first; // the all_gather of headers
    sagecomm_work handle = 0;
  };

  static int32_t tagOf(int64_t number, Field field);
  // Issues a step and reports whether the core accepted it. Its end, or the refusal, comes to settle().
  bool issue(sagecomm_op& op, bool first);
  // The core calls it when a step is complete.
  static void stepDone(void* ctx, int32_t status, const sagecomm_error* error) noexcept;
  void settle(std::unique_ptr<Step> step, int32_t status, const sagecomm_error& error);
  // Posts the p2p operations, or fails if the headers differ.
  void exchange();
  void post(sagecomm_kind kind, Field field, int peer, const at::Tensor& tensor);
  void receive(int peer);
  void reportDifference(int rank);
  // Fails the group, so that the other ranks and the steps that go on end as well. Where another rank has failed it first,
  // that rank's cause is raised.
  void failGroup(int status, int culprit, const std::string& why);
  void fail(const sagecomm_error& error);
  // Called when a step, or start(), has ended. The last call completes the Work.
  void stepEnded();
  void complete();
  // Writes the sum of all ranks' elements to the output.
  void add();

  std::string thisRank() const;
  void finishFuture(c10::ivalue::Future& future) const;
  void finishResult(c10::ivalue::Future& future) const;
  // Refuses a call in a forked child: nothing completes the Work there, and another thread may have held the lock.
  void refuseInChild() const;
  // Returns the Future in `place`, or makes it. complete() completes it, or this call does after that, outside the lock,
  // because callbacks run.
  template <class Finish>
  c10::intrusive_ptr<c10::ivalue::Future> futureIn(
      c10::intrusive_ptr<c10::ivalue::Future>& place, c10::TypePtr type, Finish&& finish);

  const SparseGroup group_;
  const std::chrono::milliseconds timeout_; // of each step
  EphemeralTimeout::Share ephemeralShare_; // of group_
  bool issued_ = false; // the core took the first step; written before that can end
  at::Tensor output_;
  SparseHeader mine_{};
  uint64_t sequence_ = 0; // of the all_gather of headers
  const CompletionKey key_;
  Stopwatch watch_;
  // By rank. Steps write them until they end.
  std::vector<SparseHeader> headers_;
  std::vector<at::Tensor> indices_;
  std::vector<at::Tensor> values_;

  std::atomic<int> left_{1}; // steps that go on, and start()
  std::atomic<bool> failed_{false};
  std::atomic<bool> exiting_{false}; // the process ends, and nobody is notified any more
  std::unique_ptr<sagecomm_error> error_; // written by the thread that set failed_, read once done_
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> futureResult_;
};

} // namespace sagecomm
