// process_group.cpp holds the life of ProcessGroupSagecomm: construction, destruction, abort, hooks.
#include "process_group.hpp"

#include <c10/util/ScopeExit.h>

#include "call_in_core.hpp"
#include "core.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "in_flight.hpp"
#include "members.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

ProcessGroupSagecomm::ProcessGroupSagecomm(
    sagecomm_group group, const Seat& seat, c10::intrusive_ptr<GroupOptions> options)
    : Backend(seat.rank, seat.size),
      api_(core()),
      group_(group),
      options_(std::move(options)),
      store_(seat.store),
      reconfigurable_(group == 0),
      devices_(options_->devices),
      name_(options_->group_name),
      handle_(newHandle(*options_, seat.rank)),
      info_(
          std::make_shared<GroupInfo>(GroupInfo{
              name_,
              seat.rank,
              std::make_shared<Hooks>(),
              std::make_shared<EphemeralTimeout>(),
              group,
              blocks(api_, group),
              std::make_shared<FailureReport>(group, seat.rank)})),
      hooks_(*info_->hooks),
      ephemeralTimeout_(*info_->ephemeralTimeout),
      failure_(*info_->failure),
      stacks_(Stacks::of(api_, group)),
      profilerNames_(options_->group_name),
      timeoutMs_(options_->timeout.count()) {
  init();
  // Torch's description comes later, and a rank may fail before its first operation.
  if (group != 0 && !options_->group_desc.empty()) {
    api_.group_describe(group, options_->group_desc.c_str(), nullptr);
  }
}

ProcessGroupSagecomm::~ProcessGroupSagecomm() {
  destroy(Wait::kDeaf);
}

void ProcessGroupSagecomm::describeGroup() {
  described_.store(true, std::memory_order_relaxed);
  api_.group_describe(group_, pg_desc_.c_str(), nullptr); // the next call refuses a group that is gone
}

namespace {

// A signal handler has raised on this thread: groups end at once.
thread_local bool hurried = false;

// Calls a function of sagecomm._endings. Returns false where no thread may take the GIL any more.
template <class... Args>
bool askEndings(const char* function, Args... args) {
  std::optional<CompletionGate> gate(std::in_place);
  if (!mayTakeGil(*gate)) {
    return false;
  }
  pybind11::gil_scoped_acquire gil;
  gate.reset();
  return pybind11::module_::import("sagecomm._endings").attr(function)(args...).template cast<bool>();
}

} // namespace

// A destructor raises nothing, so this is the last call that can. Signal handlers run in the Python that it calls, too.
void ProcessGroupSagecomm::shutdown() {
  if (forked() || exiting()) {
    return;
  }
  std::exception_ptr raised;
  const bool nested = hurried;
  const auto atExit = c10::make_scope_exit([nested] { hurried = nested; });
  if (!shutDown_.load()) {
    Wait wait = Wait::kBrief;
    try {
      wait = askEndings("may_wait") ? Wait::kFull : Wait::kBrief;
    } catch (...) {
      raised = std::current_exception();
      hurried = true;
    }
    const std::exception_ptr inWait = destroy(wait);
    raised = raised ? raised : inWait;
  }
  if (raised) {
    hurried = true;
    try {
      askEndings("forget");
    } catch (...) { // of another signal; the first one is raised
    }
    std::rethrow_exception(raised);
  }
  if (const auto failed = takeUntold(); failed && askEndings("may_raise", true)) {
    raise(*failed);
  }
}

bool ProcessGroupSagecomm::blocks(const sagecomm_api& api, sagecomm_group group) {
  return group != 0 && api.group_blocking_wait(group) != 0;
}

std::shared_ptr<const sagecomm_error> ProcessGroupSagecomm::takeUntold() {
  WithoutGil unlocked;
  auto failed = cause();
  return failed != nullptr && failure_.takeUntold(*failed) ? failed : nullptr;
}

// torch has to keep the groups, also where it is about to destroy them below this call.
void ProcessGroupSagecomm::raiseUntold(const sagecomm_error& failed) {
  if (askEndings("may_raise", false)) {
    raise(failed);
  }
}

std::exception_ptr ProcessGroupSagecomm::destroy(Wait wait) noexcept {
  if (forked() || exiting() || shutDown_.load()) {
    return nullptr;
  }
  WithoutGil unlocked;
  sagecomm_group group = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (shutDown_.exchange(true)) {
      return nullptr;
    }
    interrupted_.store(true);
    group = group_.load();
  }
  return destroyGroup(group, wait);
}

// Behind an exception the group ends at once.
std::exception_ptr ProcessGroupSagecomm::settle(sagecomm_group group, Wait wait) const {
  const auto how = hurried ? SAGECOMM_SETTLE_NOW : wait == Wait::kFull ? SAGECOMM_SETTLE_FULL : SAGECOMM_SETTLE_BRIEF;
  bool broken = false;
  try {
    while (api_.group_settle(group, waits().slice_ns, how, nullptr) == SAGECOMM_PENDING) {
      broken = broken || InFlight::failIfBroken(group);
      if (wait != Wait::kDeaf) {
        checkSignals();
      }
    }
    InFlight::sweepAll();
  } catch (...) {
    api_.group_settle(group, 0, SAGECOMM_SETTLE_NOW, nullptr);
    return std::current_exception();
  }
  return nullptr;
}

// Ignores errors of group_destroy(). A signal handler that is called in the middle of an operation of the group only ends that: who has issued
// it destroys the group behind it. The cause of a failure is kept for later calls of this object; the verdict of a group over several hosts may
// come while it is destroyed.
std::exception_ptr ProcessGroupSagecomm::destroyGroup(sagecomm_group group, Wait wait) {
  if (C10_UNLIKELY(CallInCore::destroysAtItsEnd(group))) {
    sagecomm_error ignored;
    api_.group_abort(group, "a signal handler has destroyed the group in the middle of an operation", &ignored);
    return nullptr;
  }
  std::shared_ptr<const sagecomm_error> before;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (group == 0 || group_.load() != group) {
      return nullptr;
    }
    lastSequence_.store(api_.group_sequence(group));
    auto cause = std::make_shared<sagecomm_error>();
    if (api_.group_error(group, cause.get()) < 0) {
      cause_ = std::move(cause);
    }
    before = cause_;
    ending_.store(group);
    group_.store(0);
  }
  std::exception_ptr raised = settle(group, wait);
  auto last = std::make_shared<sagecomm_error>();
  const int32_t status = api_.group_destroy(group, last.get());
  sagecomm_group own = group;
  ending_.compare_exchange_strong(own, 0);
  if (status == SAGECOMM_OK && last->status < 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (group_.load() == 0 && cause_ == before) { // else reconfigure() has given it other members meanwhile
      cause_ = std::move(last);
    }
  }
  hooks_.awaitAbortHooks();
  return raised;
}

// A group that reconfigure() can give other members has none afterwards, as before its first reconfigure(). The wait of another thread that
// destroys the group ends.
void ProcessGroupSagecomm::abort() {
  if (exiting() || (shutDown_.load() && (forked() || (group_.load() == 0 && ending_.load() == 0)))) {
    return;
  }
  refuseInChild();
  WithoutGil unlocked;
  sagecomm_group group = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    interrupted_.store(true);
    group = group_.load();
    if (group == 0) {
      group = ending_.load();
    }
  }
  failure_.aborted(group);
  failAll(group, "abort() was called");
  if (reconfigurable_) {
    destroyGroup(group, Wait::kDeaf);
  }
}

// A group that another thread has destroyed meanwhile has no operations left to fail.
void ProcessGroupSagecomm::failAll(sagecomm_group group, const char* reason) const {
  WithoutGil unlocked;
  sagecomm_error error;
  if (group != 0 && api_.group_abort(group, reason, &error) < 0 &&
      (error.status != SAGECOMM_INVALID || group_.load() == group)) {
    raise(error);
  }
}

std::shared_ptr<const sagecomm_error> ProcessGroupSagecomm::cause() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return cause_;
}

// The error comes from the core, which refuses every call of a forked child.
void ProcessGroupSagecomm::refuseInChild() const {
  if (C10_UNLIKELY(forked())) {
    sagecomm_error error;
    api_.group_error(group_.load(), &error);
    raise(error);
  }
}

void ProcessGroupSagecomm::refuseWithoutGroup(const char* op) const {
  refuseInChild();
  if (const auto first = cause()) {
    raise(*first);
  }
  if (!shutDown_.load()) {
    bool changing = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      changing = reconfiguring_;
    }
    if (changing) {
      refuse(
          op, "reconfigure() of group " + name_ + " has not returned, and there are no members meanwhile; wait for it");
    }
    refuse(
        op,
        "group " + name_ + " was created with enable_reconfigure and has no members yet; name them with reconfigure()");
  }
  sagecomm_error error;
  fillError(
      error,
      SAGECOMM_ABORTED,
      op,
      name_,
      "rank " + std::to_string(rank_) + " has shut group " + name_ + " down; create a new group");
  raise(error);
}

// ---- hooks ----

bool ProcessGroupSagecomm::supportsAbortHooks() const {
  return true;
}

// The first abort hook has the core watch the group.
void ProcessGroupSagecomm::registerAbortHook(int64_t id, AbortFn hook) {
  hooks_.addAbort(id, std::move(hook));
  if (!shutDown_.load() && !forked()) {
    WithoutGil unlocked;
    std::lock_guard<std::mutex> lock(mutex_); // reconfigure() must see the group watched, or not replace it yet
    Hooks::watch(info_->hooks, api_, group_);
  }
}

void ProcessGroupSagecomm::unregisterAbortHook(int64_t id) {
  hooks_.removeAbort(id);
}

bool ProcessGroupSagecomm::supportsCompletionHooks() const {
  return CompletionHooks<c10d::CompletionHookArgs>::kKnown;
}

void ProcessGroupSagecomm::registerCompletionHook(int64_t id, TorchCompletionHook hook) {
  addCompletionHook(id, [hook = std::move(hook)](uint64_t key, std::optional<float> ms) {
    CompletionHooks<c10d::CompletionHookArgs>::call(hook, key, ms);
  });
}

void ProcessGroupSagecomm::addCompletionHook(int64_t id, CompletionFn hook) {
  hooks_.addCompletion(id, std::move(hook));
}

void ProcessGroupSagecomm::unregisterCompletionHook(int64_t id) {
  hooks_.removeCompletion(id);
}

void ProcessGroupSagecomm::registerOnCompletionHook(WorkInfoFn&& hook) {
  hooks_.setWorkInfo(std::move(hook));
  onCompletionHook_ = [](const std::shared_ptr<c10d::WorkInfo>&) {}; // hasHooks() looks for it; hooks_ runs the hook
}

void ProcessGroupSagecomm::waitForPendingWorks() {
  WithoutGil unlocked;
  bool broken = false;
  hooks_.waitForPending([&] { broken = broken || InFlight::failIfBroken(group_.load()); });
}

void ProcessGroupSagecomm::enableCollectivesTiming() {
  hooks_.measureAlways();
}

// ---- memory for tensors ----

namespace {

[[noreturn]] void refuseAllocation(const char* call) {
  refuse(call, "sagecomm allocates no tensors; allocate them with torch, any memory will do");
}

} // namespace

std::shared_ptr<c10::Allocator> ProcessGroupSagecomm::getMemAllocator() {
  refuseAllocation("mem_allocator");
}

at::Tensor ProcessGroupSagecomm::allocateTensor(long /*size*/, at::TensorOptions /*options*/) {
  refuseAllocation("allocate_tensor");
}

bool ProcessGroupSagecomm::supportsTensorAlloc(c10::DeviceIndex /*device*/) {
  return false;
}

int64_t ProcessGroupSagecomm::groupNumber() const {
  refuseInChild();
  WithoutGil unlocked;
  return ask([&](sagecomm_group group) -> int64_t {
    if (group == 0) {
      refuseWithoutGroup("explain");
    }
    return static_cast<int64_t>(group);
  });
}

std::string ProcessGroupSagecomm::statsJson() const {
  refuseInChild();
  WithoutGil unlocked;
  std::string json(4096, '\0');
  const int64_t needed = ask([&](sagecomm_group group) -> int64_t {
    if (group == 0) {
      refuseWithoutGroup("get_stats");
    }
    for (;;) {
      const int64_t bytes = api_.group_stats(group, json.data(), json.size());
      if (bytes <= static_cast<int64_t>(json.size())) {
        return bytes;
      }
      json.resize(static_cast<size_t>(bytes) * 2);
    }
  });
  TORCH_CHECK(needed >= 0, "sagecomm: statistics of group ", name_, " are not available: status ", needed);
  json.resize(static_cast<size_t>(std::max<int64_t>(needed - 1, 0)));
  return json;
}

} // namespace sagecomm
