// compat.hpp adapts the shim to the torch version that it is built for, by looking at the headers rather than at a
// version number. Virtual functions that only some versions have are declared without `override` in the classes that
// implement them: they override if the base class declares them.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

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

} // namespace sagecomm
