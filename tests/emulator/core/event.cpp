#include "event.hpp"

#include "state.hpp"
#include "tasks.hpp"

namespace emulator {
namespace {

constexpr uintptr_t event_tag = 0x40;

std::string event_name(const Event &event) { return "event " + std::to_string(event.number); }

// Begins a call on an event.
Status find(const Call &call, EventHandle handle, std::shared_ptr<Event> *event) {
  if (!call) return call.status();
  *event = call.state().events.find(handle);
  return *event == nullptr ? Status::invalid_handle : Status::success;
}

// Begins a call by which the host asks about an event, or waits for it.
Status find_for_host(const Call &call, EventHandle handle, std::shared_ptr<Event> *event) {
  Status status = find(call, handle, event);
  if (status != Status::success) return status;
  if ((*event)->capture != 0) return Status::captured_event;
  return call.state().captures.unsafe_call();
}

}  // namespace

EventHandle Events::create(const Event &event) {
  auto handle = reinterpret_cast<EventHandle>(uintptr_t{++created_} << 8 | event_tag);
  auto made = std::make_shared<Event>(event);
  made->number = created_;
  events_[handle] = made;
  return handle;
}

std::shared_ptr<Event> Events::find(EventHandle handle) const {
  auto found = events_.find(handle);
  return found == events_.end() ? nullptr : found->second;
}

bool Events::destroy(EventHandle handle) { return events_.erase(handle) > 0; }

Status Events::wait_for_room(std::unique_lock<std::mutex> &lock, int device) {
  const size_t budget = state_.config.events;
  if (budget == 0) return Status::success;
  auto room = [this, device, budget] {
    std::vector<Point> &records = records_[device];
    std::erase_if(records, [](const Point &point) { return point->done; });
    return records.size() < budget;
  };
  if (!room()) waited_++;
  return state_.scheduler.wait_outside(lock, room, -1);  // it orders nothing for the caller
}

void Events::recorded(int device, const Point &point) {
  if (state_.config.events != 0) records_[device].push_back(point);
}

Binding Events::newest(const Event &event) {
  if (event.shared == nullptr) return {event.point};
  uint64_t number = event.shared->issued.load();
  if (number <= event.first) return {};
  if (number == event.shared_number) return {event.point};
  return {nullptr, event.shared, number};
}

Status create_event(const EventFlags &flags, EventHandle *handle) {
  Call call;
  if (!call) return call.status();
  Event event;
  event.flags = flags;
  Status status = call.device(&event.device);
  if (status != Status::success) return status;
  if (flags.interprocess) {
    if (flags.timing) return Status::invalid_value;
    status = call.state().ipc.create_event(&event.shared, &event.first);
  }
  if (status == Status::success) *handle = call.state().events.create(event);
  return status;
}

Status destroy_event(EventHandle handle) {
  Call call;
  std::shared_ptr<Event> event;
  Status status = find(call, handle, &event);
  if (status != Status::success) return status;
  if (event->shared != nullptr && !event->imported) call.state().ipc.destroy_event(event->shared);
  call.state().events.destroy(handle);
  return Status::success;
}

Status record(EventHandle handle, StreamHandle stream_handle) {
  Call call;
  std::shared_ptr<Event> event;
  Stream *stream = nullptr;
  Status status = find(call, handle, &event);
  if (status == Status::success) status = call.stream(stream_handle, &stream);
  if (status != Status::success) return status;
  if (stream->device != event->device) return Status::invalid_handle;
  if (stream->capture != nullptr) return call.state().captures.record(*event, *stream);
  status = call.state().captures.implicit(*stream);  // a record that fails leaves the event as it was
  if (status == Status::success) status = call.state().events.wait_for_room(call.lock(), event->device);
  if (status != Status::success) return status;
  Task task;
  task.what = "record of " + event_name(*event);
  uint64_t number = 0;
  if (event->shared != nullptr) {
    number = event->shared->issued.fetch_add(1) + 1;
    task.run = [shared = event->shared, number] { shared->finish(number); };
    if (number > event->first + SharedEvent::window && !event->shared->is_done(number - SharedEvent::window)) {
      task.condition = std::make_shared<Condition>();
      task.condition->holds = [shared = event->shared, number] {
        return shared->is_done(number - SharedEvent::window);
      };
    }
  }
  event->capture = 0;
  event->shared_number = number;
  status = queue(call, *stream, std::move(task), &event->point);
  if (status == Status::success && event->point != nullptr) call.state().events.recorded(event->device, event->point);
  return status;
}

Status event_query(EventHandle handle) {
  Call call;
  std::shared_ptr<Event> event;
  Status status = find_for_host(call, handle, &event);
  if (status != Status::success) return status;
  Binding newest = Events::newest(*event);
  if (newest.nothing()) return Status::success;
  if (newest.shared != nullptr)
    return newest.shared->is_done(newest.shared_number) ? Status::success : Status::not_ready;
  if (!newest.point->done) {
    call.state().scheduler.polled(call.lock(), newest.point);
    return Status::not_ready;
  }
  host_follows(call.state(), newest.point);
  if (call.state().options.shared_queries) all_follow(call.state(), newest.point);
  return Status::success;
}

Status event_synchronize(EventHandle event) { return event_synchronize(event, -1); }

Status event_synchronize(EventHandle handle, int64_t timeout_ms) {
  Call call;
  std::shared_ptr<Event> event;
  Status status = find_for_host(call, handle, &event);
  if (status != Status::success) return status;
  Binding newest = Events::newest(*event);
  if (newest.nothing()) return Status::success;
  if (newest.shared == nullptr) return call.wait(newest.point, timeout_ms);
  auto done = [&] { return newest.shared->is_done(newest.shared_number); };
  return call.state().scheduler.wait_outside(call.lock(), done, timeout_ms);
}

Status stream_wait(StreamHandle stream_handle, EventHandle handle) {
  Call call;
  std::shared_ptr<Event> event;
  Stream *stream = nullptr;
  Status status = find(call, handle, &event);
  if (status == Status::success) status = call.stream(stream_handle, &stream);
  if (status != Status::success) return status;
  bool captured = false;
  status = call.state().captures.wait(*stream, *event, &captured);
  if (status != Status::success || captured) return status;
  Binding newest = Events::newest(*event);
  if (newest.nothing()) return Status::success;
  Task task;
  task.what = "wait for " + event_name(*event);
  if (newest.shared == nullptr) {
    task.after = {newest.point};
  } else {
    task.condition = std::make_shared<Condition>();
    task.condition->holds = [newest] { return newest.shared->is_done(newest.shared_number); };
  }
  return queue(call, *stream, std::move(task));
}

Status elapsed(EventHandle from_handle, EventHandle to_handle, float *milliseconds) {
  Call call;
  std::shared_ptr<Event> from, to;
  Status status = find(call, from_handle, &from);
  if (status == Status::success) status = find(call, to_handle, &to);
  if (status != Status::success) return status;
  if (from->capture != 0 || to->capture != 0) return Status::captured_event;
  if (!from->flags.timing || !to->flags.timing || from->point == nullptr || to->point == nullptr ||
      from->device != to->device)
    return Status::invalid_handle;
  if (!from->point->done || !to->point->done) return Status::not_ready;
  *milliseconds = std::chrono::duration<float, std::milli>(to->point->finished - from->point->finished).count();
  return Status::success;
}

Status export_event(EventHandle handle, IpcHandle *out) {
  Call call;
  std::shared_ptr<Event> event;
  Status status = find(call, handle, &event);
  if (status != Status::success) return status;
  if (event->shared == nullptr || event->imported) return Status::invalid_value;
  return call.state().ipc.export_event(event->shared, event->first, event->device, out);
}

Status import_event(const IpcHandle &in, EventHandle *handle) {
  Call call;
  if (!call) return call.status();
  Event event;
  event.flags = {false, true};
  event.imported = true;
  Status status = call.state().ipc.import_event(in, &event.shared, &event.first, &event.device);
  if (status == Status::success) *handle = call.state().events.create(event);
  return status;
}

}  // namespace emulator
