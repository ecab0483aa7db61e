#include "capture.hpp"

#include <algorithm>

#include "event.hpp"
#include "state.hpp"
#include "tasks.hpp"

namespace emulator {
namespace {

constexpr uintptr_t graph_tag = 0x60;

void merge(std::vector<size_t> *into, const std::vector<size_t> &nodes) {
  for (size_t node : nodes)
    if (std::find(into->begin(), into->end(), node) == into->end()) into->push_back(node);
}

// Reports whether all streams of the capture end in work that the origin waits for.
bool joined(const Capture &capture) {
  const auto &nodes = capture.graph->nodes;
  std::vector<bool> reached(nodes.size());
  std::vector<size_t> pending = capture.ends.at(capture.origin);
  while (!pending.empty()) {
    size_t node = pending.back();
    pending.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    pending.insert(pending.end(), nodes[node].after.begin(), nodes[node].after.end());
  }
  return std::find(reached.begin(), reached.end(), false) == reached.end();
}

}  // namespace

Status Captures::breaks(Capture &capture, Status why) {
  capture.status = CaptureStatus::invalidated;
  return why;
}

void Captures::leave(Capture &capture) {
  for (auto &[stream, nodes] : capture.ends) stream->capture = nullptr;
}

Status Captures::begin(Stream &stream, CaptureMode mode) {
  if (&stream == &state_.streams.legacy(stream.device)) return Status::capture_unsupported;
  if (stream.capture != nullptr) return Status::invalid_value;
  auto capture = std::make_unique<Capture>();
  capture->id = ++captures_;
  capture->mode = mode;
  capture->origin = &stream;
  capture->thread = std::this_thread::get_id();
  capture->handle = reinterpret_cast<GraphHandle>(uintptr_t{++graphs_made_} << 8 | graph_tag);
  capture->graph = std::make_shared<Graph>();
  capture->ends[&stream] = {};
  stream.capture = capture.get();
  active_[capture->id] = std::move(capture);
  return Status::success;
}

Status Captures::end(Stream &stream, GraphHandle *graph, std::shared_ptr<Graph> *captured) {
  *graph = nullptr;
  if (stream.capture == nullptr) return Status::invalid_value;
  Capture &capture = *stream.capture;
  if (capture.origin != &stream) return Status::capture_unmatched;
  if (capture.mode != CaptureMode::relaxed && capture.thread != std::this_thread::get_id())
    return Status::capture_wrong_thread;
  std::unique_ptr<Capture> ended = std::move(active_[capture.id]);
  active_.erase(capture.id);
  *captured = ended->graph;
  leave(capture);
  if (ended->status == CaptureStatus::invalidated) return Status::capture_invalidated;
  if (!joined(capture)) return Status::capture_unjoined;
  *graph = ended->handle;
  graphs_[*graph] = ended->graph;
  return Status::success;
}

Status Captures::implicit(const Stream &stream) {
  if (!state_.options.legacy_default_stream || &stream != &state_.streams.legacy(stream.device)) return Status::success;
  for (const Stream *other : state_.streams.all())
    if (other->capture != nullptr && other->flags.blocking && other->device == stream.device)
      return breaks(*other->capture, Status::capture_implicit);
  return Status::success;
}

Status Captures::add(Stream &stream, Task &task, bool *captured) {
  *captured = false;
  if (stream.capture == nullptr) return implicit(stream);
  Capture &capture = *stream.capture;
  if (capture.status == CaptureStatus::invalidated) return Status::capture_invalidated;
  auto &nodes = capture.graph->nodes;
  auto &ends = capture.ends[&stream];
  nodes.push_back({std::move(task), ends});
  ends = {nodes.size() - 1};
  *captured = true;
  return Status::success;
}

Status Captures::record(Event &event, Stream &stream) {
  Capture &capture = *stream.capture;
  if (capture.status == CaptureStatus::invalidated) return Status::capture_invalidated;
  if (event.shared != nullptr) return breaks(capture, Status::capture_unsupported);
  event.capture = capture.id;
  event.nodes = capture.ends[&stream];
  return Status::success;
}

Status Captures::wait(Stream &stream, const Event &event, bool *captured) {
  *captured = event.capture != 0 || stream.capture != nullptr;
  if (!*captured) return Status::success;
  if (stream.capture != nullptr && stream.capture->status == CaptureStatus::invalidated)
    return Status::capture_invalidated;
  if (event.capture == 0)
    return Events::newest(event).nothing() ? Status::success : breaks(*stream.capture, Status::capture_isolation);
  auto found = active_.find(event.capture);
  if (found == active_.end()) return Status::captured_event;
  Capture &capture = *found->second;
  if (capture.status == CaptureStatus::invalidated) return Status::capture_invalidated;
  if (stream.capture == nullptr) {
    if (&stream == &state_.streams.legacy(stream.device)) return breaks(capture, Status::capture_implicit);
    stream.capture = &capture;
  } else if (stream.capture != &capture) {
    (void)breaks(*stream.capture, Status::capture_isolation);
    return breaks(capture, Status::capture_isolation);
  }
  merge(&capture.ends[&stream], event.nodes);
  return Status::success;
}

Status Captures::unsafe_call() {
  CaptureMode mine = this_thread().capture_mode;
  for (auto &[id, capture] : active_) {
    if (capture->status != CaptureStatus::active || mine == CaptureMode::relaxed) continue;
    bool own = capture->thread == std::this_thread::get_id() && capture->mode != CaptureMode::relaxed;
    if (own || (mine == CaptureMode::global && capture->mode == CaptureMode::global))
      return breaks(*capture, Status::capture_unsupported);
  }
  return Status::success;
}

Status Captures::unsafe_on(const Stream &stream) {
  if (stream.capture != nullptr) return breaks(*stream.capture, Status::capture_unsupported);
  Status status = implicit(stream);
  return status == Status::success ? unsafe_call() : status;
}

std::shared_ptr<Graph> Captures::find(GraphHandle handle) const {
  auto found = graphs_.find(handle);
  return found == graphs_.end() ? nullptr : found->second;
}

std::shared_ptr<Graph> Captures::find_captured(GraphHandle handle) const {
  for (const auto &[id, capture] : active_)
    if (capture->handle == handle && capture->status == CaptureStatus::active) return capture->graph;
  return find(handle);
}

std::shared_ptr<Graph> Captures::take(GraphHandle handle) {
  auto found = graphs_.extract(handle);
  return found.empty() ? nullptr : std::move(found.mapped());
}

// ---- calls

Status begin_capture(StreamHandle handle, CaptureMode mode) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  return status == Status::success ? call.state().captures.begin(*stream, mode) : status;
}

Status end_capture(StreamHandle handle, GraphHandle *graph) {
  std::shared_ptr<Graph> captured;  // destroyed after the call has released the lock
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  return status == Status::success ? call.state().captures.end(*stream, graph, &captured) : status;
}

Status capture_status(StreamHandle handle, CaptureStatus *capture, uint64_t *id) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status != Status::success) return status;
  *capture = stream->capture == nullptr ? CaptureStatus::none : stream->capture->status;
  *id = stream->capture == nullptr ? 0 : stream->capture->id;
  return Status::success;
}

Status exchange_capture_mode(CaptureMode *mode) {
  std::swap(*mode, this_thread().capture_mode);
  return Status::success;
}

Status launch_graph(GraphHandle handle, StreamHandle stream_handle) {
  std::shared_ptr<Graph> graph;  // another thread may destroy it meanwhile
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(stream_handle, &stream) : call.status();
  if (status != Status::success) return status;
  graph = call.state().captures.find(handle);
  if (graph == nullptr) return Status::invalid_handle;
  if (stream->capture != nullptr) return Status::not_supported;
  for (const Graph::Node &node : graph->nodes)
    for (const auto *spans : {&node.task.reads, &node.task.writes})
      for (Span span : *spans) {
        const Block *block = nullptr;
        if (call.state().memory.classify(reinterpret_cast<void *>(span.address), span.length, &block) &&
            block != nullptr)
          continue;
        call.state().report("a graph is launched whose '" + node.task.what + "' uses memory that was given back");
        return Status::invalid_value;
      }
  for (const Graph::Node &node : graph->nodes) {
    Task task = node.task;
    task.kept = graph->kept;
    if (task.condition != nullptr) task.condition = std::make_shared<Condition>(*task.condition);
    status = queue(call, *stream, std::move(task));
    if (status != Status::success) return status;
  }
  return Status::success;
}

Status destroy_graph(GraphHandle handle) {
  std::shared_ptr<Graph> graph;  // destroyed after the call has released the lock
  Call call;
  if (!call) return call.status();
  graph = call.state().captures.take(handle);
  return graph != nullptr ? Status::success : Status::invalid_handle;
}

Status graph_size(GraphHandle handle, size_t *tasks) {
  Call call;
  if (!call) return call.status();
  std::shared_ptr<Graph> graph = call.state().captures.find(handle);
  if (graph == nullptr) return Status::invalid_handle;
  *tasks = graph->nodes.size();
  return Status::success;
}

Status captured_graph(StreamHandle handle, GraphHandle *graph) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status != Status::success) return status;
  bool active = stream->capture != nullptr && stream->capture->status == CaptureStatus::active;
  *graph = active ? stream->capture->handle : nullptr;
  return Status::success;
}

Status graph_keeps(GraphHandle handle, std::shared_ptr<void> kept) {
  Call call;
  if (!call) return call.status();
  std::shared_ptr<Graph> graph = call.state().captures.find_captured(handle);
  if (graph == nullptr) return Status::invalid_handle;
  graph->kept->push_back(std::move(kept));
  return Status::success;
}

}  // namespace emulator
