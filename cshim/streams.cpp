// streams.cpp keeps the streams of the library and queues its commands. See streams.hpp.
#include "streams.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "compat.hpp"
#include "plainly.hpp"
#include "relaxed.hpp"

namespace sagecomm {

namespace {

using c10::impl::VirtualGuardImpl;
using Place = std::pair<c10::DeviceType, c10::DeviceIndex>;

// More than a pool of torch has streams, so that a pool that has a stream left gives it.
constexpr int kTurns = 64;
// Torch's CUDA build has a pool for each of these, other devices take a value that they do not know for their least one.
constexpr int kPriorities = 4;

// The numbers 0 to SAGECOMM_MAX_VALUE in memory of a device, from which words are written.
struct Values {
  at::Tensor numbers;
  c10::Event made;
};

struct OnDevice {
  std::mutex mutex; // guards `values`. The thread that holds it may wait for the device, and takes no other mutex
  std::optional<Values> values; // never changed once made
  std::atomic<const int32_t*> numbers{nullptr}; // of `values`, once made
};

// The state of the process. It is never destroyed, because the device may be gone by then.
struct Streams {
  std::mutex mutex; // guards the rest
  std::deque<c10::Stream> all; // by number - 1
  std::set<std::pair<Place, c10::StreamId>> taken;
  std::map<Place, OnDevice> devices; // an entry stays where it is
  std::map<Place, c10::Stream> ordering;
};

Streams& streams() {
  static Streams* const the = new Streams;
  return *the;
}

Place placeOf(c10::Device device) {
  return {device.type(), device.index()};
}

c10::Stream anyStream(const VirtualGuardImpl& guard, c10::Device device, int priority) {
  try {
    return guard.getNewStream(device, -priority);
  } catch (const c10::Error&) { // the device has a pool only, or nothing
    return guard.getStreamFromGlobalPool(device, priority > 0);
  }
}

// Pools of torch from which streams are taken first. Streams of a program, and those in which torch calls callbacks of Futures, are
// of ordinary priority, mostly.
enum class First : uint8_t { kOrdinary, kGreatest };

// Holds: nothing while torch makes the stream, because the device may wait for all of its streams there.
c10::Stream freshStream(const VirtualGuardImpl& guard, c10::Device device, First first) {
  Streams& the = streams();
  for (int pool = 0; pool < kPriorities; pool++) {
    const int priority = first == First::kOrdinary ? pool : kPriorities - 1 - pool;
    for (int turn = 0; turn < kTurns; turn++) {
      const c10::Stream stream = anyStream(guard, device, priority);
      std::lock_guard<std::mutex> lock(the.mutex);
      if (the.taken.emplace(placeOf(device), stream.id()).second) {
        return stream;
      }
    }
  }
  std::lock_guard<std::mutex> lock(the.mutex);
  const Place place = placeOf(device);
  TORCH_CHECK(
      false,
      "torch has no stream of ",
      device,
      " left that no other group has (",
      std::count_if(the.taken.begin(), the.taken.end(), [&](const auto& one) { return one.first == place; }),
      " are in use); destroy groups that are not needed any more, or make fewer");
}

// Makes the numbers in `stream`, where nothing else is queued. The device may wait for memory, or while it loads a kernel, so the mutex of the
// process is free. That of the device is held.
Values makeValues(const c10::Stream& stream) {
  const Plainly plainly;
  const c10::StreamGuard on(stream);
  Values made{
      at::arange(SAGECOMM_MAX_VALUE + 1, at::TensorOptions().dtype(at::kInt).device(stream.device())),
      c10::Event(stream.device_type())};
  made.made.record(stream);
  return made;
}

OnDevice& stateOf(c10::Device device) {
  Streams& the = streams();
  std::lock_guard<std::mutex> lock(the.mutex);
  return the.devices[placeOf(device)];
}

at::Tensor view(void* data, uint64_t n, at::ScalarType type, c10::Device device) {
  return at::from_blob(
      data,
      {static_cast<int64_t>(n)},
      [](void*) {},
      at::TensorOptions().dtype(type).device(device),
      device); // so that torch does not ask the driver whose address it is
}

void queueCopy(
    const c10::Stream& stream,
    const sagecomm_copy& copy,
    uint64_t n,
    at::ScalarType type,
    c10::Device to,
    c10::Device from) {
  const Plainly plainly;
  const c10::StreamGuard on(stream);
  view(copy.to, n, type, to).copy_(view(const_cast<void*>(copy.from), n, type, from), /*non_blocking=*/true);
}

// Makes `stream`, where nothing else is queued, wait for the numbers of its device. The first caller makes them there; others wait for it.
void awaitValues(const c10::Stream& stream) {
  OnDevice& state = stateOf(stream.device());
  std::lock_guard<std::mutex> lock(state.mutex);
  if (!state.values) {
    state.values.emplace(makeValues(stream));
    state.numbers.store(state.values->numbers.const_data_ptr<int32_t>(), std::memory_order_release);
  }
  state.values->made.block(stream);
}

uint64_t numbered(const c10::Stream& stream) {
  Streams& the = streams();
  std::lock_guard<std::mutex> lock(the.mutex);
  the.all.push_back(stream);
  return the.all.size();
}

// Lets freshStream() give the stream again.
void giveBack(const c10::Stream& stream) {
  Streams& the = streams();
  std::lock_guard<std::mutex> lock(the.mutex);
  the.taken.erase({placeOf(stream.device()), stream.id()});
}

} // namespace

c10::Stream orderingStream(c10::Device device) {
  const VirtualGuardImpl guard(device.type());
  const c10::OptionalDeviceGuard current(device);
  const Relaxed captures(device.type());
  Streams& the = streams();
  {
    std::lock_guard<std::mutex> lock(the.mutex);
    if (const auto known = the.ordering.find(placeOf(device)); known != the.ordering.end()) {
      return known->second;
    }
  }
  const c10::Stream made = freshStream(guard, device, First::kGreatest);
  c10::Stream kept = made;
  try {
    std::lock_guard<std::mutex> lock(the.mutex);
    kept = the.ordering.emplace(placeOf(device), made).first->second;
  } catch (...) {
    giveBack(made);
    throw;
  }
  if (kept != made) { // another thread was faster
    giveBack(made);
  }
  return kept;
}

uint64_t makeStream(c10::Device device) {
  const VirtualGuardImpl guard(device.type());
  const c10::OptionalDeviceGuard current(device);
  const Relaxed captures(device.type());
  const c10::Stream stream = freshStream(guard, device, First::kOrdinary);
  try {
    awaitValues(stream);
    return numbered(stream);
  } catch (...) {
    giveBack(stream);
    throw;
  }
}

// Torch's CUDA build takes the handle of a stream for the id of an external stream, as at::cuda::getStreamFromExternal() does.
uint64_t adoptStream(c10::Device device, void* handle) {
  const c10::Stream stream =
      c10::Stream::unpack3(reinterpret_cast<c10::StreamId>(handle), device.index(), device.type());
  TORCH_CHECK(nativeHandle(stream) == handle, "torch does not know external streams of ", device);
  return numbered(stream);
}

c10::Stream streamOf(uint64_t number) {
  Streams& the = streams();
  std::lock_guard<std::mutex> lock(the.mutex);
  TORCH_CHECK(number >= 1 && number <= the.all.size(), "there is no stream ", number);
  return the.all[number - 1];
}

void* handleOf(uint64_t number) {
  const c10::Stream stream = streamOf(number);
  void* const handle = nativeHandle(stream);
  TORCH_CHECK(handle != nullptr, "torch gives no native handle of a stream of ", stream.device());
  return handle;
}

void queueCopyToHost(const c10::Stream& stream, const sagecomm_copy& copy) {
  queueCopy(stream, copy, copy.bytes, at::kByte, at::kCPU, stream.device());
}

void queueCopyToDevice(const c10::Stream& stream, const sagecomm_copy& copy) {
  queueCopy(stream, copy, copy.bytes, at::kByte, stream.device(), at::kCPU);
}

void queueWrite(const c10::Stream& stream, uint32_t* word, uint32_t value) {
  TORCH_CHECK(value <= SAGECOMM_MAX_VALUE, "the value ", value, " is larger than ", SAGECOMM_MAX_VALUE);
  const int32_t* const numbers = stateOf(stream.device()).numbers.load(std::memory_order_acquire);
  TORCH_CHECK(numbers != nullptr, "no stream of ", stream.device(), " was made, so there are no values to write");
  queueCopy(stream, {word, numbers + value, sizeof *word}, 1, at::kInt, at::kCPU, stream.device());
}

Pinned allocatePinned(uint64_t bytes) {
  constexpr uint64_t kAlignment = 256;
  const Plainly plainly;
  const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCPU).pinned_memory(true);
  const auto misaligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % kAlignment; };
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes)}, options);
  auto* memory = tensor.mutable_data_ptr<uint8_t>();
  if (misaligned(memory) != 0) {
    tensor = at::empty({static_cast<int64_t>(bytes + kAlignment)}, options);
    memory = tensor.mutable_data_ptr<uint8_t>();
    memory += (kAlignment - misaligned(memory)) % kAlignment;
  }
  return {std::move(tensor), memory};
}

} // namespace sagecomm
