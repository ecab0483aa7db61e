// launch_queue.hpp has the optional queue of launches on the host, as torch_npu has one: with SIMDEV_LAUNCH_QUEUE=1
// operators, copies and calls on events do not go to the streams but into this queue. A thread of its own takes them
// out and hands them to the streams, in their order. Asking for the native handle of a stream drains the queue first.
//
// There is one queue for all devices, so that an event may be recorded on one device and waited for on another.
//
// When the thread takes entries out follows the emulator's schedule: lazy waits until somebody drains the queue, eager
// makes the caller wait for each entry, random draws by EMULATOR_SEED how many entries are taken, threaded takes them
// as they come. A queue that nobody drains goes on after EMULATOR_KICK_MS without a new entry.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "../../core/config.hpp"

namespace simdev {

class LaunchQueue {
 public:
  static LaunchQueue &get();
  static bool enabled();

  // Queues a call for the thread. Under the schedule `eager`, and sometimes under `random`, it waits until entries were
  // taken. If the call raises, drain() raises that later. The checker does not see this hand-over between threads:
  // submit() orders streams by an event.
  void push(const std::string &what, std::function<void()> call);
  // Waits until all entries that were pushed before have been handed over. Raises the first error of an entry since.
  void drain();
  bool empty();
  // Somebody asked without success whether an entry was handed over. Enough of that drains the queue.
  void polled();
  // Ends the thread when it has nothing to do any more. Later entries are handed over by the caller.
  void stop();

 private:
  struct Entry {
    std::string what;
    std::function<void()> call;
  };
  LaunchQueue();
  void loop();
  void wait_for(std::unique_lock<std::mutex> &lock, uint64_t number);

  const emulator::Config config_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Entry> entries_;
  uint64_t pushed_ = 0, handed_over_ = 0;
  uint64_t allowed_ = 0;  // entries up to this number may be taken
  int polls_ = 0;
  bool started_ = false, stopping_ = false, stopped_ = false;
  std::mt19937_64 generator_;
  std::vector<std::string> errors_;
};

}  // namespace simdev
