// Devices.
#include <cstring>

#include "runtime.hpp"

namespace {

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  return cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 0;
  BEGIN;
  return runtime::leave(cuDeviceGetCount(count));
}

cudaError_t cudaGetDevice(int *device) {
  BEGIN;
  *device = runtime::device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  BEGIN;
  return runtime::leave(runtime::use_device(device));
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int device) {
  BEGIN;
  return runtime::leave(cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(which), device));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  BEGIN;
  memset(properties, 0, sizeof *properties);
  CUresult result = cuDeviceGetName(properties->name, sizeof properties->name, device);
  if (result != CUDA_SUCCESS) return runtime::leave(result);
  CUuuid uuid;
  result = cuDeviceGetUuid(&uuid, device);
  if (result == CUDA_SUCCESS) result = cuDeviceTotalMem(&properties->totalGlobalMem, device);
  memcpy(properties->uuid.bytes, uuid.bytes, sizeof uuid.bytes);
  properties->major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  properties->minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  properties->multiProcessorCount = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  properties->warpSize = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
  properties->maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
  properties->maxThreadsPerMultiProcessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
  properties->maxBlocksPerMultiProcessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, device);
  properties->maxThreadsDim[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, device);
  properties->maxThreadsDim[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, device);
  properties->maxThreadsDim[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, device);
  properties->maxGridSize[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, device);
  properties->maxGridSize[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, device);
  properties->maxGridSize[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, device);
  properties->regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
  properties->regsPerMultiprocessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, device);
  properties->l2CacheSize = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
  properties->pciBusID = attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
  properties->asyncEngineCount = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, device);
  properties->unifiedAddressing = attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device);
  properties->canMapHostMemory = attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, device);
  properties->concurrentKernels = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, device);
  properties->streamPrioritiesSupported = attribute(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, device);
  auto size = [&](CUdevice_attribute which) { return static_cast<size_t>(attribute(which, device)); };
  properties->sharedMemPerBlock = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  properties->sharedMemPerBlockOptin = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  properties->sharedMemPerMultiprocessor = size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  properties->textureAlignment = size(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return runtime::leave(result);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
  BEGIN;
  return runtime::leave(cuDeviceGetPCIBusId(id, size, device));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  BEGIN;
  return runtime::leave(cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  BEGIN_IN_CONTEXT;
  CUcontext context = nullptr;
  CUresult result = cuDevicePrimaryCtxRetain(&context, peer);
  if (result == CUDA_SUCCESS) result = cuCtxEnablePeerAccess(context, flags);
  return runtime::leave(result);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  BEGIN_IN_CONTEXT;
  return runtime::leave(cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceSynchronize() {
  BEGIN_IN_CONTEXT;
  return runtime::leave(cuCtxSynchronize());
}

cudaError_t cudaDriverGetVersion(int *version) { return runtime::leave(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

}  // extern "C"
