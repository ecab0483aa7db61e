#include "window.hpp"

#include <pybind11/pybind11.h>

#include "errors.hpp"
#include "gil.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

namespace {

// Whether torch's manager has a window of that group open. Without the GIL.
bool managed(const std::string& group) {
  pybind11::gil_scoped_acquire gil;
  return pybind11::module_::import("sagecomm._windows").attr("managed")(group).cast<bool>();
}

// One operation of a window.
class CollectedWork final : public c10d::Work {
 public:
  CollectedWork(int rank, const Call& call, std::shared_ptr<WindowOutcome> outcome)
      : c10d::Work(rank, call.info.type),
        name_(call.info.name),
        async_(call.async),
        outputs_(call.outputs.vec()),
        outcome_(std::move(outcome)) {
  }

  bool isCompleted() override {
    return issued() && outcome_->work()->isCompleted();
  }
  bool isSuccess() const override {
    return issued() && outcome_->work()->isSuccess();
  }
  std::exception_ptr exception() const override {
    return issued() ? outcome_->work()->exception() : nullptr;
  }
  std::vector<at::Tensor> result() override {
    return outputs_;
  }
  void synchronize() override {
    whole("synchronize")->synchronize();
  }
  // Of a synchronous call, torch waits before the window is closed: that is not the time.
  bool wait(milliseconds timeout = kNoTimeout) override {
    if (!async_ && outcome_->state() == WindowOutcome::State::kOpen) {
      return true;
    }
    return whole("wait")->wait(timeout);
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return whole("get_future")->getFuture();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return whole("get_future_result")->getFutureResult();
  }
  uint64_t getSequencenumber() const override {
    return whole("sequence number")->getSequencenumber();
  }

 private:
  bool issued() const {
    return outcome_->state() == WindowOutcome::State::kIssued;
  }
  c10::intrusive_ptr<c10d::Work> whole(const char* what) const {
    switch (outcome_->state()) {
      case WindowOutcome::State::kOpen:
        refuse(name_, std::string(what) + " inside a coalescing window, which is issued when it closes");
      case WindowOutcome::State::kDropped:
        refuse(name_, "it was never issued: its coalescing window was left by an exception");
      default:
        return outcome_->work();
    }
  }

  const char* const name_;
  const bool async_;
  const std::vector<at::Tensor> outputs_;
  const std::shared_ptr<WindowOutcome> outcome_;
};

// Without the GIL. A warning that Python makes an error has nobody here to take it.
void drop(Window& window, const std::string& group) {
  window.outcome->dropped();
  if (window.calls.empty()) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  try {
    const pybind11::object warn = pybind11::module_::import("sagecomm._windows").attr("warn_of_left_window");
    warn(group, window.calls.size(), window.calls.front().call.info.name);
  } catch (pybind11::error_already_set& e) {
    e.discard_as_unraisable("sagecomm");
  }
}

} // namespace

void WindowOutcome::issued(c10::intrusive_ptr<c10d::Work> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  state_ = State::kIssued;
  work_ = std::move(work);
}

void WindowOutcome::dropped() {
  std::lock_guard<std::mutex> lock(mutex_);
  state_ = State::kDropped;
}

WindowOutcome::State WindowOutcome::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

c10::intrusive_ptr<c10d::Work> WindowOutcome::work() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return work_;
}

CollectedCall::CollectedCall(Call&& c, bool async)
    : inputs(c.inputs.vec()), outputs(c.outputs.vec()), call(std::move(c)), async(async) {
  call.inputs = inputs; // vectors keep their memory when they are moved
  call.outputs = outputs;
}

Window* Windows::mine() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = windows_.find(std::this_thread::get_id());
  return it == windows_.end() ? nullptr : it->second.get();
}

Window Windows::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = windows_.find(std::this_thread::get_id());
  Window window = std::move(*it->second);
  windows_.erase(it);
  n_.fetch_sub(1);
  return window;
}

void Windows::start(const std::string& group) {
  if (mine() != nullptr) {
    Window left = take();
    drop(left, group);
  }
  auto window = std::make_unique<Window>();
  window->managed = managed(group);
  std::lock_guard<std::mutex> lock(mutex_);
  windows_[std::this_thread::get_id()] = std::move(window);
  n_.fetch_add(1);
}

c10::intrusive_ptr<c10d::Work> Windows::collect(Call& call, const std::string& group, bool closing) {
  Window* window = mine();
  if (window == nullptr) {
    return nullptr;
  }
  if (window->managed && !closing && !managed(group)) {
    Window left = take();
    drop(left, group);
    return nullptr;
  }
  auto work = c10::make_intrusive<CollectedWork>(-1, call, window->outcome);
  const bool async = call.async || !closing;
  window->calls.emplace_back(std::move(call), async);
  return work;
}

Window Windows::end() {
  if (mine() == nullptr) {
    refuse("end_coalescing", "this thread has no coalescing window open");
  }
  return take();
}

} // namespace sagecomm
