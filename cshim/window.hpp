// window.hpp: coalescing windows. Between startCoalescing() and endCoalescing() the operations of a thread are collected,
// and each returns a Work that stands for its part of the one that endCoalescing() returns.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "call.hpp"

namespace sagecomm {

// What has become of a window, for the Works of its operations.
class WindowOutcome {
 public:
  enum class State { kOpen, kIssued, kDropped };

  void issued(c10::intrusive_ptr<c10d::Work> work);
  void dropped();
  State state() const;
  // Of an issued window.
  c10::intrusive_ptr<c10d::Work> work() const;

 private:
  mutable std::mutex mutex_;
  State state_ = State::kOpen;
  c10::intrusive_ptr<c10d::Work> work_;
};

// A call with the tensors that it refers to.
struct CollectedCall {
  CollectedCall(Call&& c, bool async);

  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  Call call;
  bool async; // whether the one Work must be: of calls that do not know it, yes
};

struct Window {
  std::vector<CollectedCall> calls;
  std::shared_ptr<WindowOutcome> outcome = std::make_shared<WindowOutcome>();
  bool managed = false; // opened by torch's _coalescing_manager
};

// The open windows of one group, at most one a thread.
//
// torch's manager does not close its window when an exception leaves it. Such a window is dropped, with a warning, when
// the next one is opened, or, if torch has forgotten it, when the next operation comes; peers that have issued theirs
// wait until their timeout, as for any call that one rank does not make.
class Windows {
 public:
  // Whether any thread has one. Cheap.
  bool open() const {
    return n_.load(std::memory_order_relaxed) != 0;
  }
  // Whether this thread has one.
  bool collects() {
    return open() && mine() != nullptr;
  }
  // Without the GIL.
  void start(const std::string& group);
  // Takes the call into this thread's window and returns its Work, or nullptr if there is none. closing: it is one that
  // torch's manager makes for what it has captured, when it has forgotten the window already and is about to close it;
  // only such a call knows whether the manager's user will wait.
  c10::intrusive_ptr<c10d::Work> collect(Call& call, const std::string& group, bool closing = false);
  Window end();

 private:
  Window* mine();
  Window take();

  std::atomic<int> n_{0};
  std::mutex mutex_;
  std::unordered_map<std::thread::id, std::unique_ptr<Window>> windows_; // guarded; a window is its thread's alone
};

} // namespace sagecomm
