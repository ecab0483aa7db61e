// How calls begin, and the numbers and texts of errors.
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "driver.hpp"

namespace driver {
namespace {

std::atomic<bool> initialised{false};

// A process that has a driver must never compute on this one by mistake. FAKE_CUDA_DRIVER_FILE is for the test of this.
__attribute__((constructor)) void refuse_beside_a_driver() {
  const char *named = getenv("FAKE_CUDA_DRIVER_FILE");
  for (const char *file : {"/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", named})
    if (file != nullptr && access(file, F_OK) == 0) {
      fprintf(stderr, "fake CUDA: this machine has a driver of NVIDIA's (%s exists), so the emulator refuses to load\n",
              file);
      _exit(2);
    }
}

// "cuMemAlloc_v2" is "cuMemAlloc" to the fault plan.
std::string without_version(const char *function) {
  std::string name = function;
  size_t at = name.rfind("_v");
  if (at != std::string::npos && at + 3 == name.size() && isdigit(name[at + 2])) name.resize(at);
  return name;
}

const std::map<CUresult, std::pair<const char *, const char *>> &errors() {
  static const auto *table = new std::map<CUresult, std::pair<const char *, const char *>>{
#define ERROR(code, text) \
  {                       \
    code, { #code, text } \
  }
      ERROR(CUDA_SUCCESS, "no error"),
      ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
      ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
      ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
      ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
      ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
      ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
      ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
      ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
      ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
      ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
      ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
      ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
      ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
      ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
      ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
      ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
      ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
      ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
      ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
      ERROR(CUDA_ERROR_ASSERT, "device-side assert triggered"),
      ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
      ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
      ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
      ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing stream"),
      ERROR(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
      ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture from another thread"),
      ERROR(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
#undef ERROR
  };
  return *table;
}

}  // namespace

CUresult result(emulator::Status status) {
  using emulator::Status;
  switch (status) {
    case Status::success:
      return CUDA_SUCCESS;
    case Status::not_ready:
      return CUDA_ERROR_NOT_READY;
    case Status::invalid_value:
      return CUDA_ERROR_INVALID_VALUE;
    case Status::invalid_handle:
    case Status::wrong_device:
      return CUDA_ERROR_INVALID_HANDLE;
    case Status::no_device:
      return CUDA_ERROR_NO_DEVICE;
    case Status::invalid_device:
      return CUDA_ERROR_INVALID_DEVICE;
    case Status::no_current_device:
    case Status::already_mapped:
      return CUDA_ERROR_INVALID_CONTEXT;
    case Status::out_of_memory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Status::not_permitted:
      return CUDA_ERROR_NOT_PERMITTED;
    case Status::not_initialized:
      return CUDA_ERROR_NOT_INITIALIZED;
    case Status::shutting_down:
      return CUDA_ERROR_DEINITIALIZED;
    case Status::already_registered:
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    case Status::not_registered:
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    case Status::peer_access_enabled:
      return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    case Status::peer_access_not_enabled:
      return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    case Status::peer_gone:
      return CUDA_ERROR_MAP_FAILED;
    case Status::system_error:
      return CUDA_ERROR_OPERATING_SYSTEM;
    case Status::timeout:
      return CUDA_ERROR_TIMEOUT;
    case Status::symbol_missing:
      return CUDA_ERROR_NOT_FOUND;
    case Status::device_failed:
      return CUDA_ERROR_LAUNCH_FAILED;
    case Status::capture_unsupported:
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    case Status::capture_invalidated:
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    case Status::capture_unmatched:
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    case Status::capture_unjoined:
      return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    case Status::capture_isolation:
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    case Status::capture_implicit:
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    case Status::capture_wrong_thread:
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    case Status::captured_event:
      return CUDA_ERROR_CAPTURED_EVENT;
    case Status::injected:
      return static_cast<CUresult>(emulator::injected_code());
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult begin(const char *function) {
  REQUIRE(initialised, CUDA_ERROR_NOT_INITIALIZED);
  emulator::Status status = emulator::enter(without_version(function).c_str());
  return status == emulator::Status::injected && emulator::injected_code() == 0 ? left_out : result(status);
}

CUresult begin_in_context(const char *function) {
  CUresult begun = begin(function);
  if (begun != CUDA_SUCCESS) return begun;
  return current_device() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

}  // namespace driver

extern "C" {

CUresult cuInit(unsigned flags) {
  skin::record(__func__, flags);
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
  CUresult begun = driver::result(emulator::enter("cuInit"));
  REQUIRE(begun == CUDA_SUCCESS, begun);
  REQUIRE(emulator::device_count() > 0, CUDA_ERROR_NO_DEVICE);
  driver::initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
  skin::record(__func__, error, name);
  auto found = driver::errors().find(error);
  *name = found == driver::errors().end() ? nullptr : found->second.first;
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  skin::record(__func__, error, text);
  auto found = driver::errors().find(error);
  *text = found == driver::errors().end() ? nullptr : found->second.second;
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// torch asks for messages of the driver's log. There are none.
CUresult cuLogsRegisterCallback(CUlogsCallback /*function*/, void * /*argument*/, CUlogsCallbackHandle *handle) {
  if (handle != nullptr) *handle = nullptr;
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle /*handle*/) { return CUDA_SUCCESS; }

// Called by generated stubs, at each call of a function that torch imports and the emulator does not have.
CUresult fake_cuda_unsupported(const char *name, int *told) {
  skin::record(name);
  if (__atomic_exchange_n(told, 1, __ATOMIC_RELAXED) == 0) fprintf(stderr, "fake CUDA: %s is not emulated\n", name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
