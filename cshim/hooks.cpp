// hooks.cpp runs the hooks of a group and waits for them. See hooks.hpp for the threads.
#include "hooks.hpp"

#include <pybind11/pybind11.h>

#include "core.hpp"
#include "gil.hpp"

namespace sagecomm {

namespace {

// Runs a hook. No caller can receive its exceptions: Python's go to sys.unraisablehook, others to torch's log.
template <class F>
void callHook(const char* what, F&& hook) noexcept {
  try {
    hook();
  } catch (pybind11::error_already_set& e) {
    pybind11::gil_scoped_acquire gil;
    e.discard_as_unraisable(what);
  } catch (const std::exception& e) {
    LOG(ERROR) << "sagecomm: " << what << " raised: " << e.what();
  } catch (...) {
    LOG(ERROR) << "sagecomm: " << what << " raised something that is no exception";
  }
}

void checkAdded(bool added, const char* what, int64_t id) {
  TORCH_CHECK(added, "sagecomm: ", what, " ", id, " is registered already; unregister it first, or use another id");
}

} // namespace

uint64_t CompletionKey::next() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

uint64_t CompletionKey::make() const {
  uint64_t none = 0;
  const uint64_t mine = next();
  return key_.compare_exchange_strong(none, mine, std::memory_order_relaxed) ? mine : none;
}

std::optional<float> Stopwatch::milliseconds() const {
  if (!runs()) {
    return std::nullopt;
  }
  return std::chrono::duration<float, std::milli>(ended_ - began_).count();
}

float Stopwatch::duration(const char* op) const {
  const std::optional<float> ms = milliseconds();
  TORCH_CHECK(
      ms.has_value(),
      "sagecomm: ",
      op,
      ": its duration was not measured; call _enable_collectives_timing() of the group before the operation");
  return *ms;
}

// ---- operations ----

void Hooks::succeeded(const Success& work) const {
  if (!listening()) {
    return;
  }
  const auto hooks = completion_.all();
  const std::optional<float> ms = work.watch.milliseconds();
  for (const auto& [_, hook] : *hooks) {
    callHook("a completion hook", [&, &hook = hook] { (*hook)(work.key.get(), ms); });
    for (const uint64_t key : work.memberKeys) {
      callHook("a completion hook", [&, &hook = hook] { (*hook)(key, ms); });
    }
  }
  const auto infos = workInfo_.all();
  for (const auto& [_, hook] : *infos) {
    callHook("the completion hook", [&, &hook = hook] {
      const auto now = Stopwatch::Clock::now();
      const std::chrono::duration<float, std::milli> active(ms.value_or(0));
      const auto began = work.watch.runs() ? work.watch.began() : now;
      const auto ended = began + std::chrono::duration_cast<Stopwatch::Clock::duration>(active);
      (*hook)(std::make_shared<c10d::WorkInfo>(work.type, work.sequence, began, ended, active));
    });
  }
}

void Hooks::ended() {
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }
}

void Hooks::waitForPending(const std::function<void()>& look) {
  while (pending_.load(std::memory_order_acquire) > 0 && !exiting()) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, std::chrono::nanoseconds(waits().slice_ns), [this] { return pending_.load() == 0; });
    }
    look();
    checkSignals();
  }
}

void Hooks::listen() {
  timed_.store(alwaysTimed_.load() || !completion_.all()->empty() || !workInfo_.all()->empty());
}

void Hooks::addCompletion(int64_t id, CompletionFn hook) {
  checkAdded(completion_.add(id, std::move(hook)), "completion hook", id);
  listen();
}

void Hooks::removeCompletion(int64_t id) {
  completion_.remove(id);
  listen();
}

void Hooks::setWorkInfo(WorkInfoFn hook) {
  TORCH_CHECK(
      workInfo_.add(0, std::move(hook)), "sagecomm: the group has a completion hook already, and torch allows one");
  listen();
}

// ---- failure ----

void Hooks::addAbort(int64_t id, AbortFn hook) {
  checkAdded(abort_.add(id, std::move(hook)), "abort hook", id);
}

void Hooks::removeAbort(int64_t id) {
  abort_.remove(id);
}

void Hooks::watch(const std::shared_ptr<Hooks>& hooks, const sagecomm_api& api, sagecomm_group group) {
  {
    std::lock_guard<std::mutex> lock(hooks->mutex_);
    if (std::exchange(hooks->watched_, true)) {
      return;
    }
    hooks->expected_++;
  }
  auto ctx = std::make_unique<std::shared_ptr<Hooks>>(hooks);
  if (api.group_on_failure(group, &Hooks::groupFailed, ctx.get(), nullptr) == SAGECOMM_OK) {
    static_cast<void>(ctx.release());
  } else {
    std::lock_guard<std::mutex> lock(hooks->mutex_);
    hooks->expected_--;
  }
}

void Hooks::watchNext(const std::shared_ptr<Hooks>& hooks, const sagecomm_api& api, sagecomm_group group) {
  bool before = false;
  {
    std::lock_guard<std::mutex> lock(hooks->mutex_);
    before = std::exchange(hooks->watched_, false);
  }
  if (before) {
    watch(hooks, api, group);
  }
}

// The core calls it once per watched group, on a thread of its own. `ctx` is the pointer that watch() made.
void Hooks::groupFailed(void* ctx, const sagecomm_error* cause) noexcept {
  CompletionGate gate; // shutdownCore() waits for the hooks
  if (!gate.open()) {
    return; // the hooks and the objects that they hold are kept until the process ends
  }
  const std::unique_ptr<std::shared_ptr<Hooks>> owned(static_cast<std::shared_ptr<Hooks>*>(ctx));
  Hooks& hooks = **owned;
  if (cause != nullptr) {
    hooks.runAbortHooks();
  }
  std::lock_guard<std::mutex> lock(hooks.mutex_);
  hooks.expected_--;
  hooks.changed_.notify_all();
}

void Hooks::runAbortHooks() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborting_ = std::this_thread::get_id();
  }
  const auto hooks = abort_.all();
  for (const auto& [_, hook] : *hooks) {
    callHook("an abort hook", *hook);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  aborting_ = std::thread::id();
}

void Hooks::awaitAbortHooks() {
  const std::chrono::nanoseconds longest(waits().hooks_ns); // users' code runs in hooks, so the wait is bounded
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, longest, [this] { return expected_ == 0 || aborting_ == std::this_thread::get_id(); });
}

} // namespace sagecomm
