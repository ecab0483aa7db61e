// memory.hpp has the memory of the devices and what is known about pinned and imported memory.
//
// The memory of a device is one memfd that is mapped twice: callers get addresses of a mapping without access, tasks use the
// other one. So the CPU cannot touch device memory by mistake, and another process can map the same pages.
//
// Freed device memory is filled with a pattern and stays in quarantine for a while. The pattern is looked at when the memory
// leaves it.
//
// Requires, for everything here: the lock of the state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "checker.hpp"
#include "runtime.hpp"

namespace emulator {

struct State;

struct Block {
  uintptr_t base = 0;
  size_t size = 0;
  MemoryKind kind = MemoryKind::pageable;
  int device = -1;
  std::string name;    // "allocation 3 of device 0 (4096 bytes)"
  uintptr_t view = 0;  // where the CPU reaches it
  int export_slot = -1;
};

// The memory of one device.
struct Arena {
  int fd = -1;
  uintptr_t base = 0;  // without access
  uintptr_t view = 0;
  size_t span = 0;    // of addresses; larger than the budget, for the quarantine
  size_t budget = 0;  // of allocated bytes
  size_t used = 0;
  std::map<size_t, size_t> free_ranges;  // offset to length
  struct Freed {
    size_t offset, length;
    std::string name;
  };
  std::deque<Freed> quarantine;
  size_t quarantined = 0;
  uint64_t *exports = nullptr;  // behind the span: identities of exported allocations, 0 where there is none
};
constexpr size_t export_slots = 4096;

class Memory {
 public:
  explicit Memory(State &state) : state_(state) {}
  // Reports whether the operating system gave the memory.
  bool add_devices(int count, size_t bytes);

  Status allocate(int device, size_t size, void **address);
  Status allocate_host(int device, size_t size, void **address);
  Status register_host(int device, void *address, size_t size);
  void add_imported(const Block &block);
  // Forgets the block. Tasks that still use it are reported, and cancelled if the memory itself is gone then; a task
  // that runs goes on, and the caller waits for it (Scheduler::wait_for_users).
  void release(const Block &block);

  // Of all blocks of a kind that this process has, and the most that it has had at a time.
  struct Bytes {
    size_t now = 0, most = 0;
  };
  Bytes bytes(const std::string &kind) const;

  const Block *find(const void *address) const;
  // Reports whether the range lies in one block, or touches none. `block` is null for pageable memory.
  bool classify(const void *address, size_t length, const Block **block) const;
  void *view(const void *address) const;
  Arena &arena(int device) { return arenas_[static_cast<size_t>(device)]; }
  Block &block(uintptr_t base) { return blocks_.at(base); }

 private:
  bool take(Arena &arena, size_t length, size_t *offset);
  void give_back(Arena &arena, size_t offset, size_t length);
  void leave_quarantine(Arena &arena);
  void add(const Block &block);

  State &state_;
  std::vector<Arena> arenas_;
  std::map<uintptr_t, Block> blocks_;
  std::map<MemoryKind, Bytes> bytes_;
  uint64_t allocations_ = 0;
  struct FreedHost {
    uintptr_t base;
    size_t size;
    bool used;  // by tasks that were queued
  };
  std::deque<FreedHost> freed_host_;
  size_t freed_host_bytes_ = 0;
};

}  // namespace emulator
