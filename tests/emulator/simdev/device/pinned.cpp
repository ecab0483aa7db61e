// Pinned memory: the allocator behind pin_memory() and pin_memory=True.
#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <mutex>

#include "allocator.hpp"
#include "block_cache.hpp"
#include "device.hpp"

namespace simdev {
namespace {

constexpr size_t unit = 512;

void give_back(void *block);

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &give_back, c10::DeviceType::CPU};
    size_t length = (size + unit - 1) / unit * unit;
    Block *block = cache_.take(-1, 0, length);
    if (block == nullptr) block = fetch(length);
    std::lock_guard lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(block->address)] = block;
    stats_.active_bytes.increase(length);
    stats_.active_requests.increase(1);
    return {block->address, block, &give_back, c10::DeviceType::CPU};
  }
  void put(Block *block) {
    {
      std::lock_guard lock(mutex_);
      blocks_.erase(reinterpret_cast<uintptr_t>(block->address));
      stats_.active_bytes.decrease(block->size);
      stats_.active_requests.decrease(1);
    }
    cache_.put(block);
  }
  void copy_data(void *to, const void *from, size_t size) const override { default_copy_data(to, from, size); }

  // `context` may be null: torch knows the address of a tensor's data and not always its owner.
  bool record_event(void *address, void * /*context*/, c10::Stream stream) override {
    Block *block = find(address);
    if (block != nullptr) cache_.use(block, &find_stream(stream));
    return block != nullptr;
  }
  void empty_cache() override {
    for (Block *block : cache_.take_all(false)) {
      OnDevice on(0);
      check(emulator::release_host(block->address), "release_host");
      std::lock_guard lock(mutex_);
      stats_.allocated_bytes.decrease(block->size);
      stats_.allocations.decrease(1);
      delete block;
    }
  }
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    for_each_stat([](c10::CachingAllocator::Stat &stat) { stat.reset_accumulated(); });
  }
  void reset_peak_stats() override {
    for_each_stat([](c10::CachingAllocator::Stat &stat) { stat.reset_peak(); });
  }

 private:
  // Returns the block in use that the address lies in, null if there is none.
  Block *find(const void *address) {
    std::lock_guard lock(mutex_);
    auto at = reinterpret_cast<uintptr_t>(address);
    auto next = blocks_.upper_bound(at);
    if (next == blocks_.begin()) return nullptr;
    Block *block = std::prev(next)->second;
    return at - std::prev(next)->first < block->size ? block : nullptr;
  }
  Block *fetch(size_t size) {
    OnDevice on(current_device());
    auto *block = new Block;
    block->size = size;
    emulator::Status status = emulator::allocate_host(size, &block->address);
    if (status != emulator::Status::success) delete block;
    check(status, "allocate_host");
    std::lock_guard lock(mutex_);
    stats_.allocated_bytes.increase(size);
    stats_.allocations.increase(1);
    return block;
  }
  template <class Function>
  void for_each_stat(Function function) {
    std::lock_guard lock(mutex_);
    for (auto *stat : {&stats_.active_bytes, &stats_.active_requests, &stats_.allocated_bytes, &stats_.allocations})
      function(*stat);
  }

  BlockCache cache_;
  std::mutex mutex_;
  std::map<uintptr_t, Block *> blocks_;  // in use, by address
  at::HostStats stats_;
};

PinnedMemory &pinned_memory() {
  static auto *const memory = new PinnedMemory;
  return *memory;
}

void give_back(void *block) {
  if (block == nullptr) return;
  try {
    pinned_memory().put(static_cast<Block *>(block));
  } catch (const std::exception &) {  // the process exits or was forked
  }
}

}  // namespace

void register_pinned_allocator() { at::setHostAllocator(device_type, &pinned_memory()); }

bool is_pinned(const void *address) {
  emulator::MemoryAttributes attributes;
  return emulator::memory_attributes(address, &attributes) == emulator::Status::success &&
         (attributes.kind == emulator::MemoryKind::pinned || attributes.kind == emulator::MemoryKind::registered);
}

bool record_pinned(const void *address, const c10::Stream &stream) {
  return pinned_memory().record_event(const_cast<void *>(address), nullptr, stream);
}

}  // namespace simdev
