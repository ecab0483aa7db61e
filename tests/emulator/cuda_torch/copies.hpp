// copies.hpp has the operators that fake CUDA implements itself, because torch's own kernels launch CUDA kernels in some cases.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace fake_cuda {

// Copies of adjacent elements stay torch's own copies of memory. A copy on one device that casts or rearranges elements is
// an operator; torch itself makes other copies out of these two.
at::Tensor &copy_(at::Tensor &self, const at::Tensor &source, bool non_blocking);

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor &input, double p, std::optional<bool> train);

}  // namespace fake_cuda
