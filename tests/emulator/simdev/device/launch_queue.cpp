#include "launch_queue.hpp"

#include <c10/util/Exception.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "device.hpp"

namespace simdev {
namespace {

constexpr size_t most_entries = 4096;  // as many as torch_npu's queue has

void run(const std::string &what, const std::function<void()> &call, std::vector<std::string> *errors) {
  try {
    call();
  } catch (const std::exception &error) {
    errors->push_back(what + ": " + error.what());
  }
}

}  // namespace

LaunchQueue &LaunchQueue::get() {
  static auto *const queue = new LaunchQueue;  // the thread outlives static objects
  return *queue;
}

bool LaunchQueue::enabled() {
  static const bool enabled = [] {
    const char *text = getenv("SIMDEV_LAUNCH_QUEUE");
    if (text == nullptr || *text == '\0' || strcmp(text, "0") == 0) return false;
    if (strcmp(text, "1") != 0) emulator::bad_variable("SIMDEV_LAUNCH_QUEUE", text, "0 or 1");
    return true;
  }();
  return enabled;
}

LaunchQueue::LaunchQueue() : config_(emulator::read_config()), generator_(config_.seed) {}

void LaunchQueue::push(const std::string &what, std::function<void()> call) {
  WithoutPython unlocked;
  std::unique_lock lock(mutex_);
  if (stopped_) {
    run(what, call, &errors_);
    return;
  }
  entries_.push_back({what, std::move(call)});
  uint64_t number = ++pushed_;
  if (!started_) {
    started_ = true;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { loop(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  switch (config_.schedule) {
    case emulator::Schedule::eager:
      wait_for(lock, number);
      break;
    case emulator::Schedule::random:
      if (generator_() % 2 == 0) wait_for(lock, std::min(number, handed_over_ + 1 + generator_() % 4));
      break;
    case emulator::Schedule::threaded:
      allowed_ = number;
      break;
    default:
      break;
  }
  if (entries_.size() > most_entries) wait_for(lock, number - most_entries);
  work_.notify_all();
}

void LaunchQueue::drain() {
  WithoutPython unlocked;
  std::unique_lock lock(mutex_);
  wait_for(lock, pushed_);
  polls_ = 0;
  if (errors_.empty()) return;
  std::string first = errors_.front();
  errors_.clear();
  TORCH_CHECK(false, "simdev: an entry of the launch queue failed: ", first);
}

bool LaunchQueue::empty() {
  std::lock_guard lock(mutex_);
  return handed_over_ == pushed_;
}

void LaunchQueue::polled() {
  std::lock_guard lock(mutex_);
  if (++polls_ < config_.polls) return;
  polls_ = 0;
  allowed_ = pushed_;
  work_.notify_all();
}

void LaunchQueue::stop() {
  WithoutPython unlocked;
  std::unique_lock lock(mutex_);
  if (!started_ || stopped_) return;
  stopping_ = true;
  work_.notify_all();
  done_.wait(lock, [this] { return stopped_; });
}

// Waits until this entry was handed over.
void LaunchQueue::wait_for(std::unique_lock<std::mutex> &lock, uint64_t number) {
  allowed_ = std::max(allowed_, number);
  work_.notify_all();
  done_.wait(lock, [&] { return handed_over_ >= number; });
}

void LaunchQueue::loop() {
  std::unique_lock lock(mutex_);
  while (!entries_.empty() || !stopping_) {
    if (entries_.empty()) {
      work_.wait(lock);
    } else if (handed_over_ >= allowed_ && !stopping_) {
      uint64_t before = pushed_;
      bool more = config_.kick_ms == 0
                      ? (work_.wait(lock), true)
                      : work_.wait_for(lock, std::chrono::milliseconds(config_.kick_ms)) == std::cv_status::no_timeout;
      if (!more && pushed_ == before) allowed_ = pushed_;
    } else {
      Entry entry = std::move(entries_.front());
      entries_.pop_front();
      lock.unlock();
      std::vector<std::string> errors;
      run(entry.what, entry.call, &errors);
      entry.call = nullptr;  // what it holds is given back without the lock
      lock.lock();
      handed_over_++;
      errors_.insert(errors_.end(), errors.begin(), errors.end());
      done_.notify_all();
    }
  }
  stopped_ = true;
  done_.notify_all();
}

}  // namespace simdev
