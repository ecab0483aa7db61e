// failure_report.hpp notes whether the user of a group has learnt of its failure. A program may read the outputs of a joined operation
// (device_work.hpp), and end, without a call that could raise.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "sagecomm.h"

namespace sagecomm {

// The report of one group. Works share it with the group, and outlive it. Any thread may call its functions, which raise nothing.
class FailureReport {
 public:
  // began() and ended() enclose an operation that streams may wait for and the host need not. `undefined`: it has failed, and not because
  // the group was aborted or destroyed here.
  void began();
  void ended(bool undefined);

  // Reports whether it is called for the first time: one failure of a group is logged.
  bool logs() {
    return !logged_.exchange(true);
  }
  // A call has raised `cause`, or has returned it. The death of a process is told to all groups.
  void told(const sagecomm_error& cause);
  // Reports whether outputs are undefined and nothing has told the user; counts as told(). Waits for the ends of operations, briefly.
  // Requires: the group has failed with `cause`, or was destroyed.
  bool takeUntold(const sagecomm_error& cause);

 private:
  std::atomic<bool> logged_{false};
  std::atomic<bool> told_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  int underWay_ = 0; // guarded by mutex_
  bool undefined_ = false; // guarded by mutex_
};

} // namespace sagecomm
