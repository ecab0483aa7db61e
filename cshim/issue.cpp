// issue.cpp: how a Call of ProcessGroupSagecomm is brought to the core, alone or with others.
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "call.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
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

// The synchronous case that completes at once is the one that must be cheap: one Work, no lock, nothing else allocated.
ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::run(Call& call) {
  if (C10_UNLIKELY(shutDown_.load(std::memory_order_relaxed))) {
    refuseAfterShutdown(call.info.name);
  }
  WithoutGil unlocked;
  if (C10_UNLIKELY(windows_.open())) {
    if (WorkPtr promise = windows_.collect(call, info_->name)) {
      return promise;
    }
  }
  const bool timed = call.timeout > kNoTimeout;
  const milliseconds timeout = timed ? call.timeout : milliseconds(timeoutMs_.load(std::memory_order_relaxed));
  if (C10_LIKELY(call.parts.empty())) {
    call.describe();
  }

  // A Work is made before the operation begins where it must not fail afterwards (asynchronous: the tensors need an
  // owner) or has something to measure.
  const bool profiled = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
  c10::intrusive_ptr<Work> work;
  if (call.async || profiled) {
    const std::vector<at::Tensor> inputs = profiled ? call.inputs.vec() : Tensors();
    work = c10::make_intrusive<Work>(rank_, call.info, call.outputs, timeout, profiled ? &inputs : nullptr);
  }
  sagecomm_work handle = 0;
  sagecomm_error error;
  const int32_t status = profiled ? issueProfiled(call, handle, error) : issue(call, handle, error);

  if (C10_UNLIKELY(status < 0)) {
    if (work) {
      work->endProfiling();
    }
    if (error.status == SAGECOMM_INVALID && shutDown_.load(std::memory_order_relaxed)) {
      refuseAfterShutdown(call.info.name); // another thread was faster
    }
    raise(error);
  }
  if (!work) {
    work = c10::make_intrusive<Work>(rank_, call.info, call.outputs, timeout);
  }
  if (C10_LIKELY(status == SAGECOMM_OK)) {
    int source = call.source;
    if (C10_UNLIKELY(handle != 0 && call.info.type == c10d::OpType::RECVANYSOURCE)) {
      source = api_.work_source(handle);
    }
    work->finishInline(handle, call.buffers, call.collective() ? api_.group_sequence(group_) : 0, source);
    return work;
  }
  work->attach(handle, std::move(call.buffers), call.inputs, info_, call.source);
  if (call.async) {
    // The profiler may be gone when the operation ends, and the end of a range writes to its memory.
    work->endProfiling();
    work->completeLater();
  } else {
    work->drive();
  }
  return work;
}

int32_t ProcessGroupSagecomm::issue(const Call& call, sagecomm_work& handle, sagecomm_error& error) const {
  if (C10_LIKELY(call.parts.empty())) {
    return api_.issue(group_, &call.op, &handle, &error);
  }
  return api_.issue_coalesced(group_, call.parts.data(), static_cast<uint32_t>(call.parts.size()), &handle, &error);
}

namespace {

bool writesWhatIsUsed(const Call& a, const Call& b) {
  const auto meet = [](c10::ArrayRef<at::Tensor> x, c10::ArrayRef<at::Tensor> y) {
    return std::any_of(x.begin(), x.end(), [&](const at::Tensor& t) {
      return std::any_of(y.begin(), y.end(), [&](const at::Tensor& u) { return overlap(t, u); });
    });
  };
  const auto written = [](const Call& c) {
    return c.op.kind == SAGECOMM_SEND ? c10::ArrayRef<at::Tensor>() : c.outputs;
  };
  return meet(written(a), b.inputs) || meet(written(a), written(b)) || meet(written(b), a.inputs);
}

// The copies were made when the calls were, and are written back at the end: the core sees no order between them.
void checkCopies(const std::vector<Call>& calls) {
  for (size_t i = 0; i < calls.size(); i++) {
    for (size_t k = 0; calls[i].buffers.copied() && k < calls.size(); k++) {
      const bool once = k < i && calls[k].buffers.copied();
      if (k != i && !once && writesWhatIsUsed(calls[i], calls[k])) {
        refuse(
            calls[i].info.name,
            "operations " + std::to_string(std::min(i, k)) + " and " + std::to_string(std::max(i, k)) +
                " of one coalesced call, counted from 0, share memory that one of them writes, and a tensor of them "
                "is not contiguous: issue them apart");
      }
    }
  }
}

} // namespace

// What the parts keep alive, and write back, is the whole's from here on; their segments stay where they are.
ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::runAll(
    const OpInfo& info, std::vector<Call>& calls, bool async, milliseconds timeout) {
  if (C10_UNLIKELY(windows_.open())) {
    WorkPtr promise;
    for (Call& call : calls) {
      promise = windows_.collect(call, info_->name, true);
    }
    if (promise) {
      return promise;
    }
  }
  checkCopies(calls);
  Call whole(info);
  whole.source = calls.size() == 1 ? calls[0].source : -1;
  whole.async = async;
  whole.timeout = timeout;
  Tensors inputs;
  Tensors outputs;
  std::vector<sagecomm_op> ops;
  ops.reserve(calls.size());
  for (Call& call : calls) {
    call.async = async;
    call.timeout = timeout;
    call.describe();
    ops.push_back(call.op);
    inputs.insert(inputs.end(), call.inputs.begin(), call.inputs.end());
    outputs.insert(outputs.end(), call.outputs.begin(), call.outputs.end());
    whole.buffers.keep(call.buffers);
  }
  whole.inputs = inputs;
  whole.outputs = outputs;
  whole.parts = ops;
  return run(whole);
}

// ---- coalescing windows ----

void ProcessGroupSagecomm::startCoalescing() {
  WithoutGil unlocked;
  windows_.start(info_->name);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::endCoalescing() {
  static constexpr OpInfo kCoalesced{c10d::OpType::COALESCED, "coalesced", "sagecomm:coalesced"};
  WithoutGil unlocked;
  Window window = windows_.end();
  if (window.refusal) {
    window.outcome->dropped(window.refusal);
    std::rethrow_exception(window.refusal);
  }
  if (window.calls.empty()) {
    auto work = c10::make_intrusive<Work>(rank_, kCoalesced, Tensors(), milliseconds(timeoutMs_.load()));
    Buffers none;
    work->finishInline(0, none, getSequenceNumberForGroup(), -1);
    return work;
  }
  std::vector<Call> calls;
  calls.reserve(window.calls.size());
  milliseconds timeout = c10d::kUnsetTimeout;
  bool async = false;
  for (CollectedCall& each : window.calls) {
    timeout = std::max(timeout, each.call.timeout);
    async |= each.async;
    calls.push_back(std::move(each.call));
  }
  const OpInfo& info = calls.size() == 1 ? calls[0].info : kCoalesced;
  try {
    for (const CollectedCall& each : window.calls) {
      each.checkMemory();
    }
    WorkPtr work = runAll(info, calls, async, timeout);
    window.outcome->issued(work);
    return work;
  } catch (...) {
    window.outcome->dropped(std::current_exception());
    throw;
  }
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

int32_t ProcessGroupSagecomm::issueProfiled(const Call& call, sagecomm_work& handle, sagecomm_error& error) const {
  const bool p2p = !call.collective();
  const uint64_t sequence = api_.group_sequence(group_) + (p2p ? 0 : 1);
  int32_t status = SAGECOMM_OK;
  recordParams(call.info.name, sequence, p2p, call.inputs, call.outputs, [&] { status = issue(call, handle, error); });
  return status;
}

} // namespace sagecomm
