// reconfigure.cpp gives a ProcessGroupSagecomm other members. Users name the members by handles, which their processes have
// passed to each other; the members meet in the store of the group. The core's old group stays until the new one has been
// made, so a reconfigure() that fails leaves the group as it was. One thread at a time may be inside.
#include <unistd.h>

#include <algorithm>
#include <iomanip>
#include <limits>
#include <random>
#include <sstream>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "call_in_core.hpp"
#include "core.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "members.hpp"
#include "process_group.hpp"

namespace sagecomm {

namespace {

constexpr const char* kHandleBegins = "sagecomm:";
constexpr int kRankDigits = 10; // a fixed width makes handles sort as ranks do

} // namespace

std::string newHandle(const GroupOptions& options, int rank) {
  const auto& global = options.global_ranks_in_group;
  const auto place = static_cast<size_t>(rank);
  std::random_device random;
  std::ostringstream handle;
  handle << kHandleBegins << std::setw(kRankDigits) << std::setfill('0')
         << (place < global.size() ? global[place] : place) << ':' << getpid() << ':' << std::hex << random()
         << random();
  return handle.str();
}

uint64_t globalRankOf(const std::string& handle) {
  const size_t begins = std::char_traits<char>::length(kHandleBegins);
  const std::string digits = handle.size() > begins ? handle.substr(begins, kRankDigits) : "";
  if (handle.rfind(kHandleBegins, 0) != 0 || digits.size() != kRankDigits ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    refuse(
        "reconfigure", "\"" + handle + "\" is not a handle of a sagecomm group; get_reconfigure_handle() returns one");
  }
  const uint64_t rank = std::stoull(digits);
  if (rank > std::numeric_limits<int32_t>::max()) {
    refuse("reconfigure", "\"" + handle + "\" names rank " + digits + " of the job, and there are no such ranks");
  }
  return rank;
}

bool ProcessGroupSagecomm::supportsReconfigure() const {
  return kMembersMayChange;
}

std::string ProcessGroupSagecomm::get_reconfigure_handle() const {
  return handle_;
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace {

constexpr OpInfo kReconfigure{c10d::OpType::UNKNOWN, "reconfigure", "sagecomm:reconfigure"};

// Returns the handles by rank: a list keeps its order, a set is sorted.
std::vector<std::string> inOrder(const c10d::ReconfigureOptions& opts) {
  std::vector<std::string> handles;
  std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); }, opts.handles);
  std::vector<std::string> sorted = handles;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    refuse("reconfigure", "a handle is given twice");
  }
  return std::holds_alternative<std::vector<std::string>>(opts.handles) ? handles : sorted;
}

// Refuses a uuid that ranks use for different members.
void claim(c10d::Store& store, int64_t uuid, const std::vector<std::string>& handles) {
  std::string members;
  for (const std::string& handle : handles) {
    members += handle + "\n";
  }
  if (store.compareSet("members", std::string(), members) != members) {
    refuse(
        "reconfigure",
        "uuid " + std::to_string(uuid) +
            " was already used, for other members or for the same in another order; give all ranks the same handles "
            "and "
            "a fresh uuid");
  }
}

template <class Int>
void become(Int& number, int value) {
  if constexpr (!std::is_const_v<Int>) {
    number = value;
  }
}

} // namespace

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::reconfigure(const c10d::ReconfigureOptions& opts) {
  refuseInChild();
  WithoutGil unlocked;
  bool another = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    another = std::exchange(reconfiguring_, true);
    if (!another) {
      interrupted_.store(false);
    }
  }
  if (another) {
    refuse(kReconfigure.name, "another thread is in reconfigure() of group " + name_ + "; wait until it has returned");
  }
  const auto atExit = c10::make_scope_exit([this] {
    std::lock_guard<std::mutex> lock(mutex_);
    reconfiguring_ = false;
  });
  if (shutDown_.load()) {
    refuseWithoutGroup(kReconfigure.name);
  }
  if (!kMembersMayChange) {
    refuse(kReconfigure.name, "this torch keeps rank and size of a group as they are");
  }
  const std::vector<std::string> handles = inOrder(opts);
  const auto options = optionsFrom(kReconfigure.name, nullptr);
  options->global_ranks_in_group.clear();
  for (const std::string& handle : handles) {
    options->global_ranks_in_group.push_back(globalRankOf(handle));
  }
  if (CallInCore::underWay(group_.load())) {
    refuse(kReconfigure.name, "a signal handler has called it in the middle of an operation of the group");
  }
  const auto mine = std::find(handles.begin(), handles.end(), handle_);
  if (mine == handles.end()) {
    refuse(kReconfigure.name, "the handle of this rank, " + handle_ + ", is not among those of the members");
  }
  if (!uuids_.insert(opts.uuid).second) {
    refuse(kReconfigure.name, "uuid " + std::to_string(opts.uuid) + " was already used; take a fresh one each time");
  }
  options->timeout = opts.timeout.value_or(options->timeout);
  for (const auto& [name, value] : opts.hints) {
    options->set(name, value);
  }
  const std::string prefix = "reconfigure/" + std::to_string(opts.uuid) + "/";
  const Seat seat{
      c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
      static_cast<int>(mine - handles.begin()),
      static_cast<int>(handles.size())};
  claim(*seat.store, opts.uuid, handles);
  const sagecomm_group group = join(seat, *options, &interrupted_);
  if (group == 0) {
    refuseInterrupted();
  }
  // What a signal handler raises, and the failure of the old members, are raised when the new ones are there. If they do not come, a later call
  // raises that failure.
  const std::exception_ptr raised = destroyGroup(group_.load(), Wait::kBrief);
  const auto failed = raised ? nullptr : cause();
  const bool untold = failed != nullptr && failure_.isUntold(*failed);
  if (!install(group, seat, *options, opts.uuid)) {
    if (!shutDown_.load()) {
      api_.group_abort(group, "abort() was called", nullptr);
    }
    api_.group_destroy(group, nullptr);
    if (raised) {
      std::rethrow_exception(raised);
    }
    refuseInterrupted();
  }
  if (raised) {
    std::rethrow_exception(raised);
  }
  if (untold) {
    raiseUntold(*failed);
  }
  return completed(kReconfigure);
}

bool ProcessGroupSagecomm::install(sagecomm_group group, const Seat& seat, const GroupOptions& options, int64_t uuid) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (interrupted_.load()) {
    return false;
  }
  api_.group_set_timeout(group, toNs(std::chrono::milliseconds(timeoutMs_.load())), nullptr);
  cause_ = nullptr;
  membership_ = ":" + std::to_string(uuid);
  shrunk_.clear();
  become(rank_, seat.rank);
  become(size_, seat.size);
  options_->global_ranks_in_group = options.global_ranks_in_group;
  options_->settings = options.settings; // including the hints
  info_ = std::make_shared<GroupInfo>(
      GroupInfo{name_, seat.rank, info_->hooks, info_->ephemeralTimeout, group, blocks(api_, group), info_->failure});
  failure_.reset(group, seat.rank);
  stacks_ = Stacks::of(api_, group);
  described_.store(false);
  lastSequence_.store(0);
  group_.store(group);
  Hooks::watchNext(info_->hooks, api_, group);
  return true;
}

// A group that is not reconfigurable() keeps the error, because it has no other reason to give for having no members.
void ProcessGroupSagecomm::refuseInterrupted() {
  if (shutDown_.load()) {
    refuseWithoutGroup(kReconfigure.name);
  }
  sagecomm_error error;
  fillError(
      error,
      SAGECOMM_ABORTED,
      kReconfigure.name,
      name_,
      "abort() was called on rank " + std::to_string(rank_) + " of group " + name_ +
          " before its next members had met; call it again on all of them with a fresh uuid");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cause_ == nullptr && group_.load() == 0 && !reconfigurable_) {
      cause_ = std::make_shared<sagecomm_error>(error);
    }
  }
  raise(error);
}

#endif

} // namespace sagecomm
