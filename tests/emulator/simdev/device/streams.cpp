#include "streams.hpp"

#include <c10/util/Exception.h>

#include <deque>
#include <mutex>
#include <vector>

#include "device.hpp"
#include "launch_queue.hpp"

namespace simdev {
namespace {

// Few, so that a library which takes streams from the pool often gets one that its user has as well.
constexpr size_t pool_size = 4;

struct DeviceStreams {
  std::deque<Stream> all;  // by id
  std::vector<c10::StreamId> pool[2];
  size_t next[2] = {0, 0};
};

std::mutex mutex;
std::deque<DeviceStreams> &devices() {
  static auto *const list = new std::deque<DeviceStreams>;
  return *list;
}

emulator::StreamHandle create(int priority) {
  emulator::StreamHandle handle = nullptr;
  check(emulator::create_stream({false, priority}, &handle), "create_stream");
  return handle;
}

// Requires: the mutex.
Stream &add(DeviceStreams &streams, int device, int priority) {
  OnDevice on(device);
  Stream stream;
  stream.device = device;
  stream.id = static_cast<c10::StreamId>(streams.all.size());
  stream.native = create(priority);
  stream.queued = LaunchQueue::enabled() ? create(priority) : stream.native;
  streams.all.push_back(stream);
  return streams.all.back();
}

// Requires: the mutex.
DeviceStreams &streams_of(int device) {
  auto &list = devices();
  while (list.size() <= static_cast<size_t>(device)) list.emplace_back();
  DeviceStreams &streams = list[static_cast<size_t>(device)];
  if (streams.all.empty()) add(streams, device, 0);
  return streams;
}

Stream &stream_with(int device, c10::StreamId id) {
  std::lock_guard lock(mutex);
  DeviceStreams &streams = streams_of(device);
  TORCH_CHECK(id >= 0 && static_cast<size_t>(id) < streams.all.size(), "simdev: device ", device, " has no stream ",
              id);
  return streams.all[static_cast<size_t>(id)];
}

c10::StreamId &current_id(int device) {
  thread_local std::vector<c10::StreamId> ids;
  if (ids.size() <= static_cast<size_t>(device)) ids.resize(static_cast<size_t>(device) + 1, 0);
  return ids[static_cast<size_t>(device)];
}

// An emulated event of the time between two calls.
class Mark {
 public:
  explicit Mark(emulator::StreamHandle stream) {
    check(emulator::create_event({false, false}, &event_), "create_event");
    check(emulator::record(event_, stream), "record");
  }
  ~Mark() { static_cast<void>(emulator::destroy_event(event_)); }
  Mark(const Mark &) = delete;
  Mark &operator=(const Mark &) = delete;
  void block(emulator::StreamHandle stream) const { check(emulator::stream_wait(stream, event_), "stream_wait"); }

 private:
  emulator::EventHandle event_ = nullptr;
};

}  // namespace

Stream &find_stream(const c10::Stream &stream) { return stream_with(index_of(stream.device()), stream.id()); }
Stream &current_stream(int device) { return stream_with(device, current_id(device)); }

c10::Stream public_stream(const Stream &stream) {
  return c10::Stream(c10::Stream::UNSAFE, device_of(stream.device), stream.id);
}

c10::Stream exchange_stream(const c10::Stream &stream) {
  Stream &next = find_stream(stream);
  c10::Stream before = public_stream(current_stream(next.device));
  current_id(next.device) = next.id;
  return before;
}

Stream &pool_stream(int device, bool high_priority) {
  std::lock_guard lock(mutex);
  DeviceStreams &streams = streams_of(device);
  auto &pool = streams.pool[high_priority];
  size_t turn = streams.next[high_priority]++ % pool_size;
  if (turn == pool.size()) pool.push_back(add(streams, device, high_priority ? -1 : 0).id);
  return streams.all[static_cast<size_t>(pool[turn])];
}

Stream &new_stream(int device, int priority) {
  std::lock_guard lock(mutex);
  return add(streams_of(device), device, priority);
}

void submit(Stream &stream, const std::string &what, StreamCall call) {
  OnDevice on(stream.device);
  if (!LaunchQueue::enabled()) {
    check(call(stream.queued), what.c_str());
    return;
  }
  auto mark = std::make_shared<Mark>(stream.native);
  LaunchQueue::get().push(what, [&stream, what, mark, call = std::move(call)] {
    OnDevice on_device(stream.device);
    mark->block(stream.queued);
    check(call(stream.queued), what.c_str());
  });
}

void submit_now(Stream &stream, const std::string &what, const StreamCall &call) {
  OnDevice on(stream.device);
  if (LaunchQueue::enabled()) {
    LaunchQueue::get().drain();
    Mark(stream.native).block(stream.queued);
  }
  check(call(stream.queued), what.c_str());
}

emulator::StreamHandle native_handle(Stream &stream) {
  OnDevice on(stream.device);
  if (LaunchQueue::enabled()) {
    LaunchQueue::get().drain();
    Mark(stream.queued).block(stream.native);
  }
  return stream.native;
}

bool query(Stream &stream) {
  OnDevice on(stream.device);
  if (LaunchQueue::enabled() && !LaunchQueue::get().empty()) {
    LaunchQueue::get().polled();
    return false;
  }
  for (emulator::StreamHandle handle : {stream.native, stream.queued}) {
    emulator::Status status = emulator::stream_query(handle);
    if (status == emulator::Status::not_ready) return false;
    check(status, "stream_query");
  }
  return true;
}

void synchronize(Stream &stream) {
  OnDevice on(stream.device);
  if (LaunchQueue::enabled()) LaunchQueue::get().drain();
  check(emulator::stream_synchronize(stream.native), "stream_synchronize");
  check(emulator::stream_synchronize(stream.queued), "stream_synchronize");
}

void synchronize_device(int device) {
  OnDevice on(device);
  if (LaunchQueue::enabled()) LaunchQueue::get().drain();
  check(emulator::device_synchronize(), "device_synchronize");
}

bool is_capturing(Stream &stream) {
  OnDevice on(stream.device);
  emulator::CaptureStatus status = emulator::CaptureStatus::none;
  uint64_t id = 0;
  check(emulator::capture_status(stream.native, &status, &id), "capture_status");
  return status == emulator::CaptureStatus::active;
}

// ---- events

Event::Event(int device, bool timing) : device_(device) {
  OnDevice on(device);
  check(emulator::create_event({timing, false}, &handle_), "create_event");
}

Event::~Event() { static_cast<void>(emulator::destroy_event(handle_)); }

void Event::record(const std::shared_ptr<Event> &event, Stream &stream) {
  event->unrecorded_++;
  // The entry of the launch queue owns this, so that the count is right even if an entry fails.
  std::shared_ptr<void> recorded(nullptr, [event](void *) { event->unrecorded_--; });
  submit(stream, "record",
         [event, recorded](emulator::StreamHandle handle) { return emulator::record(event->handle_, handle); });
}

void Event::block(const std::shared_ptr<Event> &event, Stream &stream) {
  submit(stream, "stream_wait",
         [event](emulator::StreamHandle handle) { return emulator::stream_wait(handle, event->handle_); });
}

bool Event::query() {
  OnDevice on(device_);
  if (unrecorded_ > 0) {
    LaunchQueue::get().polled();
    return false;
  }
  emulator::Status status = emulator::event_query(handle_);
  if (status == emulator::Status::not_ready) return false;
  check(status, "event_query");
  return true;
}

void Event::synchronize() {
  OnDevice on(device_);
  if (LaunchQueue::enabled()) LaunchQueue::get().drain();
  check(emulator::event_synchronize(handle_), "event_synchronize");
}

double Event::elapsed(Event &later) {
  OnDevice on(device_);
  if (LaunchQueue::enabled()) LaunchQueue::get().drain();
  float milliseconds = 0;
  emulator::Status status = emulator::elapsed(handle_, later.handle_, &milliseconds);
  TORCH_CHECK(status != emulator::Status::not_ready,
              "simdev: elapsed_time: both events must be complete; synchronize with the later one first");
  TORCH_CHECK(status != emulator::Status::invalid_handle,
              "simdev: elapsed_time: both events must be recorded, on one device, and made with enable_timing=True");
  check(status, "elapsed");
  return milliseconds;
}

}  // namespace simdev
