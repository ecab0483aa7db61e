// state.hpp has what the process has one of. It is made at the first call and never destroyed, because exit handlers of
// other libraries still call in.
//
// One lock protects everything here. It is not held while a task runs. The checker has a lock of its own below it.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "capture.hpp"
#include "checker.hpp"
#include "config.hpp"
#include "event.hpp"
#include "fault_plan.hpp"
#include "hand_over.hpp"
#include "ipc.hpp"
#include "late.hpp"
#include "memory.hpp"
#include "runtime.hpp"
#include "scheduler.hpp"
#include "stream.hpp"

namespace emulator {

using Lock = std::unique_lock<std::mutex>;

struct State {
  State();

  std::mutex mutex;
  Config config;
  Options options;
  FaultPlan faults;
  Checker checker;
  Streams streams{*this};
  Memory memory{*this};
  Events events{*this};
  HandOver hand_over{*this};
  Captures captures{*this};
  Ipc ipc{*this};
  Scheduler scheduler{*this};
  std::vector<std::vector<bool>> peers;  // [device][peer]: access is enabled
  std::vector<std::string> alone;  // by device: the call of a thread that has the device to itself, "" if none has
  std::vector<int> kept;           // by device: calls that wait for that thread
  bool used = false;               // a call was made: options are fixed
  std::optional<FaultPlan::Fault> broken;  // of the devices of the process, since a task has met it
  bool exiting = false;

  std::string header() const;  // the schedule and the seed
  // A rule of memory was broken. Reports are kept in order and are bounded.
  void report(const std::string &text);
  std::vector<std::string> reports;
  size_t reports_left_out = 0;
  uint64_t queries = 0;     // of events that were complete; its address is the key by which all threads come after them
  Agent shared_agent = -1;  // of all host threads, where they have one clock together
  int threads = 0;          // that have called, for their names
};

State &state();
// Reports whether the process is a fork of one that had a state, whose lock nobody may take.
bool is_forked();

// What belongs to a host thread.
struct Thread {
  int device = -1;     // -1: none was chosen
  std::string symbol;  // of the newest call that entered
  int injected_code = 0;
  std::optional<Late> late;  // see late.hpp; nobody has asked for it yet
  CaptureMode capture_mode = CaptureMode::global;
  bool in_task = false;           // a thread of the emulator that runs a task
  bool in_host_function = false;  // that task is a host function
  std::shared_ptr<Task> task;     // that task
  Agent agent = -1;
  uint64_t queries = 0;           // that the thread comes after
  std::vector<Stream *> streams;  // its default streams by device, null where there is none
  void refuse_late() const;
  ~Thread();
};
Thread &this_thread();

// Returns the status of calls that use a device: success, or the fault with which a task has broken it. Requires: the lock.
Status fault(const State &state);
// Returns the agent of the calling thread. Requires: the lock.
Agent host_agent(State &state);
// The calling thread comes after the point from here on. Requires: the lock; the point is done.
void host_follows(State &state, const Point &point);
// So does every thread. Requires: the lock; the point is done.
void all_follow(State &state, const Point &point);

// A call of the runtime: refuses where calls are not possible, and holds the lock otherwise.
class Call {
 public:
  // in_turn: begins when no other thread has the current device to itself. at_once: of calls that use no device, and of those by
  // which tests let streams go on.
  enum Entry { in_turn, at_once };
  explicit Call(Entry entry = in_turn);
  explicit operator bool() const { return status_ == Status::success; }
  Status status() const { return status_; }
  State &state() const { return *state_; }
  Lock &lock() { return lock_; }
  // The current device of the thread.
  Status device(int *device) const;
  // The stream that a handle stands for, usable by this thread now.
  Status stream(StreamHandle handle, Stream **stream) const;
  // Waits for a place to be done. The calling thread then comes after it. A bound below 0 is none.
  Status wait(const Point &point, int64_t timeout_ms = -1);
  // Waits for all work of a device, or of all devices with -1.
  Status wait_for_device(int device);
  // The same for a thread that has the device, or all devices, to itself meanwhile: calls of others wait. The calling thread
  // comes after the work only if `follows`.
  Status wait_alone(int device, bool follows = true);

 private:
  Status wait_for_turn();

  Status status_;
  State *state_ = nullptr;
  Lock lock_;
};

}  // namespace emulator
