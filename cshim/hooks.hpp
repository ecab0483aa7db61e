// hooks.hpp keeps the hooks of a group: functions that users or torch register, and that run when an operation has
// succeeded or when the group fails.
//
// Torch has two kinds of completion hooks. The newer kind is registered under an id and runs for every Work that
// torch or a user was given; it identifies the Work by its completion key. The older kind, at most one per group,
// gets a WorkInfo of every Work that was issued. Neither runs for a Work that failed. Hooks run without the GIL and
// with no lock of ours held, on the thread that completes the operation: a thread of the core, or a caller before
// its call returns. An exception of a hook is reported and not passed on.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "sagecomm.h"

namespace sagecomm {

using CompletionFn = std::function<void(uint64_t key, std::optional<float> milliseconds)>;
using AbortFn = std::function<void()>;
using WorkInfoFn = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

// CompletionKey is a number that no other Work of this process has had. It is made on the first request, because
// most Works are never asked for one.
class CompletionKey {
 public:
  explicit CompletionKey(uint64_t key = 0) : key_(key) {
  }
  uint64_t get() const {
    const uint64_t key = key_.load(std::memory_order_relaxed);
    return key != 0 ? key : make();
  }
  static uint64_t next();

 private:
  uint64_t make() const;
  mutable std::atomic<uint64_t> key_;
};

// Stopwatch measures from the call of an operation to its completion in this process.
class Stopwatch {
 public:
  using Clock = std::chrono::steady_clock;

  Stopwatch() = default; // does not run
  static Stopwatch running() {
    Stopwatch made;
    made.began_ = Clock::now();
    return made;
  }
  void stop() {
    ended_ = runs() ? Clock::now() : Clock::time_point();
  }
  bool runs() const {
    return began_ != Clock::time_point();
  }
  Clock::time_point began() const {
    return began_;
  }
  // Requires: stop() was called. Returns nullopt for a Stopwatch that did not run.
  std::optional<float> milliseconds() const;
  // The same for Work::getDuration(), which throws where nothing was measured.
  float duration(const char* op) const;

 private:
  Clock::time_point began_;
  Clock::time_point ended_;
};

// HookTable holds hooks by id. A caller of the hooks takes a snapshot and then holds no lock. Hooks are destroyed outside
// the lock as well, because destroying one may take the GIL, and a thread with the GIL may be waiting for the lock.
template <class Hook>
class HookTable {
 public:
  using List = std::vector<std::pair<int64_t, std::shared_ptr<const Hook>>>;

  // Returns false if the id is taken.
  bool add(int64_t id, Hook hook) {
    auto entry = std::make_shared<const Hook>(std::move(hook));
    return change([&](List& list) {
      for (const auto& [taken, _] : list) {
        if (taken == id) {
          return false;
        }
      }
      list.emplace_back(id, std::move(entry));
      return true;
    });
  }
  // Does nothing for an unknown id.
  void remove(int64_t id) {
    change([id](List& list) {
      for (auto it = list.begin(); it != list.end(); ++it) {
        if (it->first == id) {
          list.erase(it);
          return true;
        }
      }
      return false;
    });
  }
  std::shared_ptr<const List> all() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return list_;
  }

 private:
  template <class F>
  bool change(F&& edit) {
    std::shared_ptr<const List> old;
    std::lock_guard<std::mutex> oneAtATime(editing_);
    auto list = std::make_shared<List>(*all());
    const bool changed = edit(*list);
    if (changed) {
      std::lock_guard<std::mutex> lock(mutex_);
      old = std::exchange(list_, std::move(list));
    }
    return changed;
  }

  mutable std::mutex mutex_;
  std::mutex editing_; // serializes edits; taken before mutex_
  std::shared_ptr<const List> list_ = std::make_shared<const List>();
};

// Success describes a Work that has succeeded to the hooks.
struct Success {
  c10d::OpType type;
  uint64_t sequence;
  const CompletionKey& key;
  const Stopwatch& watch;
  // Of a coalesced Work: the keys of the Works that its coalescing window gave out for single operations.
  const std::vector<uint64_t>& memberKeys;
};

// Hooks of one group. Works share it, because they may outlive the group.
class Hooks {
 public:
  // ---- operations ----

  // Returns a running Stopwatch if there are hooks. Without hooks an operation pays for this one load only.
  Stopwatch start() const {
    return timed_.load(std::memory_order_relaxed) ? Stopwatch::running() : Stopwatch();
  }
  bool listening() const {
    return timed_.load(std::memory_order_relaxed);
  }
  // Runs the completion hooks. Called once per Work, after isCompleted() has become true: a thread that registers a
  // hook in between sees either the completed Work or the call of the hook.
  void succeeded(const Success& work) const;
  // began() and ended() enclose an operation that outlives its call; waitForPending() waits for these.
  void began() {
    pending_.fetch_add(1, std::memory_order_relaxed);
  }
  void ended();
  // Waits until all of them have ended and their hooks have run. Called without the GIL; runs signal handlers, and `look` as often.
  void waitForPending(const std::function<void()>& look);

  // Makes every later operation run a Stopwatch, with or without hooks.
  void measureAlways() {
    alwaysTimed_.store(true);
    listen();
  }
  void addCompletion(int64_t id, CompletionFn hook);
  void removeCompletion(int64_t id);
  // Throws if there is one already.
  void setWorkInfo(WorkInfoFn hook);

  // ---- failure ----

  void addAbort(int64_t id, AbortFn hook);
  void removeAbort(int64_t id);
  // Registers the failure callback that runs the abort hooks. Only the first call per group counts. A group that has
  // failed already calls no hooks.
  static void watch(const std::shared_ptr<Hooks>& hooks, const sagecomm_api& api, sagecomm_group group);
  // Requires: the core's group was destroyed. Returns when its abort hooks have run or never will, or after two
  // seconds; at once if an abort hook calls it.
  void awaitAbortHooks();
  // Called when reconfigure() has replaced the core's group: watches the new one if the old one was watched.
  static void watchNext(const std::shared_ptr<Hooks>& hooks, const sagecomm_api& api, sagecomm_group group);

 private:
  void listen();
  static void groupFailed(void* ctx, const sagecomm_error* cause) noexcept;
  void runAbortHooks();

  HookTable<CompletionFn> completion_;
  HookTable<AbortFn> abort_;
  HookTable<WorkInfoFn> workInfo_; // at most one
  std::atomic<bool> alwaysTimed_{false};
  std::atomic<bool> timed_{false}; // hooks exist, or durations were asked for
  std::atomic<int64_t> pending_{0};

  std::mutex mutex_; // guards the members below, and the waits
  std::condition_variable changed_;
  bool watched_ = false; // watch() was called
  int expected_ = 0; // calls of groupFailed() that will come or are running
  std::thread::id aborting_; // the thread that runs the abort hooks
};

} // namespace sagecomm
