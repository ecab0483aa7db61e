// operations.cpp holds the single operations of ProcessGroupSagecomm. Each checks its arguments, fills a Call, and passes it
// to run(), which issues it. All run on the thread that calls torch.
#include "call.hpp"
#include "checks.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "process_group.hpp"
#include "reduction.hpp"
#include "sparse_sum.hpp"

namespace sagecomm {

namespace {

constexpr OpInfo kAllReduce{c10d::OpType::ALLREDUCE, "all_reduce", "sagecomm:all_reduce"};
constexpr OpInfo kBroadcast{c10d::OpType::BROADCAST, "broadcast", "sagecomm:broadcast"};
constexpr OpInfo kReduce{c10d::OpType::REDUCE, "reduce", "sagecomm:reduce"};
constexpr OpInfo kAllGather{c10d::OpType::ALLGATHER, "all_gather", "sagecomm:all_gather"};
constexpr OpInfo kAllGatherSingle{c10d::OpType::_ALLGATHER_BASE, "all_gather", "sagecomm:all_gather_single"};
constexpr OpInfo kReduceScatter{c10d::OpType::REDUCE_SCATTER, "reduce_scatter", "sagecomm:reduce_scatter"};
constexpr OpInfo kReduceScatterSingle{
    c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", "sagecomm:reduce_scatter_single"};
constexpr OpInfo kAllToAll{c10d::OpType::ALLTOALL, "all_to_all", "sagecomm:all_to_all"};
constexpr OpInfo kAllToAllSingle{c10d::OpType::ALLTOALL_BASE, "all_to_all", "sagecomm:all_to_all_single"};
constexpr OpInfo kGather{c10d::OpType::GATHER, "gather", "sagecomm:gather"};
constexpr OpInfo kScatter{c10d::OpType::SCATTER, "scatter", "sagecomm:scatter"};
constexpr OpInfo kSend{c10d::OpType::SEND, "send", "sagecomm:send"};
constexpr OpInfo kRecv{c10d::OpType::RECV, "recv", "sagecomm:recv"};
constexpr OpInfo kRecvAny{c10d::OpType::RECVANYSOURCE, "recv", "sagecomm:recvAnySource"};

} // namespace

void ProcessGroupSagecomm::fillAllReduce(
    Call& call, size_t index, const at::Tensor& tensor, const c10d::ReduceOp& reduceOp) const {
  call.buffers.addInOut(call.info.name, "tensor", index, tensor, call.repeatsTensor);
  call.inputs = call.outputs = c10::ArrayRef<at::Tensor>(tensor);
  setReduction(call, reduceOp);
}

void ProcessGroupSagecomm::fillAllGather(
    Call& call, size_t index, c10::ArrayRef<at::Tensor> outputs, const at::Tensor& input) const {
  call.buffers.addInput(call.info.name, "input", index, input);
  call.buffers.addOutputs(call.info.name, "output", outputs);
  checkElements(call.info.name, {"input", index}, input.numel(), {"this rank's output"}, outputs[rank_].numel());
  call.buffers.setOutBlocks();
  call.buffers.separateInput(input, rank_);
  call.inputs = c10::ArrayRef<at::Tensor>(input);
  call.outputs = outputs;
}

void ProcessGroupSagecomm::fillAllGatherSingle(
    Call& call, size_t index, const at::Tensor& output, const at::Tensor& input) const {
  call.buffers.addInput(call.info.name, "input", index, input);
  call.buffers.addOutput(call.info.name, "output", index, output, call.repeatsTensor);
  checkSingle(call.info.name, "output", output.numel(), "input", input.numel(), size_);
  call.buffers.separateInput(input, rank_);
  call.inputs = c10::ArrayRef<at::Tensor>(input);
  call.outputs = c10::ArrayRef<at::Tensor>(output);
}

void ProcessGroupSagecomm::fillReduceScatterSingle(
    Call& call, size_t index, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& reduceOp) const {
  call.buffers.addInput(call.info.name, "input", index, input);
  const bool staged = call.repeatsTensor || overlapsOtherBlocks(output, input, rank_, size_);
  call.buffers.addOutput(call.info.name, "output", index, output, staged);
  checkSingle(call.info.name, "input", input.numel(), "output", output.numel(), size_);
  call.inputs = c10::ArrayRef<at::Tensor>(input);
  call.outputs = c10::ArrayRef<at::Tensor>(output);
  setReduction(call, reduceOp);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (C10_UNLIKELY(onlyTensor("all_reduce", tensors).is_sparse())) {
    return allreduce_sparse(tensors, opts);
  }
  Call call(kAllReduce, SAGECOMM_ALL_REDUCE, devices_);
  fillAllReduce(call, 0, tensors[0], opts.reduceOp);
  call.take(opts);
  return run(call);
}

// Takes tensors of layout COO, and sums only, as gloo does.
ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = onlyTensor("all_reduce", tensors);
  if (tensor.defined() && devices_.has(tensor.device().type()) && !tensor.device().is_cpu()) {
    refuseOnDevice("all_reduce", "sparse tensors", tensor.device());
  }
  if (!tensor.defined() || !tensor.is_sparse() || !tensor.device().is_cpu()) {
    refuse("all_reduce", "a sparse all_reduce takes a COO tensor on cpu; convert the tensor with to_sparse_coo()");
  }
  if (opts.reduceOp.op_ != c10d::ReduceOp::SUM) {
    refuse("all_reduce", "of sparse tensors only the sum is defined");
  }
  if (!isSummed(tensor.scalar_type())) {
    refuse(
        "all_reduce", std::string("SUM is not defined for sparse tensors of ") + c10::toString(tensor.scalar_type()));
  }
  if (windows_.collects()) {
    refuse("all_reduce", "sparse tensors cannot be coalesced; reduce them outside the coalescing window");
  }
  Call call(kAllReduce, SAGECOMM_ALL_REDUCE, devices_);
  call.take(opts);
  call.inputs = tensors;
  call.outputs = tensors;
  std::unique_ptr<SparseSum> sum;
  {
    WithoutGil unlocked;
    sum = std::make_unique<SparseSum>(tensor, rank_, size_);
  }
  call.form = Call::Form::kSparse;
  call.sparse = &sum;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  Call call(kBroadcast, SAGECOMM_BROADCAST, devices_);
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
  Call call(kReduce, SAGECOMM_REDUCE, devices_);
  const at::Tensor& tensor = onlyTensor("reduce", tensors);
  checkRank("reduce", "root", opts.rootRank, size_);
  checkRootTensor("reduce", opts.rootTensor);
  if (opts.rootRank == rank_) {
    call.buffers.addInOut("reduce", "tensor", 0, tensor);
  } else {
    call.buffers.addInput("reduce", "tensor", 0, tensor);
  }
  call.inputs = call.outputs = tensors;
  setReduction(call, opts.reduceOp);
  call.op.root = static_cast<int32_t>(opts.rootRank);
  call.take(opts);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  Call call(kAllGather, SAGECOMM_ALL_GATHER, devices_);
  const at::Tensor& input = onlyTensor("all_gather", inputs);
  fillAllGather(call, 0, onlyList("all_gather", "output", outputs, size_), input);
  call.take(opts);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Call call(kAllGatherSingle, SAGECOMM_ALL_GATHER, devices_);
  fillAllGatherSingle(call, 0, output, input);
  call.take(opts);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) {
  Call call(kReduceScatter, SAGECOMM_REDUCE_SCATTER, devices_);
  const at::Tensor& output = onlyTensor("reduce_scatter", outputs);
  const Tensors& list = onlyList("reduce_scatter", "input", inputs, size_);
  for (size_t i = 0; i < list.size(); i++) {
    call.buffers.addInput("reduce_scatter", "input", i, list[i]);
  }
  call.buffers.addOutput("reduce_scatter", "output", 0, output, overlapsOthers(output, list, rank_));
  checkElements("reduce_scatter", {"the output"}, output.numel(), {"this rank's input"}, list[rank_].numel());
  call.buffers.setInBlocks();
  call.inputs = list;
  setReduction(call, opts.reduceOp);
  call.take(opts);
  call.outputs = outputs;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Call call(kReduceScatterSingle, SAGECOMM_REDUCE_SCATTER, devices_);
  fillReduceScatterSingle(call, 0, output, input, opts.reduceOp);
  call.take(opts);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  Call call(kAllToAll, SAGECOMM_ALL_TO_ALL, devices_);
  for (const auto* list : {&inputs, &outputs}) {
    if (list->size() != static_cast<size_t>(size_)) {
      refuse(
          "all_to_all",
          "takes " + std::to_string(size_) + (list == &inputs ? " input" : " output") + " tensors, got " +
              std::to_string(list->size()));
    }
  }
  for (size_t i = 0; i < inputs.size(); i++) {
    call.buffers.addInput("all_to_all", "input", i, inputs[i]);
  }
  call.buffers.addOutputs("all_to_all", "output", outputs, anyOverlap(outputs, inputs));
  call.buffers.setInBlocks();
  call.buffers.setOutBlocks();
  call.take(opts);
  call.inputs = inputs;
  call.outputs = outputs;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& outputSplits,
    std::vector<int64_t>& inputSplits,
    const c10d::AllToAllOptions& opts) {
  Call call(kAllToAllSingle, SAGECOMM_ALL_TO_ALL, devices_);
  checkContiguous("all_to_all", "input", input);
  checkContiguous("all_to_all", "output", output);
  call.buffers.addInput("all_to_all", "input", 0, input);
  call.buffers.addOutput("all_to_all", "output", 0, output, anyOverlap(output, input));
  call.buffers.setInBlocks(splitBytes("all_to_all", "input", input, inputSplits, size_));
  call.buffers.setOutBlocks(splitBytes("all_to_all", "output", output, outputSplits, size_));
  call.take(opts);
  call.inputs = c10::ArrayRef<at::Tensor>(input);
  call.outputs = c10::ArrayRef<at::Tensor>(output);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::gather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  Call call(kGather, SAGECOMM_GATHER, devices_);
  const at::Tensor& input = onlyTensor("gather", inputs);
  checkRank("gather", "root", opts.rootRank, size_);
  call.buffers.addInput("gather", "input", 0, input);
  call.inputs = inputs;
  if (opts.rootRank == rank_) {
    const Tensors& list = onlyList("gather", "output", outputs, size_);
    call.buffers.addOutputs("gather", "output", list);
    for (size_t i = 0; i < list.size(); i++) {
      checkElements("gather", {"output", i}, list[i].numel(), {"the input"}, input.numel());
    }
    call.buffers.separateInput(input, rank_);
    call.outputs = list;
  } else {
    checkNoList("gather", "output", outputs);
  }
  call.op.root = static_cast<int32_t>(opts.rootRank);
  call.take(opts);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::gather_into_tensor(
    at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
  Call call(kGather, SAGECOMM_GATHER, devices_);
  checkRank("gather", "root", opts.rootRank, size_);
  call.buffers.addInput("gather", "input", 0, input);
  call.inputs = c10::ArrayRef<at::Tensor>(input);
  if (opts.rootRank == rank_) {
    call.buffers.addOutput("gather", "output", 0, output);
    checkSingle("gather", "output", output.numel(), "input", input.numel(), size_);
    call.buffers.separateInput(input, rank_);
    call.outputs = c10::ArrayRef<at::Tensor>(output);
  }
  call.op.root = static_cast<int32_t>(opts.rootRank);
  call.take(opts);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  Call call(kScatter, SAGECOMM_SCATTER, devices_);
  const at::Tensor& output = onlyTensor("scatter", outputs);
  checkRank("scatter", "root", opts.rootRank, size_);
  bool staged = false;
  if (opts.rootRank == rank_) {
    const Tensors& list = onlyList("scatter", "input", inputs, size_);
    for (size_t i = 0; i < list.size(); i++) {
      call.buffers.addInput("scatter", "input", i, list[i]);
      checkElements("scatter", {"input", i}, list[i].numel(), {"the output"}, output.numel());
    }
    staged = overlapsOthers(output, list, rank_);
    call.inputs = list;
  } else {
    checkNoList("scatter", "input", inputs);
  }
  call.buffers.addOutput("scatter", "output", 0, output, staged);
  call.op.root = static_cast<int32_t>(opts.rootRank);
  call.take(opts);
  call.outputs = outputs;
  return run(call);
}

// Postpones the refusal of a p2p operation to the end of the window: torch's batch_isend_irecv would never close its window
// otherwise.
template <class F>
ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::orPostponed(const OpInfo& info, F&& call) {
  try {
    return call();
  } catch (...) {
    if (WorkPtr work = windows_.postpone(info, info_->name)) {
      return work;
    }
    throw;
  }
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::send(Tensors& tensors, int dstRank, int tag) {
  return orPostponed(kSend, [&] {
    Call call(kSend, SAGECOMM_SEND, devices_);
    call.buffers.addInput("send", "tensor", 0, onlyTensor("send", tensors));
    checkRank("send", "destination", dstRank, size_);
    checkTag("send", tag);
    call.op.root = dstRank;
    call.op.tag = tag;
    call.inputs = tensors;
    call.outputs = tensors;
    return run(call);
  });
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::recv(Tensors& tensors, int srcRank, int tag) {
  return orPostponed(kRecv, [&] {
    checkRank("recv", "source", srcRank, size_);
    return receive(kRecv, tensors, srcRank, tag);
  });
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::recvAnysource(Tensors& tensors, int tag) {
  return orPostponed(kRecvAny, [&] { return receive(kRecvAny, tensors, SAGECOMM_ANY_SOURCE, tag); });
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::receive(
    const OpInfo& info, Tensors& tensors, int srcRank, int tag) {
  Call call(info, SAGECOMM_RECV, devices_);
  call.buffers.addOutput("recv", "tensor", 0, onlyTensor("recv", tensors));
  checkTag("recv", tag);
  call.op.root = srcRank;
  call.op.tag = tag;
  call.source = srcRank;
  call.inputs = call.outputs = tensors;
  return run(call);
}

} // namespace sagecomm
