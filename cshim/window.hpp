// window.hpp collects the operations of coalescing windows. Between startCoalescing() and endCoalescing() the operations of
// a thread are not issued. Each returns a CollectedWork, which stands for that operation once endCoalescing() has issued
// all of them as one Work.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/Stream.h>

#include "call.hpp"

namespace sagecomm {

// WindowOutcome is the result of a window. The Works of its operations share it; any thread may use it.
class WindowOutcome {
 public:
  enum class State { kOpen, kIssued, kDropped };

  void issued(c10::intrusive_ptr<c10d::Work> work);
  // The window was closed without issuing anything, for this reason.
  void dropped(std::exception_ptr reason);
  State state() const;
  std::exception_ptr reason() const;
  // The Work of an issued window.
  c10::intrusive_ptr<c10d::Work> work() const;

 private:
  mutable std::mutex mutex_;
  State state_ = State::kOpen;
  c10::intrusive_ptr<c10d::Work> work_;
  std::exception_ptr reason_;
};

// CollectedCall is a Call with the tensors that it refers to.
struct CollectedCall {
  CollectedCall(Call&& c, bool async);
  // Refuses the call if the memory of a tensor has changed since it was collected.
  void checkMemory() const;
  // Makes the current stream of its device come behind the stream in which the call was collected. Refuses that where the current stream is
  // being captured and the other one was not: a capture may be lost, and a graph does not make a copy again.
  void order() const;

  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<sagecomm_segment> memory; // of inputs and outputs when the call was collected
  Call call;
  std::optional<c10::Stream> stream; // that was current when the call was collected; none on the CPU
  bool captured = false; // it was being captured then, as far as torch can tell
  bool async; // this call needs an asynchronous Work; a call that does not say counts as one that does
};

struct Window {
  std::vector<CollectedCall> calls;
  std::shared_ptr<WindowOutcome> outcome = std::make_shared<WindowOutcome>();
  bool managed = false; // opened by torch's _coalescing_manager
  std::exception_ptr refusal; // of a p2p operation; raised when the window closes
};

// Windows holds the open windows of one group, at most one per thread.
//
// Torch's manager does not close its window when an exception leaves it. Such a window is dropped with a warning when the
// thread opens its next window, or, once torch has forgotten the window, with the thread's next operation. Peers that have
// issued theirs wait until their timeout, as for any call that one rank does not make.
class Windows {
 public:
  // Reports whether any thread has a window open. Cheap.
  bool open() const {
    return n_.load(std::memory_order_relaxed) != 0;
  }
  // Reports whether this thread has a window open.
  bool collects() {
    return open() && mine() != nullptr;
  }
  // Opens a window of this thread. Called without the GIL.
  void start(const std::string& group);
  // Moves the call into this thread's window and returns its Work; null if there is no window. `closing` marks a call that
  // torch's manager makes of the operations that it has captured itself, just before it closes the window. At that time
  // torch has forgotten the window already. Only such a call knows whether the manager's user will wait.
  c10::intrusive_ptr<c10d::Work> collect(Call& call, const std::string& group, bool closing = false);
  // Keeps the exception that is being handled for the end of this thread's window and returns a Work; null if there is no
  // window.
  c10::intrusive_ptr<c10d::Work> postpone(const OpInfo& info, const std::string& group);
  // Closes this thread's window and returns it.
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
  // By thread, while the thread lives. The map is guarded by mutex_; a window is used by its thread only.
  std::unordered_map<const void*, Entry> windows_;
};

} // namespace sagecomm
