// What torch asks an accelerator for beside the device guard: generators, pinned memory, the device of an address.
#include "hooks.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "allocator.hpp"
#include "device.hpp"
#include "streams.hpp"

namespace simdev {
namespace {

// Numbers come from the CPU's generator of random numbers.
class Generator final : public at::CPUGeneratorImpl {
 public:
  explicit Generator(int device) {
    device_ = device_of(device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }

 private:
  Generator *clone_impl() const override {
    auto *copy = new Generator(device_.index());
    copy->set_engine(const_cast<Generator *>(this)->engine());
    return copy;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return device >= 0 && device < device_count(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(index_of(device_of(device))); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(index_of(device_of(device))));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 || device >= device_count() ? getCurrentDevice() : exchangeDevice(device);
  }
  bool isPinnedPtr(const void *data) const override { return is_pinned(data); }
  c10::Allocator *getPinnedMemoryAllocator() const override { return at::getHostAllocator(device_type); }
  c10::Device getDeviceFromPtr(void *data) const override {
    emulator::MemoryAttributes attributes;
    check(emulator::memory_attributes(data, &attributes), "memory_attributes");
    TORCH_CHECK(attributes.kind == emulator::MemoryKind::device || attributes.kind == emulator::MemoryKind::imported,
                "simdev: the address is not one of device memory");
    return device_of(attributes.device);
  }
  const at::Generator &getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage &storage, size_t size) const override {
    c10::DeviceGuard guard(storage.device());
    c10::DataPtr memory = storage.allocator()->allocate(size);
    size_t kept = std::min(size, storage.nbytes());
    if (kept > 0) {
      storage.allocator()->copy_data(memory.get(), storage.data(), kept);
      record_stream(storage.data_ptr(), public_stream(current_stream(storage.device().index())));
    }
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(size);
  }
};

}  // namespace

const at::Generator &default_generator(int device) {
  static std::mutex mutex;
  static auto *const generators = new std::deque<at::Generator>;  // references to them stay valid
  index_of(device_of(device));
  std::lock_guard lock(mutex);
  while (generators->size() <= static_cast<size_t>(device))
    generators->push_back(at::make_generator<Generator>(static_cast<int>(generators->size())));
  return (*generators)[static_cast<size_t>(device)];
}

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace simdev
