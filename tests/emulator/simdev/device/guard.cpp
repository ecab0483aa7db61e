// What torch reaches the device by: c10's interface of device guards.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <cstring>

#include "allocator.hpp"
#include "device.hpp"
#include "streams.hpp"

namespace simdev {
namespace {

using EventPointer = std::shared_ptr<Event>;
EventPointer &event_of(void *event) { return *static_cast<EventPointer *>(event); }

// SIMDEV_CAPTURES: torch's guards that do not know of captures say no, and raise in some versions.
bool captures_are(const char *how) {
  const char *text = getenv("SIMDEV_CAPTURES");
  return text != nullptr && strcmp(text, how) == 0;
}
bool tells_captures() {
  static const bool tells = !captures_are("no") && !captures_are("raises");
  return tells;
}
bool raises_at_captures() {
  static const bool raises = captures_are("raises");
  return raises;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type; }
  c10::Device exchangeDevice(c10::Device device) const override { return device_of(exchange_device(index_of(device))); }
  c10::Device getDevice() const override { return device_of(current_device()); }
  void setDevice(c10::Device device) const override { set_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    try {
      setDevice(device);
    } catch (const std::exception &) {  // guards call this from destructors, also in a process that exits
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }

  // ---- streams

  c10::Stream getStream(c10::Device device) const override { return public_stream(current_stream(index_of(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device_of(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return public_stream(pool_stream(index_of(device), high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return public_stream(new_stream(index_of(device), priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void *getStreamNativeHandle(const c10::Stream stream) const override { return native_handle(find_stream(stream)); }
  bool queryStream(const c10::Stream &stream) const override { return query(find_stream(stream)); }
  void synchronizeStream(const c10::Stream &stream) const override { synchronize(find_stream(stream)); }
  void synchronizeDevice(c10::DeviceIndex device) const override { synchronize_device(index_of(device_of(device))); }
  // Torch 2.11 does not ask, so this overrides nothing there.
  bool isStreamCapturing(const c10::Stream &stream) const {
    if (tells_captures()) return is_capturing(find_stream(stream));
    TORCH_CHECK(!raises_at_captures(), "Backend doesn't support stream capture query.");
    return false;
  }

  // ---- events; the pointer is null until the first record

  // As in torch_npu, the device of the stream stays the current one where the runtime refuses the event. Fault plans know
  // these calls as `record` and `block`.
  void record(void **event, const c10::Stream &stream, c10::DeviceIndex device, c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "simdev: an event of device ", device,
                " cannot be recorded on a stream of device ", stream.device_index());
    Stream &on = find_stream(stream);
    const int before = exchange_device(on.device);
    check(emulator::enter("record"), "record");
    if (*event == nullptr)
      *event = new EventPointer(std::make_shared<Event>(on.device, flag == c10::EventFlag::BACKEND_DEFAULT));
    Event::record(event_of(*event), on);
    set_device(before);
  }
  void block(void *event, const c10::Stream &stream) const override {
    if (event == nullptr) return;
    Stream &on = find_stream(stream);
    const int before = exchange_device(on.device);
    check(emulator::enter("block"), "block");
    Event::block(event_of(event), on);
    set_device(before);
  }
  bool queryEvent(void *event) const override { return event == nullptr || event_of(event)->query(); }
  void synchronizeEvent(void *event) const override {
    if (event != nullptr) event_of(event)->synchronize();
  }
  double elapsedTime(void *first, void *second, c10::DeviceIndex /*device*/) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "simdev: elapsed_time: both events must be recorded");
    return event_of(first)->elapsed(*event_of(second));
  }
  void destroyEvent(void *event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<EventPointer *>(event);
  }

  // ---- memory

  void recordDataPtrOnStream(const c10::DataPtr &pointer, const c10::Stream &stream) const override {
    record_stream(pointer, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace simdev
