// sparse_sum.cpp adds elements of sparse tensors with torch's dense operators. See sparse_sum.hpp.
#include "sparse_sum.hpp"

#include <vector>

#include <ATen/ATen.h>

namespace sagecomm {

namespace {

// Returns the type in which elements of `type` are added; Undefined if they cannot be.
at::ScalarType wide(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    case at::kBool:
      return at::kInt;
    case at::ScalarType::UInt16:
      return at::kShort;
    case at::ScalarType::UInt32:
      return at::kInt;
    case at::ScalarType::UInt64:
      return at::kLong;
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kByte:
    case at::kFloat:
    case at::kDouble:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return type;
    default:
      return at::ScalarType::Undefined;
  }
}

} // namespace

bool isSummed(at::ScalarType type) {
  return wide(type) != at::ScalarType::Undefined;
}

bool isExact(at::ScalarType type) {
  return type != at::kHalf && type != at::kBFloat16;
}

SparseElements summed(const SparseElements& all, at::IntArrayRef sizes) {
  const int64_t sparseDims = all.indices.size(0);
  const at::ScalarType type = all.values.scalar_type();
  at::Tensor flat = at::zeros({all.indices.size(1)}, at::kLong);
  for (int64_t d = 0; d < sparseDims; d++) {
    flat.mul_(sizes[d]).add_(all.indices[d]);
  }
  const auto [which, where, counts] = at::_unique2(flat, true, true);
  std::vector<int64_t> shape = all.values.sizes().vec();
  shape[0] = which.size(0);
  at::Tensor sum = at::zeros(shape, all.values.options().dtype(wide(type)));
  const bool reread = c10::isIntegralType(type, false) && wide(type) != type; // torch does not add unsigned integers
  sum.index_add_(0, where, reread ? all.values.view(wide(type)) : all.values.to(wide(type)));
  at::Tensor indices = at::empty({sparseDims, which.size(0)}, at::kLong);
  at::Tensor rest = which;
  for (int64_t d = sparseDims - 1; d >= 0; d--) {
    indices[d].copy_(rest.remainder(sizes[d]));
    rest = rest.div(sizes[d], "floor");
  }
  return {indices, reread ? sum.view(type) : sum.to(type)};
}

} // namespace sagecomm
