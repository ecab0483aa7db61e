// hooks.hpp: those who want to be told of a group's operations that have succeeded, and of its failure.
//
// torch has two kinds of completion hooks. The newer ones, by id, hear of every Work that torch or a user was given, and
// know it by its completion key; the older one, one a group, gets a WorkInfo of every Work that was issued. Neither hears
// of a Work that failed. Hooks run without the GIL and with no lock of ours held, on the thread that completes the
// operation: of the core, or of a caller, before its call returns. What they raise is reported and goes no further.
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

// A number that no other Work of this process has had. Most Works are never asked for it, and then it is not made.
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

// From the call of an operation to its completion here.
class Stopwatch {
 public:
  using Clock = std::chrono::steady_clock;

  // Nobody measures.
  Stopwatch() = default;
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
  // Of one that was stopped.
  std::optional<float> milliseconds() const;
  // The same for Work::getDuration(): throws where there is none.
  float duration(const char* op) const;

 private:
  Clock::time_point began_;
  Clock::time_point ended_;
};

// Hooks by id, read by who calls them without a lock: a call sees the hooks as they were when it began. Hooks are dropped
// outside the lock too, since that may take the GIL, and who holds the GIL may be waiting for the lock.
template <class Hook>
class HookTable {
 public:
  using List = std::vector<std::pair<int64_t, std::shared_ptr<const Hook>>>;

  // False if the id is taken.
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
  // Unknown ids are none.
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
  std::mutex editing_; // outermost
  std::shared_ptr<const List> list_ = std::make_shared<const List>();
};

// What hooks are told of a Work that has succeeded.
struct Success {
  c10d::OpType type;
  uint64_t sequence;
  const CompletionKey& key;
  const Stopwatch& watch;
  // Keys of the Works that were given out for its parts, in a coalescing window.
  const std::vector<uint64_t>& parts;
};

// One group's. Shared with its Works, which may outlive it.
class Hooks {
 public:
  // ---- operations ----

  // Started if anybody wants to know; without a hook this is all that an operation pays.
  Stopwatch start() const {
    return timed_.load(std::memory_order_relaxed) ? Stopwatch::running() : Stopwatch();
  }
  bool listening() const {
    return timed_.load(std::memory_order_relaxed);
  }
  // Once for each Work, after it reads as completed: who registers it meanwhile sees one of the two.
  void succeeded(const Success& work) const;
  // Around what goes on after its call; wait() is for those.
  void began() {
    pending_.fetch_add(1, std::memory_order_relaxed);
  }
  void ended();
  // Until all of them have ended, hooks included. Without the GIL; looks for signals.
  void waitForPending();

  void time() {
    everTimed_.store(true);
    listen();
  }
  void addCompletion(int64_t id, CompletionFn hook);
  void removeCompletion(int64_t id);
  // Throws if there is one.
  void setWorkInfo(WorkInfoFn hook);

  // ---- failure ----

  void addAbort(int64_t id, AbortFn hook);
  void removeAbort(int64_t id);
  // Has the core call the abort hooks when the group fails. Once a group; what has failed already is not told.
  static void watch(const std::shared_ptr<Hooks>& hooks, const sagecomm_api& api, sagecomm_group group);
  // After the group's destruction: returns when its abort hooks have run or never will, or after a while; at once in an
  // abort hook.
  void awaitAbortHooks();
  // Watches the core's group that has taken the place of the one before, if that was watched.
  static void watchNext(const std::shared_ptr<Hooks>& hooks, const sagecomm_api& api, sagecomm_group group);

 private:
  void listen();
  static void groupFailed(void* ctx, const sagecomm_error* cause) noexcept;
  void runAbortHooks();

  HookTable<CompletionFn> completion_;
  HookTable<AbortFn> abort_;
  HookTable<WorkInfoFn> workInfo_; // one at most
  std::atomic<bool> everTimed_{false};
  std::atomic<bool> timed_{false}; // somebody listens, or asked for durations
  std::atomic<int64_t> pending_{0};

  std::mutex mutex_; // of what follows, and of the waits
  std::condition_variable changed_;
  bool watched_ = false; // watch() was called
  int expected_ = 0; // calls of groupFailed() that will come, or run
  std::thread::id aborting_; // who runs the abort hooks
};

} // namespace sagecomm
