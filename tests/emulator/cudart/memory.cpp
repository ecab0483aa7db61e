// Memory, copies and fills.
#include <cstring>

#include "runtime.hpp"

using runtime::address;
using runtime::leave;

extern "C" {

cudaError_t cudaMalloc(void **memory, size_t size) {
  BEGIN_IN_CONTEXT;
  *memory = nullptr;
  if (size == 0) return cudaSuccess;
  CUdeviceptr allocated = 0;
  CUresult result = cuMemAlloc(&allocated, size);
  *memory = reinterpret_cast<void *>(allocated);
  return leave(result);
}

cudaError_t cudaFree(void *memory) {
  BEGIN_IN_CONTEXT;
  return leave(cuMemFree(address(memory)));
}

cudaError_t cudaHostAlloc(void **memory, size_t size, unsigned flags) {
  BEGIN_IN_CONTEXT;
  *memory = nullptr;
  return size == 0 ? cudaSuccess : leave(cuMemHostAlloc(memory, size, flags));
}

cudaError_t cudaMallocHost(void **memory, size_t size) { return cudaHostAlloc(memory, size, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *memory) {
  BEGIN_IN_CONTEXT;
  return leave(cuMemFreeHost(memory));
}

cudaError_t cudaHostRegister(void *memory, size_t size, unsigned flags) {
  BEGIN_IN_CONTEXT;
  return leave(cuMemHostRegister(memory, size, flags));
}

cudaError_t cudaHostUnregister(void *memory) {
  BEGIN_IN_CONTEXT;
  return leave(cuMemHostUnregister(memory));
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  BEGIN_IN_CONTEXT;
  return leave(cuMemGetInfo(free, total));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
  BEGIN;
  unsigned type = 0;
  int device = 0;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *out[] = {&type, &device};
  CUresult result = cuPointerGetAttributes(2, which, out, address(pointer));
  memset(attributes, 0, sizeof *attributes);
  attributes->device = device;
  attributes->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                     : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                                  : cudaMemoryTypeUnregistered;
  if (type != 0) attributes->devicePointer = const_cast<void *>(pointer);
  if (type != CU_MEMORYTYPE_DEVICE) attributes->hostPointer = const_cast<void *>(pointer);
  return leave(result);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
  BEGIN_IN_CONTEXT;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return leave(cuMemcpyHtoD(address(to), from, size));
    case cudaMemcpyDeviceToHost:
      return leave(cuMemcpyDtoH(to, address(from), size));
    case cudaMemcpyDeviceToDevice:
      return leave(cuMemcpyDtoD(address(to), address(from), size));
    default:
      return leave(cuMemcpy(address(to), address(from), size));
  }
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return leave(cuMemcpyHtoDAsync(address(to), from, size, stream));
    case cudaMemcpyDeviceToHost:
      return leave(cuMemcpyDtoHAsync(to, address(from), size, stream));
    case cudaMemcpyDeviceToDevice:
      return leave(cuMemcpyDtoDAsync(address(to), address(from), size, stream));
    default:
      return leave(cuMemcpyAsync(address(to), address(from), size, stream));
  }
}

cudaError_t cudaMemcpyPeerAsync(void *to, int /*to_device*/, const void *from, int /*from_device*/, size_t size,
                                cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  return leave(cuMemcpyDtoDAsync(address(to), address(from), size, stream));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  CUDA_MEMCPY2D copy{};
  bool from_host = kind == cudaMemcpyHostToDevice, to_host = kind == cudaMemcpyDeviceToHost;
  bool known = from_host || to_host || kind == cudaMemcpyDeviceToDevice;
  copy.srcMemoryType = !known ? CU_MEMORYTYPE_UNIFIED : from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  copy.dstMemoryType = !known ? CU_MEMORYTYPE_UNIFIED : to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  copy.srcHost = from;
  copy.srcDevice = address(from);
  copy.srcPitch = from_pitch;
  copy.dstHost = to;
  copy.dstDevice = address(to);
  copy.dstPitch = to_pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return leave(cuMemcpy2DAsync(&copy, stream));
}

cudaError_t cudaMemset(void *memory, int value, size_t size) {
  BEGIN_IN_CONTEXT;
  return leave(cuMemsetD8(address(memory), static_cast<unsigned char>(value), size));
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t size, cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  return leave(cuMemsetD8Async(address(memory), static_cast<unsigned char>(value), size, stream));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory) {
  BEGIN_IN_CONTEXT;
  return leave(cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle *>(handle), address(memory)));
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags) {
  BEGIN_IN_CONTEXT;
  CUipcMemHandle bytes;
  memcpy(&bytes, &handle, sizeof bytes);
  CUdeviceptr opened = 0;
  CUresult result = cuIpcOpenMemHandle(&opened, bytes, flags);
  *memory = reinterpret_cast<void *>(opened);
  return leave(result);
}

cudaError_t cudaIpcCloseMemHandle(void *memory) {
  BEGIN_IN_CONTEXT;
  return leave(cuIpcCloseMemHandle(address(memory)));
}

}  // extern "C"
