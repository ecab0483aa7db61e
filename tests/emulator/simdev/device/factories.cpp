// Tensors on the device and views of them. Nothing here touches memory.
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "device.hpp"

namespace simdev {
namespace {

constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

c10::Device checked(std::optional<c10::Device> device, std::optional<c10::Layout> layout, std::optional<bool> pinned) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "simdev: tensors are dense; got layout ", *layout);
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "simdev: only CPU tensors can be pinned");
  return device_of(index_of(device.value_or(c10::Device(device_type))));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(checked(device, layout, pinned));
  return at::detail::empty_generic(size, c10::GetAllocator(device_type), keys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> type,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pinned) {
  c10::DeviceGuard guard(checked(device, layout, pinned));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(device_type), keys,
                                           c10::dtype_or_default(type));
}

const at::Tensor &resize(const at::Tensor &self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, self.dtype().itemsize(),
                                                            static_cast<size_t>(self.storage_offset()));
  if (self.sizes() == sizes && !format.has_value()) return self;
  if (bytes > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (format.has_value()) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor as_strided(const at::Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}

at::Tensor reshape_alias(const at::Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor view(const at::Tensor &self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor &set_storage(at::Tensor &self, c10::Storage storage) { return at::native::set_(self, std::move(storage)); }

at::Tensor &set_part(at::Tensor &self, c10::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                     c10::SymIntArrayRef stride) {
  return at::cpu::set__symint(self, std::move(storage), std::move(offset), size, stride);
}

at::Tensor &set_nothing(at::Tensor &self) {
  c10::DeviceGuard guard(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(device_type), true);
  return self.set_(storage, 0, {0}, {});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize);
  library.impl("as_strided", &as_strided);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("view", &view);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("set_.source_Storage_storage_offset", &set_part);
  library.impl("set_", &set_nothing);
  library.impl("is_set_to", &at::native::is_set_to);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
}

}  // namespace
}  // namespace simdev
