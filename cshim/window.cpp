// window.cpp keeps the open windows and the Works that stand for their operations. See window.hpp.
#include "window.hpp"

#include <algorithm>
#include <iterator>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>

#include "errors.hpp"
#include "gil.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

namespace {

// Reports whether torch's manager has a window of that group open. Called without the GIL.
bool managed(const std::string& group) {
  pybind11::gil_scoped_acquire gil;
  return pybind11::module_::import("sagecomm._windows").attr("managed")(group).cast<bool>();
}

// CollectedWork stands for one operation of a window.
class CollectedWork final : public c10d::Work {
 public:
  CollectedWork(int rank, const Call& call, std::shared_ptr<WindowOutcome> outcome)
      : c10d::Work(rank, call.info.type),
        name_(call.info.name),
        async_(call.async),
        outputs_(call.outputs.vec()),
        key_(call.key),
        outcome_(std::move(outcome)) {
  }

  bool isCompleted() override {
    return outcome_->reason() != nullptr || (issued() && outcome_->work()->isCompleted());
  }
  bool isSuccess() const override {
    return issued() && outcome_->work()->isSuccess();
  }
  std::exception_ptr exception() const override {
    return issued() ? outcome_->work()->exception() : outcome_->reason();
  }
  std::vector<at::Tensor> result() override {
    return outputs_;
  }
  void synchronize() override {
    issuedWork("synchronize")->synchronize();
  }
  // Torch waits for a synchronous call before it closes the window. Nothing has been issued then, so there is no wait.
  bool wait(milliseconds timeout = kNoTimeout) override {
    if (!async_ && outcome_->state() == WindowOutcome::State::kOpen) {
      return true;
    }
    return issuedWork("wait")->wait(timeout);
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return issuedWork("get_future")->getFuture();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return issuedWork("get_future_result")->getFutureResult();
  }
  uint64_t getSequencenumber() const override {
    return issuedWork("sequence number")->getSequencenumber();
  }
  float getDuration() const override {
    return issuedWork("duration")->getDuration();
  }
  uint64_t getCompletionKey() const { // virtual in newer torch
    return key_.get();
  }

 private:
  bool issued() const {
    return outcome_->state() == WindowOutcome::State::kIssued;
  }
  c10::intrusive_ptr<c10d::Work> issuedWork(const char* what) const {
    switch (outcome_->state()) {
      case WindowOutcome::State::kOpen:
        refuse(
            name_,
            std::string(what) +
                " was called inside a coalescing window, which issues its operations when it closes; call "
                "it afterwards");
      case WindowOutcome::State::kDropped:
        std::rethrow_exception(outcome_->reason());
      default:
        return outcome_->work();
    }
  }

  const char* const name_;
  const bool async_;
  const std::vector<at::Tensor> outputs_;
  const CompletionKey key_;
  const std::shared_ptr<WindowOutcome> outcome_;
};

// Drops a window that was never closed, with a warning. Where Python's filters turn the warning into an error, it goes to
// sys.unraisablehook. Called without the GIL.
void drop(Window& window, const std::string& group) {
  try {
    refuse("coalesced", "never issued: an exception left the coalescing window before it closed");
  } catch (...) {
    window.outcome->dropped(std::current_exception());
  }
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

void WindowOutcome::dropped(std::exception_ptr reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  state_ = State::kDropped;
  reason_ = std::move(reason);
}

std::exception_ptr WindowOutcome::reason() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
}

WindowOutcome::State WindowOutcome::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

c10::intrusive_ptr<c10d::Work> WindowOutcome::work() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return work_;
}

namespace {

std::vector<sagecomm_segment> memoryOf(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
  std::vector<sagecomm_segment> memory;
  for (const auto* list : {&inputs, &outputs}) {
    for (const at::Tensor& t : *list) {
      memory.push_back({const_cast<void*>(t.const_data_ptr()), t.nbytes()});
    }
  }
  return memory;
}

// Returns a token of the calling thread, which expires when the thread ends.
const std::shared_ptr<void>& thisThread() {
  thread_local const std::shared_ptr<void> token = std::make_shared<char>();
  return token;
}

} // namespace

CollectedCall::CollectedCall(Call&& c, bool async)
    : inputs(c.inputs.vec()),
      outputs(c.outputs.vec()),
      memory(memoryOf(inputs, outputs)),
      call(std::move(c)),
      async(async) {
  if (const c10::Device* const device = call.buffers.device()) {
    stream = c10::impl::VirtualGuardImpl(device->type()).getStream(*device);
    captured = captureOf(*stream) == Capture::kYes;
  }
  call.inputs = inputs; // a vector keeps its memory when it is moved
  call.outputs = outputs;
}

void CollectedCall::checkMemory() const {
  const std::vector<sagecomm_segment> now = memoryOf(inputs, outputs);
  bool same = true;
  for (size_t i = 0; i < now.size(); i++) {
    same = same && now[i].data == memory[i].data && now[i].bytes == memory[i].bytes;
  }
  for (const auto* list : {&inputs, &outputs}) {
    same = same && std::all_of(list->begin(), list->end(), hasMemory);
  }
  if (!same) {
    refuse(
        call.info.name,
        "the memory of a tensor was freed or replaced before its coalescing window closed; keep tensors as they are "
        "inside");
  }
}

void CollectedCall::order() const {
  if (!stream) {
    return;
  }
  const c10::OptionalDeviceGuard on(stream->device());
  const c10::Stream now = c10::impl::VirtualGuardImpl(stream->device_type()).getStream(stream->device());
  // A copy of an input may have been made, which the graph would not make again.
  if (captureOf(now) == Capture::kYes && !captured) {
    refuse(
        call.info.name,
        "the current stream is being captured into a graph, and the stream in which this operation of a coalescing "
        "window was called was not; end the window before the capture begins");
  }
  if (now != *stream) {
    c10::Event collected(stream->device_type());
    collected.record(*stream);
    collected.block(now);
  }
}

Window* Windows::mine() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = windows_.find(thisThread().get());
  return it == windows_.end() ? nullptr : it->second.window.get();
}

Window Windows::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = windows_.find(thisThread().get());
  Window window = std::move(*it->second.window);
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
  for (auto it = windows_.begin(); it != windows_.end();) {
    const bool ended = it->second.thread.expired();
    n_.fetch_sub(ended ? 1 : 0);
    it = ended ? windows_.erase(it) : std::next(it);
  }
  windows_[thisThread().get()] = {thisThread(), std::move(window)};
  n_.fetch_add(1);
}

c10::intrusive_ptr<c10d::Work> Windows::postpone(const OpInfo& info, const std::string& group) {
  Window* window = open() ? mine() : nullptr;
  if (window == nullptr || (window->managed && !managed(group))) { // no window, or one that an exception has left
    return nullptr;
  }
  if (!window->refusal) {
    window->refusal = std::current_exception();
  }
  return c10::make_intrusive<CollectedWork>(-1, Call(info), window->outcome);
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
