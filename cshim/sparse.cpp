// sparse.cpp: see sparse.hpp.
#include "sparse.hpp"

#include <algorithm>
#include <cstdio>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/hash.h>

#include "core.hpp"
#include "errors.hpp"

namespace sagecomm {

namespace {

std::string reasonOf(const std::exception& e) {
  const auto* fromTorch = dynamic_cast<const c10::Error*>(&e);
  return fromTorch != nullptr ? fromTorch->what_without_backtrace() : e.what();
}

int32_t explain(char* why, size_t n, const std::string& reason) {
  std::snprintf(why, n, "%s", firstLine(reason).c_str());
  return -1;
}

sagecomm_segment segmentOf(const at::Tensor& t) {
  return {t.data_ptr(), t.nbytes()};
}

} // namespace

SparseSum::SparseSum(const at::Tensor& tensor, int rank, int size) : rank_(rank), output_(tensor), elements_(size) {
  at::AutoDispatchBelowADInplaceOrView noAutograd;
  try { // torch does not check indices when it makes the tensor
    at::_validate_sparse_coo_tensor_args(tensor._indices(), tensor._values(), tensor.sizes());
  } catch (const c10::Error& e) {
    refuse("all_reduce", e.what_without_backtrace());
  }
  SparseElements& mine = elements_[rank];
  mine = {tensor._indices().contiguous(), tensor._values().contiguous()};
  if (!tensor.is_coalesced() && mine.indices.size(1) > 0 && isExact(tensor.scalar_type())) {
    mine = summed(mine, tensor.sizes());
  }
  header_.elements = mine.indices.size(1);
  header_.sparse_dims = tensor.sparse_dim();
  header_.dims = tensor.dim();
  std::copy_n(tensor.sizes().begin(), std::min(std::size(header_.sizes), tensor.sizes().size()), header_.sizes);
  header_.hash = c10::get_hash(tensor.sizes().vec());
  std::snprintf(header_.type, sizeof header_.type, "%s", c10::toString(tensor.scalar_type()));
}

sagecomm_sparse_sum SparseSum::describe(int64_t timeoutNs, uint64_t stack) {
  sagecomm_sparse_sum sum{};
  sum.struct_size = sizeof sum;
  sum.header = header_;
  sum.indices = segmentOf(elements_[rank_].indices);
  sum.values = segmentOf(elements_[rank_].values);
  sum.timeout_ns = timeoutNs;
  sum.stack = stack;
  sum.ctx = this;
  sum.allocate = &SparseSum::allocate;
  sum.add = &SparseSum::add;
  return sum;
}

int32_t SparseSum::allocate(
    void* ctx,
    int32_t rank,
    int64_t elements,
    sagecomm_segment* indices,
    sagecomm_segment* values,
    char* why,
    size_t whyN) noexcept {
  const CompletionGate gate; // shutdownCore() waits for this thread
  auto* self = static_cast<SparseSum*>(ctx);
  try {
    self->allocateFor(rank, elements);
    *indices = segmentOf(self->elements_[rank].indices);
    *values = segmentOf(self->elements_[rank].values);
    return 0;
  } catch (const std::exception& e) {
    return explain(why, whyN, reasonOf(e));
  }
}

int32_t SparseSum::add(void* ctx, int32_t* culprit, char* why, size_t whyN) noexcept {
  const CompletionGate gate; // as above
  auto* self = static_cast<SparseSum*>(ctx);
  try {
    std::string reason;
    *culprit = self->findInvalid(reason);
    if (*culprit >= 0) {
      return explain(why, whyN, reason);
    }
    self->addAll();
    return 0;
  } catch (const std::exception& e) {
    return explain(why, whyN, reasonOf(e));
  }
}

void SparseSum::allocateFor(int rank, int64_t elements) {
  at::AutoDispatchBelowADInplaceOrView noAutograd;
  const SparseElements& mine = elements_[rank_];
  std::vector<int64_t> shape = mine.values.sizes().vec();
  shape[0] = elements;
  elements_[rank] = {at::empty({header_.sparse_dims, elements}, at::kLong), at::empty(shape, mine.values.options())};
}

int SparseSum::findInvalid(std::string& reason) const {
  for (size_t r = 0; r < elements_.size(); r++) {
    if (!elements_[r].indices.defined()) {
      continue;
    }
    try { // another process wrote them
      at::_validate_sparse_coo_tensor_args(elements_[r].indices, elements_[r].values, output_.sizes());
    } catch (const std::exception& e) {
      reason = reasonOf(e);
      return static_cast<int>(r);
    }
  }
  return -1;
}

void SparseSum::addAll() {
  at::AutoDispatchBelowADInplaceOrView noAutograd;
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (const SparseElements& each : elements_) {
    if (each.indices.defined() && each.indices.size(1) > 0) {
      indices.push_back(each.indices);
      values.push_back(each.values);
    }
  }
  SparseElements sum = elements_[rank_];
  if (!indices.empty()) {
    sum = summed({at::cat(indices, 1), at::cat(values, 0)}, output_.sizes());
  }
  const at::Tensor result =
      at::_sparse_coo_tensor_unsafe(sum.indices, sum.values, output_.sizes(), output_.options())._coalesced_(true);
  output_.copy_(result);
  elements_.clear();
}

} // namespace sagecomm
