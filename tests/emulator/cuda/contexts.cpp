// Contexts. A device has its primary context, and those that a program makes are further names of the same device: streams
// and memory belong to the device.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "driver.hpp"

namespace driver {
namespace {

constexpr size_t most_devices = 64;

std::mutex mutex;
std::vector<std::unique_ptr<Context>> made;  // by cuCtxCreate()
std::array<std::atomic<int>, most_devices> retained;

std::vector<CUcontext> &stack() {
  thread_local std::vector<CUcontext> contexts;
  return contexts;
}

Context *context(CUcontext handle) { return reinterpret_cast<Context *>(handle); }

// Reports whether a handle is the primary context of a device or one that was made and not destroyed.
bool exists(CUcontext handle) {
  for (int device = 0; device < emulator::device_count(); device++)
    if (handle == primary_context(device)) return true;
  std::lock_guard lock(mutex);
  return std::any_of(made.begin(), made.end(), [&](auto &known) { return known.get() == context(handle); });
}

// Makes the top of the stack the emulator's current device.
CUresult use_top() { return stack().empty() ? CUDA_SUCCESS : result(emulator::set_device(current_device())); }

CUresult create(CUcontext *handle, CUdevice device) {
  REQUIRE(handle != nullptr, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
  std::unique_lock lock(mutex);
  made.push_back(std::make_unique<Context>(Context{device, false}));
  *handle = reinterpret_cast<CUcontext>(made.back().get());
  lock.unlock();
  stack().push_back(*handle);
  return use_top();
}

}  // namespace

int current_device() { return stack().empty() ? -1 : context(stack().back())->device; }

CUcontext primary_context(int device) {
  static auto *all = [] {
    auto *contexts = new std::array<Context, most_devices>;
    for (size_t i = 0; i < most_devices; i++) (*contexts)[i] = {static_cast<int>(i), true};
    return contexts;
  }();
  return reinterpret_cast<CUcontext>(&all->at(static_cast<size_t>(device)));
}

bool is_device(CUdevice device) { return device >= 0 && device < emulator::device_count(); }

}  // namespace driver

using driver::is_device;

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  BEGIN(context, device);
  REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
  driver::retained[static_cast<size_t>(device)]++;
  *context = driver::primary_context(device);
  return driver::given(CUDA_SUCCESS, *context);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  BEGIN(device);
  REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
  auto &count = driver::retained[static_cast<size_t>(device)];
  REQUIRE(count > 0, CUDA_ERROR_INVALID_CONTEXT);
  count--;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  BEGIN(device, flags, active);
  REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
  *flags = 0;
  *active = driver::retained[static_cast<size_t>(device)] > 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  BEGIN(device, flags);
  return is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuCtxCreate(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device) {
  BEGIN(context, parameters, flags, device);
  return driver::create(context, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
  BEGIN(context, flags, device);
  return driver::create(context, device);
}

CUresult cuCtxDestroy(CUcontext handle) {
  BEGIN(handle);
  auto &stack = driver::stack();
  REQUIRE(driver::exists(handle) && !driver::context(handle)->primary, CUDA_ERROR_INVALID_CONTEXT);
  if (!stack.empty() && stack.back() == handle) stack.pop_back();
  std::lock_guard lock(driver::mutex);
  std::erase_if(driver::made, [&](auto &known) { return known.get() == driver::context(handle); });
  return driver::use_top();
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  BEGIN(context);
  *context = driver::stack().empty() ? nullptr : driver::stack().back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  BEGIN(context);
  REQUIRE(context == nullptr || driver::exists(context), CUDA_ERROR_INVALID_CONTEXT);
  if (!driver::stack().empty()) driver::stack().pop_back();
  if (context != nullptr) driver::stack().push_back(context);
  return driver::use_top();
}

CUresult cuCtxPushCurrent(CUcontext context) {
  BEGIN(context);
  REQUIRE(driver::exists(context), CUDA_ERROR_INVALID_CONTEXT);
  driver::stack().push_back(context);
  return driver::use_top();
}

CUresult cuCtxPopCurrent(CUcontext *context) {
  BEGIN_IN_CONTEXT(context);
  if (context != nullptr) *context = driver::stack().back();
  driver::stack().pop_back();
  return driver::use_top();
}

CUresult cuCtxGetDevice(CUdevice *device) {
  BEGIN_IN_CONTEXT(device);
  *device = driver::current_device();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned *flags) {
  BEGIN_IN_CONTEXT(flags);
  *flags = 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
  BEGIN(context, version);
  REQUIRE(context == nullptr || driver::exists(context), CUDA_ERROR_INVALID_CONTEXT);
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  BEGIN_IN_CONTEXT();
  return driver::result(emulator::device_synchronize());
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  BEGIN_IN_CONTEXT(least, greatest);
  if (least != nullptr) *least = driver::least_priority;
  if (greatest != nullptr) *greatest = driver::greatest_priority();
  skin::record("->", driver::least_priority, driver::greatest_priority());
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  BEGIN_IN_CONTEXT(peer, flags);
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(driver::exists(peer), CUDA_ERROR_INVALID_CONTEXT);
  return driver::result(emulator::enable_peer_access(driver::context(peer)->device));
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  BEGIN_IN_CONTEXT(peer);
  REQUIRE(driver::exists(peer), CUDA_ERROR_INVALID_CONTEXT);
  return driver::result(emulator::disable_peer_access(driver::context(peer)->device));
}

}  // extern "C"
