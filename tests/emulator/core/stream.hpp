// stream.hpp has streams: first-in first-out queues of tasks. The scheduler decides which head of a queue runs next.
//
// A task gets its vector clock when it is queued, from the order of API calls, so that what the checker reports does not
// depend on the schedule.
//
// Requires, for everything here: the lock of the state.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checker.hpp"
#include "runtime.hpp"

namespace emulator {

struct Stream;
struct Capture;
struct State;

// The place of a task in its stream. Events and waiting threads keep it.
struct Mark {
  Stream *stream = nullptr;
  uint64_t number = 0;  // in the stream, from 1
  bool done = false;
  int polls = 0;  // unsuccessful queries
  Clock clock;
  std::chrono::steady_clock::time_point finished;
};
using Point = std::shared_ptr<Mark>;

// Something outside of the streams that a task waits for: a flag in memory, an event of another process.
struct Condition {
  std::function<bool()> holds;
  std::function<std::shared_ptr<Wait>(Agent)> await;  // tells the checker when the wait is queued; may be empty
  std::shared_ptr<Wait> wait;                         // what the checker is told when it holds; may be null
};

struct Task {
  std::string what;
  std::vector<Span> reads, writes;
  Span flag{0, 0};  // the flag word that it writes or waits for
  std::vector<Point> after;
  std::function<void()> run;
  std::shared_ptr<Condition> condition;
  bool condition_held = false;
  // Tells the checker of a flag's write when it is queued, and returns what is to run.
  std::function<std::function<void()>(Agent, const Clock &)> publish;
  bool host_function = false;
  Agent host_agent = -1;  // of a host function: its accesses of memory are those of an agent of its own
  Clock host_clock;       // of its end
  std::vector<Span> host_reads, host_writes;  // what it was annotated with while it ran
  bool cancelled = false;                     // its memory was given back: it is reported and does not run
  std::shared_ptr<void> kept;                 // what the graph keeps whose launch has queued it
  Point mark;
};

// What a device takes work from. Tasks of the streams that are mapped onto it begin in the order in which they were queued,
// so a task that cannot begin blocks those behind it, also of other streams. It is no order for the checker: a program that
// relies on it is wrong with more queues.
struct HardwareQueue {
  std::deque<Stream *> streams;  // of the tasks that have not begun
};

// A stream is never freed: marks refer to it.
struct Stream {
  uint64_t number = 0;  // of the streams that were created, from 1; above 2^32 for default streams
  int device = 0;
  StreamFlags flags;
  std::string name;
  Agent agent = 0;
  std::deque<Task> queue;
  uint64_t issued = 0;
  uint64_t done = 0;
  Point last;                     // of the task that was queued last
  std::shared_ptr<Task> current;  // the task that runs
  bool held = false;
  bool destroyed = false;
  bool has_worker = false;
  bool retired = false;  // destroyed, and all its work is done
  uint64_t stuck_after = UINT64_MAX;
  HardwareQueue *hardware = nullptr;  // null: a queue of its own
  Capture *capture = nullptr;

  bool idle() const { return queue.empty() && current == nullptr; }
  bool blocked() const { return held || done >= stuck_after; }
  // Returns the stream whose task stands before the next one of this stream in its hardware queue; null if none does.
  // Requires: the stream has a task that has not begun.
  Stream *in_front() const {
    if (hardware == nullptr || hardware->streams.front() == this) return nullptr;
    return hardware->streams.front();
  }
};

class Streams {
 public:
  explicit Streams(State &state) : state_(state) {}
  void add_devices(int count);

  Stream &create(int device, const StreamFlags &flags);
  Stream *find(StreamHandle handle) const;
  static StreamHandle handle(const Stream &stream);
  Stream &legacy(int device) { return *legacy_[static_cast<size_t>(device)]; }
  Stream &of_thread(int device);  // the calling thread's default stream
  void destroy(Stream &stream);

  // Queues a task and returns its place, or adds it to the capture that the stream takes part in; the place is null then.
  Status enqueue(Stream &stream, Task &&task, Point *point);
  // Makes the next task of the stream its current one. Requires: no task stands before it.
  void begin(Stream &stream);
  // Called by the scheduler when the current task has run.
  void finished(Stream &stream);
  // Returns how many tasks have run whose descriptions begin so.
  size_t finished(const std::string &begin) const;
  // All streams that exist or have work left, in the order of their creation.
  const std::vector<Stream *> &all() const { return all_; }
  // Calls `visit` with each task that was not completed and that uses the range.
  void users(Span range, const std::function<void(Stream &, Task &)> &visit);
  // Reports whether a task that runs uses the range.
  bool running(Span range) const;
  // Returns the last place of each stream of the device that has work, for a wait.
  std::vector<Point> tails(int device) const;
  std::string describe() const;

 private:
  Stream &add(int device, const StreamFlags &flags, uint64_t number, std::string name);
  void retire(Stream &stream);
  HardwareQueue *map(const Stream &stream);

  // The hardware queues of a device and priority, and how many streams were mapped onto them.
  struct Hardware {
    std::vector<std::unique_ptr<HardwareQueue>> queues;
    size_t streams = 0;
  };

  State &state_;
  std::map<std::pair<int, int>, Hardware> hardware_;
  std::vector<std::unique_ptr<Stream>> made_;  // all streams ever, since they are never freed
  std::vector<Stream *> legacy_;
  std::vector<Stream *> all_;
  std::map<StreamHandle, Stream *> handles_;
  std::map<std::string, size_t> finished_;  // by their descriptions
  uint64_t created_ = 0;
  uint64_t defaults_ = uint64_t{1} << 32;
};

}  // namespace emulator
