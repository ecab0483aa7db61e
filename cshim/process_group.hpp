// process_group.hpp: the c10d backend "sagecomm". It translates calls of torch into calls of the core (sagecomm.h) and
// decides nothing: what an operation does, how long it may take and what is an error is the core's business.
// Operations that are not overridden here keep the base class's refusal, which names backend and operation.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <type_traits>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "compat.hpp"
#include "ephemeral.hpp"
#include "hooks.hpp"
#include "options.hpp"
#include "sagecomm.h"
#include "stacks.hpp"
#include "tensors.hpp"
#include "titles.hpp"
#include "window.hpp"
#include "work.hpp"

namespace sagecomm {

class ProcessGroupSagecomm final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  // Where a process stands in a group that it makes with others.
  struct Seat {
    c10::intrusive_ptr<c10d::Store> store; // the members pass stores onto the same keys
    int rank;
    int size;
  };

  // Collective: returns when all ranks have joined through the store; at once for a group whose members reconfigure()
  // will name. Without the GIL.
  static c10::intrusive_ptr<ProcessGroupSagecomm> create(
      const c10d::DistributedBackendOptions& opts, const c10::intrusive_ptr<GroupOptions>& options);

  // `group` is a group of the core that this object owns from now on; 0: none yet, reconfigure() will make it.
  ProcessGroupSagecomm(sagecomm_group group, const Seat& seat, c10::intrusive_ptr<GroupOptions> options);
  ~ProcessGroupSagecomm() override;

  // ---- other groups, see members.cpp. Collective over the members of the new one; nobody else is involved. ----

  bool supportsSplitting() const; // virtual, as are all of these, in newer torch
  bool isInitialized();
  // Null on a rank that is not among `ranks`, whose order is that of the new group.
  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& opts);
  c10::intrusive_ptr<Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store,
      const c10::intrusive_ptr<Options>& opts,
      const int& rank,
      const int& size);
  bool supportsShrinking() const;
  // Called by those that stay. It needs nothing of this group but its store, so the group may have failed.
  c10::intrusive_ptr<Backend> shrink(
      const std::vector<int64_t>& excluded, int flags, const c10::intrusive_ptr<Options>& opts);

  // ---- other members for this group, see reconfigure.cpp. No operation may be issued meanwhile; anything else may be
  // called, and abort() and shutdown() end it. ----

  bool supportsReconfigure() const;
  std::string get_reconfigure_handle() const;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts);
#endif

  const std::string getBackendName() const override;
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions(); // virtual in newer torch
  void setTimeout(std::chrono::milliseconds timeout); // virtual in newer torch
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout); // virtual in newer torch
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
  // Names all ranks that are missing in any case; `waitAllRanks` says whether gloo's words do.
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
  // Several messages at once, in the form that torch_npu's dist.batch_isend_irecv() calls. Torch has no such virtual.
  WorkPtr batchIsendIrecv(
      const std::vector<std::string>& kinds, const Tensors& tensors, const std::vector<int64_t>& peers);

  // Hooks, see hooks.hpp. What an older torch does not declare here is called by sagecomm's own bindings only.
  bool supportsAbortHooks() const; // virtual in newer torch
  void registerAbortHook(int64_t id, AbortFn hook); // virtual in newer torch
  void unregisterAbortHook(int64_t id); // virtual in newer torch
  bool supportsCompletionHooks() const; // virtual in newer torch
  void registerCompletionHook(int64_t id, TorchCompletionHook hook); // virtual in newer torch
  void unregisterCompletionHook(int64_t id); // virtual in newer torch
  void addCompletionHook(int64_t id, CompletionFn hook);
  void registerOnCompletionHook(WorkInfoFn&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override;

  // Memory for tensors, which there is none of: virtual in newer torch.
  std::shared_ptr<c10::Allocator> getMemAllocator();
  at::Tensor allocateTensor(long size, at::TensorOptions options);
  bool supportsTensorAlloc(c10::DeviceIndex device);

  // The core's statistics of this group, as JSON.
  std::string statsJson() const;
  // What the core calls the group.
  int64_t groupNumber() const;

 private:
  template <class F>
  WorkPtr orPostponed(const OpInfo& info, F&& call);
  WorkPtr receive(const OpInfo& info, Tensors& tensors, int srcRank, int tag);
  void raiseMonitored(std::chrono::milliseconds timeout, bool waitAllRanks) const;
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
  // A Work that there was nothing to do for.
  WorkPtr completed(const OpInfo& info);
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
  // Tells the core what torch calls the group, which torch knows only after the backend was made.
  void introduce();
  // Joins a group of the core, whose name, timeout and global ranks `options` has. 0: it gave up waiting for the others
  // since `ended`, which is looked at all the time, says so.
  static sagecomm_group join(const Seat& seat, const GroupOptions& options, const std::atomic<bool>* ended = nullptr);
  static c10::intrusive_ptr<ProcessGroupSagecomm> make(
      const Seat& seat, const c10::intrusive_ptr<GroupOptions>& options);
  // Options for a group that follows from this one. Null `given`: this one's.
  c10::intrusive_ptr<GroupOptions> optionsFrom(const char* call, const c10::intrusive_ptr<Options>& given) const;
  std::vector<uint64_t> globalRanks(const std::vector<int>& ranks) const;
  void failAll(sagecomm_group group, const char* reason) const;
  // Ends that group of the core, unless another thread has, and keeps what is asked of it later.
  void leave(sagecomm_group group);
  void destroy() noexcept;
  // What `question` gets to know of the core's group that there is, 0 if there is none. Asks again where the group has
  // changed meanwhile, because a stale handle is refused.
  template <class F>
  auto ask(F&& question) const {
    for (;;) {
      const sagecomm_group group = group_.load();
      auto answer = question(group);
      if (group_.load() == group) {
        return answer;
      }
    }
  }
  // Of a call that found no group of the core: says why there is none.
  [[noreturn]] void refuseWithoutGroup(const char* op) const;
  // Of a call that would use the store, or a lock that a thread of the parent may have held at the fork.
  void refuseInChild() const;
  // Puts the group that reconfigure() has joined into the place of the one before; not if that was ended meanwhile.
  bool install(sagecomm_group group, const Seat& seat, const GroupOptions& options, int64_t uuid);
  // Of a reconfigure() that was ended.
  [[noreturn]] void refuseEnded();
  std::shared_ptr<const sagecomm_error> cause() const;

  static void checkLayout();

  // Torch whose groups cannot change has them constant.
  static constexpr bool kMembersMayChange = !std::is_const_v<decltype(rank_)>;

  const sagecomm_api& api_;
  std::atomic<sagecomm_group> group_; // 0: there is none
  const c10::intrusive_ptr<GroupOptions> options_; // its place matters, see options.hpp
  const c10::intrusive_ptr<c10d::Store> store_;
  const bool reconfigurable_;
  const std::string name_;
  const std::string handle_; // see get_reconfigure_handle()
  std::set<int64_t> uuids_; // that reconfigure() was called with; of the one that goes on
  // Of the present members: which reconfigure() named them, "" for none, and how often they were shrunk to these ranks.
  // Guarded by mutex_.
  std::string membership_;
  std::map<std::vector<int>, int> shrunk_;
  std::shared_ptr<const GroupInfo> info_; // replaced under mutex_; operations read it without
  Hooks& hooks_; // info_'s
  EphemeralTimeout& ephemeral_; // info_'s
  std::unique_ptr<Stacks> stacks_; // null: who called is not recorded
  std::atomic<bool> introduced_{false};
  Windows windows_;
  Titles titles_;
  std::atomic<int64_t> sparseCalls_{0};
  std::atomic<int64_t> timeoutMs_;
  // Of those that change the group, and of what they change. Who holds it waits for nobody and does not ask for the GIL:
  // reconfigure() waits for its peers without it.
  mutable std::mutex mutex_;
  std::atomic<bool> shutDown_{false};
  bool reconfiguring_ = false; // a thread is in reconfigure()
  std::atomic<bool> ended_{false}; // abort() or shutdown() was called since that began
  // These two are there before group_ becomes 0.
  std::atomic<uint64_t> lastSequence_{0}; // what was issued until the group was left
  std::shared_ptr<const sagecomm_error> cause_; // why the group had failed by then
};

} // namespace sagecomm
