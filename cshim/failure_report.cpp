// failure_report.cpp keeps what users were told of failures. See failure_report.hpp.
#include "failure_report.hpp"

#include <chrono>
#include <utility>

#include "core.hpp"

namespace sagecomm {

void FailureReport::reset(sagecomm_group group, int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  group_ = group;
  rank_ = rank;
  underWay_ = 0;
  undefined_ = logged_ = told_ = aborted_ = false;
}

void FailureReport::began(sagecomm_group group) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (group == group_) {
    underWay_++;
  }
}

void FailureReport::ended(sagecomm_group group, bool failed) {
  if (forked()) { // a thread of the parent may have had the lock
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (group == group_) {
    underWay_--;
    undefined_ |= failed;
    changed_.notify_all();
  }
}

bool FailureReport::isOwnDoing(const sagecomm_error& error) const {
  return error.status == SAGECOMM_ABORTED && (error.rank == rank_ || aborted_);
}

bool FailureReport::logs(sagecomm_group group, const sagecomm_error& error) {
  if (forked()) {
    return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return group == group_ && !isOwnDoing(error) && !std::exchange(logged_, true);
}

void FailureReport::told(sagecomm_group group) {
  if (forked() || core().group_error(group, nullptr) >= 0) { // a group that was destroyed is refused
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  told_ |= group == group_;
}

void FailureReport::aborted(sagecomm_group group) {
  std::lock_guard<std::mutex> lock(mutex_);
  aborted_ |= group == group_;
}

bool FailureReport::isUntold(const sagecomm_error& cause, std::unique_lock<std::mutex>& lock) {
  if (told_ || isOwnDoing(cause)) {
    return false;
  }
  // The thread that completes them comes a moment after the end of the group.
  changed_.wait_for(lock, std::chrono::nanoseconds(waits().hooks_ns), [this] { return underWay_ == 0 || undefined_; });
  return (underWay_ != 0 || undefined_) && !told_;
}

bool FailureReport::isUntold(const sagecomm_error& cause) {
  std::unique_lock<std::mutex> lock(mutex_);
  return isUntold(cause, lock);
}

bool FailureReport::takeUntold(const sagecomm_error& cause) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool untold = isUntold(cause, lock);
  told_ = told_ || untold;
  return untold;
}

} // namespace sagecomm
