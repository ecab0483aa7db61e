#include "memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "state.hpp"

namespace emulator {
namespace {

constexpr size_t alignment = 256;
constexpr size_t page = 4096;
constexpr unsigned char fresh = 0xCD, freed = 0xDD;
constexpr size_t most_filled = size_t{1} << 20;  // bytes of a block that are filled; more takes too long
constexpr size_t large = size_t{1} << 20;        // pages of larger blocks go back to the operating system
constexpr size_t most_freed_host = size_t{64} << 20;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

std::string block_name(const char *kind, uint64_t number, int device, size_t size) {
  return std::string(kind) + " " + std::to_string(number) + " of device " + std::to_string(device) + " (" +
         std::to_string(size) + " bytes)";
}

Span whole(const Block &block) { return {block.base, block.size}; }

}  // namespace

bool Memory::add_devices(int count, size_t bytes) {
  arenas_.resize(static_cast<size_t>(count));
  for (Arena &arena : arenas_) {
    arena.budget = bytes;
    arena.span = round_up(bytes + bytes / 4 + (size_t{64} << 20), page);
    size_t tail = round_up(export_slots * sizeof(uint64_t), page);
    arena.fd = memfd_create("emulated-device", MFD_CLOEXEC);
    if (arena.fd < 0 || ftruncate(arena.fd, static_cast<off_t>(arena.span + tail)) != 0) return false;
    void *base = mmap(nullptr, arena.span, PROT_NONE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
    void *view = mmap(nullptr, arena.span + tail, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, arena.fd, 0);
    if (base == MAP_FAILED || view == MAP_FAILED) return false;
    arena.base = reinterpret_cast<uintptr_t>(base);
    arena.view = reinterpret_cast<uintptr_t>(view);
    arena.exports = reinterpret_cast<uint64_t *>(arena.view + arena.span);
    arena.free_ranges[0] = arena.span;
  }
  return true;
}

bool Memory::take(Arena &arena, size_t length, size_t *offset) {
  for (auto range = arena.free_ranges.begin(); range != arena.free_ranges.end(); ++range) {
    if (range->second < length) continue;
    *offset = range->first;
    size_t left = range->second - length;
    arena.free_ranges.erase(range);
    if (left > 0) arena.free_ranges[*offset + length] = left;
    return true;
  }
  return false;
}

void Memory::give_back(Arena &arena, size_t offset, size_t length) {
  auto range = arena.free_ranges.emplace(offset, length).first;
  auto next = std::next(range);
  if (next != arena.free_ranges.end() && offset + length == next->first) {
    range->second += next->second;
    arena.free_ranges.erase(next);
  }
  if (range == arena.free_ranges.begin()) return;
  auto before = std::prev(range);
  if (before->first + before->second == offset) {
    before->second += range->second;
    arena.free_ranges.erase(range);
  }
}

void Memory::leave_quarantine(Arena &arena) {
  Arena::Freed oldest = arena.quarantine.front();
  arena.quarantine.pop_front();
  arena.quarantined -= oldest.length;
  const auto *bytes = reinterpret_cast<const unsigned char *>(arena.view + oldest.offset);
  size_t filled = std::min(oldest.length, most_filled);
  const auto *other = std::find_if(bytes, bytes + filled, [](unsigned char byte) { return byte != freed; });
  if (other != bytes + filled)
    state_.report(oldest.name + " was written after it was freed, at offset " + std::to_string(other - bytes));
  if (oldest.length >= large) {
    size_t begin = round_up(oldest.offset, page), end = (oldest.offset + oldest.length) / page * page;
    fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
              static_cast<off_t>(end - begin));
  }
  give_back(arena, oldest.offset, oldest.length);
}

void Memory::add(const Block &block) {
  blocks_[block.base] = block;
  Bytes &bytes = bytes_[block.kind];
  bytes.now += block.size;
  bytes.most = std::max(bytes.most, bytes.now);
  // The checker adds the size to the name itself.
  state_.checker.allocate(whole(block), block.name.substr(0, block.name.rfind(" (")));
}

Status Memory::allocate(int device, size_t size, void **address) {
  Arena &arena_of = arena(device);
  size_t length = round_up(size, alignment);
  if (length < size || arena_of.used + length < length || arena_of.used + length > arena_of.budget)
    return Status::out_of_memory;
  size_t offset = 0;
  while (!take(arena_of, length, &offset)) {
    if (arena_of.quarantine.empty()) return Status::out_of_memory;
    leave_quarantine(arena_of);
  }
  arena_of.used += length;
  Block block;
  block.base = arena_of.base + offset;
  block.size = size;
  block.kind = MemoryKind::device;
  block.device = device;
  block.name = block_name("allocation", ++allocations_, device, size);
  block.view = arena_of.view + offset;
  memset(reinterpret_cast<void *>(block.view), fresh, std::min(length, most_filled));
  add(block);
  *address = reinterpret_cast<void *>(block.base);
  return Status::success;
}

Status Memory::allocate_host(int device, size_t size, void **address) {
  void *memory = mmap(nullptr, round_up(size, page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status::out_of_memory;
  Block block;
  block.base = block.view = reinterpret_cast<uintptr_t>(memory);
  block.size = size;
  block.kind = MemoryKind::pinned;
  block.device = device;
  block.name = block_name("pinned allocation", ++allocations_, device, size);
  memset(memory, fresh, std::min(size, most_filled));
  add(block);
  *address = memory;
  return Status::success;
}

Status Memory::register_host(int device, void *address, size_t size) {
  Block block;
  block.base = block.view = reinterpret_cast<uintptr_t>(address);
  block.size = size;
  block.kind = MemoryKind::registered;
  block.device = device;
  auto next = blocks_.lower_bound(block.base);
  if (next != blocks_.end() && next->first < block.base + size) return Status::already_registered;
  if (next != blocks_.begin() && std::prev(next)->first + std::prev(next)->second.size > block.base)
    return Status::already_registered;
  block.name = block_name("registration", ++allocations_, device, size);
  add(block);
  return Status::success;
}

void Memory::add_imported(const Block &block) { add(block); }

void Memory::release(const Block &released) {
  Block block = released;
  bool used = false;
  state_.streams.users(whole(block), [&](Stream &stream, Task &task) {
    used = true;
    // Freed device memory stays mapped, and so does pinned memory that is in use: the task runs, as it would on a device.
    bool mapped = block.kind == MemoryKind::device || block.kind == MemoryKind::pinned;
    if (!mapped) task.cancelled = true;
    if (!mapped && task.condition != nullptr) task.condition->holds = [] { return false; };
    state_.report(block.name + " is given back while '" + task.what + "' on " + stream.name + " still uses it" +
                  (mapped ? "" : "; the task is left out"));
  });
  state_.checker.release(whole(block), host_agent(state_));
  blocks_.erase(block.base);
  bytes_[block.kind].now -= block.size;
  if (block.kind == MemoryKind::device) {
    Arena &arena_of = arena(block.device);
    if (block.export_slot >= 0) state_.ipc.withdraw(block);
    size_t length = round_up(block.size, alignment);
    arena_of.used -= length;
    if (!used) memset(reinterpret_cast<void *>(block.view), freed, std::min(length, most_filled));
    arena_of.quarantine.push_back({block.base - arena_of.base, length, block.name});
    arena_of.quarantined += length;
    while (arena_of.quarantined > arena_of.budget / 4) leave_quarantine(arena_of);
  } else if (block.kind == MemoryKind::pinned) {
    size_t mapped = round_up(block.size, page);
    if (!used) memset(reinterpret_cast<void *>(block.base), freed, std::min(block.size, most_filled));
    freed_host_.push_back({block.base, mapped, used});
    freed_host_bytes_ += mapped;
    while (freed_host_bytes_ > most_freed_host && !freed_host_.front().used) {
      munmap(reinterpret_cast<void *>(freed_host_.front().base), freed_host_.front().size);
      freed_host_bytes_ -= freed_host_.front().size;
      freed_host_.pop_front();
    }
  }
}

Memory::Bytes Memory::bytes(const std::string &kind) const {
  const std::map<std::string, MemoryKind> kinds = {{"pinned", MemoryKind::pinned},
                                                   {"registered", MemoryKind::registered},
                                                   {"device", MemoryKind::device},
                                                   {"imported", MemoryKind::imported}};
  auto named = kinds.find(kind);
  auto found = named == kinds.end() ? bytes_.end() : bytes_.find(named->second);
  return found == bytes_.end() ? Bytes{} : found->second;
}

const Block *Memory::find(const void *address) const {
  auto at = reinterpret_cast<uintptr_t>(address);
  auto next = blocks_.upper_bound(at);
  if (next == blocks_.begin()) return nullptr;
  const Block &block = std::prev(next)->second;
  return at - block.base < block.size ? &block : nullptr;
}

bool Memory::classify(const void *address, size_t length, const Block **block) const {
  auto at = reinterpret_cast<uintptr_t>(address);
  *block = find(address);
  if (*block != nullptr) return length <= (*block)->size - (at - (*block)->base);
  for (const Arena &arena : arenas_)
    if (at - arena.base < arena.span) return false;
  auto next = blocks_.lower_bound(at);
  return next == blocks_.end() || next->first - at >= length;
}

void *Memory::view(const void *address) const {
  auto at = reinterpret_cast<uintptr_t>(address);
  for (const Arena &arena : arenas_)
    if (at - arena.base < arena.span) return reinterpret_cast<void *>(at - arena.base + arena.view);
  const Block *block = find(address);
  return reinterpret_cast<void *>(block == nullptr ? at : at - block->base + block->view);
}

}  // namespace emulator
