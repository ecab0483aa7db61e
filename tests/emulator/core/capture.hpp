// capture.hpp records the tasks of streams in graphs. What is captured does not run until a graph is launched.
//
// Requires, for everything here: the lock of the state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "stream.hpp"

namespace emulator {

struct Event;

struct Graph {
  struct Node {
    Task task;
    std::vector<size_t> after;  // earlier nodes
  };
  std::vector<Node> nodes;
  std::shared_ptr<std::vector<std::shared_ptr<void>>> kept = std::make_shared<std::vector<std::shared_ptr<void>>>();
};

struct Capture {
  uint64_t id = 0;
  CaptureMode mode = CaptureMode::global;
  Stream *origin = nullptr;
  std::thread::id thread;
  CaptureStatus status = CaptureStatus::active;
  GraphHandle handle = nullptr;  // of the graph, which has it from the end of the capture on
  std::shared_ptr<Graph> graph;
  std::map<Stream *, std::vector<size_t>> ends;  // the nodes that the next task of each stream follows
};

class Captures {
 public:
  explicit Captures(State &state) : state_(state) {}
  Status begin(Stream &stream, CaptureMode mode);
  // Gives the caller what was captured, too: functions of the caller are destroyed without the lock.
  Status end(Stream &stream, GraphHandle *graph, std::shared_ptr<Graph> *captured);
  // Adds the task to the capture of the stream and reports so, or leaves it to be queued.
  Status add(Stream &stream, Task &task, bool *captured);
  // The result of a use of the stream, which breaks a capture that the legacy default stream would order.
  Status implicit(const Stream &stream);
  Status record(Event &event, Stream &stream);
  // The stream waits for an event. Reports whether captures have dealt with it.
  Status wait(Stream &stream, const Event &event, bool *captured);
  // The result of a call that must not be made during a capture; it breaks the capture.
  Status unsafe_call();
  // The result of a call that waits for, or asks about, a stream.
  Status unsafe_on(const Stream &stream);
  std::shared_ptr<Graph> find(GraphHandle handle) const;
  // Also that of an active capture.
  std::shared_ptr<Graph> find_captured(GraphHandle handle) const;
  std::shared_ptr<Graph> take(GraphHandle handle);  // null if there is none

 private:
  Status breaks(Capture &capture, Status why);
  void leave(Capture &capture);

  State &state_;
  std::map<uint64_t, std::unique_ptr<Capture>> active_;
  std::map<GraphHandle, std::shared_ptr<Graph>> graphs_;
  uint64_t captures_ = 0;
  uint64_t graphs_made_ = 0;
};

}  // namespace emulator
