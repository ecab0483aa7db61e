// libcnrt.so with the ABI of Cambricon's runtime, on the emulator of ../core. Prototypes and constants follow cnrt.h 6.14.1, written
// down again here: no line of the library under test is included, so a mistake in either shows.
//
// The device of a thread is 0 until it sets another one. A queue is used on its own device, memory is freed without waiting for
// the device, and an asynchronous copy does not go between host memories.
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "../core/runtime.hpp"
#include "../skin/record.hpp"

using cnrtRet_t = int;

namespace {

enum : cnrtRet_t {
  success = 0,
  not_ready = 1,
  no_device = 100004,
  device_invalid = 100005,
  args_invalid = 100006,
  invalid_handle = 100014,
  not_support = 100050,
  not_permitted = 100051,
  no_mem = 100100,
  wrong_device = 632006,
  direction_invalid = 632013,
  busy = 632014,
  driver_failed = 632015,
};

constexpr cnrtRet_t left_out = -1;

__attribute__((constructor)) void be_as_cnrt() {
  emulator::Options options;
  options.legacy_default_stream = false;
  options.any_device_streams = false;
  options.free_synchronizes = false;
  options.async_host_to_host = false;
  (void)emulator::configure(options);
}

cnrtRet_t result(emulator::Status status) {
  using emulator::Status;
  switch (status) {
    case Status::success:
      return success;
    case Status::not_ready:
      return not_ready;
    case Status::invalid_value:
      return args_invalid;
    case Status::invalid_handle:
      return invalid_handle;
    case Status::no_device:
      return no_device;
    case Status::invalid_device:
      return device_invalid;
    case Status::wrong_device:
      return wrong_device;
    case Status::out_of_memory:
      return no_mem;
    case Status::not_permitted:
      return not_permitted;
    case Status::not_supported:
      return not_support;
    case Status::injected:
      return emulator::injected_code();
    default:
      return driver_failed;
  }
}

cnrtRet_t begin(const char *function) {
  emulator::Status status = emulator::enter(function);
  return status == emulator::Status::injected && emulator::injected_code() == 0 ? left_out : result(status);
}

#define BEGIN(...)                                   \
  skin::record(__func__ __VA_OPT__(, ) __VA_ARGS__); \
  if (const cnrtRet_t begun = begin(__func__); begun != success) return begun == left_out ? success : begun
#define REQUIRE(condition, otherwise) \
  if (!(condition)) return otherwise

emulator::StreamHandle queue_of(void *handle) { return static_cast<emulator::StreamHandle>(handle); }
emulator::EventHandle notifier_of(void *handle) { return static_cast<emulator::EventHandle>(handle); }

// The directions in the order of their numbers: 1 is from device to device. A copy between two devices, 4, is not emulated.
bool kind_of(int direction, emulator::CopyKind *kind) {
  using emulator::CopyKind;
  constexpr CopyKind kinds[] = {CopyKind::host_to_device, CopyKind::device_to_device, CopyKind::device_to_host,
                                CopyKind::host_to_host,   CopyKind::device_to_device, CopyKind::any};
  if (direction < 0 || direction > 5) return false;
  *kind = kinds[direction];
  return true;
}

}  // namespace

extern "C" {

cnrtRet_t cnrtGetDeviceCount(unsigned *count) {
  BEGIN(count);
  *count = static_cast<unsigned>(emulator::device_count());
  return success;
}

cnrtRet_t cnrtGetDevice(int *device) {
  BEGIN(device);
  return skin::given(result(emulator::current_device(device)), *device);
}

cnrtRet_t cnrtSetDevice(int device) {
  BEGIN(device);
  return result(emulator::set_device(device));
}

// The emulator's devices stand in the slots of one bus.
cnrtRet_t cnrtDeviceGetPCIBusId(char *id, int length, int device) {
  BEGIN(id, length, device);
  REQUIRE(device >= 0 && device < emulator::device_count(), device_invalid);
  REQUIRE(id != nullptr && snprintf(id, static_cast<size_t>(length), "0000:17:%02x.0", device) < length, args_invalid);
  return success;
}

cnrtRet_t cnrtSyncDevice() {
  BEGIN();
  return result(emulator::device_synchronize());
}

cnrtRet_t cnrtMalloc(void **memory, size_t size) {
  BEGIN(memory, size);
  const cnrtRet_t status = result(emulator::allocate(size, memory));
  return skin::given(status, status == success ? *memory : nullptr);
}

cnrtRet_t cnrtFree(void *memory) {
  BEGIN(memory);
  return result(emulator::release(memory));
}

// No alignment is promised.
cnrtRet_t cnrtHostMalloc(void **memory, size_t size) {
  BEGIN(memory, size);
  void *allocated = nullptr;
  cnrtRet_t status = result(emulator::allocate_host(size + 16, &allocated));
  if (status == success) *memory = static_cast<char *>(allocated) + 16;
  return skin::given(status, status == success ? *memory : nullptr);
}

cnrtRet_t cnrtFreeHost(void *memory) {
  BEGIN(memory);
  return result(emulator::release_host(static_cast<char *>(memory) - 16));
}

cnrtRet_t cnrtMemcpy(void *to, void *from, size_t size, int direction) {
  BEGIN(to, from, size, direction);
  emulator::CopyKind kind{};
  REQUIRE(kind_of(direction, &kind), direction_invalid);
  return result(emulator::copy(to, from, size, kind));
}

cnrtRet_t cnrtMemcpyAsync_V2(void *to, void *from, size_t size, void *queue, int direction) {
  BEGIN(to, from, size, queue, direction);
  emulator::CopyKind kind{};
  REQUIRE(kind_of(direction, &kind) && kind != emulator::CopyKind::host_to_host, direction_invalid);
  return result(emulator::copy_async(to, from, size, kind, queue_of(queue)));
}

cnrtRet_t cnrtQueueCreate(void **queue) {
  BEGIN(queue);
  emulator::StreamHandle made = nullptr;
  cnrtRet_t status = result(emulator::create_stream({false, 0}, &made));
  *queue = made;
  return skin::given(status, *queue);
}

cnrtRet_t cnrtQueueSync(void *queue) {
  BEGIN(queue);
  return result(emulator::stream_synchronize(queue_of(queue)));
}

cnrtRet_t cnrtQueueQuery(void *queue) {
  BEGIN(queue);
  return result(emulator::stream_query(queue_of(queue)));
}

// The notifier comes first, in both of the next two.
cnrtRet_t cnrtPlaceNotifier(void *notifier, void *queue) {
  BEGIN(notifier, queue);
  return result(emulator::record(notifier_of(notifier), queue_of(queue)));
}

cnrtRet_t cnrtQueueWaitNotifier(void *notifier, void *queue, unsigned flag) {
  BEGIN(notifier, queue, flag);
  REQUIRE(flag == 0, args_invalid);
  return result(emulator::stream_wait(queue_of(queue), notifier_of(notifier)));
}

cnrtRet_t cnrtNotifierCreateWithFlags(void **notifier, unsigned flags) {
  BEGIN(notifier, flags);
  REQUIRE((flags & ~14U) == 0, args_invalid);
  emulator::EventHandle made = nullptr;
  cnrtRet_t status = result(emulator::create_event({flags == 0, false}, &made));
  *notifier = made;
  return skin::given(status, *notifier);
}

cnrtRet_t cnrtNotifierDestroy(void *notifier) {
  BEGIN(notifier);
  return result(emulator::destroy_event(notifier_of(notifier)));
}

// A query whose answer is "not yet" returns the deprecated number of "busy".
cnrtRet_t cnrtQueryNotifier(void *notifier) {
  BEGIN(notifier);
  emulator::Status status = emulator::event_query(notifier_of(notifier));
  return status == emulator::Status::not_ready ? busy : result(status);
}

cnrtRet_t cnrtInvokeHostFunc(void *queue, void (*function)(void *), void *argument) {
  BEGIN(queue, reinterpret_cast<void *>(function), argument);
  REQUIRE(function != nullptr, args_invalid);
  return result(emulator::host_function(queue_of(queue), function, argument));
}

}  // extern "C"
