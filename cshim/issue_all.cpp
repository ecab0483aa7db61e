// issue_all.cpp makes one Call of several, of a coalesced call or of a window, and has it issued.
#include <algorithm>
#include <utility>

#include "call.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "process_group.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

namespace {

// Use is one tensor of one of several calls.
struct Use {
  Extent extent;
  const at::Tensor* tensor;
  size_t call;
  bool written;
  bool copied; // copies stand for tensors of the call
  bool repeats; // see Call::repeatsTensor
};

// Refuses calls that are not all on one device. An operation without tensors is on the CPU.
void checkDevices(const std::vector<Call>& calls, int rank) {
  const c10::Device* const first = calls.front().buffers.device();
  for (const Call& call : calls) {
    const c10::Device* const on = call.buffers.device();
    if (C10_UNLIKELY((on == nullptr) != (first == nullptr) || (on != nullptr && *on != *first))) {
      refuse(
          call.info.name,
          "rank " + std::to_string(rank) + ": operation " + std::to_string(&call - calls.data()) +
              " of one coalesced call, counted from 0, is on " + (on == nullptr ? "cpu" : on->str()) +
              ", and those before it are on " + (first == nullptr ? "cpu" : first->str()) +
              "; issue them in separate calls");
    }
  }
}

// Refuses calls whose result would depend on when copies are made. Inputs were copied when the calls were described, and
// outputs are written back at the end, so the core sees none of the overlaps of such calls. A repeated tensor is exempt:
// its copies are written back in the order of the calls.
void checkCopies(const std::vector<Call>& calls, int rank) {
  if (std::none_of(calls.begin(), calls.end(), [](const Call& call) { return call.buffers.copied(); })) {
    return;
  }
  std::vector<Use> uses;
  for (size_t i = 0; i < calls.size(); i++) {
    const auto add = [&](c10::ArrayRef<at::Tensor> tensors, bool written) {
      for (const at::Tensor& t : tensors) {
        uses.push_back({extentOf(t), &t, i, written, calls[i].buffers.copied(), calls[i].repeatsTensor});
      }
    };
    add(calls[i].inputs, false);
    if (calls[i].op.kind != SAGECOMM_SEND) {
      add(calls[i].outputs, true);
    }
  }
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.extent.from < b.extent.from; });
  for (auto a = uses.begin(); a != uses.end(); ++a) {
    for (auto b = a + 1; b != uses.end() && b->extent.from < a->extent.end; ++b) {
      if (a->call != b->call && (a->copied || b->copied) && (a->written || b->written) &&
          !((a->repeats || b->repeats) && sameMemory(*a->tensor, *b->tensor)) && overlap(*a->tensor, *b->tensor)) {
        refuse(
            calls[std::max(a->call, b->call)].info.name,
            "rank " + std::to_string(rank) + ": operations " + std::to_string(std::min(a->call, b->call)) + " and " +
                std::to_string(std::max(a->call, b->call)) +
                " of one coalesced call, counted from 0, share memory that one of them writes, and a tensor of them "
                "is not contiguous or is multiplied by a factor on its device; pass a clone() of the tensor that they "
                "share, or issue them in separate calls");
      }
    }
  }
}

} // namespace

// Issues several Calls as one. That Call keeps the buffers of all of them alive and writes their outputs back; their
// segments stay in the Calls.
ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::runAll(
    const OpInfo& info, std::vector<Call>& calls, bool async, milliseconds timeout) {
  if (C10_UNLIKELY(windows_.open())) {
    WorkPtr promise;
    for (Call& call : calls) {
      // The Work of the last one is returned for all of them.
      call.key = &call == &calls.back() && hooks_.listening() ? CompletionKey::next() : 0;
      promise = windows_.collect(call, info_->name, true);
    }
    if (promise) {
      return promise;
    }
  }
  checkDevices(calls, rank_);
  checkCopies(calls, rank_);
  Call composite(info);
  composite.ephemeralShare = ephemeralTimeout_.take();
  if (const milliseconds extra = composite.ephemeralShare.extra(); C10_UNLIKELY(extra.count() != 0)) {
    timeout = extra + (timeout > kNoTimeout ? timeout : milliseconds(timeoutMs_.load(std::memory_order_relaxed)));
  }
  composite.source = calls.size() == 1 ? calls[0].source : -1;
  composite.async = async;
  composite.timeout = timeout;
  Tensors inputs;
  Tensors outputs;
  std::vector<sagecomm_op> ops;
  ops.reserve(calls.size());
  const uint64_t stack = stacks_ ? stacks_->here() : 0;
  for (Call& call : calls) {
    call.async = async;
    call.timeout = timeout;
    if (call.op.stack == 0) { // no window has recorded it
      call.op.stack = stack;
    }
    call.describe();
    ops.push_back(call.op);
    inputs.insert(inputs.end(), call.inputs.begin(), call.inputs.end());
    outputs.insert(outputs.end(), call.outputs.begin(), call.outputs.end());
    composite.buffers.keep(call.buffers);
    if (C10_UNLIKELY(call.key != 0)) {
      composite.memberKeys.push_back(call.key);
    }
  }
  composite.inputs = inputs;
  composite.outputs = outputs;
  composite.form = Call::Form::kCoalesced;
  composite.coalesced = std::move(ops);
  return run(composite);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::completed(const OpInfo& info) {
  auto work = c10::make_intrusive<Work>(rank_, info, Tensors(), milliseconds(timeoutMs_.load()));
  Buffers none;
  work->finishInline(0, none, getSequenceNumberForGroup(), -1, hooks_, nullptr, false);
  return work;
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
    return completed(kCoalesced);
  }
  std::vector<Call> calls;
  calls.reserve(window.calls.size());
  milliseconds timeout = c10d::kUnsetTimeout;
  bool async = false;
  for (CollectedCall& each : window.calls) {
    const bool own = each.call.timeout > kNoTimeout;
    timeout = std::max(timeout, own ? each.call.timeout : milliseconds(timeoutMs_.load()));
    async |= each.async;
    calls.push_back(std::move(each.call));
  }
  const OpInfo& info = calls.size() == 1 ? calls[0].info : kCoalesced;
  try {
    for (const CollectedCall& each : window.calls) {
      each.checkMemory();
      each.order();
    }
    WorkPtr work = runAll(info, calls, async, timeout);
    window.outcome->issued(work);
    return work;
  } catch (...) {
    window.outcome->dropped(std::current_exception());
    throw;
  }
}

} // namespace sagecomm
