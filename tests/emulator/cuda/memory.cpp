// Memory: of devices, pinned, registered, and of other processes.
#include <cstring>

#include "driver.hpp"

using driver::address;
using driver::pointer;
using driver::result;

namespace {

using emulator::MemoryAttributes;
using emulator::MemoryKind;

bool on_device(const MemoryAttributes &memory) {
  return memory.kind == MemoryKind::device || memory.kind == MemoryKind::imported;
}

size_t size_of(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return sizeof(int);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return sizeof(bool);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return sizeof(void *);
    default:
      return 0;
  }
}

template <class Value>
CUresult give(void *out, Value value) {
  memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Writes an attribute of memory that the emulator knows.
CUresult attribute_of(const MemoryAttributes &memory, void *at, CUpointer_attribute attribute, void *out) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(out, driver::primary_context(memory.device));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(out, on_device(memory) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(out, memory.device);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(out, at);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return on_device(memory) ? CUDA_ERROR_INVALID_VALUE : give(out, at);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(out, memory.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(out, memory.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give(out, true);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(out, false);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(out, memory.kind == MemoryKind::device);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give(out, 0);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

extern "C" {

CUresult cuMemAlloc(CUdeviceptr *memory, size_t size) {
  BEGIN_IN_CONTEXT(memory, size);
  REQUIRE(memory != nullptr && size > 0, CUDA_ERROR_INVALID_VALUE);
  void *allocated = nullptr;
  CUresult status = result(emulator::allocate(size, &allocated));
  *memory = address(allocated);
  return driver::given(status, allocated);
}

CUresult cuMemFree(CUdeviceptr memory) {
  BEGIN_IN_CONTEXT(memory);
  return result(emulator::release(pointer(memory)));
}

CUresult cuMemGetInfo(size_t *free, size_t *total) {
  BEGIN_IN_CONTEXT(free, total);
  return result(emulator::memory_info(driver::current_device(), free, total));
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
  BEGIN_IN_CONTEXT(base, size, at);
  MemoryAttributes memory;
  CUresult status = result(emulator::memory_attributes(pointer(at), &memory));
  REQUIRE(status == CUDA_SUCCESS, status);
  REQUIRE(on_device(memory), CUDA_ERROR_NOT_FOUND);
  if (base != nullptr) *base = address(memory.base);
  if (size != nullptr) *size = memory.size;
  return driver::given(CUDA_SUCCESS, memory.base);
}

CUresult cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
  BEGIN_IN_CONTEXT(memory, size, flags);
  REQUIRE(memory != nullptr && size > 0 && flags <= 7, CUDA_ERROR_INVALID_VALUE);
  const CUresult status = result(emulator::allocate_host(size, memory));
  return driver::given(status, *memory);
}

CUresult cuMemAllocHost(void **memory, size_t size) {
  BEGIN_IN_CONTEXT(memory, size);
  REQUIRE(memory != nullptr && size > 0, CUDA_ERROR_INVALID_VALUE);
  return result(emulator::allocate_host(size, memory));
}

CUresult cuMemFreeHost(void *memory) {
  BEGIN_IN_CONTEXT(memory);
  return result(emulator::release_host(memory));
}

CUresult cuMemHostRegister(void *memory, size_t size, unsigned flags) {
  BEGIN_IN_CONTEXT(memory, size, flags);
  REQUIRE(flags <= 15, CUDA_ERROR_INVALID_VALUE);
  REQUIRE((flags & CU_MEMHOSTREGISTER_IOMEMORY) == 0, CUDA_ERROR_NOT_SUPPORTED);
  return result(emulator::register_host(memory, size));
}

CUresult cuMemHostUnregister(void *memory) {
  BEGIN_IN_CONTEXT(memory);
  return result(emulator::unregister_host(memory));
}

// Addresses are unified: host memory has the same one on a device.
CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned flags) {
  BEGIN_IN_CONTEXT(device, host, flags);
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
  MemoryAttributes memory;
  CUresult status = result(emulator::memory_attributes(host, &memory));
  REQUIRE(status == CUDA_SUCCESS, status);
  REQUIRE(memory.kind == MemoryKind::pinned || memory.kind == MemoryKind::registered, CUDA_ERROR_INVALID_VALUE);
  *device = address(host);
  return driver::given(CUDA_SUCCESS, host);
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr at) {
  BEGIN(out, attribute, at);
  MemoryAttributes memory;
  CUresult status = result(emulator::memory_attributes(pointer(at), &memory));
  REQUIRE(status == CUDA_SUCCESS, status);
  REQUIRE(out != nullptr && memory.kind != MemoryKind::pageable, CUDA_ERROR_INVALID_VALUE);
  return attribute_of(memory, pointer(at), attribute, out);
}

// Unlike cuPointerGetAttribute() it succeeds for memory that the driver does not know, and gives zeros.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr at) {
  skin::record(__func__, count, attributes, out, at);
  for (unsigned i = 0; i < count; i++) skin::record("CUpointer_attribute", attributes[i]);
  const CUresult begun = driver::begin(__func__);
  RETURN_UNLESS_BEGUN(begun);
  MemoryAttributes memory;
  CUresult status = result(emulator::memory_attributes(pointer(at), &memory));
  for (unsigned i = 0; i < count && status == CUDA_SUCCESS; i++) {
    memset(out[i], 0, size_of(attributes[i]));
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) (void)give(out[i], -2);
    if (memory.kind != MemoryKind::pageable) (void)attribute_of(memory, pointer(at), attributes[i], out[i]);
  }
  return status;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr memory) {
  BEGIN_IN_CONTEXT(handle, memory);
  static_assert(sizeof(emulator::IpcHandle) == sizeof *handle);
  const CUresult status =
      result(emulator::export_memory(pointer(memory), reinterpret_cast<emulator::IpcHandle *>(handle)));
  return driver::given(status, driver::fingerprint(*handle));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *memory, CUipcMemHandle handle, unsigned flags) {
  BEGIN_IN_CONTEXT(memory, driver::fingerprint(handle), flags);
  REQUIRE(flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUDA_ERROR_INVALID_VALUE);
  emulator::IpcHandle bytes;
  memcpy(&bytes, &handle, sizeof bytes);
  void *mapped = nullptr;
  CUresult status = result(emulator::import_memory(bytes, &mapped));
  *memory = address(mapped);
  return driver::given(status, mapped);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr memory) {
  BEGIN_IN_CONTEXT(memory);
  return result(emulator::close_memory(pointer(memory)));
}

}  // extern "C"
