#include "allocator.hpp"

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <mutex>

#include "block_cache.hpp"
#include "device.hpp"

namespace simdev {
namespace {

using c10::CachingAllocator::StatType;

constexpr size_t unit = 512, large_unit = size_t{2} << 20, large = size_t{1} << 20;
constexpr int most_devices = 64;

size_t rounded(size_t size) {
  size_t to = size < large ? unit : large_unit;
  return (size + to - 1) / to * to;
}

// A deleter must not raise: in a process that exits or was forked the memory stays where it is.
void give_back(void *block);

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    int device = current_device();
    index_of(device_of(device));
    if (size == 0) return {nullptr, nullptr, &give_back, device_of(device)};
    Block *block = cache_.take(device, current_stream(device).id, rounded(size));
    if (block == nullptr) block = fetch(device, rounded(size));
    block->requested = size;
    count(*block, true);
    return {block->address, block, &give_back, device_of(device)};
  }
  void put(Block *block) {
    count(*block, false);
    cache_.put(block);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void *to, const void *from, size_t size) const override {
    submit(current_stream(current_device()), "copy", [=](emulator::StreamHandle stream) {
      return emulator::copy_async(to, from, size, emulator::CopyKind::device_to_device, stream);
    });
  }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr &pointer, c10::Stream stream) override {
    if (pointer.get_deleter() != &give_back || pointer.get_context() == nullptr) return;
    cache_.use(static_cast<Block *>(pointer.get_context()), &find_stream(stream));
  }
  void emptyCache(c10::MempoolId_t /*pool*/) override { empty(false); }
  void empty(bool wait) {
    for (Block *block : cache_.take_all(wait)) {
      OnDevice on(block->device);
      check(emulator::release(block->address), "release");
      std::lock_guard lock(mutex_);
      stats_of(block->device).reserved_bytes[all].decrease(block->size);
      stats_of(block->device).segment[all].decrease(1);
      delete block;
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex_);
    return stats_of(index_of(device_of(device)));
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](c10::CachingAllocator::Stat &stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](c10::CachingAllocator::Stat &stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t free = 0, total = 0;
    check(emulator::memory_info(index_of(device_of(device)), &free, &total), "memory_info");
    return {free, total};
  }

 private:
  static constexpr auto all = static_cast<size_t>(StatType::AGGREGATE);

  Block *fetch(int device, size_t size) {
    OnDevice on(device);
    void *address = nullptr;
    emulator::Status status = emulator::allocate(size, &address);
    if (status == emulator::Status::out_of_memory) {
      empty(true);
      status = emulator::allocate(size, &address);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, status != emulator::Status::out_of_memory, "simdev: device ", device,
                     " has no memory for ", size, " bytes");
    check(status, "allocate");
    auto *block = new Block;
    block->address = address;
    block->size = size;
    block->device = device;
    block->stream = current_stream(device).id;
    std::lock_guard lock(mutex_);
    stats_of(device).reserved_bytes[all].increase(size);
    stats_of(device).segment[all].increase(1);
    return block;
  }
  void count(const Block &block, bool allocated) {
    std::lock_guard lock(mutex_);
    auto &stats = stats_of(block.device);
    auto add = [&](c10::CachingAllocator::StatArray &array, size_t amount) {
      allocated ? array[all].increase(amount) : array[all].decrease(amount);
    };
    add(stats.allocated_bytes, block.size);
    add(stats.active_bytes, block.size);
    add(stats.requested_bytes, block.requested);
    add(stats.allocation, 1);
    add(stats.active, 1);
  }
  c10::CachingDeviceAllocator::DeviceStats &stats_of(int device) { return stats_[static_cast<size_t>(device)]; }
  template <class Function>
  void for_each_stat(c10::DeviceIndex device, Function function) {
    std::lock_guard lock(mutex_);
    auto &stats = stats_of(index_of(device_of(device)));
    for (auto *array : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes,
                        &stats.active_bytes, &stats.requested_bytes})
      function((*array)[all]);
  }

  BlockCache cache_;
  std::mutex mutex_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, most_devices> stats_;
};

DeviceMemory &device_memory() {
  static auto *const memory = new DeviceMemory;  // tensors of a program that exits still give memory back
  return *memory;
}

void give_back(void *block) {
  if (block == nullptr) return;
  try {
    device_memory().put(static_cast<Block *>(block));
  } catch (const std::exception &) {
  }
}

}  // namespace

void register_device_allocator() { c10::SetAllocator(device_type, &device_memory()); }

void record_stream(const c10::DataPtr &pointer, const c10::Stream &stream) {
  device_memory().recordStream(pointer, stream);
}

void empty_cache(bool wait) { device_memory().empty(wait); }

}  // namespace simdev
