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
constexpr OpInfo kReduceScatter{c10d::OpType::REDUCE_SCATTER, "reduce_scatter", "sagecomm:reduce_scatter"};
constexpr OpInfo kReduceScatterSingle{
    c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", "sagecomm:reduce_scatter_single"};
constexpr OpInfo kAllToAll{c10d::OpType::ALLTOALL, "all_to_all", "sagecomm:all_to_all"};
constexpr OpInfo kAllToAllSingle{c10d::OpType::ALLTOALL_BASE, "all_to_all", "sagecomm:all_to_all_single"};
constexpr OpInfo kGather{c10d::OpType::GATHER, "gather", "sagecomm:gather"};
constexpr OpInfo kScatter{c10d::OpType::SCATTER, "scatter", "sagecomm:scatter"};
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

// A list with one list of a tensor for each rank.
const std::vector<at::Tensor>& onlyList(
    const char* op, const char* role, const std::vector<std::vector<at::Tensor>>& lists, int size) {
  if (C10_UNLIKELY(lists.size() != 1 || lists[0].size() != static_cast<size_t>(size))) {
    refuse(
        op,
        "takes one list of " + std::to_string(size) + " " + role + " tensors, got " +
            (lists.size() == 1 ? "one of " + std::to_string(lists[0].size())
                               : std::to_string(lists.size()) + " lists"));
  }
  return lists[0];
}

void checkNoList(const char* op, const char* role, const std::vector<std::vector<at::Tensor>>& lists) {
  if (C10_UNLIKELY(!lists.empty() && !(lists.size() == 1 && lists[0].empty()))) {
    refuse(op, std::string("takes ") + role + " tensors on the root only");
  }
}

void checkElements(const char* op, const std::string& what, int64_t got, const std::string& like, int64_t want) {
  if (C10_UNLIKELY(got != want)) {
    refuse(op, what + " has " + std::to_string(got) + " elements, " + like + " has " + std::to_string(want));
  }
}

// The single form of a tensor of `one` elements a rank.
void checkSingle(const char* op, const char* role, int64_t all, const char* oneRole, int64_t one, int size) {
  if (C10_UNLIKELY(all != one * size)) {
    refuse(
        op,
        std::string("the ") + role + " has " + std::to_string(all) + " elements, " + std::to_string(size) +
            " ranks with " + oneRole + "s of " + std::to_string(one) + " need " + std::to_string(one * size));
  }
}

// Bytes of the blocks that split a tensor along its first dimension; none: blocks are equal.
Buffers::Blocks splitBytes(
    const char* op, const char* role, const at::Tensor& t, const std::vector<int64_t>& splits, int size) {
  Buffers::Blocks bytes;
  const int64_t rows = t.dim() == 0 ? 1 : t.size(0);
  if (splits.empty()) {
    if (rows % size != 0) {
      refuse(
          op,
          std::string("the first dimension of the ") + role + ", " + std::to_string(rows) +
              ", cannot be split into equal parts for " + std::to_string(size) + " ranks");
    }
    return bytes;
  }
  if (splits.size() != static_cast<size_t>(size)) {
    refuse(
        op,
        std::to_string(splits.size()) + " split sizes for the " + role + ", the group has " + std::to_string(size) +
            " ranks");
  }
  int64_t sum = 0;
  for (const int64_t n : splits) {
    if (n < 0) {
      refuse(op, std::string("a split size of the ") + role + " is negative: " + std::to_string(n));
    }
    sum += n;
  }
  if (sum != rows) {
    refuse(
        op,
        std::string("the split sizes of the ") + role + " add up to " + std::to_string(sum) +
            ", its first dimension is " + std::to_string(rows));
  }
  const uint64_t row = rows == 0 ? 0 : t.nbytes() / static_cast<uint64_t>(rows);
  for (const int64_t n : splits) {
    bytes.push_back(static_cast<uint64_t>(n) * row);
  }
  return bytes;
}

bool anyOverlap(c10::ArrayRef<at::Tensor> outputs, c10::ArrayRef<at::Tensor> inputs) {
  for (const at::Tensor& output : outputs) {
    for (const at::Tensor& input : inputs) {
      if (output.defined() && input.defined() && overlap(output, input)) {
        return true;
      }
    }
  }
  return false;
}

// Whether one output overlaps a list of inputs other than as the rank's own one.
bool overlapsOthers(const at::Tensor& output, c10::ArrayRef<at::Tensor> inputs, int rank) {
  for (size_t i = 0; i < inputs.size(); i++) {
    const at::Tensor& input = inputs[i];
    const bool own = i == static_cast<size_t>(rank) && input.defined() && output.defined() && input.is_same(output);
    if (!own && anyOverlap(output, input)) {
      return true;
    }
  }
  return false;
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
  const Tensors& list = onlyList("all_gather", "output", outputs, size_);
  call.buffers.addInput("all_gather", "input", 0, input);
  call.buffers.addOutputs("all_gather", "output", list);
  checkElements("all_gather", "the input", input.numel(), "this rank's output", list[rank_].numel());
  call.buffers.setOutBlocks();
  call.buffers.separateInput(input, rank_);
  call.take(opts);
  call.inputs = inputs;
  call.outputs = list;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Call call(kAllGatherSingle, SAGECOMM_ALL_GATHER);
  call.buffers.addInput("all_gather", "input", 0, input);
  call.buffers.addOutput("all_gather", "output", 0, output);
  checkSingle("all_gather", "output", output.numel(), "input", input.numel(), size_);
  call.buffers.separateInput(input, rank_);
  call.take(opts);
  call.inputs = c10::ArrayRef<at::Tensor>(input);
  call.outputs = c10::ArrayRef<at::Tensor>(output);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) {
  Call call(kReduceScatter, SAGECOMM_REDUCE_SCATTER);
  const at::Tensor& output = onlyTensor("reduce_scatter", outputs);
  const Tensors& list = onlyList("reduce_scatter", "input", inputs, size_);
  for (size_t i = 0; i < list.size(); i++) {
    call.buffers.addInput("reduce_scatter", "input", i, list[i]);
  }
  call.buffers.addOutput("reduce_scatter", "output", 0, output, overlapsOthers(output, list, rank_));
  checkElements("reduce_scatter", "the output", output.numel(), "this rank's input", list[rank_].numel());
  call.buffers.setInBlocks();
  setReduction(call.op, "reduce_scatter", opts.reduceOp);
  call.take(opts);
  call.inputs = list;
  call.outputs = outputs;
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Call call(kReduceScatterSingle, SAGECOMM_REDUCE_SCATTER);
  call.buffers.addInput("reduce_scatter", "input", 0, input);
  const auto* own = static_cast<const char*>(call.buffers.in()[0].data) + rank_ * (call.buffers.in()[0].bytes / size_);
  const bool inPlace = output.defined() && output.has_storage() && output.const_data_ptr() == own;
  call.buffers.addOutput("reduce_scatter", "output", 0, output, !inPlace && anyOverlap(output, input));
  checkSingle("reduce_scatter", "input", input.numel(), "output", output.numel(), size_);
  setReduction(call.op, "reduce_scatter", opts.reduceOp);
  call.take(opts);
  call.inputs = c10::ArrayRef<at::Tensor>(input);
  call.outputs = c10::ArrayRef<at::Tensor>(output);
  return run(call);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::alltoall(
    Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  Call call(kAllToAll, SAGECOMM_ALL_TO_ALL);
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
  Call call(kAllToAllSingle, SAGECOMM_ALL_TO_ALL);
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
  Call call(kGather, SAGECOMM_GATHER);
  const at::Tensor& input = onlyTensor("gather", inputs);
  checkRank("gather", "root", opts.rootRank, size_);
  call.buffers.addInput("gather", "input", 0, input);
  call.inputs = inputs;
  if (opts.rootRank == rank_) {
    const Tensors& list = onlyList("gather", "output", outputs, size_);
    call.buffers.addOutputs("gather", "output", list);
    for (size_t i = 0; i < list.size(); i++) {
      checkElements("gather", "output " + std::to_string(i), list[i].numel(), "the input", input.numel());
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
  Call call(kGather, SAGECOMM_GATHER);
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
  Call call(kScatter, SAGECOMM_SCATTER);
  const at::Tensor& output = onlyTensor("scatter", outputs);
  checkRank("scatter", "root", opts.rootRank, size_);
  bool staged = false;
  if (opts.rootRank == rank_) {
    const Tensors& list = onlyList("scatter", "input", inputs, size_);
    for (size_t i = 0; i < list.size(); i++) {
      call.buffers.addInput("scatter", "input", i, list[i]);
      checkElements("scatter", "input " + std::to_string(i), list[i].numel(), "the output", output.numel());
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
  call.op.in_blocks = call.buffers.inBlocks();
  call.op.out_blocks = call.buffers.outBlocks();

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
