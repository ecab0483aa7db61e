// members.cpp makes ProcessGroupSagecomms: for torch, and out of other groups (split, merge, shrink).
#include "members.hpp"

#include <algorithm>
#include <utility>

#include <c10/util/hash.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "checks.hpp"
#include "core.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "lasting_store.hpp"
#include "process_group.hpp"
#include "store.hpp"

namespace sagecomm {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

sagecomm_group ProcessGroupSagecomm::join(
    const Seat& seat, const GroupOptions& options, const std::atomic<bool>* interrupted) {
  std::vector<sagecomm_option> settings;
  for (const auto& [name, value] : options.settings) {
    settings.push_back({name.c_str(), value.c_str()});
  }
  Interruption interruption{interrupted, nullptr};
  StoreView store(seat.store, interruption);
  LastingStore lasting(seat.store, std::chrono::nanoseconds(toNs(options.timeout)), interruption);
  sagecomm_group_config config{};
  config.struct_size = sizeof config;
  config.rank = seat.rank;
  config.size = seat.size;
  config.name = options.group_name.c_str();
  config.timeout_ns = toNs(options.timeout);
  config.store = store.view();
  config.lasting = lasting.view();
  config.options = settings.data();
  config.n_options = static_cast<uint32_t>(settings.size());
  const auto& global = options.global_ranks_in_group;
  const std::vector<int32_t> globalRanks(global.begin(), global.end());
  if (globalRanks.size() == static_cast<size_t>(seat.size)) {
    config.global_ranks = globalRanks.data();
  }
  sagecomm_group group = 0;
  sagecomm_error error;
  WithoutGil unlocked;
  if (core().group_create(&config, &group, &error) < 0) {
    if (interruption.raised) {
      std::rethrow_exception(interruption.raised);
    }
    if (interrupted != nullptr && interrupted->load()) {
      return 0;
    }
    raise(error);
  }
  if (interruption.raised) { // the group was made without the store that lasts
    core().group_destroy(group, nullptr);
    std::rethrow_exception(interruption.raised);
  }
  return group;
}

c10::intrusive_ptr<ProcessGroupSagecomm> ProcessGroupSagecomm::make(
    const Seat& seat, const c10::intrusive_ptr<GroupOptions>& options) {
  const sagecomm_group group = join(seat, *options);
  return c10::make_intrusive<ProcessGroupSagecomm>(group, seat, options);
}

c10::intrusive_ptr<ProcessGroupSagecomm> ProcessGroupSagecomm::create(
    const c10d::DistributedBackendOptions& opts, const c10::intrusive_ptr<GroupOptions>& options) {
  options->group_name = opts.group_id;
  options->global_ranks_in_group.assign(opts.global_ranks_in_group.begin(), opts.global_ranks_in_group.end());
  const Seat seat{opts.store, opts.group_rank, opts.group_size};
  if (wantsReconfigure(opts) || wantsReconfigure(*options)) {
    return c10::make_intrusive<ProcessGroupSagecomm>(0, seat, options);
  }
  return make(seat, options);
}

// ---- out of another group ----

c10::intrusive_ptr<GroupOptions> ProcessGroupSagecomm::optionsFrom(
    const char* call, const c10::intrusive_ptr<Options>& given) const {
  if (!given) {
    std::lock_guard<std::mutex> lock(mutex_);
    return options_->copy();
  }
  // Not c10::dynamic_intrusive_pointer_cast(), which loses the reference where the cast fails.
  const auto* const own = dynamic_cast<const GroupOptions*>(given.get());
  if (own == nullptr) {
    refuse(call, "takes options of a sagecomm group, such as backend.options, got those of " + given->backend);
  }
  const auto options = own->copy();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    options->devices = options_->devices;
  }
  if (options->ownTimeout) {
    options->timeout = *std::exchange(options->ownTimeout, std::nullopt);
  } else if (options->timeout < std::chrono::milliseconds(0)) {
    options->timeout = std::chrono::milliseconds(timeoutMs_.load());
  }
  return options;
}

std::vector<uint64_t> ProcessGroupSagecomm::globalRanks(const std::vector<int>& ranks) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<uint64_t>& mine = options_->global_ranks_in_group; // empty: the same as in the group
  std::vector<uint64_t> global;
  for (const int rank : ranks) {
    global.push_back(mine.empty() ? static_cast<uint64_t>(rank) : mine[rank]);
  }
  return global;
}

bool ProcessGroupSagecomm::supportsSplitting() const {
  return true;
}

bool ProcessGroupSagecomm::isInitialized() {
  return group_.load() != 0;
}

BackendPtr ProcessGroupSagecomm::split(
    const StorePtr& store, const std::vector<int>& ranks, const c10::intrusive_ptr<Options>& opts) {
  refuseInChild();
  for (const int rank : ranks) {
    checkRank("split", "member", rank, size_);
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  const auto options = optionsFrom("split", opts);
  options->global_ranks_in_group = globalRanks(ranks);
  return make({store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size())}, options);
}

// Ranks of several jobs have no common numbers, so the merged group has no global ranks.
BackendPtr ProcessGroupSagecomm::merge(
    const StorePtr& store, const c10::intrusive_ptr<Options>& opts, const int& rank, const int& size) {
  refuseInChild();
  const auto options = optionsFrom("merge", opts);
  options->global_ranks_in_group.clear();
  return make({c10::make_intrusive<c10d::PrefixStore>("merge/", store), rank, size}, options);
}

bool ProcessGroupSagecomm::supportsShrinking() const {
  return true;
}

BackendPtr ProcessGroupSagecomm::shrink(
    const std::vector<int64_t>& excluded, int flags, const c10::intrusive_ptr<Options>& opts) {
  constexpr int kAbort = 1; // torch.distributed.SHRINK_ABORT
  refuseInChild();
  for (const int64_t rank : excluded) {
    checkRank("shrink", "excluded", rank, size_);
    if (rank == rank_) {
      refuse("shrink", "rank " + std::to_string(rank_) + " is to be excluded; only those that stay call it");
    }
  }
  if (flags != 0 && flags != kAbort) {
    refuse("shrink", "knows no flags " + std::to_string(flags) + ", only SHRINK_DEFAULT and SHRINK_ABORT");
  }
  std::vector<int> staying;
  std::string names;
  for (int rank = 0; rank < size_; rank++) {
    if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end()) {
      staying.push_back(rank);
      names += (names.empty() ? "" : ",") + std::to_string(rank);
    }
  }
  if (flags == kAbort) {
    failAll(group_.load(), "it is shrunk, with what was on its way aborted");
  }
  const auto options = optionsFrom("shrink", opts);
  // Groups of other ranks have other names. All ranks shrink to the same ranks in the same order, so a count
  // distinguishes repeated shrinks. The count is in the name and not in the store's keys: if an earlier shrink
  // failed on some ranks only, their counts differ, and the ranks meet with different names and report the
  // difference.
  constexpr size_t kDigits = 12; // of SHA-1, as torch names its groups
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const int before = shrunk_[staying];
    options->group_name = name_ + ":shrunk:" + c10::sha1(names).str().substr(0, kDigits) + membership_ +
                          (before == 0 ? "" : "." + std::to_string(before));
  }
  options->global_ranks_in_group = globalRanks(staying);
  const auto mine = std::find(staying.begin(), staying.end(), rank_) - staying.begin();
  const StorePtr store = c10::make_intrusive<c10d::PrefixStore>("shrink/" + names + "/", store_);
  BackendPtr made = make({store, static_cast<int>(mine), static_cast<int>(staying.size())}, options);
  std::lock_guard<std::mutex> lock(mutex_);
  shrunk_[staying]++;
  return made;
}

} // namespace sagecomm
