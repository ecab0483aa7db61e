// barriers.cpp holds the barriers of ProcessGroupSagecomm.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "call.hpp"
#include "duration.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "process_group.hpp"

namespace sagecomm {

namespace {

constexpr OpInfo kBarrier{c10d::OpType::BARRIER, "barrier", "sagecomm:barrier"};
constexpr OpInfo kMonitoredBarrier{c10d::OpType::BARRIER, "monitored_barrier", "sagecomm:monitored_barrier"};

} // namespace

ProcessGroupSagecomm::WorkPtr ProcessGroupSagecomm::barrier(const c10d::BarrierOptions& opts) {
  Call call(kBarrier, SAGECOMM_BARRIER, devices_);
  call.take(opts);
  if (const auto device = deviceOfBarrier(opts)) {
    // It comes behind what the current stream of the device holds, as barriers of torch's own backends for devices do.
    call.buffers.setDevice(*device);
  }
  return run(call);
}

// torch's dispatcher passes on the numbers of devices, and drops BarrierOptions::device.
std::optional<c10::Device> ProcessGroupSagecomm::deviceOfBarrier(const c10d::BarrierOptions& opts) const {
  const std::optional<c10::DeviceType> type = devices_.accelerator();
  if (!type) {
    return std::nullopt;
  }
  if (opts.device) {
    return opts.device->type() == *type ? opts.device : std::nullopt;
  }
  if (!opts.device_ids.empty() && c10::impl::VirtualGuardImpl(*type).deviceCount() > 0) {
    return c10::Device(*type, static_cast<c10::DeviceIndex>(opts.device_ids[0]));
  }
  if (const auto bound = getBoundDeviceId(); bound && bound->type() == *type) {
    return bound;
  }
  if (!devices_.has(c10::DeviceType::CPU)) {
    return c10::Device(*type);
  }
  return std::nullopt;
}

void ProcessGroupSagecomm::monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) {
  if (windows_.collects()) {
    refuse("monitored_barrier", "cannot be coalesced; call it outside the coalescing window");
  }
  Call call(kMonitoredBarrier, SAGECOMM_BARRIER, devices_);
  call.take(opts);
  if (opts.timeout == std::chrono::milliseconds(0)) {
    call.timeout = std::chrono::milliseconds(
        1); // 0 asks whether all ranks are there now; the core takes 0 for the group's timeout
  }
  call.async = false;
  call.internal = true;
  try {
    run(call)->wait();
  } catch (...) {
    if (!endsProgram(std::current_exception())) {
      const bool timed = opts.timeout >= std::chrono::milliseconds(0);
      raiseMonitored(timed ? opts.timeout : std::chrono::milliseconds(timeoutMs_.load()), waitAllRanks);
    }
    throw;
  }
}

// If a monitored barrier has just timed out, raises that timeout in the words that torch has for it.
void ProcessGroupSagecomm::raiseMonitored(std::chrono::milliseconds timeout, bool waitAllRanks) const {
  sagecomm_error error;
  {
    WithoutGil unlocked;
    if (api_.monitored_error(group_, toNs(timeout), waitAllRanks ? 1 : 0, &error) != SAGECOMM_TIMEOUT) {
      return;
    }
  }
  failure_.told(group_);
  raise(error);
}

} // namespace sagecomm
