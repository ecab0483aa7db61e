// runtime.hpp is what the files of the runtime library share. The library has the ABI of NVIDIA's libcudart.so.13, as far as
// torch calls it, and is a thin layer over libcuda.so.1 of ../cuda. Errors have the same numbers in both.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace runtime {

// Begins a call: what the fault plan says, and the driver's initialisation. `function` is __func__.
cudaError_t begin(const char *function);
// Also gives the calling thread the primary context of its device if it has no context.
cudaError_t begin_in_context(const char *function);
// The result of both if the fault plan has the call do nothing and report success.
constexpr cudaError_t left_out = static_cast<cudaError_t>(-1);
// Keeps an error of the calling thread for cudaGetLastError(), and returns it. A query's "not ready" counts, too.
cudaError_t leave(cudaError_t error);
inline cudaError_t leave(CUresult error) { return leave(static_cast<cudaError_t>(error)); }

// Makes a device the current one of the thread.
CUresult use_device(int device);
// Returns the device that the thread uses, or will use at its first call that needs a context.
int device();

#define BEGIN                                                             \
  if (cudaError_t begun = runtime::begin(__func__); begun != cudaSuccess) \
  return begun == runtime::left_out ? cudaSuccess : runtime::leave(begun)
#define BEGIN_IN_CONTEXT                                                             \
  if (cudaError_t begun = runtime::begin_in_context(__func__); begun != cudaSuccess) \
  return begun == runtime::left_out ? cudaSuccess : runtime::leave(begun)

inline CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace runtime
