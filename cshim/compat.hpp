// compat.hpp adapts the shim to the torch version that it is built for, by looking at the headers rather than at a
// version number. Virtual functions that only some versions have are declared without `override` in the classes that
// implement them: they override if the base class declares them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace c10d {
struct CompletionHookArgs; // stays incomplete where torch's headers do not define it
} // namespace c10d

namespace sagecomm {

using TorchCompletionHook = std::function<void(const c10d::CompletionHookArgs&)>;

// CompletionHooks says whether this torch has completion hooks, and calls one.
template <class Args, class = void>
struct CompletionHooks {
  static constexpr bool kKnown = false;
  static void call(const std::function<void(const Args&)>& /*hook*/, uint64_t /*key*/, std::optional<float> /*ms*/) {
  }
};
template <class Args>
struct CompletionHooks<Args, std::void_t<decltype(Args::completionKey), decltype(Args::duration_ms)>> {
  static constexpr bool kKnown = true;
  static void call(const std::function<void(const Args&)>& hook, uint64_t key, std::optional<float> ms) {
    Args args;
    args.completionKey = key;
    args.duration_ms = ms;
    hook(args);
  }
};

template <class T, class = void>
struct HasEnableReconfigure : std::false_type {};
template <class T>
struct HasEnableReconfigure<T, std::void_t<decltype(std::declval<T&>().enable_reconfigure)>> : std::true_type {};

// Reports whether a group is to be made without members, for reconfigure().
template <class T>
bool wantsReconfigure(const T& opts) {
  if constexpr (HasEnableReconfigure<T>::value) {
    return opts.enable_reconfigure;
  } else {
    return false;
  }
}

template <class T, class = void>
struct HasAsyncOp : std::false_type {};
template <class T>
struct HasAsyncOp<T, std::void_t<decltype(std::declval<const T&>().asyncOp)>> : std::true_type {};

// Reports whether the caller wants a Work that completes later. Options of a torch without the field always mean that.
template <class T>
bool wantsAsync(const T& opts) {
  if constexpr (HasAsyncOp<T>::value) {
    return opts.asyncOp;
  } else {
    return true;
  }
}

template <class T, class = void>
struct HasAllGatherSingle : std::false_type {};
template <class T>
struct HasAllGatherSingle<T, std::void_t<decltype(&T::all_gather_single)>> : std::true_type {};

// Gathers tensors of one shape into one, under the name that this torch has for it.
template <class Group>
c10::intrusive_ptr<c10d::Work> allGatherSingle(
    Group& group, at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  if constexpr (HasAllGatherSingle<Group>::value) {
    return group.all_gather_single(output, input, options);
  } else {
    return group._allgather_base(output, input, options);
  }
}

template <class T, class = void>
struct HasIsCapturing : std::false_type {};
template <class T>
struct HasIsCapturing<T, std::void_t<decltype(std::declval<const T&>().is_capturing())>> : std::true_type {};

template <class T>
using PerDeviceType = std::array<T, static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)>;

// Capture is whether a stream is being captured into a graph.
enum class Capture { kNo, kYes, kUnknown };

// Returns what torch knows of a stream. Some minors do not ask, and where the device's guard does not know, one raises and later
// ones answer "no". So only CUDA's guard, which asks its runtime, is believed when it says "no".
template <class Stream>
Capture captureOf(const Stream& stream) {
  if constexpr (HasIsCapturing<Stream>::value) {
    static PerDeviceType<std::atomic<bool>> all{}; // asking such a device raises each time, which is slow
    std::atomic<bool>& raises = all[static_cast<size_t>(stream.device_type())];
    if (!raises.load(std::memory_order_relaxed)) {
      try {
        if (stream.is_capturing()) {
          return Capture::kYes;
        }
        return stream.device_type() == c10::DeviceType::CUDA ? Capture::kNo : Capture::kUnknown;
      } catch (const c10::AcceleratorError&) { // the device is out of order
        throw;
      } catch (const c10::Error&) {
        raises.store(true, std::memory_order_relaxed);
      }
    }
  }
  return Capture::kUnknown;
}

template <class T, class = void>
struct HasNativeHandle : std::false_type {};
template <class T>
struct HasNativeHandle<T, std::void_t<decltype(std::declval<const T&>().native_handle())>> : std::true_type {};

// Returns the stream as the device's runtime names it, null where torch cannot tell.
template <class Stream>
void* nativeHandle(const Stream& stream) {
  if constexpr (HasNativeHandle<Stream>::value) {
    static PerDeviceType<std::atomic<bool>> all{}; // asking such a device raises each time, which is slow
    std::atomic<bool>& absent = all[static_cast<size_t>(stream.device_type())];
    if (absent.load(std::memory_order_relaxed)) {
      return nullptr;
    }
    try {
      return stream.native_handle();
    } catch (const c10::AcceleratorError&) { // the device is out of order
      throw;
    } catch (const c10::Error&) {
      absent.store(true, std::memory_order_relaxed);
    }
  }
  return nullptr;
}

} // namespace sagecomm
