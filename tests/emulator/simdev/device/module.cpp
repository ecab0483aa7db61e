// The Python module simdev._device. The Python package calls it; its functions are not for users.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>

#include "../../core/annotate.h"
#include "allocator.hpp"
#include "device.hpp"
#include "hooks.hpp"
#include "launch_queue.hpp"
#include "operators.hpp"
#include "probe.hpp"
#include "streams.hpp"

namespace simdev {
namespace {

const void *pointer(uintptr_t address) { return reinterpret_cast<const void *>(address); }

PYBIND11_MODULE(_device, module) {
  configure();
  register_device_allocator();
  register_pinned_allocator();
  register_hooks();

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
  module.def("stop_launch_queue", [] { LaunchQueue::get().stop(); });

  // For tests: the emulator's view of what happened.
  module.def("take_errors", &take_operator_errors);
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
  module.def("begin_capture", [](const c10::Stream &stream) {
    OnDevice on(find_stream(stream).device);
    check(emulator::begin_capture(native_handle(find_stream(stream)), emulator::CaptureMode::relaxed), "begin_capture");
  });
  module.def("end_capture", [](const c10::Stream &stream) {
    OnDevice on(find_stream(stream).device);
    emulator::GraphHandle graph = nullptr;
    check(emulator::end_capture(native_handle(find_stream(stream)), &graph), "end_capture");
    check(emulator::destroy_graph(graph), "destroy_graph");
  });
  module.def("staged_copy", &simdev_probe::staged_copy);
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
