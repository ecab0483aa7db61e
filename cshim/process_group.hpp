// process_group.hpp is the c10d backend "sagecomm". It translates calls of torch into calls of the core (sagecomm.h) and
// decides nothing: what an operation does, how long it may take and what is an error is decided by the core. Torch calls
// it on any thread, mostly without the GIL. Operations that are not overridden here keep the base class's refusal, which
// names backend and operation.
//
// Files: operations.cpp and coalesced.cpp describe operations, issue.cpp and issue_all.cpp issue them, members.cpp makes groups,
// reconfigure.cpp replaces the members of a group, properties.cpp answers questions, process_group.cpp has the rest. Start reading
// in operations.cpp.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <type_traits>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "compat.hpp"
#include "devices.hpp"
#include "ephemeral_timeout.hpp"
#include "hooks.hpp"
#include "options.hpp"
#include "sagecomm.h"
#include "stacks.hpp"
#include "tensors.hpp"
#include "profiler_names.hpp"
#include "window.hpp"
#include "work.hpp"

namespace sagecomm {

// Turns orders the calls that queue collectives on a device, see issue.cpp. Who has the line comes next to the queue, which threads share
// or have alone: a shared mutex by itself lets those that share it pass one that waits to be alone, for ever.
struct Turns {
  std::timed_mutex line;
  std::shared_timed_mutex queue;
};

class ProcessGroupSagecomm final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  // The place of a process in a group that it makes with others.
  struct Seat {
    c10::intrusive_ptr<c10d::Store> store; // the stores of all members show the same keys
    int rank;
    int size;
  };

  // Collective: returns when all ranks have joined through the store, or at once for a group whose members reconfigure()
  // will name. Called without the GIL.
  static c10::intrusive_ptr<ProcessGroupSagecomm> create(
      const c10d::DistributedBackendOptions& opts, const c10::intrusive_ptr<GroupOptions>& options);

  // Takes over a group of the core; 0: reconfigure() will make it.
  ProcessGroupSagecomm(sagecomm_group group, const Seat& seat, c10::intrusive_ptr<GroupOptions> options);
  ~ProcessGroupSagecomm() override;

  // ---- other groups, see members.cpp. Collective over the members of the new group only. ----

  bool supportsSplitting() const; // virtual, as are all of these, in newer torch
  bool isInitialized();
  // Returns null on a rank that is not among `ranks`. Their order is that of the new group.
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
  // Called by the ranks that stay. It uses only the store of this group, so the group may have failed.
  c10::intrusive_ptr<Backend> shrink(
      const std::vector<int64_t>& excluded, int flags, const c10::intrusive_ptr<Options>& opts);

  // ---- other members for this group, see reconfigure.cpp. No operation may be issued while reconfigure() runs. Anything
  // else may be called, and abort() and shutdown() interrupt it. ----

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
  // Its error names all missing ranks in any case; with `waitAllRanks` the part in gloo's words does so, too.
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
  // Open and close a coalescing window, see window.hpp.
  // Whether this thread's calls are collected until a coalescing window closes.
  bool collects() {
    return windows_.collects();
  }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  // Issues several p2p operations at once, in the form that torch_npu's dist.batch_isend_irecv() calls. Torch has no such
  // virtual.
  WorkPtr batchIsendIrecv(
      const std::vector<std::string>& kinds, const Tensors& tensors, const std::vector<int64_t>& peers);

  // Hooks, see hooks.hpp. Functions that an older torch does not declare are called by sagecomm's own bindings only.
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

  // Sagecomm allocates no tensors: these refuse. Virtual in newer torch.
  std::shared_ptr<c10::Allocator> getMemAllocator();
  at::Tensor allocateTensor(long size, at::TensorOptions options);
  bool supportsTensorAlloc(c10::DeviceIndex device);

  // The core's statistics of this group, as JSON.
  std::string statsJson() const;
  // The handle of the core's group, for questions about it.
  int64_t groupNumber() const;

 private:
  friend class CallInCore;

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
  // Returns the Work of an operation that had nothing to do.
  WorkPtr completed(const OpInfo& info);
  // What the core returns of an operation that it has issued, see sagecomm_api::issue.
  struct Issued {
    sagecomm_work work = 0;
    uint64_t sequence = 0;
  };
  std::optional<c10::Device> deviceOfBarrier(const c10d::BarrierOptions& opts) const;
  // Returns what a Work needs of the present members, while reconfigure() may replace them.
  std::shared_ptr<const GroupInfo> members() const;
  int32_t issue(sagecomm_group group, const Call& call, Issued& issued, sagecomm_error& error) const;
  int32_t issueProfiled(sagecomm_group group, const Call& call, Issued& issued, sagecomm_error& error) const;
  // Calls `issue` inside a "record_param_comms" range. Torch's trace analysers expect one per operation.
  void recordParams(
      const char* name,
      uint64_t sequence,
      bool p2p,
      c10::ArrayRef<at::Tensor> inputs,
      c10::ArrayRef<at::Tensor> outputs,
      const std::function<void()>& issue) const;
  // Gives the core torch's description of the group, which torch sets only after it has made the backend.
  void describeGroup();
  // Joins a group of the core. `options` has its name, timeout and global ranks. Returns 0 if `interrupted` became true
  // while it waited for the other ranks.
  static sagecomm_group join(
      const Seat& seat, const GroupOptions& options, const std::atomic<bool>* interrupted = nullptr);
  static c10::intrusive_ptr<ProcessGroupSagecomm> make(
      const Seat& seat, const c10::intrusive_ptr<GroupOptions>& options);
  // Returns options for a group that is made out of this one: `given`, or this group's if that is null.
  c10::intrusive_ptr<GroupOptions> optionsFrom(const char* call, const c10::intrusive_ptr<Options>& given) const;
  std::vector<uint64_t> globalRanks(const std::vector<int>& ranks) const;
  void failAll(sagecomm_group group, const char* reason) const;
  // How long the end of a group waits for operations on devices: as long as they may take, or briefly. It looks for signals meanwhile, but for
  // kDeaf, which is brief.
  enum class Wait { kFull, kBrief, kDeaf };
  // Destroys that group of the core, unless another thread has, and keeps the cause of its failure and its last number. Returns what a
  // signal handler has raised, which ends the wait.
  std::exception_ptr destroyGroup(sagecomm_group group, Wait wait);
  std::exception_ptr settle(sagecomm_group group, Wait wait) const;
  std::exception_ptr destroy(Wait wait) noexcept;
  // Returns why a group that was destroyed had failed, if that has left outputs undefined and no call has raised it; else null.
  std::shared_ptr<const sagecomm_error> takeUntold();
  // Raises the failure of members that reconfigure() has replaced, unless an exception is being handled.
  static void raiseUntold(const sagecomm_error& failed);
  static bool blocks(const sagecomm_api& api, sagecomm_group group);
  // Returns question(group) for the core's present group, 0 if there is none. Asks again if the group has changed
  // meanwhile, because the core refuses a stale handle.
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
  // Raises the reason why there is no group of the core.
  [[noreturn]] void refuseWithoutGroup(const char* op) const;
  // Refuses a call in a forked child that would use the store, or a lock that a thread of the parent may hold.
  void refuseInChild() const;
  // Makes the group that reconfigure() has joined the present one. Returns false if abort() or shutdown() was called.
  bool install(sagecomm_group group, const Seat& seat, const GroupOptions& options, int64_t uuid);
  // Raises the error of a reconfigure() that abort() or shutdown() has interrupted.
  [[noreturn]] void refuseInterrupted();
  std::shared_ptr<const sagecomm_error> cause() const;

  // Rank and size are constants in torch whose groups cannot change members.
  static constexpr bool kMembersMayChange = !std::is_const_v<decltype(rank_)>;

  const sagecomm_api& api_;
  std::atomic<sagecomm_group> group_; // the core's; 0: there is none
  const c10::intrusive_ptr<GroupOptions> options_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const bool reconfigurable_;
  const Devices devices_; // whose tensors the group takes
  const std::string name_;
  const std::string handle_; // see get_reconfigure_handle()
  std::set<int64_t> uuids_; // all that reconfigure() was called with; used by the one thread inside it
  std::string membership_; // names the reconfigure() that set the members, "" for none; guarded by mutex_
  std::map<std::vector<int>, int> shrunk_; // how often the members were shrunk to these ranks; guarded by mutex_
  // Replaced under mutex_. Operations on the CPU without copies read it without the lock.
  std::shared_ptr<const GroupInfo> info_;
  Hooks& hooks_; // info_'s
  EphemeralTimeout& ephemeralTimeout_; // info_'s
  FailureReport& failure_; // info_'s
  std::unique_ptr<Stacks> stacks_; // null: the group records no stacks
  std::atomic<bool> described_{false}; // describeGroup() was called
  Windows windows_;
  Turns turns_;
  ProfilerNames profilerNames_;
  std::atomic<int64_t> timeoutMs_;
  // Guards what changes the group. A thread that holds it waits for nothing and does not ask for the GIL; reconfigure()
  // waits for its peers without it.
  mutable std::mutex mutex_;
  std::atomic<bool> shutDown_{false};
  bool reconfiguring_ = false; // a thread is in reconfigure()
  std::atomic<bool> interrupted_{false}; // abort() or shutdown() was called since reconfigure() began
  std::atomic<sagecomm_group> ending_{0}; // the core's group that a thread destroys, for abort()
  // The next two are set before group_ becomes 0.
  std::atomic<uint64_t> lastSequence_{0}; // the number of the last collective of the destroyed group
  std::shared_ptr<const sagecomm_error> cause_; // why the destroyed group had failed; null: it had not
};

} // namespace sagecomm
