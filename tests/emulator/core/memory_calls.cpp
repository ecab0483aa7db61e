// Calls about memory. All of them may wait in a real runtime, so a capture forbids them.
#include "runtime.hpp"
#include "state.hpp"

namespace emulator {
namespace {

// Begins a call that a capture forbids and that acts on the current device.
Status begin(Call &call, int *device) {
  Status status = call ? call.device(device) : call.status();
  return status == Status::success ? call.state().captures.unsafe_call() : status;
}

// Gives back memory of one of the kinds, at its base. With `waits` it does so as the options say.
Status give_back(void *address, MemoryKind kind, Status otherwise, bool waits = true) {
  Call call;
  int device = 0;
  Status status = begin(call, &device);
  if (status != Status::success) return status;
  const Block *block = call.state().memory.find(address);
  auto is_base = [&] {
    return block != nullptr && block->kind == kind && block->base == reinterpret_cast<uintptr_t>(address);
  };
  if (!is_base()) return otherwise;
  if (call.state().options.free_synchronizes && waits) {
    status = call.wait_alone(kind == MemoryKind::device ? block->device : -1);
    if (status != Status::success) return status;
    block = call.state().memory.find(address);  // the lock was not held
    if (!is_base()) return otherwise;
  }
  Span range{block->base, block->size};
  call.state().memory.release(*block);
  if (kind == MemoryKind::registered) call.state().scheduler.wait_for_users(call.lock(), range);
  return Status::success;
}

}  // namespace

Status allocate(size_t size, void **address) {
  Call call;
  int device = 0;
  Status status = begin(call, &device);
  if (status != Status::success) return status;
  *address = nullptr;
  return size == 0 ? status : call.state().memory.allocate(device, size, address);
}

Status release(void *address) {
  return address == nullptr ? Status::success : give_back(address, MemoryKind::device, Status::invalid_value);
}

Status release_unused(void *address) { return give_back(address, MemoryKind::device, Status::invalid_value, false); }

Status memory_info(int device, size_t *free, size_t *total) {
  Call call;
  if (!call) return call.status();
  if (device < 0 || device >= call.state().config.devices) return Status::invalid_device;
  const Arena &arena = call.state().memory.arena(device);
  *total = arena.budget;
  *free = arena.budget - arena.used;
  return Status::success;
}

Status memory_attributes(const void *address, MemoryAttributes *attributes) {
  Call call(Call::at_once);
  if (!call) return call.status();
  *attributes = {};
  const Block *block = call.state().memory.find(address);
  if (block != nullptr) *attributes = {block->kind, block->device, reinterpret_cast<void *>(block->base), block->size};
  return Status::success;
}

Status allocate_host(size_t size, void **address) {
  Call call;
  int device = 0;
  Status status = begin(call, &device);
  if (status != Status::success) return status;
  *address = nullptr;
  return size == 0 ? status : call.state().memory.allocate_host(device, size, address);
}

Status release_host(void *address) {
  return address == nullptr ? Status::success : give_back(address, MemoryKind::pinned, Status::invalid_value);
}

Status register_host(void *address, size_t size) {
  Call call;
  int device = 0;
  Status status = begin(call, &device);
  if (status != Status::success) return status;
  if (address == nullptr || size == 0) return Status::invalid_value;
  return call.state().memory.register_host(device, address, size);
}

Status unregister_host(void *address) { return give_back(address, MemoryKind::registered, Status::not_registered); }

// Tasks call this, so it is no Call.
void *host_view(const void *address) {
  State &all = state();
  Lock lock(all.mutex);
  return all.memory.view(address);
}

}  // namespace emulator
