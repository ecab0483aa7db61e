// properties.cpp holds properties of ProcessGroupSagecomm: names, timeouts, numbers, errors, members.
#include "core.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "members.hpp"
#include "process_group.hpp"

namespace sagecomm {

using std::chrono::milliseconds;

const std::string ProcessGroupSagecomm::getBackendName() const {
  return "sagecomm";
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupSagecomm::getBackendOptions() {
  return options_;
}

void ProcessGroupSagecomm::setTimeout(milliseconds timeout) {
  refuseInChild();
  WithoutGil unlocked;
  int32_t status = SAGECOMM_OK;
  sagecomm_error error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const sagecomm_group group = group_.load();
    if (group != 0 || shutDown_.load()) { // otherwise the next members get it
      status = api_.group_set_timeout(group, toNs(timeout), &error);
    }
    if (status >= 0) {
      timeoutMs_.store(timeout.count());
      options_->timeout = timeout;
    }
  }
  if (status < 0) {
    raise(error);
  }
}

void ProcessGroupSagecomm::addEphemeralTimeout(const milliseconds& timeout) {
  TORCH_CHECK(
      timeout.count() >= 0,
      "sagecomm: add_ephemeralTimeout_timeout: ",
      timeout.count(),
      " ms is negative; give 0 or more");
  ephemeralTimeout_.add(timeout);
}

uint64_t ProcessGroupSagecomm::getSequenceNumberForGroup() {
  WithoutGil unlocked;
  return ask([this](sagecomm_group group) { return group == 0 ? lastSequence_.load() : api_.group_sequence(group); });
}

// Every rank of a group counts from 0 by itself.
void ProcessGroupSagecomm::setSequenceNumberForGroup() {
}

// A group that waits for its next members has not failed.
c10d::ErrorType ProcessGroupSagecomm::getError() {
  WithoutGil unlocked;
  sagecomm_group asked = 0;
  const int32_t status = ask([&](sagecomm_group group) -> int32_t {
    asked = group;
    if (group != 0 || forked()) {
      return api_.group_error(group, nullptr);
    }
    const auto first = cause();
    return first != nullptr && (shutDown_.load() || !reconfigurable_) ? first->status : SAGECOMM_OK;
  });
  if (status < 0 && status != SAGECOMM_INVALID && !forked()) {
    failure_.told(asked != 0 ? asked : members()->group);
  }
  switch (status) {
    case SAGECOMM_OK:
      return c10d::ErrorType::SUCCESS;
    case SAGECOMM_TIMEOUT:
      return c10d::ErrorType::TIMEOUT;
    case SAGECOMM_PEER_FAILURE:
    case SAGECOMM_MISMATCH:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

std::shared_ptr<const GroupInfo> ProcessGroupSagecomm::members() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return info_;
}

} // namespace sagecomm
