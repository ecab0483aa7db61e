// The Python module _fake_cuda, which ../fake_cuda.py imports in a process whose CUDA is the emulator. Importing it makes
// torch's operators for CUDA tensors CPU kernels on the emulator's streams.
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <mutex>
#include <string_view>

#include "../core/runtime.hpp"
#include "../operators/operators.hpp"
#include "copies.hpp"

namespace fake_cuda {
namespace {

emulator::StreamHandle current_stream(c10::DeviceIndex device) {
  c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(c10::Device(c10::kCUDA, device));
  return static_cast<emulator::StreamHandle>(stream.native_handle());
}

// Each operator takes one block of four numbers of the generator's sequence, as small CUDA kernels do, so that the state of
// the generator is saved and restored as usual.
uint64_t random_seed(c10::DeviceIndex device, const std::optional<at::Generator> &given) {
  at::Generator generator = given.value_or(at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, device)));
  std::lock_guard lock(generator.mutex());
  uint64_t offset = generator.get_offset();
  generator.set_offset(offset + 4);
  uint64_t mixed = generator.current_seed() + (offset + 1) * 0x9e3779b97f4a7c15;  // splitmix64
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

// Operators that allocate, say something about a tensor, or copy memory: torch's own kernels need no CUDA kernel.
bool is_kept(std::string_view name) {
  for (std::string_view kept :
       {"empty", "empty_strided", "resize_", "set_", "is_set_to", "record_stream", "_record_stream", "is_pinned",
        "_pin_memory", "_local_scalar_dense", "_efficientzerotensor", "zero_", "_to_copy", "copy_", "native_dropout",
        "_new_zeros_with_same_feature_meta", "storage_offset", "lift"})
    if (name.substr(6) == kept) return true;
  return !name.starts_with("aten::");
}

size_t install() {
  operators::set_device_type({c10::DispatchKey::CUDA, c10::kCUDA, &current_stream, &random_seed, nullptr, nullptr});
  size_t count = operators::install_over_kernels(&is_kept);
  static auto *library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library->impl("copy_", &copy_);
  library->impl("native_dropout", &native_dropout);
  // Torch prefers these where CUDA is present, and the CPU has no kernels for them.
  at::globalContext().setUserEnabledCuDNN(false);
  at::globalContext().setSDPUseFlash(false);
  at::globalContext().setSDPUseMemEfficient(false);
  at::globalContext().setSDPUseCuDNN(false);
  return count;
}

PYBIND11_MODULE(_fake_cuda, module) {
  namespace py = pybind11;
  module.attr("operators") = install();
  module.def("take_errors", &operators::take_errors);
  module.def("describe", &emulator::describe);
  module.def(
      "run_all", [] { return emulator::run_all() == emulator::Status::success; },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace
}  // namespace fake_cuda
