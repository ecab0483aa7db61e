#include "tensors.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

namespace operators {
namespace {

constexpr size_t most_ranges = 256;

struct Dimension {
  int64_t size, stride;
};

}  // namespace

at::Tensor cpu_view(const at::Tensor &tensor) {
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  at::Tensor view =
      at::from_blob(emulator::host_view(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

void append_ranges(const at::Tensor &tensor, std::vector<emulator::Range> *ranges) {
  if (tensor.numel() == 0) return;
  std::vector<Dimension> dimensions;
  for (int64_t i = 0; i < tensor.dim(); i++)
    if (tensor.size(i) > 1 && tensor.stride(i) > 0) dimensions.push_back({tensor.size(i), tensor.stride(i)});
  std::sort(dimensions.begin(), dimensions.end(), [](auto a, auto b) { return a.stride < b.stride; });
  int64_t run = 1;  // adjacent elements
  size_t inner = 0;
  for (; inner < dimensions.size() && dimensions[inner].stride <= run; inner++)
    run += (dimensions[inner].size - 1) * dimensions[inner].stride;
  std::vector<int64_t> starts{0};
  int64_t last = run - 1;
  bool with_holes = false;
  for (size_t i = inner; i < dimensions.size(); i++) {
    const auto [size, stride] = dimensions[i];
    last += (size - 1) * stride;
    with_holes = with_holes || starts.size() * static_cast<size_t>(size) > most_ranges;
    size_t before = starts.size();
    for (int64_t step = 1; step < size && !with_holes; step++)
      for (size_t j = 0; j < before; j++) starts.push_back(starts[j] + step * stride);
  }
  const auto width = static_cast<int64_t>(tensor.element_size());
  const auto *base = static_cast<const char *>(tensor.const_data_ptr());
  if (with_holes) {
    ranges->push_back({base, static_cast<size_t>((last + 1) * width)});
    return;
  }
  for (int64_t start : starts) ranges->push_back({base + start * width, static_cast<size_t>(run * width)});
}

}  // namespace operators
