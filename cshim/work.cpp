// work.cpp completes Works, and tells what became of them. work.hpp says which thread does so, work_wait.cpp waits.
#include "work.hpp"

#include <cstdio>
#include <string_view>

#include <ATen/core/ivalue_inl.h>

#include "core.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

namespace {

std::optional<std::vector<at::Tensor>> optionalCopy(const std::vector<at::Tensor>* tensors) {
  return tensors == nullptr ? std::nullopt : std::make_optional(*tensors);
}

} // namespace

c10d::WorkResult resultOf(const sagecomm_error* error) {
  if (error == nullptr) {
    return c10d::WorkResult::SUCCESS;
  }
  return error->status == SAGECOMM_TIMEOUT ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
}

Work::Work(
    int rank,
    const OpInfo& op,
    c10::ArrayRef<at::Tensor> outputs,
    milliseconds timeout,
    const char* profilerName,
    const std::vector<at::Tensor>* profiledInputs)
    : c10d::Work(rank, op.type, profilerName, optionalCopy(profiledInputs)),
      name_(op.name),
      timeout_(timeout),
      outputs_(outputs.begin(), outputs.end()) {
}

Work::~Work() {
  if (handle_ != 0 && !forked() && !exiting()) {
    core().release(handle_); // never blocks, so the GIL stays where it is
  }
  if (ordered_ && forked()) { // it has an event of a device whose driver does not exist here
    static_cast<void>(ordered_.release());
  }
}

void Work::notifyHooks(const Stopwatch& watch, std::vector<uint64_t>&& memberKeys) {
  notifiesHooks_ = true;
  watch_ = watch;
  memberKeys_ = std::move(memberKeys);
}

void Work::finishInline(
    sagecomm_work handle,
    Buffers& buffers,
    uint64_t sequence,
    int source,
    const Hooks& hooks,
    const std::shared_ptr<const GroupInfo>& group,
    bool async) {
  handle_ = handle;
  sequence_ = sequence;
  source_ = source;
  if (C10_UNLIKELY(group != nullptr)) {
    finishOutputs(buffers, *group);
    if (error_) {
      group_ = group; // raiseFailure() tells it
    }
  }
  endProfiling();
  if (C10_UNLIKELY(watch_.runs())) {
    watch_.stop();
  }
  claimed_.store(true, std::memory_order_relaxed);
  done_.store(true, std::memory_order_release);
  if (C10_UNLIKELY(device_ != nullptr)) {
    device_->ended(error_ != nullptr);
    if (!async || error_ != nullptr || device_->captured()) {
      awaitOnDevice();
    }
  }
  if (C10_UNLIKELY(watch_.runs()) && error_ == nullptr) {
    runHooks(hooks);
  }
}

// Writes the outputs, or queues that in a stream of the device. If it cannot, the operation has failed.
void Work::finishOutputs(Buffers& buffers, const GroupInfo& group) {
  std::exception_ptr raised;
  try {
    if (device_) {
      device_->succeed(buffers);
    } else if (buffers.staged()) {
      buffers.copyBack();
    }
    return;
  } catch (...) {
    raised = keepRaised();
  }
  cannotWrite(group, reasonOf(raised));
  if (endsProgram(raised)) {
    ending_ = std::make_unique<Ending>(Ending{raised, std::this_thread::get_id()});
  }
}

void Work::runHooks(const Hooks& hooks) const {
  if (notifiesHooks_) {
    hooks.succeeded({opType_, sequence_, key_, watch_, memberKeys_});
  }
}

void Work::attach(
    sagecomm_work handle,
    uint64_t sequence,
    Buffers&& buffers,
    c10::ArrayRef<at::Tensor> inputs,
    std::shared_ptr<const GroupInfo> group,
    int source) noexcept {
  handle_ = handle;
  sequence_ = sequence;
  source_ = source;
  pending_ = std::make_unique<Pending>(Pending{std::move(buffers), inputs.vec(), nullptr});
  group_ = std::move(group);
  group_->hooks->began();
  if (!hostWaits()) {
    group_->failure->began(group_->group);
  }
}

void Work::endProfiling() {
  if (C10_UNLIKELY(static_cast<bool>(recordFunctionEndCallback_))) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

void Work::completeLater() {
  // This reference is the core's. doneCallback() takes it back.
  auto self = c10::intrusive_ptr<Work>::unsafe_reclaim_from_nonowning(this);
  Work* ctx = self.release();
  sagecomm_error error;
  const int32_t status = core().on_done(handle_, &Work::doneCallback, ctx, &error);
  if (status != SAGECOMM_PENDING) {
    auto reclaimed = c10::intrusive_ptr<Work>::reclaim(ctx);
    complete(status, &error);
  }
}

void Work::doneCallback(void* ctx, int32_t status, const sagecomm_error* error) noexcept {
  CompletionGate gate;
  if (!gate.open()) {
    return; // the reference, and with it the tensors, stay until the process has ended
  }
  auto self = c10::intrusive_ptr<Work>::reclaim(static_cast<Work*>(ctx));
  self->complete(status, error);
}

void Work::complete(int32_t status, const sagecomm_error* error) {
  if (claimed_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  if (status < 0) {
    error_ = std::make_unique<sagecomm_error>(*error);
    if (device_) {
      if (const std::exception_ptr& broken = device_->broken()) { // which the error hides
        LOG(ERROR) << "sagecomm: " << name_ << " #" << sequence_ << ": rank " << group_->rank << ": an output on "
                   << device_->device() << " cannot be written: " << reasonOf(broken);
      }
      device_->fail();
    }
  } else {
    finishOutputs(pending_->buffers, *group_);
  }
  if (!hostWaits()) {
    reportEnd();
  }
  if (source_ < 0 && status == SAGECOMM_OK && opType_ == c10d::OpType::RECVANYSOURCE) {
    source_ = core().work_source(handle_);
  }
  endProfiling();
  watch_.stop();
  ephemeralShare_.end();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  c10::intrusive_ptr<c10::ivalue::Future> futureResult;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_.store(true, std::memory_order_release);
    if (future_ && !future_->completed()) { // getFuture() may have had that of a joined operation
      future = future_;
    }
    futureResult = futureResult_;
  }
  cv_.notify_all();
  pending_.reset();
  if (device_) {
    device_->ended(error_ != nullptr);
  }
  if (error_ == nullptr) {
    runHooks(*group_->hooks);
  }
  const auto finish = [this](const c10::intrusive_ptr<c10::ivalue::Future>& f, auto&& end) {
    try {
      if (f) {
        end(*f);
      }
    } catch (const std::exception& e) {
      // then() keeps a callback's exception in the Future that it returns. Only a raw C++ callback raises here.
      LOG(ERROR) << "sagecomm: " << name_ << ": a callback of this operation's Future raised: " << e.what();
    }
  };
  finish(future, [this](auto& f) { finishFuture(f); });
  finish(futureResult, [this](auto& f) { finishResult(f); });
  group_->hooks->ended();
}

// Raises what is meant to end the program, if this thread is to do so and no other one has.
void Work::raiseEnding() {
  std::unique_ptr<Ending> ending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_ && (isMainThread() || ending_->by == std::this_thread::get_id())) {
      ending = std::move(ending_);
    }
  }
  if (ending) {
    std::rethrow_exception(ending->raised);
  }
}

void Work::raiseFailure() {
  raiseEnding();
  if (group_) {
    group_->failure->told(group_->group);
  }
  raise(*error_);
}

// The caller's stream goes on when a joined operation has failed, and a program may read the outputs and make no further call.
void Work::reportEnd() const {
  if (error_ != nullptr && group_->failure->logs(group_->group, *error_)) {
    LOG(ERROR) << "the outputs of an operation on " << device_->device() << " are undefined: " << error_->message
               << (group_->blocks
                       ? ""
                       : "; with SAGECOMM_BLOCKING_WAIT=on, wait() and synchronous calls would have raised this");
  }
  group_->failure->ended(group_->group, error_ != nullptr);
}

// The peers take the operation for a success. They learn by the failure of the group that this rank does not go on as they do. Of an
// operation in a capture nothing has been carried out: it fails here, and its group goes on. Where the group has failed before, or was
// destroyed, the reason is logged, and where the group still exists the operation raises what all ranks raise.
void Work::cannotWrite(const GroupInfo& group, const std::string& why) {
  if (device_) {
    device_->fail();
  }
  const std::string on = device_ ? device_->device().str() : "cpu";
  std::string reason = "an output on " + on + " cannot be written: " + firstLine(why);
  const bool captured = device_ && device_->isInCapture();
  reason += captured ? "; the graph is of no use, so capture it again"
                     : "; peers hold the operation for complete, so make a new group";
  error_ = std::make_unique<sagecomm_error>();
  fillError(*error_, SAGECOMM_INTERNAL, name_, group.name, "rank " + std::to_string(group.rank) + ": " + reason);
  error_->rank = group.rank;
  error_->sequence = sequence_;
  if (captured) {
    return;
  }
  sagecomm_error fault = *error_;
  std::snprintf(fault.message, sizeof fault.message, "%s", reason.c_str());
  const auto type = device_ ? static_cast<uint8_t>(device_->device().type()) : static_cast<uint8_t>(SAGECOMM_HOST);
  const bool exists = core().group_fail(group.group, &fault, type, nullptr) == SAGECOMM_OK &&
                      core().group_error(group.group, &fault) < 0 && fault.status != SAGECOMM_INVALID;
  if (!exists || fault.status != SAGECOMM_INTERNAL || fault.rank != group.rank) {
    LOG(ERROR) << error_->message;
  }
  if (exists) {
    *error_ = fault;
  }
}

// Who asks and does not wait needs the core's own threads to go on with the operation.
bool Work::isCompleted() {
  if (!done() && handle_ != 0) {
    core().test(handle_);
  }
  return done() && (error_ != nullptr || device_ == nullptr || device_->passed());
}

bool Work::isSuccess() const {
  return done() && error_ == nullptr;
}

std::exception_ptr Work::exception() const {
  if (!done() || error_ == nullptr) {
    return nullptr;
  }
  if (group_) {
    group_->failure->told(group_->group);
  }
  return toException(*error_);
}

int Work::sourceRank() const {
  TORCH_CHECK(
      opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE,
      "sagecomm: ",
      name_,
      ": only a receive has a source rank");
  TORCH_CHECK(
      opType_ == c10d::OpType::RECV || done(),
      "sagecomm: ",
      name_,
      ": the source rank is not known before the receive is complete");
  return source_;
}

std::vector<at::Tensor> Work::result() {
  return {outputs_.begin(), outputs_.end()};
}

void Work::abort() {
  TORCH_CHECK(
      false,
      "sagecomm: ",
      name_,
      ": one operation cannot be aborted, its peers would wait for it; abort the process group");
}

float Work::getDuration() const {
  TORCH_CHECK(done(), "sagecomm: ", name_, ": its duration is not known before it is complete");
  return watch_.duration(name_);
}

uint64_t Work::getCompletionKey() const {
  return key_.get();
}

uint64_t Work::getSequencenumber() const {
  return sequence_;
}

milliseconds Work::getTimeout() const {
  return timeout_;
}

} // namespace sagecomm
