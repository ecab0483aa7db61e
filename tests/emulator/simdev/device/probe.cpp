// Functions for tests that use a device as a library does which knows c10 only. Nothing here includes a header of
// simdev's devices, and nothing is specific to a device type.
#include "probe.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <thread>

namespace simdev_probe {

// Copies device tensors through pinned memory on a side stream: out of `from`, and back into `to`. The caller's stream
// is in front of the first copy and behind the last one. With `safe` the tensors are kept for the side stream.
c10::Stream staged_copy(const at::Tensor &to, const at::Tensor &from, const at::Tensor &pinned, bool safe) {
  c10::impl::VirtualGuardImpl guard(from.device().type());
  c10::DeviceGuard device(from.device());
  c10::Stream caller = guard.getStream(from.device());
  c10::Stream side = guard.getStreamFromGlobalPool(from.device());
  c10::Event start(from.device().type()), end(from.device().type());
  start.record(caller);
  start.block(side);
  {
    c10::StreamGuard on_side(side);
    at::Tensor staging = pinned, target = to;
    staging.copy_(from, true);
    target.copy_(staging, true);
  }
  if (safe) {
    guard.recordDataPtrOnStream(from.storage().data_ptr(), side);
    guard.recordDataPtrOnStream(to.storage().data_ptr(), side);
  }
  end.record(side);
  end.block(caller);
  return side;
}

void staged_copy_on_thread(const at::Tensor &to, const at::Tensor &from, const at::Tensor &pinned) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      staged_copy(to, from, pinned, true);
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

// Calls what is left of the interface, and returns what is wrong with it.
std::string guard_faults(c10::Device device) {
  c10::impl::VirtualGuardImpl guard(device.type());
  c10::DeviceGuard on(device);
  std::string faults;
  auto expect = [&](bool holds, const char *what) {
    if (!holds) faults += std::string(what) + "; ";
  };
  c10::Stream usual = guard.getDefaultStream(device), fresh = guard.getNewStream(device, -1);
  c10::Stream pooled = guard.getStreamFromGlobalPool(device, true);
  expect(guard.getDevice() == device, "getDevice");
  expect(guard.deviceCount() > 0, "deviceCount");
  expect(guard.getStream(device) == usual, "the current stream is the default one");
  expect(usual != fresh && fresh != pooled, "streams differ");
  expect(usual.native_handle() != nullptr && usual.native_handle() != fresh.native_handle(), "native handles");
  auto is_captured = [](const auto &stream) {  // torch 2.11 does not ask
    if constexpr (requires { stream.is_capturing(); }) return stream.is_capturing();
    return false;
  };
  expect(!is_captured(usual), "is_capturing");
  c10::Stream before = guard.exchangeStream(fresh);
  expect(before == usual && guard.getStream(device) == fresh, "exchangeStream");
  guard.exchangeStream(before);
  c10::Event never(device.type());
  expect(never.query(), "an event without a record is complete");
  never.block(fresh);
  never.synchronize();
  c10::Event first(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event last(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  first.record(fresh);
  last.record(fresh);
  last.synchronize();
  expect(first.query() && last.query() && fresh.query(), "queries");
  expect(first.elapsedTime(last) >= 0, "elapsedTime");
  fresh.synchronize();
  guard.synchronizeDevice(device.index());
  return faults;
}

}  // namespace simdev_probe
