#include "copies.hpp"

#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>

#include <vector>

#include "../operators/operators.hpp"
#include "../operators/tensors.hpp"

namespace fake_cuda {
namespace {

// Reports whether torch copies the memory as it is.
bool is_plain(const at::Tensor &to, const at::Tensor &from) {
  return to.dtype() == from.dtype() && to.sizes() == from.sizes() && to.is_contiguous() && from.is_contiguous() &&
         to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

void copy_elements(const at::Tensor &to, const at::Tensor &from) {
  std::vector<emulator::Range> reads, writes;
  operators::append_ranges(from, &reads);
  operators::append_ranges(to, &writes);
  operators::launch(to.device().index(), "aten::copy_", reads, writes,
                    [to = operators::cpu_view(to), from = operators::cpu_view(from)] {
                      at::AutoDispatchBelowADInplaceOrView guard;
                      to.copy_(from);
                    });
}

}  // namespace

at::Tensor &copy_(at::Tensor &self, const at::Tensor &source, bool non_blocking) {
  if (!self.is_cuda() || !source.is_cuda() || self.numel() == 0 || is_plain(self, source) || self.is_same(source))
    return at::native::copy_(self, source, non_blocking);
  if (self.device() == source.device()) {
    copy_elements(self, source);
    return self;
  }
  at::Tensor there = at::empty(self.sizes(), source.options().dtype(self.dtype()));
  copy_elements(there, source);
  if (is_plain(self, there)) return at::native::copy_(self, there, non_blocking);
  at::Tensor here = at::empty(self.sizes(), self.options());
  at::native::copy_(here, there, non_blocking);
  copy_elements(self, here);
  return self;
}

// The CPU's kernel would take its random numbers from the CPU's generator, when it runs.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor &input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {p == 1 ? at::zeros_like(input) : input.mul(mask).div(1 - p), mask};
}

}  // namespace fake_cuda
