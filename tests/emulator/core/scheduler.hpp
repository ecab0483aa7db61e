// scheduler.hpp decides which task runs next, and runs it.
//
// lazy: a task runs when somebody waits for it, after what it needs and nothing else. eager: at the call that queues it, if
// nothing blocks it. random: a seeded generator picks among the heads of all queues, at calls that queue and at waits. One
// thread of the emulator runs all tasks in these three, so that the order follows from the seed and the order of calls.
// threaded: each stream has a thread.
//
// Host functions run on a thread of their own. The scheduler waits for them up to a bound and then goes on with other
// streams, so a host function may block; from then on the order depends on real time.
//
// Requires, for all functions: the lock, which waits release.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "stream.hpp"

namespace emulator {

class Scheduler {
 public:
  explicit Scheduler(State &state);

  // A task was queued on the stream, or a hold of the stream ended. Returns when the work that the schedule does at this point is done.
  void queued(std::unique_lock<std::mutex> &lock, Stream &stream);
  // Runs what the point needs until it is done. A bound below 0 is none.
  Status wait(std::unique_lock<std::mutex> &lock, const Point &point, int64_t timeout_ms);
  // Waits for something outside of the streams; what can run runs meanwhile.
  Status wait_outside(std::unique_lock<std::mutex> &lock, const std::function<bool()> &holds, int64_t timeout_ms);
  // Waits until no other thread has what the caller needs to itself: taken() gives that thread's call, null if there is none.
  Status wait_for_turn(std::unique_lock<std::mutex> &lock, const std::function<const char *()> &taken);
  // A query found the point not done. Every so many queries run what the point needs, as a wait does, within a bound.
  void polled(std::unique_lock<std::mutex> &lock, Point point);
  // Waits until no task that runs uses the range. Requires: no task that uses it can begin.
  void wait_for_users(std::unique_lock<std::mutex> &lock, Span range);
  // Runs everything that can run.
  void run_all(std::unique_lock<std::mutex> &lock);
  // Something that blocked a stream has changed.
  void changed();
  // The process exits: runs nothing more and leaves what is queued where it is. Returns when no task runs, or after a bound.
  void stop(std::unique_lock<std::mutex> &lock);

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Generator = std::mt19937_64;
  class Waiting;

  void start_threads();
  void device_loop();
  void worker_loop(Stream *stream);
  void host_function_loop();
  bool runnable(Stream &stream);
  bool polls_conditions() const;
  Stream *choose();
  Stream *any_runnable();
  bool anything_runnable();
  Stream *needed(const Point &goal, std::vector<Stream *> *visited, bool *outside);
  void run_head(std::unique_lock<std::mutex> &lock, Stream &stream, Generator &generator);
  void call_host_function(std::unique_lock<std::mutex> &lock, Stream &stream, const std::shared_ptr<Task> &task);
  void complete(Stream &stream);
  void delay(std::unique_lock<std::mutex> &lock, Generator &generator);
  void sleep_until_work(std::unique_lock<std::mutex> &lock);
  bool has_work() const;

  State &state_;
  std::condition_variable work_;  // for the threads of the emulator
  std::condition_variable done_;  // for the callers
  bool started_ = false;
  bool stopped_ = false;
  bool nothing_to_do_ = false;     // the device thread has looked and found nothing that it should run
  int running_ = 0;                // tasks that run
  uint64_t steps_ = 0;             // so many picks are owed to calls that queued tasks
  std::vector<Point> goals_;       // what callers wait for
  std::vector<Point> polled_for_;  // what callers queried in vain often enough
  int run_all_ = 0;                // callers that want everything to run
  bool kicked_ = false;            // runs until nothing is runnable
  Time progress_;                  // of the last task that was queued or completed
  Generator generator_;
  std::deque<Stream *> host_functions_;  // streams whose current task is a host function that has not begun
  std::condition_variable host_function_work_;
};

}  // namespace emulator
