// module.cpp: what Python sees of the shim, as sagecomm._C.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "core.hpp"
#include "errors.hpp"
#include "flight.hpp"
#include "gil.hpp"
#include "process_group.hpp"

namespace py = pybind11;

namespace sagecomm {

namespace {

using PyNoGil = py::call_guard<py::gil_scoped_release>;

std::string describeEnvironment() {
  const sagecomm_api& api = core();
  const int64_t needed = api.describe_environment(nullptr, 0);
  TORCH_CHECK(needed > 0, "sagecomm: the core cannot describe its environment: status ", needed);
  std::string json(static_cast<size_t>(needed), '\0');
  TORCH_CHECK(
      api.describe_environment(json.data(), json.size()) == needed,
      "sagecomm: the description of the environment changed while it was read");
  json.pop_back(); // the closing NUL
  return json;
}

c10::intrusive_ptr<c10d::Backend> createBackend(const c10d::DistributedBackendOptions& opts, const Settings& settings) {
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(opts.timeout);
  return ProcessGroupSagecomm::create(opts, c10::make_intrusive<GroupOptions>(settings, timeout));
}

// The torch minor whose headers this module was compiled against: "2.15".
std::string builtFor() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
}

void bindProcessGroup(py::module_& module) {
  const py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<GroupOptions, c10::intrusive_ptr<GroupOptions>>(module, "Options", backend.attr("Options"))
      .def(
          py::init<Settings, std::chrono::milliseconds>(),
          py::arg("settings") = Settings(),
          py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("settings", &GroupOptions::settings);
  py::class_<ProcessGroupSagecomm, c10::intrusive_ptr<ProcessGroupSagecomm>>(module, "ProcessGroupSagecomm", backend)
      .def_property_readonly(
          "options",
          [](ProcessGroupSagecomm& self) {
            return c10::static_intrusive_pointer_cast<GroupOptions>(self.getBackendOptions());
          })
      // What torch calls on older versions; newer ones reach setTimeout() by themselves.
      .def("_set_default_timeout", &ProcessGroupSagecomm::setTimeout, py::arg("timeout"), PyNoGil())
      // Older versions bind it for their own backends only.
      .def("get_error", &ProcessGroupSagecomm::getError, PyNoGil())
      .def("stats_json", &ProcessGroupSagecomm::statsJson, PyNoGil());
}

} // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The torch side of sagecomm: the process group and the way to the core library.";
  rememberMainThread();
  bindProcessGroup(module);
  module.def("create_backend", &createBackend, py::arg("dist_options"), py::arg("settings"), PyNoGil());
  module.def("load_core", &loadCore, py::arg("path"), PyNoGil());
  module.def("shutdown", &shutdownCore, PyNoGil());
  module.def("describe_environment", &describeEnvironment, PyNoGil());
  module.def("flight_records", &flightRecords, PyNoGil());
  module.def("write_dump", &writeDump, py::arg("rank"), py::arg("dump"), PyNoGil());
  module.def("go_entries", [] { return core().go_entries(); }, PyNoGil());
  module.def("built_for", &builtFor);
  module.attr("cplusplus") = static_cast<long>(__cplusplus); // the C++ standard that the probes chose
  module.def(
      "set_exception_types",
      &setExceptionTypes,
      py::arg("peer_failure"),
      py::arg("timeout"),
      py::arg("mismatch"),
      py::arg("aborted"));
}

} // namespace sagecomm
