// module.cpp binds the shim to Python as sagecomm._C. Functions that may block release the GIL.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "core.hpp"
#include "errors.hpp"
#include "flight_dump.hpp"
#include "gil.hpp"
#include "process_group.hpp"
#include "reports.hpp"

namespace py = pybind11;

namespace sagecomm {

namespace {

using PyNoGil = py::call_guard<py::gil_scoped_release>;

c10::intrusive_ptr<c10d::Backend> createBackend(
    const c10d::DistributedBackendOptions& opts,
    const Settings& settings,
    const std::string& desc,
    const std::vector<std::string>& devices) {
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(opts.timeout);
  const auto options = c10::make_intrusive<GroupOptions>(settings, timeout);
  options->group_desc = desc;
  options->devices = devices;
  return ProcessGroupSagecomm::create(opts, options);
}

// Lets a sagecomm.Options, which is a Python class, pass where torch takes a backend's options. Returns null for anything
// else.
PyObject* fromPythonOptions(PyObject* given, PyTypeObject* /*wanted*/) {
  const py::module_ module = py::module_::import("sagecomm.options");
  if (!py::isinstance(given, module.attr("Options"))) {
    return nullptr;
  }
  const auto object = py::reinterpret_borrow<py::object>(given);
  const auto options = c10::make_intrusive<GroupOptions>(object.attr("settings").cast<Settings>(), c10d::kUnsetTimeout);
  const py::object timeout = object.attr("timeout");
  if (!timeout.is_none()) {
    options->ownTimeout = module.attr("bounded")(timeout).cast<std::chrono::milliseconds>();
  }
  return py::cast(options).release().ptr();
}

// Returns the device that torch makes a backend for: "cpu". Torch names it in the prefix of the store only; without such
// a prefix the result is empty.
std::string deviceOf(const c10d::DistributedBackendOptions& opts) {
  struct Prefix : c10d::PrefixStore {
    static const std::string& of(const c10d::PrefixStore& store) {
      return store.*&Prefix::prefix_;
    }
  };
  const auto* store = dynamic_cast<const c10d::PrefixStore*>(opts.store.get());
  std::string device = store == nullptr ? "" : Prefix::of(*store);
  if (!device.empty() && device.back() == '/') {
    device.pop_back();
  }
  return device;
}

// Returns the torch minor whose headers this module was compiled against: "2.15".
std::string builtFor() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
}

void bindProcessGroup(py::module_& module) {
  const py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  const py::object options = backend.attr("Options");
  py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(options.ptr()))
      ->implicit_conversions.push_back(&fromPythonOptions);
  py::class_<GroupOptions, c10::intrusive_ptr<GroupOptions>>(module, "Options", options)
      .def(
          py::init<Settings, std::chrono::milliseconds>(),
          py::arg("settings") = Settings(),
          py::arg("timeout") = kBackendDefaultTimeout)
      .def_property(
          "settings",
          [](const GroupOptions& self) { return Settings(self.settings.begin(), self.settings.end()); },
          [](GroupOptions& self, const Settings& settings) { self.settings.assign(settings.begin(), settings.end()); })
      .def_readwrite("group_desc", &GroupOptions::group_desc)
      .def("clone", &GroupOptions::copy)
      .def("__copy__", &GroupOptions::copy)
      .def("__deepcopy__", [](const GroupOptions& self, const py::object& /*memo*/) { return self.copy(); });
  py::class_<ProcessGroupSagecomm, c10::intrusive_ptr<ProcessGroupSagecomm>> group(
      module, "ProcessGroupSagecomm", backend);
  group
      .def_property_readonly(
          "options",
          [](ProcessGroupSagecomm& self) {
            return c10::static_intrusive_pointer_cast<GroupOptions>(self.getBackendOptions());
          })
      // Torch calls it on ranks outside a group that others split off. They have nothing to do.
      .def(
          "perform_nocolor_split", [](ProcessGroupSagecomm&, const py::object& /*device*/) {}, py::arg("device"))
      // Older torch calls it. Newer torch calls the virtual setTimeout().
      .def("_set_default_timeout", &ProcessGroupSagecomm::setTimeout, py::arg("timeout"), PyNoGil())
      // Older torch binds it for its own backends only.
      .def("get_error", &ProcessGroupSagecomm::getError, PyNoGil())
      .def(
          "batch_isend_irecv",
          &ProcessGroupSagecomm::batchIsendIrecv,
          py::arg("op_type"),
          py::arg("tensors"),
          py::arg("remote_rank_list"),
          PyNoGil())
      .def("stats_json", &ProcessGroupSagecomm::statsJson, PyNoGil())
      .def("group_number", &ProcessGroupSagecomm::groupNumber, PyNoGil())
      // Torch has no bindings for the next two.
      .def(
          "register_completion_hook",
          &ProcessGroupSagecomm::addCompletionHook,
          py::arg("hook_id"),
          py::arg("hook"),
          PyNoGil())
      .def(
          "unregister_completion_hook", &ProcessGroupSagecomm::unregisterCompletionHook, py::arg("hook_id"), PyNoGil());
  if (!py::hasattr(backend, "_add_ephemeral_timeout")) { // older torch
    group.def("_add_ephemeral_timeout", &ProcessGroupSagecomm::addEphemeralTimeout, py::arg("timeout"), PyNoGil());
  }
  if (!py::hasattr(backend, "register_abort_hook")) { // older torch
    group
        .def(
            "register_abort_hook",
            &ProcessGroupSagecomm::registerAbortHook,
            py::arg("hook_id"),
            py::arg("hook"),
            PyNoGil())
        .def("unregister_abort_hook", &ProcessGroupSagecomm::unregisterAbortHook, py::arg("hook_id"), PyNoGil());
  }
}

} // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The torch side of sagecomm: the process group and the way to the core library.";
  rememberMainThread();
  bindProcessGroup(module);
  module.def(
      "create_backend",
      &createBackend,
      py::arg("dist_options"),
      py::arg("settings"),
      py::arg("group_desc") = "",
      py::arg("devices") = std::vector<std::string>{"cpu"},
      PyNoGil());
  module.def("device_of", &deviceOf, py::arg("dist_options"));
  module.def("load_core", &loadCore, py::arg("path"), PyNoGil());
  module.def("shutdown", &shutdownCore, PyNoGil());
  module.def("describe_environment", &describeEnvironment, PyNoGil());
  module.def("describe_devices", &describeDevices, PyNoGil());
  module.def("flight_dump", &dumpFlight, py::arg("prefix"), PyNoGil());
  module.def("flight_records", &flightRecords, PyNoGil());
  module.def("metrics", &metrics, PyNoGil());
  module.def("topology", &topology, PyNoGil());
  module.def("simulate", &simulate, py::arg("question"), PyNoGil());
  module.def("explain", &explain, py::arg("question"), PyNoGil());
  module.def("tune", &tune, py::arg("measurements"), PyNoGil());
  module.def("write_dump", &writeDump, py::arg("rank"), py::arg("dump"), PyNoGil());
  module.def("go_entries", [] { return core().go_entries(); }, PyNoGil());
  module.def("built_for", &builtFor);
  module.attr("cplusplus") = static_cast<long>(__cplusplus); // the C++ standard that probes.py chose
  module.def(
      "set_exception_types",
      &setExceptionTypes,
      py::arg("peer_failure"),
      py::arg("timeout"),
      py::arg("mismatch"),
      py::arg("aborted"));
}

} // namespace sagecomm
