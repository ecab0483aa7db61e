// Copies between tensors. A copy between device and pinned memory with non_blocking=True is one task of the current
// stream: it reads its source when it runs. All other copies with host memory are complete when the call returns.
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "../../operators/operators.hpp"
#include "../../operators/tensors.hpp"
#include "allocator.hpp"
#include "device.hpp"
#include "streams.hpp"

namespace simdev {
namespace {

bool is_ours(const at::Tensor &tensor) { return tensor.device().type() == device_type; }

// Reports whether the bytes of both can be copied as one piece.
bool is_plain(const at::Tensor &to, const at::Tensor &from) {
  return to.dtype() == from.dtype() && to.sizes() == from.sizes() && to.strides() == from.strides() &&
         to.is_non_overlapping_and_dense() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

std::string text(const char *what, const at::Tensor &tensor) {
  return std::string(what) + " of " + std::to_string(tensor.nbytes()) + " bytes";
}

// A copy of bytes as the task of a stream. Between two places of host memory or from pageable memory nothing is queued.
StreamCall bytes(const at::Tensor &to, const at::Tensor &from, emulator::CopyKind kind) {
  void *target = to.data_ptr();
  const void *source = from.const_data_ptr();
  size_t size = to.nbytes();
  return [=](emulator::StreamHandle stream) { return emulator::copy_async(target, source, size, kind, stream); };
}

// On one device: as bytes, or by the CPU's copy operator, which converts.
void within(const at::Tensor &to, const at::Tensor &from) {
  Stream &stream = current_stream(to.device().index());
  if (is_plain(to, from)) {
    if (to.const_data_ptr() == from.const_data_ptr()) return;  // a view that is assigned to itself
    submit(stream, text("copy", to), bytes(to, from, emulator::CopyKind::device_to_device));
    return;
  }
  std::vector<emulator::Range> reads, writes;
  operators::append_ranges(from, &reads);
  operators::append_ranges(to, &writes);
  at::Tensor target = operators::cpu_view(to), source = operators::cpu_view(from);
  operators::launch(to.device().index(), "aten::copy_", reads, writes, [=] {
    at::AutoDispatchBelowADInplaceOrView guard;
    target.copy_(source);
  });
}

// Between devices: on the source's current stream, in front of and behind the target's.
void across(const at::Tensor &to, const at::Tensor &from) {
  Stream &target_stream = current_stream(to.device().index());
  Stream &source_stream = current_stream(from.device().index());
  auto ready = std::make_shared<Event>(target_stream.device, false);
  Event::record(ready, target_stream);
  Event::block(ready, source_stream);
  submit(source_stream, text("copy between devices", to), bytes(to, from, emulator::CopyKind::device_to_device));
  auto copied = std::make_shared<Event>(source_stream.device, false);
  Event::record(copied, source_stream);
  Event::block(copied, target_stream);
}

void to_device(const at::Tensor &to, const at::Tensor &from, bool non_blocking) {
  Stream &stream = current_stream(to.device().index());
  StreamCall call = bytes(to, from, emulator::CopyKind::host_to_device);
  if (!is_pinned(from.const_data_ptr())) {  // read before the call returns
    submit_now(stream, text("copy from pageable memory", to), call);
    return;
  }
  submit(stream, text("copy from pinned memory", to), call);
  record_pinned(from.const_data_ptr(), public_stream(stream));
  if (!non_blocking) synchronize(stream);
}

void to_host(const at::Tensor &to, const at::Tensor &from, bool non_blocking) {
  Stream &stream = current_stream(from.device().index());
  StreamCall call = bytes(to, from, emulator::CopyKind::device_to_host);
  if (!is_pinned(to.const_data_ptr())) {  // complete when the call returns
    submit_now(stream, text("copy to pageable memory", to), call);
    return;
  }
  submit(stream, text("copy to pinned memory", to), call);
  record_pinned(to.const_data_ptr(), public_stream(stream));
  if (!non_blocking) synchronize(stream);
}

// Returns a dense tensor with the elements of `tensor`, on its device, in another type.
at::Tensor dense(const at::Tensor &tensor, c10::ScalarType type) {
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options().dtype(type).pinned_memory(false));
  copy.copy_(tensor);
  return copy;
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &to, bool non_blocking) {
  at::Tensor from = self.sizes() == to.sizes() ? self : self.expand(to.sizes());
  if (to.numel() == 0) return to;
  bool to_ours = is_ours(to), from_ours = is_ours(from);
  TORCH_CHECK((to_ours || to.is_cpu()) && (from_ours || from.is_cpu()), "simdev: no copy from ", from.device(), " to ",
              to.device());
  if (to_ours && from_ours && to.device() == from.device()) {
    within(to, from);
    return to;
  }
  if (!is_plain(to, from)) {
    // The source's device makes it dense and of the right type, the target's device puts the elements into place.
    at::Tensor source = dense(from, to.scalar_type());
    at::Tensor target = at::empty(to.sizes(), to.options().pinned_memory(false));
    copy_from(source, target, false);
    to.copy_(target);
    return to;
  }
  if (to_ours && from_ours)
    across(to, from);
  else if (to_ours)
    to_device(to, from, non_blocking);
  else
    to_host(to, from, non_blocking);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

c10::Scalar scalar(const at::Tensor &self) {
  at::Tensor on_cpu = at::empty(self.sizes(), self.options().device(at::kCPU));
  copy_from(self, on_cpu, false);
  return on_cpu.item();
}

void record(at::Tensor &self, c10::Stream stream) { record_stream(self.storage().data_ptr(), stream); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &scalar);
  library.impl("record_stream", &record);
}

// Lazy conjugates and negatives reach the copy as they are.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace simdev
