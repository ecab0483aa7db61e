// How calls begin, errors, and the thread's device.
#include <array>
#include <mutex>
#include <utility>

#include "../core/runtime.hpp"
#include "runtime.hpp"

namespace runtime {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int chosen_device = 0;

// The runtime retains the primary context of each device that it uses, once in a process.
CUresult retain(int device, CUcontext *context) {
  static std::mutex mutex;
  static std::array<CUcontext, 64> retained{};
  std::lock_guard lock(mutex);
  CUcontext &known = retained.at(static_cast<size_t>(device));
  CUresult result = known == nullptr ? cuDevicePrimaryCtxRetain(&known, device) : CUDA_SUCCESS;
  *context = known;
  return result;
}

}  // namespace

cudaError_t begin(const char *function) {
  switch (emulator::enter(function)) {
    case emulator::Status::success:
      return static_cast<cudaError_t>(cuInit(0));
    case emulator::Status::injected:
      return emulator::injected_code() == 0 ? left_out : static_cast<cudaError_t>(emulator::injected_code());
    case emulator::Status::not_permitted:
      return cudaErrorNotPermitted;
    case emulator::Status::shutting_down:
      return cudaErrorCudartUnloading;
    case emulator::Status::not_initialized:
      return cudaErrorInitializationError;
    case emulator::Status::out_of_memory:
      return cudaErrorMemoryAllocation;
    case emulator::Status::device_failed:
      return cudaErrorLaunchFailure;
    default:
      return cudaErrorUnknown;
  }
}

cudaError_t begin_in_context(const char *function) {
  cudaError_t begun = begin(function);
  CUcontext current = nullptr;
  if (begun != cudaSuccess || (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr)) return begun;
  return static_cast<cudaError_t>(use_device(chosen_device));
}

cudaError_t leave(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

CUresult use_device(int device) {
  int count = 0;
  CUresult result = cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS) return result;
  if (device < 0 || device >= count) return CUDA_ERROR_INVALID_DEVICE;
  CUcontext context = nullptr;
  result = retain(device, &context);
  if (result == CUDA_SUCCESS) result = cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) chosen_device = device;
  return result;
}

int device() {
  CUdevice current = 0;
  return cuCtxGetDevice(&current) == CUDA_SUCCESS ? current : chosen_device;
}

}  // namespace runtime

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(runtime::last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return runtime::last_error; }

const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define NAME(code) \
  case code:       \
    return #code
    NAME(cudaSuccess);
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInitializationError);
    NAME(cudaErrorCudartUnloading);
    NAME(cudaErrorNoDevice);
    NAME(cudaErrorInvalidDevice);
    NAME(cudaErrorDeviceUninitialized);
    NAME(cudaErrorMapBufferObjectFailed);
    NAME(cudaErrorOperatingSystem);
    NAME(cudaErrorInvalidResourceHandle);
    NAME(cudaErrorSymbolNotFound);
    NAME(cudaErrorNotReady);
    NAME(cudaErrorPeerAccessAlreadyEnabled);
    NAME(cudaErrorPeerAccessNotEnabled);
    NAME(cudaErrorHostMemoryAlreadyRegistered);
    NAME(cudaErrorHostMemoryNotRegistered);
    NAME(cudaErrorLaunchFailure);
    NAME(cudaErrorNotPermitted);
    NAME(cudaErrorNotSupported);
    NAME(cudaErrorInvalidDeviceFunction);
    NAME(cudaErrorStreamCaptureUnsupported);
    NAME(cudaErrorStreamCaptureInvalidated);
    NAME(cudaErrorStreamCaptureUnmatched);
    NAME(cudaErrorStreamCaptureUnjoined);
    NAME(cudaErrorStreamCaptureIsolation);
    NAME(cudaErrorStreamCaptureImplicit);
    NAME(cudaErrorCapturedEvent);
    NAME(cudaErrorStreamCaptureWrongThread);
    NAME(cudaErrorTimeout);
#undef NAME
    default:
      return "unrecognized error code";
  }
}

const char *cudaGetErrorString(cudaError_t error) {
  const char *text = nullptr;
  return cuGetErrorString(static_cast<CUresult>(error), &text) == CUDA_SUCCESS ? text : "unrecognized error code";
}

// Called by generated stubs, see ../cuda/calls.cpp.
CUresult fake_cuda_unsupported(const char *name, int *told);
cudaError_t fake_cudart_unsupported(const char *name, int *told) {
  return runtime::leave(fake_cuda_unsupported(name, told));
}

// The driver's own errors leave none for cudaGetLastError().
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult *status) {
  CUresult result = cuGetProcAddress(name, function, static_cast<int>(version), flags, nullptr);
  if (status != nullptr)
    *status = result == CUDA_SUCCESS ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return runtime::leave(result);
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
