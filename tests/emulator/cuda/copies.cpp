// Copies and fills.
#include "driver.hpp"

using driver::pointer;
using driver::result;
using driver::stream;
using emulator::CopyKind;

namespace {

// Returns the first element that a side of a two-dimensional copy names.
void *corner(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch) {
  auto *base = static_cast<unsigned char *>(type == CU_MEMORYTYPE_HOST ? const_cast<void *>(host) : pointer(device));
  return base + y * pitch + x;
}

bool is_linear(CUmemorytype type) {
  return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

CopyKind kind_of(const CUDA_MEMCPY2D &copy) {
  if (copy.srcMemoryType == CU_MEMORYTYPE_UNIFIED || copy.dstMemoryType == CU_MEMORYTYPE_UNIFIED) return CopyKind::any;
  bool from_host = copy.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
  if (from_host) return to_host ? CopyKind::host_to_host : CopyKind::host_to_device;
  return to_host ? CopyKind::device_to_host : CopyKind::device_to_device;
}

emulator::Copy2D rows_of(const CUDA_MEMCPY2D &copy) {
  return {corner(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstPitch),
          copy.dstPitch,
          corner(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcPitch),
          copy.srcPitch,
          copy.WidthInBytes,
          copy.Height};
}

}  // namespace

extern "C" {

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
  BEGIN_IN_CONTEXT(to, from, size);
  return result(emulator::copy(pointer(to), pointer(from), size, CopyKind::any));
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size) {
  BEGIN_IN_CONTEXT(to, from, size);
  return result(emulator::copy(pointer(to), from, size, CopyKind::host_to_device));
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size) {
  BEGIN_IN_CONTEXT(to, from, size);
  return result(emulator::copy(to, pointer(from), size, CopyKind::device_to_host));
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) {
  BEGIN_IN_CONTEXT(to, from, size);
  return result(emulator::copy(pointer(to), pointer(from), size, CopyKind::device_to_device));
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size) {
  BEGIN_IN_CONTEXT(to, to_context, from, from_context, size);
  return result(emulator::copy(pointer(to), pointer(from), size, CopyKind::device_to_device));
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream on) {
  BEGIN_IN_CONTEXT(to, from, size, on);
  return result(emulator::copy_async(pointer(to), pointer(from), size, CopyKind::any, stream(on)));
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream on) {
  BEGIN_IN_CONTEXT(to, from, size, on);
  return result(emulator::copy_async(pointer(to), from, size, CopyKind::host_to_device, stream(on)));
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream on) {
  BEGIN_IN_CONTEXT(to, from, size, on);
  return result(emulator::copy_async(to, pointer(from), size, CopyKind::device_to_host, stream(on)));
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream on) {
  BEGIN_IN_CONTEXT(to, from, size, on);
  return result(emulator::copy_async(pointer(to), pointer(from), size, CopyKind::device_to_device, stream(on)));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                           CUstream on) {
  BEGIN_IN_CONTEXT(to, to_context, from, from_context, size, on);
  return result(emulator::copy_async(pointer(to), pointer(from), size, CopyKind::device_to_device, stream(on)));
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D *copy) {
  BEGIN_IN_CONTEXT(copy);
  REQUIRE(is_linear(copy->srcMemoryType) && is_linear(copy->dstMemoryType), CUDA_ERROR_NOT_SUPPORTED);
  return result(emulator::copy_2d(rows_of(*copy), kind_of(*copy)));
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream on) {
  BEGIN_IN_CONTEXT(copy, on);
  REQUIRE(is_linear(copy->srcMemoryType) && is_linear(copy->dstMemoryType), CUDA_ERROR_NOT_SUPPORTED);
  return result(emulator::copy_2d_async(rows_of(*copy), kind_of(*copy), stream(on)));
}

CUresult cuMemsetD8(CUdeviceptr at, unsigned char value, size_t count) {
  BEGIN_IN_CONTEXT(at, value, count);
  return result(emulator::fill(pointer(at), value, 1, count));
}

CUresult cuMemsetD16(CUdeviceptr at, unsigned short value, size_t count) {
  BEGIN_IN_CONTEXT(at, value, count);
  return result(emulator::fill(pointer(at), value, 2, count));
}

CUresult cuMemsetD32(CUdeviceptr at, unsigned value, size_t count) {
  BEGIN_IN_CONTEXT(at, value, count);
  return result(emulator::fill(pointer(at), value, 4, count));
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t count, CUstream on) {
  BEGIN_IN_CONTEXT(at, value, count, on);
  return result(emulator::fill_async(pointer(at), value, 1, count, stream(on)));
}

CUresult cuMemsetD16Async(CUdeviceptr at, unsigned short value, size_t count, CUstream on) {
  BEGIN_IN_CONTEXT(at, value, count, on);
  return result(emulator::fill_async(pointer(at), value, 2, count, stream(on)));
}

CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream on) {
  BEGIN_IN_CONTEXT(at, value, count, on);
  return result(emulator::fill_async(pointer(at), value, 4, count, stream(on)));
}

}  // extern "C"
