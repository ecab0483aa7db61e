// sparse_sum.hpp: what ranks tell each other about sparse tensors, and how these are added.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace sagecomm {

// What a rank says about its tensor: whole elements of SAGECOMM_SPARSE. All but the first two are the same everywhere.
struct SparseHeader {
  int64_t number; // of this rank's sparse sums; the messages go by rank 0's
  int64_t elements;
  int64_t sparseDims;
  int64_t type;
  int64_t dims;
  std::array<int64_t, 8> sizes; // the first ones
  int64_t hash; // of all

  bool agrees(const SparseHeader& other) const {
    return sparseDims == other.sparseDims && type == other.type && dims == other.dims && sizes == other.sizes &&
           hash == other.hash;
  }

  // "Float (50, 7), 1 dimension sparse"
  std::string text() const;
};

// A tensor of layout COO.
struct SparseElements {
  at::Tensor indices;
  at::Tensor values;
};

// Each index once, in their order; what has the same one is added in the order in which it stands. Sums of halves are
// rounded once, bools are or-ed, unsigned ones wrap.
SparseElements summed(const SparseElements& all, at::IntArrayRef sizes);

// Whether sparse tensors of that type can be added.
bool isSummed(at::ScalarType type);

// Whether a sum can be added to again without being another one.
bool isExact(at::ScalarType type);

} // namespace sagecomm
