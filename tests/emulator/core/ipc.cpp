#include "ipc.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "state.hpp"

namespace emulator {
namespace {

constexpr uint32_t magic = 0x454d5531;
constexpr uint32_t memory_kind = 1, event_kind = 2;
constexpr size_t event_slots = 1024;
constexpr size_t page = 4096;

struct Handle {
  uint32_t magic, kind;
  int32_t process, descriptor, device;
  uint32_t slot;
  uint64_t identity;
  uint64_t offset, size;  // of memory; of an event `offset` is what its records are above
  uint64_t span;          // of the exporter's device
};
static_assert(sizeof(Handle) <= sizeof(IpcHandle));

void write_handle(const Handle &from, IpcHandle *to) {
  memset(to, 0, sizeof *to);
  memcpy(to, &from, sizeof from);
}

Status read_handle(const IpcHandle &from, uint32_t kind, Handle *to) {
  memcpy(to, &from, sizeof *to);
  return to->magic == magic && to->kind == kind ? Status::success : Status::invalid_value;
}

uint64_t identity() {
  uint64_t number = 0;
  while (number == 0)
    if (getrandom(&number, sizeof number, 0) != sizeof number) number = 0;
  return number;
}

// Opens what another process shares. Returns -1 if the process is gone, or has closed it.
int open_of(const Handle &handle) {
  std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

// Maps a file anywhere, or at a place that the caller has reserved.
void *map(size_t length, int access, int descriptor, size_t offset, void *place = nullptr) {
  const int flags = MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED);
  void *at = mmap(place, length, access, flags, descriptor, static_cast<off_t>(offset));
  return at == MAP_FAILED ? nullptr : at;
}

// Makes a place again what its reservation has made of it.
void reserve_again(uintptr_t place, size_t length) {
  (void)mmap(reinterpret_cast<void *>(place), length, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace

void SharedEvent::finish(uint64_t number) {
  std::atomic<uint64_t> &newest = done[number % window];
  uint64_t before = newest.load();
  while (before < number && !newest.compare_exchange_weak(before, number)) {
  }
}

// ---- memory

Status Ipc::export_memory(Block &block, IpcHandle *handle) {
  Arena &arena = state_.memory.arena(block.device);
  if (block.export_slot < 0) {
    for (size_t slot = 0; slot < export_slots && block.export_slot < 0; slot++)
      if (__atomic_load_n(&arena.exports[slot], __ATOMIC_ACQUIRE) == 0) block.export_slot = static_cast<int>(slot);
    if (block.export_slot < 0) return Status::out_of_memory;
    __atomic_store_n(&arena.exports[block.export_slot], identity(), __ATOMIC_RELEASE);
  }
  Handle made{};
  made.magic = magic;
  made.kind = memory_kind;
  made.process = getpid();
  made.descriptor = arena.fd;
  made.device = block.device;
  made.slot = static_cast<uint32_t>(block.export_slot);
  made.identity = __atomic_load_n(&arena.exports[block.export_slot], __ATOMIC_ACQUIRE);
  made.offset = block.base - arena.base;
  made.size = block.size;
  made.span = arena.span;
  write_handle(made, handle);
  return Status::success;
}

void Ipc::withdraw(const Block &block) {
  __atomic_store_n(&state_.memory.arena(block.device).exports[block.export_slot], uint64_t{0}, __ATOMIC_RELEASE);
}

Status Ipc::import_memory(const IpcHandle &from, void **address) {
  Handle handle;
  Status status = read_handle(from, memory_kind, &handle);
  if (status != Status::success) return status;
  if (handle.process == getpid()) return Status::already_mapped;
  if (handle.size == 0 || handle.offset > handle.span || handle.size > handle.span - handle.offset)
    return Status::invalid_value;
  Import &import = imports_[{handle.process, handle.identity}];
  if (import.users > 0) {
    import.users++;
    *address = reinterpret_cast<void *>(import.base);
    return Status::success;
  }
  size_t first = handle.offset / page * page;
  size_t length = (handle.offset + handle.size - first + page - 1) / page * page;
  status = open(from, first, length, nullptr, &import);
  if (status != Status::success) return status;
  import.base = import.hidden + (handle.offset - first);
  import.users = 1;
  add(from, import, import.view + (handle.offset - first), handle.size);
  *address = reinterpret_cast<void *>(import.base);
  return Status::success;
}

void Ipc::add(const IpcHandle &from, const Import &import, uintptr_t view, size_t size) {
  Handle handle;
  memcpy(&handle, &from, sizeof handle);
  Block block;
  block.base = import.base;
  block.size = size;
  block.kind = MemoryKind::imported;
  block.device = handle.device;
  block.name = "memory of process " + std::to_string(handle.process) + " (" + std::to_string(size) + " bytes)";
  block.view = view;
  state_.memory.add_imported(block);
}

Status Ipc::map_memory(const IpcHandle &from, void *place, size_t size) {
  Handle handle;
  Status status = read_handle(from, memory_kind, &handle);
  if (status != Status::success) return status;
  size_t first = (handle.offset + page - 1) / page * page;
  if (size == 0 || size % page != 0 || first > handle.span || size > handle.span - first ||
      first + size > handle.offset + handle.size)
    return Status::invalid_value;
  Import import;
  status = open(from, first, size, place, &import);
  if (status != Status::success) return status;
  import.base = import.hidden;
  add(from, import, import.view, size);
  mapped_[import.base] = import;
  return Status::success;
}

Status Ipc::unmap_memory(Lock &lock, void *place) {
  auto found = mapped_.find(reinterpret_cast<uintptr_t>(place));
  if (found == mapped_.end()) return Status::invalid_value;
  Import closed = found->second;
  mapped_.erase(found);
  give_back(lock, closed);
  reserve_again(closed.hidden, closed.mapped);
  return Status::success;
}

void Ipc::give_back(Lock &lock, const Import &closed) {
  const Block &block = state_.memory.block(closed.base);
  Span range{block.base, block.size};
  state_.memory.release(block);
  state_.scheduler.wait_for_users(lock, range);
  munmap(reinterpret_cast<void *>(closed.view), closed.mapped);
}

// Maps a range of the exporter's memory twice: for the program, without access, and for tasks.
Status Ipc::open(const IpcHandle &from, size_t first, size_t length, void *place, Import *import) {
  Handle handle;
  memcpy(&handle, &from, sizeof handle);
  int descriptor = open_of(handle);
  if (descriptor < 0) return Status::peer_gone;
  struct stat information{};
  Status status = Status::peer_gone;  // another process may have the number by now
  if (fstat(descriptor, &information) == 0 && handle.slot < export_slots &&
      static_cast<uint64_t>(information.st_size) >= handle.span + export_slots * sizeof(uint64_t)) {
    void *table = map(export_slots * sizeof(uint64_t), PROT_READ, descriptor, handle.span);
    void *hidden = map(length, PROT_NONE, descriptor, first, place);
    void *view = map(length, PROT_READ | PROT_WRITE, descriptor, first);
    if (table == nullptr || hidden == nullptr || view == nullptr)
      status = Status::system_error;
    else if (__atomic_load_n(static_cast<uint64_t *>(table) + handle.slot, __ATOMIC_ACQUIRE) == handle.identity)
      status = Status::success;
    if (table != nullptr) munmap(table, export_slots * sizeof(uint64_t));
    if (status == Status::success) {
      import->hidden = reinterpret_cast<uintptr_t>(hidden);
      import->view = reinterpret_cast<uintptr_t>(view);
      import->mapped = length;
    } else {
      if (place != nullptr)
        reserve_again(reinterpret_cast<uintptr_t>(place), length);
      else if (hidden != nullptr)
        munmap(hidden, length);
      if (view != nullptr) munmap(view, length);
    }
  }
  close(descriptor);
  return status;
}

Status Ipc::close_memory(Lock &lock, void *address) {
  for (auto import = imports_.begin(); import != imports_.end(); ++import) {
    if (import->second.users == 0 || import->second.base != reinterpret_cast<uintptr_t>(address)) continue;
    if (--import->second.users > 0) return Status::success;
    Import closed = import->second;
    imports_.erase(import);
    give_back(lock, closed);
    munmap(reinterpret_cast<void *>(closed.hidden), closed.mapped);
    return Status::success;
  }
  return Status::invalid_value;
}

// ---- events

Status Ipc::create_event(SharedEvent **event, uint64_t *first) {
  if (events_ == nullptr) {
    events_fd_ = memfd_create("emulated-events", MFD_CLOEXEC);
    size_t bytes = event_slots * sizeof(SharedEvent);
    if (events_fd_ < 0 || ftruncate(events_fd_, static_cast<off_t>(bytes)) != 0) return Status::system_error;
    events_ = static_cast<SharedEvent *>(map(bytes, PROT_READ | PROT_WRITE, events_fd_, 0));
    if (events_ == nullptr) return Status::system_error;
  }
  for (size_t slot = 0; slot < event_slots; slot++) {
    if (events_[slot].identity.load() != 0) continue;
    *event = &events_[slot];
    *first = events_[slot].issued.load();
    events_[slot].identity = identity();
    return Status::success;
  }
  return Status::out_of_memory;
}

void Ipc::destroy_event(SharedEvent *event) { event->identity = 0; }

Status Ipc::export_event(const SharedEvent *event, uint64_t first, int device, IpcHandle *handle) {
  Handle made{};
  made.magic = magic;
  made.kind = event_kind;
  made.process = getpid();
  made.descriptor = events_fd_;
  made.device = device;
  made.slot = static_cast<uint32_t>(event - events_);
  made.identity = event->identity.load();
  made.offset = first;
  write_handle(made, handle);
  return Status::success;
}

Status Ipc::import_event(const IpcHandle &from, SharedEvent **event, uint64_t *first, int *device) {
  Handle handle;
  Status status = read_handle(from, event_kind, &handle);
  if (status != Status::success) return status;
  if (handle.process == getpid()) return Status::already_mapped;
  if (handle.slot >= event_slots) return Status::invalid_value;
  // The table of a process is mapped once, and stays: tasks of destroyed events may still use it.
  SharedEvent *&table = event_tables_[{handle.process, handle.descriptor}];
  if (table == nullptr || table[handle.slot].identity.load() != handle.identity) {
    int descriptor = open_of(handle);
    if (descriptor < 0) return Status::peer_gone;
    struct stat information{};
    size_t bytes = event_slots * sizeof(SharedEvent);
    SharedEvent *now = nullptr;
    if (fstat(descriptor, &information) == 0 && static_cast<size_t>(information.st_size) >= bytes)
      now = static_cast<SharedEvent *>(map(bytes, PROT_READ | PROT_WRITE, descriptor, 0));
    close(descriptor);
    if (now == nullptr) return Status::peer_gone;
    if (now[handle.slot].identity.load() != handle.identity) {
      munmap(now, bytes);
      return Status::peer_gone;
    }
    table = now;
  }
  *event = &table[handle.slot];
  *first = handle.offset;
  *device = handle.device;
  return Status::success;
}

// ---- calls

Status export_memory(void *base, IpcHandle *handle) {
  Call call;
  if (!call) return call.status();
  Memory &memory = call.state().memory;
  const Block *block = memory.find(base);
  if (block == nullptr || block->kind != MemoryKind::device || block->base != reinterpret_cast<uintptr_t>(base))
    return Status::invalid_value;
  return call.state().ipc.export_memory(memory.block(block->base), handle);
}

Status import_memory(const IpcHandle &handle, void **address) {
  Call call;
  Status status = call ? call.state().captures.unsafe_call() : call.status();
  return status == Status::success ? call.state().ipc.import_memory(handle, address) : status;
}

Status map_memory(const IpcHandle &handle, void *place, size_t size) {
  Call call;
  Status status = call ? call.state().captures.unsafe_call() : call.status();
  return status == Status::success ? call.state().ipc.map_memory(handle, place, size) : status;
}

Status unmap_memory(void *place) {
  Call call;
  Status status = call ? call.state().captures.unsafe_call() : call.status();
  return status == Status::success ? call.state().ipc.unmap_memory(call.lock(), place) : status;
}

Status close_memory(void *address) {
  Call call;
  Status status = call ? call.state().captures.unsafe_call() : call.status();
  if (status == Status::success && call.state().options.free_synchronizes) status = call.wait_alone(-1);
  return status == Status::success ? call.state().ipc.close_memory(call.lock(), address) : status;
}

}  // namespace emulator
