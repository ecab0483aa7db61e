// process_group.hpp: the c10d backend "sagecomm". It translates calls of torch into calls of the core (sagecomm.h) and
// decides nothing: what an operation does, how long it may take and what is an error is the core's business.
// Operations that are not overridden here keep the base class's refusal, which names backend and operation.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "options.hpp"
#include "sagecomm.h"
#include "tensors.hpp"
#include "window.hpp"
#include "work.hpp"

namespace sagecomm {

class ProcessGroupSagecomm final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  // Collective: returns when all ranks have joined through the store. Without the GIL.
  static c10::intrusive_ptr<ProcessGroupSagecomm> create(
      const c10d::DistributedBackendOptions& opts, c10::intrusive_ptr<GroupOptions> options);

  // `group` is a group of the core that this object owns from now on.
  ProcessGroupSagecomm(sagecomm_group group, int rank, int size, c10::intrusive_ptr<GroupOptions> options);
  ~ProcessGroupSagecomm() override;

  const std::string getBackendName() const override;
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions(); // virtual in newer torch
  void setTimeout(std::chrono::milliseconds timeout); // virtual in newer torch
  uint64_t getSequenceNumberForGroup() override;
  void setSequenceNumberForGroup() override;
  c10d::ErrorType getError(); // virtual in newer torch
  void abort(); // virtual in newer torch
  void shutdown(); // virtual in newer torch

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  // Newer torch calls this all_gather_single and forwards between the two names.
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& outputSplits,
      std::vector<int64_t>& inputSplits,
      const c10d::AllToAllOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr gather_into_tensor( // virtual in newer torch
      at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  // Names all ranks that are missing in any case.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) override;
  WorkPtr send(Tensors& tensors, int dstRank, int tag) override;
  WorkPtr recv(Tensors& tensors, int srcRank, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  // Newer torch calls them all_gather_single_coalesced and reduce_scatter_single_coalesced and forwards.
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override;

  bool supportsCoalescing() const override {
    return true;
  }
  // Between the two the operations of this thread are collected; the second one issues them as one.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // The core's statistics of this group, as JSON.
  std::string statsJson() const;

 private:
  template <class F>
  WorkPtr orPostponed(const OpInfo& info, F&& call);
  WorkPtr receive(const OpInfo& info, Tensors& tensors, int srcRank, int tag);
  // Describe one operation, the index-th of its call, alone or coalesced.
  void fillAllReduce(Call& call, size_t index, const at::Tensor& tensor, const c10d::ReduceOp& reduceOp) const;
  void fillAllGather(Call& call, size_t index, c10::ArrayRef<at::Tensor> outputs, const at::Tensor& input) const;
  void fillAllGatherSingle(Call& call, size_t index, const at::Tensor& output, const at::Tensor& input) const;
  void fillReduceScatterSingle(
      Call& call,
      size_t index,
      const at::Tensor& output,
      const at::Tensor& input,
      const c10d::ReduceOp& reduceOp) const;
  WorkPtr run(Call& call);
  WorkPtr runAll(const OpInfo& info, std::vector<Call>& calls, bool async, std::chrono::milliseconds timeout);
  int32_t issue(const Call& call, sagecomm_work& handle, sagecomm_error& error) const;
  int32_t issueProfiled(const Call& call, sagecomm_work& handle, sagecomm_error& error) const;
  // Calls `issue` inside the "record_param_comms" range that torch's trace analysers look for, one per operation.
  void recordParams(
      const char* name,
      uint64_t sequence,
      bool p2p,
      c10::ArrayRef<at::Tensor> inputs,
      c10::ArrayRef<at::Tensor> outputs,
      const std::function<void()>& issue) const;
  void destroy() noexcept;
  [[noreturn]] void refuseAfterShutdown(const char* op) const;

  const sagecomm_api& api_;
  const sagecomm_group group_;
  const c10::intrusive_ptr<GroupOptions> options_;
  const std::shared_ptr<const GroupInfo> info_;
  Windows windows_;
  std::atomic<int64_t> sparseCalls_{0};
  std::atomic<int64_t> timeoutMs_;
  std::atomic<bool> shutDown_{false};
  std::atomic<uint64_t> lastSequence_{0}; // what was issued until the shutdown
  std::atomic<const sagecomm_error*> cause_{nullptr}; // owned: why the group had failed by then
};

} // namespace sagecomm
