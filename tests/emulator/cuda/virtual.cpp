// Memory apart from its addresses: memory of devices, which files can name for other processes, and ranges of addresses at
// which it is mapped. A mapping is what streams can use from cuMemSetAccess() on.
//
// A file holds the name by which the emulator imports memory (core/ipc.hpp). Memory has the pages of the device that it was
// made on, and is given back when its owner has released and unmapped it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "driver.hpp"

using driver::address;
using driver::pointer;
using driver::result;

namespace {

constexpr size_t granularity = size_t{2} << 20, page = 4096;
constexpr uint64_t magic = 0x564d4d31;

// What a file holds.
struct Name {
  uint64_t magic = ::magic;
  uint64_t size = 0;
  emulator::IpcHandle handle;
};

struct Memory {
  Name name;
  void *own = nullptr;  // what the emulator has allocated, in the process that made it

  ~Memory() {
    if (own != nullptr) (void)emulator::release_unused(own);  // tasks use its mappings
  }
};
using MemoryPointer = std::shared_ptr<Memory>;

struct Mapping {
  MemoryPointer memory;
  size_t size = 0;
  std::set<int> devices;  // that have access; the emulator lets all of them use what one can
};

std::mutex mutex;  // held in no call of the emulator that waits for streams or holds up other threads
std::map<CUmemGenericAllocationHandle, MemoryPointer> memories;
std::map<CUdeviceptr, size_t> ranges;  // that are reserved
std::map<CUdeviceptr, Mapping> mappings;
CUmemGenericAllocationHandle newest = 0;

CUmemGenericAllocationHandle add(MemoryPointer memory) {
  std::lock_guard lock(mutex);
  memories[++newest] = std::move(memory);
  return newest;
}

MemoryPointer find(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex);
  auto found = memories.find(handle);
  return found == memories.end() ? nullptr : found->second;
}

void record(const CUmemAllocationProp &of) {
  skin::record("CUmemAllocationProp", of.type, of.requestedHandleTypes, of.location.type, of.location.id,
               of.win32HandleMetaData, of.allocFlags.compressionType, of.allocFlags.gpuDirectRDMACapable,
               of.allocFlags.usage);
}

bool reserved(CUdeviceptr at, size_t size) {
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return false;
  const auto &[base, length] = *std::prev(next);
  return at - base < length && size <= length - (at - base);
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
  BEGIN(bytes, properties, option);
  REQUIRE(bytes != nullptr && properties != nullptr, CUDA_ERROR_INVALID_VALUE);
  record(*properties);
  *bytes = granularity;
  return driver::given(CUDA_SUCCESS, *bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
  BEGIN(handle, size, properties, flags);
  REQUIRE(handle != nullptr && properties != nullptr && flags == 0, CUDA_ERROR_INVALID_VALUE);
  record(*properties);
  REQUIRE(size > 0 && size % granularity == 0, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(properties->type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
  REQUIRE(driver::is_device(properties->location.id), CUDA_ERROR_INVALID_DEVICE);
  auto memory = std::make_shared<Memory>();
  int before = 0;
  (void)emulator::current_device(&before);
  CUresult status = result(emulator::set_device(properties->location.id));
  if (status == CUDA_SUCCESS) status = result(emulator::allocate(size + page, &memory->own));  // to begin at a page
  (void)emulator::set_device(before);
  if (status != CUDA_SUCCESS) return status;
  memory->name.size = size;
  status = result(emulator::export_memory(memory->own, &memory->name.handle));
  if (status == CUDA_SUCCESS) *handle = add(memory);
  return driver::given(status, *handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  BEGIN(handle);
  MemoryPointer released = find(handle);  // its memory is given back without the lock
  REQUIRE(released != nullptr, CUDA_ERROR_INVALID_VALUE);
  std::lock_guard lock(mutex);
  memories.erase(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *file, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  BEGIN(file, handle, type, flags);
  const MemoryPointer memory = find(handle);
  REQUIRE(memory != nullptr && file != nullptr && flags == 0, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
  const int descriptor = memfd_create("emulated-memory", MFD_CLOEXEC);
  REQUIRE(descriptor >= 0, CUDA_ERROR_OPERATING_SYSTEM);
  if (pwrite(descriptor, &memory->name, sizeof memory->name, 0) != sizeof memory->name) {
    close(descriptor);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int *>(file) = descriptor;
  return driver::given(CUDA_SUCCESS, descriptor);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *file,
                                        CUmemAllocationHandleType type) {
  BEGIN(handle, file, type);
  REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
  auto memory = std::make_shared<Memory>();
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(file));
  const bool whole = pread(descriptor, &memory->name, sizeof memory->name, 0) == sizeof memory->name;
  REQUIRE(whole && memory->name.magic == magic, CUDA_ERROR_INVALID_VALUE);
  *handle = add(memory);
  return driver::given(CUDA_SUCCESS, *handle);
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
  BEGIN(at, size, alignment, wanted, flags);
  REQUIRE(at != nullptr && flags == 0 && size > 0 && size % granularity == 0, CUDA_ERROR_INVALID_VALUE);
  void *place = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(place != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  std::lock_guard lock(mutex);
  *at = address(place);
  ranges[*at] = size;
  return driver::given(CUDA_SUCCESS, *at);
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t size) {
  BEGIN(at, size);
  std::lock_guard lock(mutex);
  auto found = ranges.find(at);
  REQUIRE(found != ranges.end() && found->second == size, CUDA_ERROR_INVALID_VALUE);
  auto mapping = mappings.lower_bound(at);
  REQUIRE(mapping == mappings.end() || mapping->first - at >= size, CUDA_ERROR_INVALID_VALUE);
  ranges.erase(found);
  munmap(pointer(at), size);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  BEGIN(at, size, offset, handle, flags);
  const MemoryPointer memory = find(handle);
  REQUIRE(memory != nullptr && offset == 0 && flags == 0, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(size > 0 && size % granularity == 0 && size <= memory->name.size, CUDA_ERROR_INVALID_VALUE);
  std::lock_guard lock(mutex);
  REQUIRE(reserved(at, size) && mappings.count(at) == 0, CUDA_ERROR_INVALID_VALUE);
  mappings[at] = {memory, size, {}};
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *accesses, size_t count) {
  BEGIN(at, size, accesses, count);
  REQUIRE(accesses != nullptr && count == 1, CUDA_ERROR_INVALID_VALUE);
  skin::record("CUmemAccessDesc", accesses->location.type, accesses->location.id, accesses->flags);
  REQUIRE(accesses->location.type == CU_MEM_LOCATION_TYPE_DEVICE && driver::is_device(accesses->location.id) &&
              accesses->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
          CUDA_ERROR_NOT_SUPPORTED);
  std::lock_guard lock(mutex);
  auto found = mappings.find(at);
  REQUIRE(found != mappings.end() && found->second.size == size, CUDA_ERROR_INVALID_VALUE);
  CUresult status = CUDA_SUCCESS;
  if (found->second.devices.empty())
    status = result(emulator::map_memory(found->second.memory->name.handle, pointer(at), size));
  if (status == CUDA_SUCCESS) found->second.devices.insert(accesses->location.id);
  return status;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at) {
  BEGIN(flags, location, at);
  REQUIRE(flags != nullptr && location != nullptr, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
  std::lock_guard lock(mutex);
  auto found = mappings.find(at);
  REQUIRE(found != mappings.end(), CUDA_ERROR_INVALID_VALUE);
  *flags = found->second.devices.count(location->id) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  BEGIN(at, size);
  std::unique_lock lock(mutex);
  auto found = mappings.find(at);
  REQUIRE(found != mappings.end() && found->second.size == size, CUDA_ERROR_INVALID_VALUE);
  const Mapping mapping = found->second;
  mappings.erase(found);
  lock.unlock();
  return !mapping.devices.empty() ? result(emulator::unmap_memory(pointer(at))) : CUDA_SUCCESS;
}

}  // extern "C"
