// sparse_sum.hpp adds the elements of sparse tensors. The functions need neither GIL nor group.
#pragma once

#include <ATen/core/Tensor.h>

namespace sagecomm {

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
