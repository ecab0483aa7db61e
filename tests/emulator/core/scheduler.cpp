#include "scheduler.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "state.hpp"

namespace emulator {
namespace {

using namespace std::chrono_literals;
using Clock_ = std::chrono::steady_clock;

// A host function that blocks for longer holds up its own stream only.
constexpr auto host_function_bound = 20ms;
// Flags and events of other processes are looked at this often. Nobody tells the scheduler when they change.
constexpr auto poll_interval = 200us;
constexpr auto stop_bound = 1s;
constexpr auto poll_bound = 1s;  // a task that lasts longer may wait for the thread that queries

// The emulator's threads take no signals: handlers of the program run on its own threads.
template <class Loop>
void start_thread(Loop loop) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(loop).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

// Lets go of the lock, and calls the skin's functions, around a wait of a caller.
class Scheduler::Waiting {
 public:
  explicit Waiting(State &state, std::unique_lock<std::mutex> &lock) : state_(state), lock_(lock) {
    if (state.options.before_wait == nullptr) return;
    lock_.unlock();
    token_ = state.options.before_wait();
    lock_.lock();
  }
  ~Waiting() {
    if (state_.options.before_wait == nullptr || state_.options.after_wait == nullptr) return;
    lock_.unlock();
    state_.options.after_wait(token_);
    lock_.lock();
  }
  Waiting(const Waiting &) = delete;
  Waiting &operator=(const Waiting &) = delete;

 private:
  State &state_;
  std::unique_lock<std::mutex> &lock_;
  void *token_ = nullptr;
};

Scheduler::Scheduler(State &state) : state_(state), progress_(Clock_::now()), generator_(state.config.seed) {}

void Scheduler::start_threads() {
  if (started_) return;
  started_ = true;
  if (state_.config.schedule != Schedule::threaded) start_thread([this] { device_loop(); });
  start_thread([this] { host_function_loop(); });
}

// ---- for callers

void Scheduler::queued(std::unique_lock<std::mutex> &lock, Stream &stream) {
  start_threads();
  progress_ = Clock_::now();
  kicked_ = false;
  switch (state_.config.schedule) {
    case Schedule::lazy:
      work_.notify_all();  // the time of the next kick has changed
      return;
    case Schedule::threaded:
      if (!stream.has_worker) {
        stream.has_worker = true;
        start_thread([this, &stream] { worker_loop(&stream); });
      }
      work_.notify_all();
      return;
    case Schedule::eager:
      steps_ = UINT64_MAX;
      break;
    case Schedule::random:
      if (generator_() % 2 == 0) {
        work_.notify_all();  // as above
        return;
      }
      steps_ += 1 + generator_() % 4;
      break;
  }
  Waiting waiting(state_, lock);
  work_.notify_all();
  done_.wait(lock, [this] { return stopped_ || (steps_ == 0 && running_ == 0); });
}

Status Scheduler::wait(std::unique_lock<std::mutex> &lock, const Point &point, int64_t timeout_ms) {
  if (point->done) return Status::success;
  Waiting waiting(state_, lock);
  goals_.push_back(point);
  work_.notify_all();
  Time begin = Clock_::now();
  bool told = state_.config.stall_s == 0;
  Status status = Status::success;
  while (!point->done) {
    if (stopped_) {
      status = Status::shutting_down;
      break;
    }
    if (state_.broken) {
      status = fault(state_);
      break;
    }
    auto waited = Clock_::now() - begin;
    if (timeout_ms >= 0 && waited >= std::chrono::milliseconds(timeout_ms)) {
      status = Status::timeout;
      break;
    }
    if (!told && waited >= std::chrono::seconds(state_.config.stall_s)) {
      told = true;
      const std::string &symbol = this_thread().symbol;
      fprintf(stderr, "emulator: %s%sa thread waits for %s since %d s; %s\n%s", symbol.c_str(),
              symbol.empty() ? "" : ": ", point->stream->name.c_str(), state_.config.stall_s, state_.header().c_str(),
              state_.streams.describe().c_str());
    }
    auto slice = timeout_ms >= 0 ? std::min<Clock_::duration>(std::chrono::milliseconds(timeout_ms) - waited, 1s)
                                 : Clock_::duration(1s);
    done_.wait_for(lock, slice);
  }
  goals_.erase(std::find(goals_.begin(), goals_.end(), point));
  return status;
}

Status Scheduler::wait_outside(std::unique_lock<std::mutex> &lock, const std::function<bool()> &holds,
                               int64_t timeout_ms) {
  if (holds()) return Status::success;
  Waiting waiting(state_, lock);
  start_threads();
  Time begin = Clock_::now();
  run_all_++;
  work_.notify_all();
  Status status = Status::success;
  while (!holds()) {
    status = stopped_ ? Status::shutting_down : fault(state_);
    if (timeout_ms >= 0 && Clock_::now() - begin >= std::chrono::milliseconds(timeout_ms)) status = Status::timeout;
    if (status != Status::success) break;
    done_.wait_for(lock, poll_interval);
  }
  run_all_--;
  return status;
}

Status Scheduler::wait_for_turn(std::unique_lock<std::mutex> &lock, const std::function<const char *()> &taken) {
  if (taken() == nullptr) return Status::success;
  Waiting waiting(state_, lock);
  Time begin = Clock_::now();
  bool told = state_.config.stall_s == 0;
  while (const char *call = taken()) {
    if (stopped_) return Status::shutting_down;
    if (!told && Clock_::now() - begin >= std::chrono::seconds(state_.config.stall_s)) {
      told = true;
      fprintf(stderr, "emulator: %s: a call waits since %d s until %s of another thread returns\n",
              this_thread().symbol.c_str(), state_.config.stall_s, call);
    }
    done_.wait_for(lock, 1s);
  }
  return Status::success;
}

// The caller does not go on while the device thread runs tasks: the order would depend on how fast the two are.
void Scheduler::polled(std::unique_lock<std::mutex> &lock, Point point) {
  if (++point->polls < state_.config.polls) return;
  point->polls = 0;
  if (std::find(polled_for_.begin(), polled_for_.end(), point) == polled_for_.end()) polled_for_.push_back(point);
  nothing_to_do_ = false;
  work_.notify_all();
  if (state_.config.schedule == Schedule::threaded) return;
  Waiting waiting(state_, lock);
  done_.wait_for(lock, poll_bound, [&] { return stopped_ || point->done || nothing_to_do_; });
}

void Scheduler::wait_for_users(std::unique_lock<std::mutex> &lock, Span range) {
  auto unused = [&] { return stopped_ || !state_.streams.running(range); };
  if (unused()) return;
  Waiting waiting(state_, lock);
  done_.wait(lock, unused);
}

void Scheduler::run_all(std::unique_lock<std::mutex> &lock) {
  Waiting waiting(state_, lock);
  start_threads();
  run_all_++;
  work_.notify_all();
  while (!stopped_ && (running_ > 0 || anything_runnable())) done_.wait_for(lock, 1ms);
  run_all_--;
}

void Scheduler::changed() {
  progress_ = Clock_::now();
  work_.notify_all();
  done_.notify_all();
}

void Scheduler::stop(std::unique_lock<std::mutex> &lock) {
  stopped_ = true;
  work_.notify_all();
  done_.notify_all();
  host_function_work_.notify_all();
  done_.wait_for(lock, stop_bound, [this] { return running_ == 0; });
}

// ---- choice

bool Scheduler::runnable(Stream &stream) {
  if (state_.broken || stream.current != nullptr || stream.queue.empty() || stream.blocked() ||
      stream.in_front() != nullptr)
    return false;
  Task &head = stream.queue.front();
  for (const Point &place : head.after)
    if (!place->done) return false;
  if (head.condition == nullptr || head.condition_held) return true;
  if (!head.condition->holds()) return false;
  head.condition_held = true;
  if (head.condition->wait != nullptr) state_.checker.settle(head.condition->wait);
  return true;
}

bool Scheduler::anything_runnable() {
  const auto &all = state_.streams.all();
  return std::any_of(all.begin(), all.end(), [this](Stream *stream) { return runnable(*stream); });
}

Stream *Scheduler::any_runnable() {
  std::vector<Stream *> heads;
  for (Stream *stream : state_.streams.all())
    if (runnable(*stream)) heads.push_back(stream);
  if (heads.empty()) return nullptr;
  if (state_.config.schedule == Schedule::random) return heads[generator_() % heads.size()];
  return *std::min_element(heads.begin(), heads.end(),
                           [](Stream *a, Stream *b) { return a->flags.priority < b->flags.priority; });
}

// Returns a stream whose head the goal depends on and can run. Sets *outside if something outside of the streams is missing.
Stream *Scheduler::needed(const Point &goal, std::vector<Stream *> *visited, bool *outside) {
  Stream &stream = *goal->stream;
  if (state_.broken || goal->done || stream.current != nullptr || stream.queue.empty() || stream.blocked())
    return nullptr;
  if (std::find(visited->begin(), visited->end(), &stream) != visited->end()) return nullptr;
  visited->push_back(&stream);
  if (Stream *front = stream.in_front())
    return front->queue.empty() ? nullptr : needed(front->queue.front().mark, visited, outside);
  bool missing = false;
  for (const Point &place : stream.queue.front().after) {
    if (place->done) continue;
    missing = true;
    if (Stream *first = needed(place, visited, outside)) return first;
  }
  if (missing) return nullptr;
  if (runnable(stream)) return &stream;
  *outside = true;
  return nullptr;
}

Stream *Scheduler::choose() {
  auto is_done = [](const Point &point) { return point->done; };
  std::erase_if(polled_for_, is_done);
  Schedule schedule = state_.config.schedule;
  if (steps_ > 0) {
    if (Stream *stream = any_runnable()) {
      if (steps_ != UINT64_MAX) steps_--;
      return stream;
    }
    steps_ = 0;
    done_.notify_all();
  }
  if (run_all_ > 0 || kicked_ || schedule == Schedule::eager) return any_runnable();
  if (polled_for_.empty() && std::all_of(goals_.begin(), goals_.end(), is_done)) return nullptr;
  if (schedule == Schedule::random) return any_runnable();
  bool outside = false;
  for (const auto *goals : {&goals_, &polled_for_})
    for (const Point &goal : *goals) {
      std::vector<Stream *> visited;
      if (Stream *stream = needed(goal, &visited, &outside)) return stream;
    }
  return outside ? any_runnable() : nullptr;
}

// Reports whether a head waits for something that only a look at memory can tell, and somebody wants work to be done.
bool Scheduler::polls_conditions() const {
  if (state_.config.schedule == Schedule::lazy && goals_.empty() && polled_for_.empty() && run_all_ == 0 && !kicked_)
    return false;
  const auto &all = state_.streams.all();
  return std::any_of(all.begin(), all.end(), [](const Stream *stream) {
    return stream->current == nullptr && !stream->queue.empty() && stream->queue.front().condition != nullptr;
  });
}

bool Scheduler::has_work() const {
  const auto &all = state_.streams.all();
  return std::any_of(all.begin(), all.end(), [](const Stream *stream) { return !stream->idle(); });
}

void Scheduler::sleep_until_work(std::unique_lock<std::mutex> &lock) {
  const bool polls = polls_conditions(), work = has_work();
  if (!work) kicked_ = false;
  const Time now = Clock_::now(), kick = progress_ + std::chrono::milliseconds(state_.config.kick_ms);
  if (state_.config.kick_ms == 0 || kicked_ || !work) {
    if (polls)
      work_.wait_for(lock, poll_interval);
    else
      work_.wait(lock);
  } else if (now >= kick) {
    kicked_ = true;
  } else {
    work_.wait_until(lock, polls ? std::min(kick, now + poll_interval) : kick);
  }
}

// ---- threads of the emulator

void Scheduler::device_loop() {
  Lock lock(state_.mutex);
  this_thread().in_task = true;
  while (!stopped_) {
    if (Stream *stream = choose())
      run_head(lock, *stream, generator_);
    else {
      nothing_to_do_ = true;
      done_.notify_all();
      sleep_until_work(lock);
    }
  }
}

void Scheduler::worker_loop(Stream *stream) {
  Lock lock(state_.mutex);
  this_thread().in_task = true;
  Generator generator(state_.config.seed ^ (stream->number * 0x9e3779b97f4a7c15));
  while (!stopped_ && !stream->retired) {
    if (runnable(*stream))
      run_head(lock, *stream, generator);
    else if (polls_conditions())
      work_.wait_for(lock, poll_interval);
    else
      work_.wait(lock);
  }
}

void Scheduler::host_function_loop() {
  Lock lock(state_.mutex);
  Thread &thread = this_thread();
  thread.in_task = thread.in_host_function = true;
  while (!stopped_) {
    if (host_functions_.empty()) {
      host_function_work_.wait(lock);
      continue;
    }
    Stream *stream = host_functions_.front();
    host_functions_.pop_front();
    thread.task = stream->current;
    lock.unlock();
    thread.task->run();
    lock.lock();
    state_.hand_over.host_function_done(*thread.task);
    thread.task = nullptr;
    complete(*stream);
  }
}

void Scheduler::delay(std::unique_lock<std::mutex> &lock, Generator &generator) {
  uint32_t most = state_.faults.delay_us();
  if (most == 0) return;
  auto late = std::chrono::microseconds(generator() % (most + 1));
  lock.unlock();
  std::this_thread::sleep_for(late);
  lock.lock();
}

void Scheduler::run_head(std::unique_lock<std::mutex> &lock, Stream &stream, Generator &generator) {
  if (!state_.broken) state_.broken = state_.faults.begins(stream.queue.front().what);
  if (state_.broken) {
    changed();
    return;
  }
  state_.streams.begin(stream);
  std::shared_ptr<Task> task = stream.current;
  running_++;
  delay(lock, generator);
  if (task->host_function) {
    call_host_function(lock, stream, task);
  } else {
    bool cancelled = task->cancelled;
    lock.unlock();
    if (task->run && !cancelled) task->run();
    task->run = nullptr;
    lock.lock();
    complete(stream);
  }
  running_--;
  done_.notify_all();
}

void Scheduler::call_host_function(std::unique_lock<std::mutex> &lock, Stream &stream,
                                   const std::shared_ptr<Task> &task) {
  host_functions_.push_back(&stream);
  host_function_work_.notify_one();
  done_.wait_for(lock, host_function_bound, [&] { return stopped_ || task->mark->done; });
}

void Scheduler::complete(Stream &stream) {
  state_.streams.finished(stream);
  progress_ = Clock_::now();
  done_.notify_all();
  work_.notify_all();
}

}  // namespace emulator
