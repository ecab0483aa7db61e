// operations.cpp: the operations of ProcessGroupSagecomm. Each fills a Call; run() brings it to the core.
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "compat.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "process_group.hpp"
#include "reduction.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

namespace {

constexpr OpInfo kAllReduce{c10d::OpType::ALLREDUCE, "all_reduce", "sagecomm:all_reduce"};
constexpr OpInfo kBroadcast{c10d::OpType::BROADCAST, "broadcast", "sagecomm:broadcast"};
constexpr OpInfo kReduce{c10d::OpType::REDUCE, "reduce", "sagecomm:reduce"};
constexpr OpInfo kAllGather{c10d::OpType::ALLGATHER, "all_gather", "sagecomm:all_gather"};
constexpr OpInfo kAllGatherSingle{c10d::OpType::_ALLGATHER_BASE, "all_gather", "sagecomm:all_gather_single"};
constexpr OpInfo kBarrier{c10d::OpType::BARRIER, "barrier", "sagecomm:barrier"};
constexpr OpInfo kSend{c10d::OpType::SEND, "send", "sagecomm:send"};
constexpr OpInfo kRecv{c10d::OpType::RECV, "recv", "sagecomm:recv"};
constexpr OpInfo kRecvAny{c10d::OpType::RECVANYSOURCE, "recv", "sagecomm:recv_any_source"};

const at::Tensor& onlyTensor(const char* op, const std::vector<at::Tensor>& tensors) {
  if (C10_UNLIKELY(tensors.size() != 1)) {
    refuse(op, "takes a list of one tensor, got " + std::to_string(tensors.size()));
  }
  return tensors[0];
}

void checkRank(const char* op, const char* what, int64_t rank, int size) {
  if (C10_UNLIKELY(rank < 0 || rank >= size)) {
    refuse(
        op,
        std::string("invalid ") + what + " rank: " + std::to_string(rank) + ", the group has " + std::to_string(size) +
            " ranks");
  }
}

void checkRootTensor(const char* op, int64_t rootTensor) {
  if (C10_UNLIKELY(rootTensor != 0)) {
    refuse(op, "invalid root tensor: " + std::to_string(rootTensor) + ", the list has one tensor");
  }
}

} // namespace

// One call on its way to the core. Tensors are the caller's; they outlive the call, not the operation.
struct ProcessGroupSagecomm::Call {
  Call(const OpInfo& opInfo, sagecomm_kind kind) : info(opInfo) {
    op.kind = static_cast<uint8_t>(kind);
  }

  template <class O>
  void take(const O& opts) {
    async = wantsAsync(opts);
    timeout = opts.timeout;
  }

  const OpInfo& info;
  sagecomm_op op{};
  Buffers buffers;
  c10::ArrayRef<at::Tensor> inputs;
  c10::ArrayRef<at::Tensor> outputs;
  bool async = true;
  milliseconds timeout = c10d::kUnsetTimeout;
  int source = -1; // of a receive
};

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Call call(kAllReduce, SAGECOMM_ALL_REDUCE);
  call.buffers.addInOut("all_reduce", "tensor", 0, onlyTensor("all_reduce", tensors));
  setReduction(call.op, "all_reduce", opts.reduceOp);
  call.take(opts);
  call.inputs = call.outputs = tensors;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Call call(kBroadcast, SAGECOMM_BROADCAST);
  const at::Tensor& tensor = onlyTensor("broadcast", tensors);
  checkRank("broadcast", "root", opts.rootRank, size_);
  checkRootTensor("broadcast", opts.rootTensor);
  if (opts.rootRank == rank_) {
    call.buffers.addInOut("broadcast", "tensor", 0, tensor);
  } else {
    call.buffers.addOutput("broadcast", "tensor", 0, tensor);
  }
  call.op.root = static_cast<int32_t>(opts.rootRank);
  call.take(opts);
  call.inputs = call.outputs = tensors;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  Call call(kReduce, SAGECOMM_REDUCE);
  const at::Tensor& tensor = onlyTensor("reduce", tensors);
  checkRank("reduce", "root", opts.rootRank, size_);
  checkRootTensor("reduce", opts.rootTensor);
  if (opts.rootRank == rank_) {
    call.buffers.addInOut("reduce", "tensor", 0, tensor);
  } else {
    call.buffers.addInput("reduce", "tensor", 0, tensor);
  }
  setReduction(call.op, "reduce", opts.reduceOp);
  call.op.root = static_cast<int32_t>(opts.rootRank);
  call.take(opts);
  call.inputs = call.outputs = tensors;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  Call call(kAllGather, SAGECOMM_ALL_GATHER);
  const at::Tensor& input = onlyTensor("all_gather", inputs);
  if (outputs.size() != 1 || outputs[0].size() != static_cast<size_t>(size_)) {
    refuse(
        "all_gather",
        "takes one list of " + std::to_string(size_) + " output tensors, got " +
            (outputs.size() == 1 ? "one of " + std::to_string(outputs[0].size())
                                 : std::to_string(outputs.size()) + " lists"));
  }
  call.buffers.addInput("all_gather", "input", 0, input);
  for (size_t i = 0; i < outputs[0].size(); i++) {
    const at::Tensor& output = outputs[0][i];
    call.buffers.addOutput("all_gather", "output", i, output);
    if (C10_UNLIKELY(output.numel() != input.numel())) {
      refuse(
          "all_gather",
          "output " + std::to_string(i) + " has " + std::to_string(output.numel()) + " elements, the input has " +
              std::to_string(input.numel()));
    }
  }
  call.buffers.separateInput(input, rank_, size_);
  call.take(opts);
  call.inputs = inputs;
  call.outputs = outputs[0];
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Call call(kAllGatherSingle, SAGECOMM_ALL_GATHER);
  call.buffers.addInput("all_gather", "input", 0, input);
  call.buffers.addOutput("all_gather", "output", 0, output);
  if (C10_UNLIKELY(output.numel() != input.numel() * size_)) {
    refuse(
        "all_gather",
        "the output has " + std::to_string(output.numel()) + " elements, " + std::to_string(size_) +
            " ranks with inputs of " + std::to_string(input.numel()) + " need " +
            std::to_string(input.numel() * size_));
  }
  call.buffers.separateInput(input, rank_, size_);
  call.take(opts);
  call.inputs = c10::ArrayRef<at::Tensor>(input);
  call.outputs = c10::ArrayRef<at::Tensor>(output);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::barrier(const c10d::BarrierOptions& opts) {
  Call call(kBarrier, SAGECOMM_BARRIER);
  call.take(opts);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::send(Tensors& tensors, int dstRank, int tag) {
  Call call(kSend, SAGECOMM_SEND);
  call.buffers.addInput("send", "tensor", 0, onlyTensor("send", tensors));
  checkRank("send", "destination", dstRank, size_);
  if (tag < 0) {
    refuse("send", "invalid tag: " + std::to_string(tag) + "; tags are 0 or greater");
  }
  call.op.root = dstRank;
  call.op.tag = tag;
  call.inputs = call.outputs = tensors;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::recv(Tensors& tensors, int srcRank, int tag) {
  checkRank("recv", "source", srcRank, size_);
  return receive(kRecv, tensors, srcRank, tag);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::recvAnysource(Tensors& tensors, int tag) {
  return receive(kRecvAny, tensors, SAGECOMM_ANY_SOURCE, tag);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::receive(
    const OpInfo& info, Tensors& tensors, int srcRank, int tag) {
  Call call(info, SAGECOMM_RECV);
  call.buffers.addOutput("recv", "tensor", 0, onlyTensor("recv", tensors));
  if (tag < 0) {
    refuse("recv", "invalid tag: " + std::to_string(tag) + "; tags are 0 or greater");
  }
  call.op.root = srcRank;
  call.op.tag = tag;
  call.source = srcRank;
  call.inputs = call.outputs = tensors;
  return run(call);
}

// ---- issue ----

// The synchronous case that completes at once is the one that must be cheap: one Work, no lock, nothing else allocated.
ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::run(Call& call) {
  if (C10_UNLIKELY(shutDown_.load(std::memory_order_relaxed))) {
    refuseAfterShutdown(call.info.name);
  }
  WithoutGil unlocked;
  const bool timed = call.timeout > kNoTimeout;
  const milliseconds timeout = timed ? call.timeout : milliseconds(timeoutMs_.load(std::memory_order_relaxed));
  call.op.timeout_ns = timed ? toNs(timeout) : 0;
  call.op.flags = call.async ? SAGECOMM_ASYNC : 0;
  call.op.dtype = call.buffers.dtype();
  call.op.in = call.buffers.in().data();
  call.op.n_in = static_cast<uint32_t>(call.buffers.in().size());
  call.op.out = call.buffers.out().data();
  call.op.n_out = static_cast<uint32_t>(call.buffers.out().size());

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
  const int32_t status = profiled ? issueProfiled(call, handle, error) : api_.issue(group_, &call.op, &handle, &error);

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
    const bool collective = call.op.kind < SAGECOMM_SEND;
    work->finishInline(handle, call.buffers, collective ? api_.group_sequence(group_) : 0, source);
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

// torch's trace analysers look for one "record_param_comms" range per operation, with these arguments.
int32_t ProcessGroupSagecomm::issueProfiled(Call& call, sagecomm_work& handle, sagecomm_error& error) {
  const bool p2p = call.op.kind == SAGECOMM_SEND || call.op.kind == SAGECOMM_RECV;
  const auto count = [](c10::ArrayRef<at::Tensor> tensors) {
    int64_t n = 0;
    for (const auto& t : tensors) {
      n += t.numel();
    }
    return n;
  };
  const auto sequence = static_cast<int64_t>(api_.group_sequence(group_)) + (p2p ? 0 : 1);
  RECORD_PARAM_COMMS_DATA(
      std::make_tuple(sequence, p2p),
      std::make_tuple(pg_uid_, pg_desc_),
      call.inputs.vec(),
      call.outputs.vec(),
      rank_,
      call.info.name,
      count(call.inputs),
      count(call.outputs),
      call.inputs.empty() ? at::kByte : call.inputs[0].scalar_type(),
      std::vector<int64_t>(),
      std::vector<int64_t>(),
      -1,
      -1,
      size_);
  return api_.issue(group_, &call.op, &handle, &error);
}

} // namespace sagecomm
