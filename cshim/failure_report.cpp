// failure_report.cpp keeps what users were told of failures. See failure_report.hpp.
#include "failure_report.hpp"

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "core.hpp"

namespace sagecomm {

namespace {

// Processes of whose deaths users were told. The mutex is taken behind no other one, and none is taken behind it.
std::mutex deathsMutex;
std::set<std::pair<std::string, int64_t>> deaths;

std::pair<std::string, int64_t> culpritOf(const sagecomm_error& cause) {
  return {cause.host, static_cast<int64_t>(cause.pid)};
}

} // namespace

void FailureReport::began() {
  std::lock_guard<std::mutex> lock(mutex_);
  underWay_++;
}

void FailureReport::ended(bool undefined) {
  std::lock_guard<std::mutex> lock(mutex_);
  underWay_--;
  undefined_ |= undefined;
  changed_.notify_all();
}

void FailureReport::told(const sagecomm_error& cause) {
  told_.store(true);
  if (cause.status == SAGECOMM_PEER_FAILURE && cause.pid != 0) {
    std::lock_guard<std::mutex> lock(deathsMutex);
    deaths.insert(culpritOf(cause));
  }
}

bool FailureReport::takeUntold(const sagecomm_error& cause) {
  if (told_.load() || cause.status == SAGECOMM_ABORTED) {
    return false;
  }
  {
    std::unique_lock<std::mutex> lock(mutex_);
    // The thread that completes them comes a moment after the end of the group.
    changed_.wait_for(lock, std::chrono::nanoseconds(waits().hooks_ns), [this] { return underWay_ == 0; });
    if (!undefined_) {
      return false;
    }
  }
  if (cause.status == SAGECOMM_PEER_FAILURE) {
    std::lock_guard<std::mutex> lock(deathsMutex);
    if (deaths.count(culpritOf(cause)) != 0) {
      return false;
    }
  }
  if (told_.exchange(true)) { // by another thread
    return false;
  }
  told(cause);
  return true;
}

} // namespace sagecomm
