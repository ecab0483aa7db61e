// window.hpp: coalescing windows. Between startCoalescing() and endCoalescing() the operations of a thread are collected,
// and each returns a Work that stands for its part of the one that endCoalescing() returns.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "call.hpp"

namespace sagecomm {

// What has become of a window, for the Works of its operations.
class WindowOutcome {
 public:
  enum class State { kOpen, kIssued, kDropped };

  void issued(c10::intrusive_ptr<c10d::Work> work);
  // Nothing was issued, for this reason.
  void dropped(std::exception_ptr reason);
  State state() const;
  std::exception_ptr reason() const;
  // Of an issued window.
  c10::intrusive_ptr<c10d::Work> work() const;

 private:
  mutable std::mutex mutex_;
  State state_ = State::kOpen;
  c10::intrusive_ptr<c10d::Work> work_;
  std::exception_ptr reason_;
};

// A call with the tensors that it refers to.
struct CollectedCall {
  CollectedCall(Call&& c, bool async);
  // Refuses it if a tensor does not lie where it lay.
  void checkMemory() const;

  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<sagecomm_segment> memory; // of inputs and outputs, as it was when the call was made
  Call call;
  bool async; // whether the one Work must be: of calls that do not know it, yes
};

struct Window {
  std::vector<CollectedCall> calls;
  std::shared_ptr<WindowOutcome> outcome = std::make_shared<WindowOutcome>();
  bool managed = false; // opened by torch's _coalescing_manager
  std::exception_ptr refusal; // of a message: told when the window closes, where torch's manager can go on
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
  // Keeps what is being raised for the end of this thread's window and returns a Work; nullptr if there is none.
  c10::intrusive_ptr<c10d::Work> postpone(const OpInfo& info, const std::string& group);
  Window end();

 private:
  Window* mine();
  Window take();

  std::atomic<int> n_{0};
  std::mutex mutex_;
  struct Entry {
    std::weak_ptr<void> thread;
    std::unique_ptr<Window> window;
  };
  // By thread, as long as it lives. Guarded; a window is its thread's alone.
  std::unordered_map<const void*, Entry> windows_;
};

} // namespace sagecomm
