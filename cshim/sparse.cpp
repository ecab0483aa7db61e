// sparse.cpp carries out the protocol of sparse.hpp. It begins on the thread that calls torch and goes on, step by step, on
// the threads of the core that complete the steps.
#include "sparse.hpp"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/hash.h>

#include "core.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "sparse_work.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

namespace {

constexpr const char* kOp = "all_reduce";

std::string reasonOf(const std::exception& e) {
  const auto* fromTorch = dynamic_cast<const c10::Error*>(&e);
  return fromTorch != nullptr ? fromTorch->what_without_backtrace() : e.what();
}

} // namespace

// The tag is negative, which users' tags are not. Each call has tags of its own, because a rank may post the receives of a
// later call first.
int32_t SparseWork::tagOf(int64_t number, Field field) {
  constexpr uint32_t kNumbers = (1U << 30) / kFields;
  return -1 - static_cast<int32_t>(static_cast<uint64_t>(number) % kNumbers * kFields + field);
}

SparseWork::SparseWork(
    const SparseGroup& group,
    int64_t number,
    const at::Tensor& tensor,
    milliseconds timeout,
    EphemeralTimeout::Share&& share)
    : c10d::Work(group.rank, c10d::OpType::ALLREDUCE),
      group_(group),
      timeout_(timeout),
      ephemeralShare_(std::move(share)),
      output_(tensor),
      headers_(group.size),
      indices_(group.size),
      values_(group.size) {
  at::AutoDispatchBelowADInplaceOrView noAutograd;
  try { // torch does not check indices when it makes the tensor
    at::_validate_sparse_coo_tensor_args(tensor._indices(), tensor._values(), tensor.sizes());
  } catch (const c10::Error& e) {
    refuse(kOp, e.what_without_backtrace());
  }
  SparseElements mine{tensor._indices().contiguous(), tensor._values().contiguous()};
  if (!tensor.is_coalesced() && mine.indices.size(1) > 0 && isExact(tensor.scalar_type())) {
    mine = summed(mine, tensor.sizes());
  }
  indices_[group.rank] = mine.indices;
  values_[group.rank] = mine.values;
  mine_.number = number;
  mine_.elements = mine.indices.size(1);
  mine_.sparseDims = tensor.sparse_dim();
  mine_.type = static_cast<int64_t>(tensor.scalar_type());
  mine_.dims = tensor.dim();
  std::copy_n(tensor.sizes().begin(), std::min(mine_.sizes.size(), tensor.sizes().size()), mine_.sizes.begin());
  mine_.hash = static_cast<int64_t>(c10::get_hash(tensor.sizes().vec()));
}

void SparseWork::start() {
  core().group_hold(group_.group, 1, nullptr);
  group_.info->hooks->began();
  watch_ = group_.info->hooks->start();
  sagecomm_segment in{&mine_, sizeof mine_};
  sagecomm_segment out{headers_.data(), headers_.size() * sizeof(SparseHeader)};
  sagecomm_op op{};
  op.kind = SAGECOMM_ALL_GATHER;
  op.dtype = SAGECOMM_SPARSE;
  op.in = &in;
  op.out = &out;
  const bool accepted = issue(op, true);
  stepEnded();
  if (!accepted) {
    raise(*error_);
  }
}

bool SparseWork::issue(sagecomm_op& op, bool first) {
  op.flags = SAGECOMM_ASYNC;
  op.timeout_ns = timeout_ > kNoTimeout ? toNs(timeout_) : 0;
  op.n_in = op.in != nullptr ? 1 : 0;
  op.n_out = op.out != nullptr ? 1 : 0;
  auto step = std::make_unique<Step>(Step{c10::intrusive_ptr<SparseWork>::unsafe_reclaim_from_nonowning(this), first});
  left_.fetch_add(1);
  uint64_t sequence = 0;
  sagecomm_error error;
  int32_t status = core().issue(group_.group, &op, &step->handle, &sequence, &error);
  const bool accepted = status >= 0;
  if (first) {
    issued_ = status != SAGECOMM_INVALID;
    sequence_ = sequence;
  }
  if (status == SAGECOMM_PENDING) {
    Step* ctx = step.release();
    status = core().on_done(ctx->handle, &SparseWork::stepDone, ctx, &error);
    if (status == SAGECOMM_PENDING) {
      return true;
    }
    step.reset(ctx);
  }
  settle(std::move(step), status, error);
  return accepted;
}

void SparseWork::stepDone(void* ctx, int32_t status, const sagecomm_error* error) noexcept {
  CompletionGate gate;
  std::unique_ptr<Step> step(static_cast<Step*>(ctx));
  SparseWork& work = *step->work;
  if (!gate.open() && !work.exiting_.exchange(true)) {
    // The process is ending. Peers still need this rank's elements, but nothing is released any more.
    c10::raw::intrusive_ptr::incref(&work);
  }
  work.settle(std::move(step), status, *error);
}

void SparseWork::settle(std::unique_ptr<Step> step, int32_t status, const sagecomm_error& error) {
  if (status < 0) {
    fail(error);
  } else if (step->first) {
    exchange();
  }
  if (step->handle != 0) {
    core().release(step->handle);
  }
  stepEnded();
}

void SparseWork::exchange() {
  for (int r = 0; r < group_.size; r++) {
    if (!headers_[r].agrees(headers_[0]) || headers_[r].elements < 0) {
      reportDifference(r);
      return;
    }
  }
  for (int i = 1; i < group_.size; i++) {
    const int peer = (group_.rank + i) % group_.size;
    receive(peer);
    if (mine_.elements > 0) {
      post(SAGECOMM_SEND, kIndices, peer, indices_[group_.rank]);
      post(SAGECOMM_SEND, kValues, peer, values_[group_.rank]);
    }
  }
}

void SparseWork::post(sagecomm_kind kind, Field field, int peer, const at::Tensor& tensor) {
  if (failed_.load()) {
    return;
  }
  sagecomm_segment segment{tensor.data_ptr(), tensor.nbytes()};
  sagecomm_op op{};
  op.kind = static_cast<uint8_t>(kind);
  op.dtype = SAGECOMM_UINT8;
  op.root = peer;
  op.tag = tagOf(headers_[0].number, field);
  (kind == SAGECOMM_SEND ? op.in : op.out) = &segment;
  issue(op, false);
}

void SparseWork::receive(int peer) {
  const SparseHeader& theirs = headers_[peer];
  if (theirs.elements == 0) {
    return;
  }
  try {
    indices_[peer] = at::empty({mine_.sparseDims, theirs.elements}, at::kLong);
    std::vector<int64_t> shape = values_[group_.rank].sizes().vec();
    shape[0] = theirs.elements;
    values_[peer] = at::empty(shape, values_[group_.rank].options());
  } catch (const std::exception& e) {
    failGroup(
        SAGECOMM_SYSTEM,
        group_.rank,
        thisRank() + " has no memory for the elements of rank " + std::to_string(peer) + ": " + reasonOf(e));
    return;
  }
  post(SAGECOMM_RECV, kIndices, peer, indices_[peer]);
  post(SAGECOMM_RECV, kValues, peer, values_[peer]);
}

void SparseWork::reportDifference(int rank) {
  failGroup(
      SAGECOMM_MISMATCH,
      rank,
      "ranks disagree in #" + std::to_string(sequence_) + " of group " + group_.info->name +
          ": rank 0 gave a sparse tensor of " + headers_[0].text() + ", rank " + std::to_string(rank) + " one of " +
          headers_[rank].text() + "; every rank must give the same shape, type and sparse dimensions");
}

std::string SparseWork::thisRank() const {
  return "rank " + std::to_string(group_.rank);
}

void SparseWork::failGroup(int status, int culprit, const std::string& why) {
  sagecomm_error error;
  fillError(error, status, kOp, group_.info->name, why);
  error.rank = culprit;
  sagecomm_error first;
  if (core().group_fail(group_.group, &error, nullptr) == SAGECOMM_OK && core().group_error(group_.group, &first) < 0) {
    error = first;
  }
  fail(error);
}

void SparseWork::fail(const sagecomm_error& error) {
  if (!failed_.exchange(true)) {
    error_ = std::make_unique<sagecomm_error>(error);
  }
}

void SparseWork::stepEnded() {
  if (left_.fetch_sub(1) != 1) {
    return;
  }
  if (!failed_.load()) {
    try {
      add();
    } catch (const std::exception& e) {
      failGroup(SAGECOMM_SYSTEM, group_.rank, thisRank() + " cannot add the elements of all ranks: " + reasonOf(e));
    }
  }
  complete();
}

void SparseWork::add() {
  at::AutoDispatchBelowADInplaceOrView noAutograd;
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (int r = 0; r < group_.size; r++) {
    if (headers_[r].elements == 0) {
      continue;
    }
    try { // another process wrote them
      at::_validate_sparse_coo_tensor_args(indices_[r], values_[r], output_.sizes());
    } catch (const std::exception& e) {
      failGroup(
          SAGECOMM_INTERNAL, r, "rank " + std::to_string(r) + " sent elements that are not valid: " + reasonOf(e));
      return;
    }
    indices.push_back(indices_[r]);
    values.push_back(values_[r]);
  }
  SparseElements sum{indices_[group_.rank], values_[group_.rank]};
  if (!indices.empty()) {
    sum = summed({at::cat(indices, 1), at::cat(values, 0)}, output_.sizes());
  }
  const at::Tensor result =
      at::_sparse_coo_tensor_unsafe(sum.indices, sum.values, output_.sizes(), output_.options())._coalesced_(true);
  output_.copy_(result);
  indices_.clear();
  values_.clear();
}

c10::intrusive_ptr<c10d::Work> allReduceSparse(
    const SparseGroup& group,
    int64_t number,
    const at::Tensor& tensor,
    milliseconds timeout,
    EphemeralTimeout::Share&& share) {
  auto work = c10::make_intrusive<SparseWork>(group, number, tensor, timeout, std::move(share));
  work->start();
  return work;
}

} // namespace sagecomm
