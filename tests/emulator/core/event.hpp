// event.hpp has events. A record gives an event a new place in a stream; whoever waits takes the place that the event has
// at this moment, so later records do not move the wait.
//
// Requires, for everything here: the lock of the state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ipc.hpp"
#include "stream.hpp"

namespace emulator {

struct Event {
  uint64_t number = 0;
  int device = 0;
  EventFlags flags;
  Point point;                    // of the newest record by this process; null before the first one
  SharedEvent *shared = nullptr;  // of an event that other processes know
  uint64_t first = 0;             // records up to this number were made before the event existed
  bool imported = false;
  uint64_t shared_number = 0;  // the record that `point` stands for among those of all processes
  uint64_t capture = 0;        // the newest record belongs to this capture; 0: to none
  std::vector<size_t> nodes;   // the place in the capture
};

// What a wait for an event binds to: a place in a stream of this process, a record of another one, or nothing.
struct Binding {
  Point point;
  SharedEvent *shared = nullptr;
  uint64_t shared_number = 0;

  bool nothing() const { return point == nullptr && shared == nullptr; }
};

class Events {
 public:
  explicit Events(State &state) : state_(state) {}
  EventHandle create(const Event &event);
  std::shared_ptr<Event> find(EventHandle handle) const;
  bool destroy(EventHandle handle);
  // Waits until a record on the device is within its budget of events.
  Status wait_for_room(std::unique_lock<std::mutex> &lock, int device);
  // Records that have waited for that so far.
  size_t waited() const { return waited_; }
  // A record was queued on the device.
  void recorded(int device, const Point &point);
  static Binding newest(const Event &event);

 private:
  State &state_;
  std::map<EventHandle, std::shared_ptr<Event>> events_;
  std::map<int, std::vector<Point>> records_;  // by device: those that may not have run, where there is a budget
  uint64_t created_ = 0;
  size_t waited_ = 0;
};

}  // namespace emulator
