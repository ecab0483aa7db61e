// Calls about streams, kernels and host functions.
#include "runtime.hpp"
#include "state.hpp"
#include "tasks.hpp"

namespace emulator {

Status create_stream(const StreamFlags &flags, StreamHandle *stream) {
  Call call;
  if (!call) return call.status();
  int device = 0;
  Status status = call.device(&device);
  // A program cannot rely on such a wait, so it orders nothing.
  if (status == Status::success && call.state().config.stream_waits) status = call.wait_alone(device, false);
  if (status == Status::success) *stream = Streams::handle(call.state().streams.create(device, flags));
  return status;
}

Status destroy_stream(StreamHandle handle) {
  Call call;
  if (!call) return call.status();
  Stream *stream = call.state().streams.find(handle);
  if (stream == nullptr) return Status::invalid_handle;
  if (stream->capture != nullptr) return Status::capture_unsupported;
  call.state().streams.destroy(*stream);
  return Status::success;
}

Status stream_query(StreamHandle handle) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success) status = call.state().captures.unsafe_on(*stream);
  if (status != Status::success || stream->last == nullptr) return status;
  if (!stream->last->done) {
    call.state().scheduler.polled(call.lock(), stream->last);
    return Status::not_ready;
  }
  host_follows(call.state(), stream->last);
  return Status::success;
}

Status stream_synchronize(StreamHandle stream) { return stream_synchronize(stream, -1); }

Status stream_synchronize(StreamHandle handle, int64_t timeout_ms) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success) status = call.state().captures.unsafe_on(*stream);
  if (status != Status::success || stream->last == nullptr) return status;
  Point last = stream->last;
  return call.wait(last, timeout_ms);
}

Status stream_device(StreamHandle handle, int *device) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success) *device = stream->device;
  return status;
}

Status stream_flags(StreamHandle handle, StreamFlags *flags) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success) *flags = stream->flags;
  return status;
}

Status stream_number(StreamHandle handle, uint64_t *number) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success) *number = stream->number;
  return status;
}

namespace {

Status set_held(StreamHandle handle, bool held) {
  Call call(Call::at_once);
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status != Status::success) return status;
  stream->held = held;
  if (held)
    call.state().scheduler.changed();
  else
    call.state().scheduler.queued(call.lock(), *stream);
  return Status::success;
}

}  // namespace

Status hold(StreamHandle stream) { return set_held(stream, true); }
Status release_held(StreamHandle stream) { return set_held(stream, false); }

Status run_all() {
  Call call(Call::at_once);
  if (!call) return call.status();
  call.state().scheduler.run_all(call.lock());
  return Status::success;
}

Status queue(Call &call, Stream &stream, Task &&task, Point *point) {
  const size_t room = call.state().config.stream_room;
  while (room != 0 && stream.capture == nullptr && stream.queue.size() >= room) {
    const Point next = stream.queue.front().mark;
    Status status = call.state().scheduler.wait(call.lock(), next, -1);  // it orders nothing for the caller
    if (status != Status::success) return status;
  }
  Point place;
  Status status = call.state().streams.enqueue(stream, std::move(task), &place);
  if (point != nullptr) *point = place;
  if (status == Status::success && place != nullptr) call.state().scheduler.queued(call.lock(), stream);
  return status;
}

Status launch(StreamHandle handle, const std::string &what, const std::vector<Range> &reads,
              const std::vector<Range> &writes, std::function<void()> run) {
  return launch_when(nullptr, handle, what, reads, writes, std::move(run));
}

Status launch_when(std::function<bool()> ready, StreamHandle handle, const std::string &what,
                   const std::vector<Range> &reads, const std::vector<Range> &writes, std::function<void()> run) {
  Task task;  // if it is refused, what the function owns is destroyed after the call has released the lock
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status != Status::success) return status;
  task.what = what;
  task.run = std::move(run);
  if (ready) {
    task.condition = std::make_shared<Condition>();
    task.condition->holds = std::move(ready);
  }
  for (auto [ranges, spans] : {std::pair{&reads, &task.reads}, std::pair{&writes, &task.writes}})
    for (const Range &range : *ranges) {
      const Block *block = nullptr;
      if (!call.state().memory.classify(range.address, range.length, &block)) return Status::invalid_value;
      if (block != nullptr && range.length > 0) spans->push_back(span(range.address, range.length));
    }
  return queue(call, *stream, std::move(task));
}

Status host_function(StreamHandle handle, void (*function)(void *), void *argument) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status != Status::success) return status;
  Task task;
  task.what = "host function";
  task.host_function = true;
  task.run = [function, argument] { function(argument); };
  return queue(call, *stream, std::move(task));
}

std::atomic<size_t> objects;

void forbid_calls() { this_thread().in_task = this_thread().in_host_function = true; }

bool inside_host_function() { return this_thread().in_host_function; }

}  // namespace emulator
