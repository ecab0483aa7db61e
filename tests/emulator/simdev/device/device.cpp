#include "device.hpp"

#include <Python.h>
#include <c10/util/Exception.h>

namespace simdev {
namespace {

thread_local int chosen = -1;

void *release_python() { return Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }

void restore_python(void *saved) {
  if (saved != nullptr) PyEval_RestoreThread(static_cast<PyThreadState *>(saved));
}

}  // namespace

void configure() {
  emulator::Options options;
  options.legacy_default_stream = false;
  options.implicit_device = false;
  options.any_device_streams = false;
  options.async_host_to_host = false;
  options.before_wait = release_python;
  options.after_wait = restore_python;
  check(emulator::configure(options), "configure");
}

void check(emulator::Status status, const char *what) {
  if (status == emulator::Status::success) return;
  TORCH_CHECK(status != emulator::Status::not_initialized, "simdev: ", what,
              " failed: this process is a fork of one that used the devices; start processes with the spawn method");
  TORCH_CHECK(false, "simdev: ", what, " failed: ", emulator::name(status));
}

int device_count() noexcept { return emulator::device_count(); }

int current_device() { return chosen < 0 ? 0 : chosen; }

void set_device(int device) {
  check(emulator::set_device(device), "set_device");
  chosen = device;
}

int exchange_device(int device) {
  int before = current_device();
  set_device(device);
  return before;
}

int index_of(c10::Device device) {
  TORCH_CHECK(device.type() == device_type, "simdev: expected a device of this type and got ", device);
  int current = 0;
  if (device_count() == 0 && emulator::current_device(&current) == emulator::Status::not_initialized)
    check(emulator::Status::not_initialized, "the use of a device");
  int index = device.has_index() ? device.index() : current_device();
  TORCH_CHECK(index >= 0 && index < device_count(), "simdev: there is no device ", index, "; the process has ",
              device_count());
  return index;
}

OnDevice::OnDevice(int device) : device_(current_device()) { check(emulator::set_device(device), "set_device"); }

// The emulator refuses in a process that exits or that was forked, where the current device is of no interest.
OnDevice::~OnDevice() { static_cast<void>(emulator::set_device(device_)); }

WithoutPython::WithoutPython() : saved_(release_python()) {}
WithoutPython::~WithoutPython() { restore_python(saved_); }

}  // namespace simdev
