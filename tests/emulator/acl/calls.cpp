// How calls begin, devices and contexts.
#include <array>
#include <atomic>

#include "acl.hpp"

namespace acl {
namespace {

std::atomic<bool> initialised{false};

constexpr size_t most_devices = 64;
std::array<char, most_devices> contexts;  // their addresses are the default contexts

void *context_of(int device) { return &contexts.at(static_cast<size_t>(device)); }

__attribute__((constructor)) void be_as_acl() {
  emulator::Options options;
  options.legacy_default_stream = false;
  options.implicit_device = false;
  options.any_device_streams = false;
  options.free_synchronizes = false;
  options.async_host_to_host = false;
  (void)emulator::configure(options);
}

}  // namespace

aclError result(emulator::Status status) {
  using emulator::Status;
  switch (status) {
    case Status::success:
      return success;
    case Status::invalid_value:
    case Status::already_registered:
    case Status::not_registered:
      return rt_param_invalid;
    case Status::invalid_handle:
      return rt_invalid_handle;
    case Status::no_device:
      return rt_no_device;
    case Status::invalid_device:
      return rt_invalid_deviceid;
    case Status::no_current_device:
      return rt_context_null;
    case Status::wrong_device:
      return rt_stream_context;
    case Status::out_of_memory:
      return rt_memory_allocation;
    case Status::timeout:
      return rt_wait_timeout;
    case Status::not_initialized:
      return uninitialize;
    case Status::not_supported:
    case Status::not_permitted:
      return rt_feature_not_support;
    case Status::capture_unsupported:
    case Status::capture_implicit:
    case Status::capture_isolation:
      return rt_capture;
    case Status::injected:
      return emulator::injected_code();
    default:
      return rt_internal_error;
  }
}

aclError begin(const char *function) {
  REQUIRE(initialised, uninitialize);
  emulator::Status status = emulator::enter(function);
  return status == emulator::Status::injected && emulator::injected_code() == 0 ? left_out : result(status);
}

aclError begin_in_context(const char *function) {
  aclError begun = begin(function);
  if (begun != success) return begun;
  int device = 0;
  return result(emulator::current_device(&device));
}

}  // namespace acl

extern "C" {

aclError aclInit(const char *config) {
  skin::record(__func__, config);
  aclError begun = acl::result(emulator::enter(__func__));
  REQUIRE(begun == acl::success, begun);
  return acl::initialised.exchange(true) ? acl::repeat_initialize : acl::success;
}

aclError aclrtGetDeviceCount(uint32_t *count) {
  BEGIN(count);
  *count = static_cast<uint32_t>(emulator::device_count());
  return acl::success;
}

aclError aclrtSetDevice(int32_t device) {
  BEGIN(device);
  return acl::result(emulator::set_device(device));
}

aclError aclrtGetPhyDevIdByLogicDevId(int32_t device, int32_t *physical) {
  BEGIN(device, physical);
  REQUIRE(device >= 0 && device < emulator::device_count(), acl::rt_invalid_deviceid);
  *physical = device;
  return acl::success;
}

aclError aclrtGetDevice(int32_t *device) {
  BEGIN_IN_CONTEXT(device);
  return acl::result(emulator::current_device(device));
}

aclError aclrtGetCurrentContext(void **context) {
  BEGIN_IN_CONTEXT(context);
  int device = 0;
  aclError status = acl::result(emulator::current_device(&device));
  if (status == acl::success) *context = acl::context_of(device);
  return skin::given(status, *context);
}

aclError aclrtSetCurrentContext(void *context) {
  BEGIN(context);
  auto at = static_cast<char *>(context) - acl::contexts.data();
  REQUIRE(context != nullptr, acl::rt_context_null);
  REQUIRE(at >= 0 && at < emulator::device_count(), acl::rt_context_null);
  return acl::result(emulator::set_device(static_cast<int>(at)));
}

}  // extern "C"
