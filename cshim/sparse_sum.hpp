// sparse_sum.hpp describes sparse tensors to other ranks and adds them. The functions need neither GIL nor group.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace sagecomm {

// SparseHeader describes the tensor of one rank to all ranks, as whole elements of SAGECOMM_SPARSE. All members but the
// first two must be the same on all ranks.
struct SparseHeader {
  int64_t number; // counts the sparse sums of this rank; rank 0's number is in the tags of the p2p operations
  int64_t elements;
  int64_t sparseDims;
  int64_t type;
  int64_t dims;
  std::array<int64_t, 8> sizes; // the first sizes
  int64_t hash; // of all sizes

  bool agrees(const SparseHeader& other) const {
    return sparseDims == other.sparseDims && type == other.type && dims == other.dims && sizes == other.sizes &&
           hash == other.hash;
  }

  // "Float (50, 7), 1 dimension sparse"
  std::string text() const;
};

// SparseElements are the elements of a tensor of layout COO.
struct SparseElements {
  at::Tensor indices;
  at::Tensor values;
};

// Returns each index once, in ascending order. Elements of one index are added in the order in which they stand. Sums of
// fp16 and bf16 are rounded once, bools are or-ed, unsigned integers wrap.
SparseElements summed(const SparseElements& all, at::IntArrayRef sizes);

// Reports whether sparse tensors of that type can be added.
bool isSummed(at::ScalarType type);

// Reports whether adding in two steps gives the same bits as adding at once.
bool isExact(at::ScalarType type);

} // namespace sagecomm
