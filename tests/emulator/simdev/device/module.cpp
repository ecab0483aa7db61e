// The Python module simdev._device. The Python package calls it; its functions are not for users.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/utils/pybind.h>

#include "../../core/annotate.h"
#include "../../operators/operators.hpp"
#include "allocator.hpp"
#include "device.hpp"
#include "hooks.hpp"
#include "launch_queue.hpp"
#include "probe.hpp"
#include "streams.hpp"

namespace simdev {
namespace {

// Operators are the CPU's kernels; they are launched as everything else is.
operators::DeviceType operators_device() {
  operators::DeviceType type{};
  type.key = c10::DispatchKey::PrivateUse1;
  type.type = device_type;
  type.current_stream = [](c10::DeviceIndex device) { return current_stream(device).queued; };
  type.random_seed = [](c10::DeviceIndex device, const std::optional<at::Generator> &given) {
    at::Generator generator = given.value_or(default_generator(device));
    TORCH_CHECK(generator.device().type() == device_type, "simdev: expected a generator of simdev, got one of ",
                generator.device());
    std::lock_guard lock(generator.mutex());
    return generator.get<at::CPUGeneratorImpl>()->random64();
  };
  type.submit = [](c10::DeviceIndex device, const std::string &what, const StreamCall &call, bool now) {
    now ? submit_now(current_stream(device), what, call) : submit(current_stream(device), what, call);
  };
  type.synchronize = [](c10::DeviceIndex device) { synchronize(current_stream(device)); };
  return type;
}

const void *pointer(uintptr_t address) { return reinterpret_cast<const void *>(address); }

PYBIND11_MODULE(_device, module) {
  configure();
  register_device_allocator();
  register_pinned_allocator();
  register_hooks();
  operators::set_device_type(operators_device());
  operators::install_fallback();

  module.def("device_count", &device_count);
  module.def("current_device", &current_device);
  module.def("set_device", [](int device) { set_device(index_of(device_of(device))); });
  module.def("exchange_device", [](int device) { return exchange_device(index_of(device_of(device))); });
  module.def("synchronize", [](int device) { synchronize_device(index_of(device_of(device))); });
  module.def("default_generator", [](int device) { return default_generator(device); });
  module.def("empty_cache", [] { empty_cache(false); });
  module.def("memory_info", [](int device) {
    size_t free = 0, total = 0;
    check(emulator::memory_info(device, &free, &total), "memory_info");
    return std::make_pair(free, total);
  });
  module.def("launch_queue_enabled", &LaunchQueue::enabled);
  module.def("drain_launch_queue", [] {
    if (LaunchQueue::enabled()) LaunchQueue::get().drain();
  });
  module.def("stop_launch_queue", [] { LaunchQueue::get().stop(); });

  // For tests: the emulator's view of what happened.
  module.def("take_errors", &operators::take_errors);
  module.def("report_count", &emulator::report_count);
  module.def("report_text", &emulator::report_text);
  module.def("reset_reports", &emulator::reset_reports);
  module.def("describe", &emulator::describe);
  module.def("run_all", [] { check(emulator::run_all(), "run_all"); });
  module.def("hold", [](const c10::Stream &stream) {
    Stream &held = find_stream(stream);
    OnDevice on(held.device);
    check(emulator::hold(held.queued), "hold");
  });
  module.def("release", [](const c10::Stream &stream) {
    Stream &held = find_stream(stream);
    OnDevice on(held.device);
    check(emulator::release_held(held.queued), "release_held");
  });
  module.def("push_failing_call", [](const std::string &what) {
    LaunchQueue::get().push(what, [] { TORCH_CHECK(false, "as a test wants it"); });
  });
  module.def("begin_capture", [](const c10::Stream &stream) {
    OnDevice on(find_stream(stream).device);
    check(emulator::begin_capture(native_handle(find_stream(stream)), emulator::CaptureMode::relaxed), "begin_capture");
  });
  module.def("end_capture", [](const c10::Stream &stream) {
    OnDevice on(find_stream(stream).device);
    emulator::GraphHandle graph = nullptr;
    check(emulator::end_capture(find_stream(stream).native, &graph), "end_capture");
    check(emulator::destroy_graph(graph), "destroy_graph");
  });
  module.def("staged_copy", &simdev_probe::staged_copy);
  module.def("staged_copy_on_thread", &simdev_probe::staged_copy_on_thread,
             pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("guard_faults", [](const at::Device &device) { return simdev_probe::guard_faults(device); });
  module.def("host_read", [](uintptr_t address, size_t size, const std::string &what) {
    emulator_host_read(pointer(address), size, what.c_str());
  });
  module.def("host_write", [](uintptr_t address, size_t size, const std::string &what) {
    emulator_host_write(pointer(address), size, what.c_str());
  });
}

}  // namespace
}  // namespace simdev
