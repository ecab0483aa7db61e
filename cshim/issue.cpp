// issue.cpp hands a Call of ProcessGroupSagecomm to the core, on the thread that called torch. issue_all.cpp makes one of several.
#include <algorithm>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "call.hpp"
#include "call_in_core.hpp"
#include "core.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "in_flight.hpp"
#include "process_group.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

void Call::describe() {
  op.timeout_ns = timeout > kNoTimeout ? toNs(timeout) : 0;
  op.flags = async ? SAGECOMM_ASYNC : 0;
  op.dtype = buffers.dtype();
  op.in = buffers.in().data();
  op.n_in = static_cast<uint32_t>(buffers.in().size());
  op.out = buffers.out().data();
  op.n_out = static_cast<uint32_t>(buffers.out().size());
  op.in_blocks = buffers.inBlocks();
  op.out_blocks = buffers.outBlocks();
}

namespace {

// Turn is a call's turn to queue a group's collectives on a device, for its lifetime. A call whose outputs are copied back behind its
// commands has it alone, so that no collective of another thread comes between: the end of the call would wait for that one's peers. The
// others queue at the same time as far as the core lets them. P2p operations alone take no turn, because what they wait for must be able
// to come while a first collective has its turn until its peers come. For that reason, too, who waits for a turn handles signals. A call
// that a handler makes inside one that has its turn takes none. One that it makes inside a call that waits takes a turn of its own.
class Turn {
 public:
  Turn(Turns& turns, const Call& call) {
    if (!collects(call) || forked() || Held::has(turns)) { // a thread of the parent may have had its turn
      return;
    }
    if (call.buffers.staged()) {
      await(turns.line, alone_ = std::unique_lock(turns.queue, std::defer_lock));
    } else {
      await(turns.line, together_ = std::shared_lock(turns.queue, std::defer_lock));
    }
    held_.emplace(turns);
  }

 private:
  // The turns that a thread has, the innermost first.
  struct Held {
    const Turns& of;
    const Held* const outer;

    explicit Held(const Turns& turns) : of(turns), outer(std::exchange(innermost, this)) {
    }
    ~Held() {
      innermost = outer;
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    static bool has(const Turns& turns) {
      const Held* held = innermost;
      while (held != nullptr && &held->of != &turns) {
        held = held->outer;
      }
      return held != nullptr;
    }

    static thread_local const Held* innermost;
  };

  static bool collects(const Call& call) {
    const auto isCollective = [](const sagecomm_op& o) { return o.kind < SAGECOMM_SEND; };
    return call.coalesced.empty() ? isCollective(call.op)
                                  : std::any_of(call.coalesced.begin(), call.coalesced.end(), isCollective);
  }

  template <class Lock>
  static bool locks(Lock& lock) {
    return lock.try_lock() || lock.try_lock_for(std::chrono::nanoseconds(waits().slice_ns));
  }

  // A handler may wait for a thread that comes to need a turn, so this call gives up its place in the line while handlers run.
  template <class Queue>
  static void await(std::timed_mutex& line, Queue&& queue) {
    std::unique_lock<std::timed_mutex> place(line, std::defer_lock);
    for (;;) {
      if (locks(place)) {
        if (locks(queue)) {
          return;
        }
        place.unlock();
      }
      checkSignals();
    }
  }

  std::unique_lock<std::shared_timed_mutex> alone_;
  std::shared_lock<std::shared_timed_mutex> together_;
  std::optional<Held> held_;
};

thread_local const Turn::Held* Turn::Held::innermost = nullptr;

} // namespace

thread_local CallInCore* CallInCore::innermost = nullptr;

CallInCore::~CallInCore() {
  innermost = outer_;
  if (destroys_) {
    group_.destroyGroup(handle_, ProcessGroupSagecomm::Wait::kDeaf);
  }
}

CallInCore* CallInCore::of(sagecomm_group handle) noexcept {
  CallInCore* call = innermost;
  while (call != nullptr && call->handle_ != handle) {
    call = call->outer_;
  }
  return call;
}

bool CallInCore::destroysAtItsEnd(sagecomm_group handle) noexcept {
  CallInCore* const call = of(handle);
  if (call != nullptr) {
    call->destroys_ = true;
  }
  return call != nullptr;
}

// A synchronous operation that completes inside issue() is the fast case: it takes no lock and allocates one Work.
ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::run(Call& call) {
  if (C10_UNLIKELY(group_.load(std::memory_order_relaxed) == 0)) {
    if (!forked() && cause() != nullptr) { // which this raises
      const WithoutGil unlocked;
      failure_.told(members()->group);
    }
    refuseWithoutGroup(call.info.name);
  }
  WithoutGil unlocked;
  if (C10_UNLIKELY(!described_.load(std::memory_order_relaxed))) {
    describeGroup();
  }
  if (C10_UNLIKELY(stacks_ != nullptr) && call.coalesced.empty()) {
    call.op.stack = stacks_->here();
  }
  if (C10_UNLIKELY(windows_.open())) {
    call.key = hooks_.listening() ? CompletionKey::next() : 0;
    if (WorkPtr promise = windows_.collect(call, info_->name)) {
      return promise;
    }
  }
  std::shared_ptr<DeviceWork> device;
  std::optional<Turn> turn;
  if (C10_UNLIKELY(call.buffers.device() != nullptr)) {
    turn.emplace(turns_, call);
    device = std::make_shared<DeviceWork>(
        *call.buffers.device(), call.buffers.deviceTensors(), call.buffers.deviceOutputs());
    if (call.async) {
      device->promise(call.outputs);
    }
  }
  sagecomm_group group = group_.load(std::memory_order_relaxed);
  std::shared_ptr<const GroupInfo> info; // null: the core writes the outputs
  if (C10_UNLIKELY((device != nullptr || call.buffers.staged()) && !forked())) {
    info = members();
    group = info->group;
  }
  const Stopwatch watch = hooks_.start();
  const bool timed = call.timeout > kNoTimeout;
  milliseconds timeout = timed ? call.timeout : milliseconds(timeoutMs_.load(std::memory_order_relaxed));
  if (C10_LIKELY(call.coalesced.empty())) {
    if (auto share = ephemeralTimeout_.take(); C10_UNLIKELY(share.extra().count() != 0)) {
      timeout = call.timeout = timeout + share.extra();
      call.ephemeralShare = std::move(share);
    }
    call.describe();
    if (C10_UNLIKELY(device != nullptr)) {
      device->describe(call.op, call.async);
    }
  } else if (C10_UNLIKELY(device != nullptr)) {
    for (sagecomm_op& op : call.coalesced) {
      device->describe(op, call.async);
    }
  }

  // A Work is made before the operation begins where making it later could fail too late (the tensors of an asynchronous
  // operation, or of one on a device, and the memory of a sparse sum need an owner) or where the profiler range must
  // enclose the operation.
  const bool profiled = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
  c10::intrusive_ptr<Work> work;
  const bool sparse = call.form == Call::Form::kSparse;
  if (call.async | profiled | sparse | (device != nullptr)) { // without a branch for each
    const std::vector<at::Tensor> inputs = profiled ? call.inputs.vec() : Tensors();
    const char* profilerName = profiled ? profilerNames_.nameFor(call.info.profilerName) : nullptr;
    work =
        c10::make_intrusive<Work>(rank_, call.info, call.outputs, timeout, profilerName, profiled ? &inputs : nullptr);
  }
  std::optional<CallInCore> inCore;
  std::optional<InFlight> inFlight;
  if (C10_UNLIKELY(device != nullptr)) {
    inFlight.emplace(group, call.buffers.scope(), call.info.name, device);
    inCore.emplace(*this, group);
  }
  Issued issued;
  sagecomm_error error;
  const int32_t status = profiled ? issueProfiled(group, call, issued, error) : issue(group, call, issued, error);
  if (C10_UNLIKELY(device != nullptr)) {
    device->issued(call.buffers);
    turn.reset();
  }

  if (C10_UNLIKELY(status < 0)) {
    if (device) {
      device->fail();
      device->ended(true);
      device->awaitAfterError();
    }
    if (error.status != SAGECOMM_INVALID) { // an invalid operation was never issued
      call.ephemeralShare.end();
    }
    if (work) {
      work->endProfiling();
    }
    if (const std::exception_ptr ending = device ? device->ending() : nullptr) {
      std::rethrow_exception(ending);
    }
    if (error.status == SAGECOMM_INVALID && group_.load(std::memory_order_relaxed) == 0) {
      refuseWithoutGroup(call.info.name); // another thread has destroyed the group meanwhile
    }
    if (error.status != SAGECOMM_INVALID && !forked()) {
      failure_.told(group);
    }
    raise(error);
  }
  if (!work) {
    work = c10::make_intrusive<Work>(rank_, call.info, call.outputs, timeout);
  }
  const std::exception_ptr interrupted = device ? device->ending() : nullptr; // the operation fails
  DeviceWork* queued = nullptr; // a synchronous operation for which a stream waits, and not the host
  if (C10_UNLIKELY(device != nullptr)) {
    DeviceWork& on = *device;
    work->own(std::move(device));
    if (!call.async && !work->hostWaits() && !(info && info->blocks)) {
      queued = &on;
    }
  }
  if (C10_UNLIKELY((watch.runs() || status != SAGECOMM_OK) && !call.internal)) {
    work->notifyHooks(watch, std::move(call.memberKeys));
  }
  if (C10_LIKELY(status == SAGECOMM_OK)) {
    int source = call.source;
    if (C10_UNLIKELY(issued.work != 0 && call.info.type == c10d::OpType::RECVANYSOURCE)) {
      source = api_.work_source(issued.work);
    }
    call.ephemeralShare.end();
    work->finishInline(issued.work, call.buffers, issued.sequence, source, hooks_, info, call.async);
    if (C10_UNLIKELY(inFlight.has_value())) {
      inFlight->enter(issued.sequence);
    }
    if (!call.async || work->raisesAtOnce()) {
      work->raiseError();
    }
    return work;
  }
  work->attach(
      issued.work, issued.sequence, std::move(call.buffers), call.inputs, info ? std::move(info) : info_, call.source);
  work->own(std::move(call.ephemeralShare), sparse ? std::move(*call.sparse) : nullptr);
  if (C10_UNLIKELY(inFlight.has_value())) {
    inFlight->enter(issued.sequence);
  }
  if (!call.async && !interrupted && queued == nullptr) {
    work->drive();
    return work;
  }
  // The profiler may be gone when the operation ends, and ending a range writes to its memory.
  work->endProfiling();
  work->completeLater();
  if (queued != nullptr) {
    queued->awaitInCurrentStream(); // after an error of the device, which it raises, the operation goes on
  }
  if (interrupted) {
    std::rethrow_exception(interrupted);
  }
  return work;
}

int32_t ProcessGroupSagecomm::issue(
    sagecomm_group group, const Call& call, Issued& issued, sagecomm_error& error) const {
  if (C10_LIKELY(call.form == Call::Form::kOne)) {
    return api_.issue(group, &call.op, &issued.work, &issued.sequence, &error);
  }
  if (call.form == Call::Form::kSparse) {
    const sagecomm_sparse_sum sum = (*call.sparse)->describe(call.op.timeout_ns, call.op.stack);
    return api_.all_reduce_sparse(group, &sum, &issued.work, &issued.sequence, &error);
  }
  const auto n = static_cast<uint32_t>(call.coalesced.size());
  return api_.issue_coalesced(group, call.coalesced.data(), n, &issued.work, &issued.sequence, &error);
}

void ProcessGroupSagecomm::recordParams(
    const char* name,
    uint64_t sequence,
    bool p2p,
    c10::ArrayRef<at::Tensor> inputs,
    c10::ArrayRef<at::Tensor> outputs,
    const std::function<void()>& issue) const {
  const auto count = [](c10::ArrayRef<at::Tensor> tensors) {
    int64_t n = 0;
    for (const auto& t : tensors) {
      n += t.numel();
    }
    return n;
  };
  RECORD_PARAM_COMMS_DATA(
      std::make_tuple(static_cast<int64_t>(sequence), p2p),
      std::make_tuple(pg_uid_, pg_desc_),
      inputs.vec(),
      outputs.vec(),
      rank_,
      name,
      count(inputs),
      count(outputs),
      inputs.empty() ? at::kByte : inputs[0].scalar_type(),
      std::vector<int64_t>(),
      std::vector<int64_t>(),
      -1,
      -1,
      size_);
  issue();
}

// Torch records the number when the range begins, before the operation has one. The number is right unless another thread
// issues a collective of the same lane at the same moment.
int32_t ProcessGroupSagecomm::issueProfiled(
    sagecomm_group group, const Call& call, Issued& issued, sagecomm_error& error) const {
  const bool p2p = !call.collective();
  const sagecomm_op& op = call.coalesced.empty() ? call.op : call.coalesced.front(); // all are of one lane
  const uint64_t sequence = api_.lane_sequence(group, op.device_type) + (p2p ? 0 : 1);
  int32_t status = SAGECOMM_OK;
  recordParams(
      call.info.name, sequence, p2p, call.inputs, call.outputs, [&] { status = issue(group, call, issued, error); });
  return status;
}

} // namespace sagecomm
