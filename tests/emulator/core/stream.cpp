#include "stream.hpp"

#include <algorithm>

#include "state.hpp"

namespace emulator {
namespace {

// Handles of streams have this in their low byte, so that the handle of something else is no stream. Handles are aligned as
// pointers are, since torch keeps flags in the lowest bits.
constexpr uintptr_t stream_tag = 0x50;

bool overlap(Span a, Span b) { return a.address < b.address + b.length && b.address < a.address + a.length; }

bool uses(const Task &task, Span range) {
  auto hits = [&](Span span) { return overlap(span, range); };
  return std::any_of(task.reads.begin(), task.reads.end(), hits) ||
         std::any_of(task.writes.begin(), task.writes.end(), hits) || hits(task.flag);
}

}  // namespace

StreamHandle Streams::handle(const Stream &stream) {
  return reinterpret_cast<StreamHandle>(uintptr_t{stream.number} << 8 | stream_tag);
}

void Streams::add_devices(int count) {
  for (int device = 0; device < count; device++)
    legacy_.push_back(
        &add(device, StreamFlags{}, defaults_++, "the default stream of device " + std::to_string(device)));
}

Stream &Streams::add(int device, const StreamFlags &flags, uint64_t number, std::string name) {
  Stream *stream = made_.emplace_back(std::make_unique<Stream>()).get();
  stream->number = number;
  stream->device = device;
  stream->flags = flags;
  stream->name = std::move(name);
  stream->agent = state_.checker.add(stream->name, Kind::stream);
  stream->stuck_after = state_.faults.stuck_after(number).value_or(UINT64_MAX);
  stream->hardware = map(*stream);
  all_.push_back(stream);
  return *stream;
}

// Round robin, as CUDA maps streams onto CUDA_DEVICE_MAX_CONNECTIONS connections.
HardwareQueue *Streams::map(const Stream &stream) {
  auto count = static_cast<size_t>(state_.config.queues);
  if (count == 0) return nullptr;
  Hardware &of = hardware_[{stream.device, stream.flags.priority}];
  size_t index = of.streams++ % count;
  if (index == of.queues.size()) of.queues.push_back(std::make_unique<HardwareQueue>());
  return of.queues[index].get();
}

Stream &Streams::create(int device, const StreamFlags &flags) {
  uint64_t number = ++created_;
  std::string name = "stream " + std::to_string(number) + " of device " + std::to_string(device);
  Stream &stream = add(device, flags, number, std::move(name));
  handles_[handle(stream)] = &stream;
  return stream;
}

Stream *Streams::find(StreamHandle handle) const {
  auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second;
}

Stream &Streams::of_thread(int device) {
  auto &mine = this_thread().streams;
  auto index = static_cast<size_t>(device);
  if (mine.size() <= index) mine.resize(index + 1);
  if (mine[index] == nullptr) {
    std::string name = "default stream " + std::to_string(defaults_ & UINT32_MAX) + " of a thread on device ";
    mine[index] = &add(device, StreamFlags{}, defaults_, name + std::to_string(device));
    defaults_++;
  }
  return *mine[index];
}

void Streams::destroy(Stream &stream) {
  handles_.erase(handle(stream));
  stream.destroyed = true;
  if (stream.idle()) retire(stream);
}

// A stream whose work is done and that nobody can use any more.
void Streams::retire(Stream &stream) {
  if (stream.last != nullptr && stream.flags.blocking)
    state_.checker.order(legacy(stream.device).agent, stream.last->clock);
  state_.checker.retire(stream.agent);
  all_.erase(std::find(all_.begin(), all_.end(), &stream));
  stream.last = nullptr;
  stream.retired = true;
  state_.scheduler.changed();
}

Status Streams::enqueue(Stream &stream, Task &&task, Point *point) {
  bool captured = false;
  Status status = state_.captures.add(stream, task, &captured);
  if (status != Status::success || captured) {
    *point = nullptr;
    return status;
  }
  if (state_.options.legacy_default_stream) {
    Stream &first = legacy(stream.device);
    if (&stream == &first) {
      for (Stream *other : all_)
        if (other != &first && other->device == stream.device && other->flags.blocking && other->last != nullptr)
          task.after.push_back(other->last);
    } else if (stream.flags.blocking && first.last != nullptr) {
      task.after.push_back(first.last);
    }
  }
  Checker &checker = state_.checker;
  checker.order(stream.agent, checker.now(host_agent(state_)));
  for (const Point &place : task.after) checker.order(stream.agent, place->clock);
  task.mark = std::make_shared<Mark>();
  task.mark->stream = &stream;
  task.mark->number = ++stream.issued;
  task.mark->clock = checker.step(stream.agent);
  if (!task.reads.empty() || !task.writes.empty())
    checker.access(stream.agent, task.mark->clock, task.what + " on " + stream.name, task.reads, task.writes);
  std::erase_if(task.after, [](const Point &place) { return place->done; });
  if (task.publish != nullptr) task.run = task.publish(stream.agent, task.mark->clock);
  if (task.condition != nullptr && task.condition->await) task.condition->wait = task.condition->await(stream.agent);
  if (task.host_function) state_.hand_over.host_function_queued(stream, task);
  stream.last = task.mark;
  *point = task.mark;
  stream.queue.push_back(std::move(task));
  if (stream.hardware != nullptr) stream.hardware->streams.push_back(&stream);
  return Status::success;
}

void Streams::begin(Stream &stream) {
  stream.current = std::make_shared<Task>(std::move(stream.queue.front()));
  stream.queue.pop_front();
  if (stream.hardware == nullptr) return;
  stream.hardware->streams.pop_front();
  state_.scheduler.changed();
}

void Streams::finished(Stream &stream) {
  stream.done++;
  stream.current->mark->done = true;
  stream.current->mark->finished = std::chrono::steady_clock::now();
  finished_[stream.current->what]++;
  stream.current = nullptr;
  if (stream.destroyed && stream.idle()) retire(stream);
}

size_t Streams::finished(const std::string &begin) const {
  size_t count = 0;
  for (auto at = finished_.lower_bound(begin); at != finished_.end() && at->first.compare(0, begin.size(), begin) == 0;
       ++at)
    count += at->second;
  return count;
}

void Streams::users(Span range, const std::function<void(Stream &, Task &)> &visit) {
  auto look = [&](Stream &stream, Task &task) {
    if (uses(task, range)) visit(stream, task);
  };
  for (Stream *stream : all_) {
    if (stream->current != nullptr) look(*stream, *stream->current);
    for (Task &task : stream->queue) look(*stream, task);
  }
}

bool Streams::running(Span range) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const Stream *stream) { return stream->current != nullptr && uses(*stream->current, range); });
}

std::vector<Point> Streams::tails(int device) const {
  std::vector<Point> tails;
  for (const Stream *stream : all_)
    if ((device < 0 || stream->device == device) && stream->last != nullptr) tails.push_back(stream->last);
  return tails;
}

std::string Streams::describe() const {
  std::string text;
  for (const Stream *stream : all_) {
    if (stream->idle()) continue;
    text += stream->name + ": " + std::to_string(stream->queue.size()) + " queued";
    if (stream->current != nullptr) text += ", runs '" + stream->current->what + "'";
    if (!stream->queue.empty()) text += ", next '" + stream->queue.front().what + "'";
    if (!stream->queue.empty() && stream->in_front() != nullptr)
      text += ", behind " + stream->in_front()->name + " in its hardware queue";
    if (stream->held) text += ", held";
    if (stream->done >= stream->stuck_after) text += ", stuck by the fault plan";
    text += "\n";
  }
  return text;
}

}  // namespace emulator
