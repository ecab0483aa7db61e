// compat.hpp: what differs between the torch versions that the shim is built for, found by looking at the headers
// rather than at a version number. Virtual functions that only some versions have are declared without `override` in
// the classes that implement them: they override where there is something to override.
#pragma once

#include <type_traits>
#include <utility>

namespace sagecomm {

template <class T, class = void>
struct HasAsyncOp : std::false_type {};
template <class T>
struct HasAsyncOp<T, std::void_t<decltype(std::declval<const T&>().asyncOp)>> : std::true_type {};

// Whether the caller wants a Work that completes later. Options without the field always did.
template <class T>
bool wantsAsync(const T& opts) {
  if constexpr (HasAsyncOp<T>::value) {
    return opts.asyncOp;
  } else {
    return true;
  }
}

} // namespace sagecomm
