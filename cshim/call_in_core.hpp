// call_in_core.hpp notes which groups this thread is calling the core for, while the core may call Python's signal handlers.
#pragma once

#include <utility>

#include "sagecomm.h"

namespace sagecomm {

class ProcessGroupSagecomm;

// CallInCore is an operation on a device that this thread is issuing. The core waits for peers in some of them, and runs signal handlers
// meanwhile. One that destroys the group would wait for the call that it interrupts: so the call destroys the group when it ends.
class CallInCore {
 public:
  CallInCore(ProcessGroupSagecomm& group, sagecomm_group handle)
      : group_(group), handle_(handle), outer_(std::exchange(innermost, this)) {
  }
  ~CallInCore();
  CallInCore(const CallInCore&) = delete;
  CallInCore& operator=(const CallInCore&) = delete;

  // Reports whether this thread has such a call for a group.
  static bool underWay(sagecomm_group handle) noexcept {
    return of(handle) != nullptr;
  }
  // Leaves the end of a group to the innermost call of this thread for it. Reports false if there is none.
  static bool destroysAtItsEnd(sagecomm_group handle) noexcept;

 private:
  static CallInCore* of(sagecomm_group handle) noexcept;

  ProcessGroupSagecomm& group_;
  const sagecomm_group handle_;
  CallInCore* const outer_;
  bool destroys_ = false;

  static thread_local CallInCore* innermost;
};

} // namespace sagecomm
