// failure_report.hpp notes whether the user of a group has learnt of its failure. A program may read the outputs of a joined operation
// (device_work.hpp), and end, without a call that could raise.
#pragma once

#include <condition_variable>
#include <mutex>

#include "sagecomm.h"

namespace sagecomm {

// The report of one ProcessGroupSagecomm. Works share it with the group, and outlive it. Any thread may call its functions, which raise
// nothing. Those that take a group of the core do nothing for one whose members reconfigure() has replaced.
class FailureReport {
 public:
  FailureReport(sagecomm_group group, int rank) : group_(group), rank_(rank) {
  }

  // Forgets all, for the next members.
  void reset(sagecomm_group group, int rank);

  // began() and ended() enclose an operation that streams may wait for and the host need not. `failed`: its outputs are undefined.
  void began(sagecomm_group group);
  void ended(sagecomm_group group, bool failed);

  // Reports whether the error of such an operation is to be logged: the first of the group, unless this rank has aborted or destroyed it.
  bool logs(sagecomm_group group, const sagecomm_error& error);
  // A call has raised an error of the group, or has returned it. It counts only if the group has failed: of some errors it goes on.
  void told(sagecomm_group group);
  // This rank has aborted the group, as others may have before.
  void aborted(sagecomm_group group);
  // Reports whether outputs are undefined and nothing has told the user. Waits for the ends of operations, briefly.
  // Requires: the group has failed with `cause`, or was destroyed.
  bool isUntold(const sagecomm_error& cause);
  // The same, and it counts as told().
  bool takeUntold(const sagecomm_error& cause);

 private:
  bool isOwnDoing(const sagecomm_error& error) const; // requires: mutex_
  bool isUntold(const sagecomm_error& cause, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_; // guards all that follows; a thread that holds it takes no other one
  std::condition_variable changed_;
  sagecomm_group group_;
  int rank_;
  int underWay_ = 0;
  bool undefined_ = false;
  bool logged_ = false;
  bool told_ = false;
  bool aborted_ = false;
};

} // namespace sagecomm
