// store.hpp shows torch's key-value store to the core during group_create(). lasting_store.hpp does so for as long as a group lives.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sagecomm.h"

namespace sagecomm {

// Interruption is what ends the waits of a group_create() call in the store. All views of the store share it.
struct Interruption {
  const std::atomic<bool>* flag = nullptr; // ends them once it is true; null: nothing does
  std::exception_ptr raised; // by a signal handler during a wait; written by the main thread only

  // Returns why the call is to end, null if it is not.
  const char* reason() const {
    if (raised) {
      return "interrupted by a signal";
    }
    return flag != nullptr && flag->load() ? "abort() or shutdown() was called" : nullptr;
  }
};

// StoreView lends a c10d::Store to the core. The core calls it without the GIL, on any of its threads; a store that is
// written in Python takes the GIL by itself. It must outlive the group_create() call that it is given to.
class StoreView {
 public:
  // The interruption ends waits for keys, and outlives the view. Writing goes on. Callers raise what a signal handler raised instead of the
  // core's report that the store failed.
  StoreView(c10::intrusive_ptr<c10d::Store> store, Interruption& interruption);
  StoreView(const StoreView&) = delete;
  StoreView& operator=(const StoreView&) = delete;

  const sagecomm_store* view() const {
    return &view_;
  }

 private:
  using Sink = void (*)(void* ctx, const void* data, size_t n);

  static int32_t set(void* ctx, const char* key, const void* data, size_t n, char* why, size_t whyN) noexcept;
  static int32_t get(
      void* ctx, const char* key, int64_t timeoutNs, void* sinkCtx, Sink sink, char* why, size_t whyN) noexcept;

  static int32_t getMany(
      void* ctx,
      const char* const* keys,
      size_t n,
      int64_t timeoutNs,
      void* sinkCtx,
      Sink sink,
      char* why,
      size_t whyN) noexcept;

  void keepRaised() noexcept;
  int32_t waitFor(const std::vector<std::string>& keys, int64_t timeoutNs, char* why, size_t whyN);

  c10::intrusive_ptr<c10d::Store> store_;
  Interruption& interruption_;
  sagecomm_store view_;
};

} // namespace sagecomm
