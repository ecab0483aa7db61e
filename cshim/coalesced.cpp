// coalesced.cpp holds the operations of ProcessGroupSagecomm that take several tensors at once. Each makes one Call per tensor;
// the core decides which of them share a collective. All run on the thread that calls torch.
//
// A tensor may stand in a list several times, as with gloo: all inputs are read before an output is written, and the last
// output wins. The core refuses operations that share memory, so a copy stands for each repetition of an output, and copies
// are written back in the order of the list. Tensors that overlap in part are refused, with both operations named.
#include <algorithm>

#include "call.hpp"
#include "checks.hpp"
#include "errors.hpp"
#include "process_group.hpp"
#include "reduction.hpp"

namespace sagecomm {

namespace {

constexpr OpInfo kAllReduceCoalesced{
    c10d::OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", "sagecomm:all_reduce_coalesced"};
constexpr OpInfo kAllGatherCoalesced{
    c10d::OpType::ALLGATHER_COALESCED, "all_gather_coalesced", "sagecomm:all_gather_coalesced"};
constexpr OpInfo kAllGatherSingleCoalesced{
    c10d::OpType::COALESCED, "all_gather_coalesced", "sagecomm:all_gather_single_coalesced"};
constexpr OpInfo kReduceScatterSingleCoalesced{
    c10d::OpType::COALESCED, "reduce_scatter_coalesced", "sagecomm:reduce_scatter_single_coalesced"};

void checkNotEmpty(const char* op, const std::vector<at::Tensor>& tensors) {
  if (C10_UNLIKELY(tensors.empty())) {
    refuse(op, "takes at least one tensor");
  }
}

// Repetitions knows which tensors of a list are the same memory as an earlier one.
class Repetitions {
 public:
  explicit Repetitions(const std::vector<at::Tensor>& tensors) {
    std::vector<std::pair<const void*, size_t>> places;
    places.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); i++) {
      if (const at::Tensor& t = tensors[i]; t.defined() && t.has_storage() && t.numel() > 0) {
        places.emplace_back(t.const_data_ptr(), i);
      }
    }
    std::sort(places.begin(), places.end());
    for (size_t later = 1; later < places.size(); later++) {
      for (size_t earlier = later; earlier-- > 0 && places[earlier].first == places[later].first;) {
        if (sameMemory(tensors[places[earlier].second], tensors[places[later].second])) {
          repeated_.resize(tensors.size());
          repeated_[places[later].second] = true;
          break;
        }
      }
    }
  }
  bool at(size_t index) const {
    return !repeated_.empty() && repeated_[index];
  }

 private:
  std::vector<bool> repeated_; // empty: no tensor is
};

} // namespace

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  checkNotEmpty("all_reduce_coalesced", tensors);
  const Repetitions repeated(tensors);
  std::vector<Call> calls;
  calls.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); i++) {
    Call& call = calls.emplace_back(kAllReduceCoalesced, SAGECOMM_ALL_REDUCE, devices_);
    call.repeatsTensor = repeated.at(i);
    fillAllReduce(call, i, tensors[i], opts.reduceOp);
    call.take(opts);
  }
  return runAll(kAllReduceCoalesced, calls, wantsAsync(opts), opts.timeout);
}

// outputs[r][i] gets what rank r has in inputs[i].
ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  constexpr const char* kOp = "all_gather_coalesced";
  checkNotEmpty(kOp, inputs);
  if (outputs.size() != static_cast<size_t>(size_)) {
    refuse(
        kOp,
        "takes a list of output tensors for each of " + countRanks(size_) + ", got " + std::to_string(outputs.size()));
  }
  for (const Tensors& list : outputs) {
    checkCount(kOp, "output", list.size(), "input", inputs.size());
  }
  std::vector<Tensors> lists(inputs.size());
  std::vector<Call> calls;
  calls.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) {
    for (const Tensors& list : outputs) {
      lists[i].push_back(list[i]);
    }
    Call& call = calls.emplace_back(kAllGatherCoalesced, SAGECOMM_ALL_GATHER, devices_);
    fillAllGather(call, i, lists[i], inputs[i]);
    call.take(opts);
  }
  return runAll(kAllGatherCoalesced, calls, wantsAsync(opts), opts.timeout);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  constexpr const char* kOp = "all_gather_coalesced";
  checkNotEmpty(kOp, inputs);
  checkCount(kOp, "output", outputs.size(), "input", inputs.size());
  const Repetitions repeated(outputs);
  std::vector<Call> calls;
  calls.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) {
    Call& call = calls.emplace_back(kAllGatherSingleCoalesced, SAGECOMM_ALL_GATHER, devices_);
    call.repeatsTensor = repeated.at(i);
    fillAllGatherSingle(call, i, outputs[i], inputs[i]);
    call.take(opts);
  }
  return runAll(kAllGatherSingleCoalesced, calls, wantsAsync(opts), opts.timeout);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  constexpr const char* kOp = "reduce_scatter_coalesced";
  checkNotEmpty(kOp, inputs);
  checkCount(kOp, "output", outputs.size(), "input", inputs.size());
  const Repetitions repeated(outputs);
  std::vector<Call> calls;
  calls.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) {
    Call& call = calls.emplace_back(kReduceScatterSingleCoalesced, SAGECOMM_REDUCE_SCATTER, devices_);
    call.repeatsTensor = repeated.at(i);
    fillReduceScatterSingle(call, i, outputs[i], inputs[i], opts.reduceOp);
    call.take(opts);
  }
  return runAll(kReduceScatterSingleCoalesced, calls, wantsAsync(opts), opts.timeout);
}

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::batchIsendIrecv(
    const std::vector<std::string>& kinds, const Tensors& tensors, const std::vector<int64_t>& peers) {
  constexpr const char* kOp = "batch_isend_irecv";
  checkNotEmpty(kOp, tensors);
  checkCount(kOp, "name of an operation", kinds.size(), "tensor", tensors.size());
  checkCount(kOp, "peer", peers.size(), "tensor", tensors.size());
  for (const std::string& kind : kinds) {
    if (kind != "isend" && kind != "irecv") {
      refuse(kOp, "knows isend and irecv, got \"" + kind + "\"");
    }
  }
  for (const int64_t peer : peers) {
    checkRank(kOp, "peer", peer, size_);
  }
  startCoalescing();
  for (size_t i = 0; i < tensors.size(); i++) {
    Tensors one{tensors[i]};
    const int peer = static_cast<int>(peers[i]);
    kinds[i] == "isend" ? send(one, peer, 0) : recv(one, peer, 0); // a refusal is raised by endCoalescing()
  }
  return endCoalescing();
}

} // namespace sagecomm
