// sparse.hpp is what only torch can do for an all_reduce of sparse tensors: describe the tensor, allocate memory for the
// elements of other ranks, add. The core does the rest (pgbackend/sparse.go).
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sagecomm.h"
#include "sparse_sum.hpp"

namespace sagecomm {

// SparseSum owns the memory of one all_reduce of sparse tensors. It lives until the core has completed the operation.
class SparseSum {
 public:
  // Throws if the tensor, of layout COO, is not valid. The tensor gets the sum, rounded as dense sums are: fp16 and bf16 are
  // added as fp32 and rounded once.
  SparseSum(const at::Tensor& tensor, int rank, int size);
  SparseSum(const SparseSum&) = delete;
  SparseSum& operator=(const SparseSum&) = delete;

  // Describes the operation to the core. `timeoutNs` and `stack` are those of sagecomm_op.
  sagecomm_sparse_sum describe(int64_t timeoutNs, uint64_t stack);

 private:
  // The core calls them on its threads, one at a time. See sagecomm.h.
  static int32_t allocate(
      void* ctx,
      int32_t rank,
      int64_t elements,
      sagecomm_segment* indices,
      sagecomm_segment* values,
      char* why,
      size_t whyN) noexcept;
  static int32_t add(void* ctx, int32_t* culprit, char* why, size_t whyN) noexcept;

  void allocateFor(int rank, int64_t elements);
  // Returns the rank whose elements are not valid, with the reason, or -1.
  int findInvalid(std::string& reason) const;
  // Writes the sum of all ranks' elements to the output.
  void addAll();

  const int rank_;
  at::Tensor output_;
  std::vector<SparseElements> elements_; // by rank; undefined tensors where a rank has none
  sagecomm_sparse_header header_{};
};

} // namespace sagecomm
