// store.hpp: torch's key-value store as the core sees it during group_create().
#pragma once

#include <atomic>
#include <exception>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sagecomm.h"

namespace sagecomm {

// Lends a c10d::Store to the core. Its callbacks run without the GIL, on any thread of the core; a store that is
// written in Python takes the GIL by itself. Must outlive the group_create() call it is given to.
class StoreView {
 public:
  // `ended`, unless it is null, ends the waits for keys; what is written still is.
  explicit StoreView(c10::intrusive_ptr<c10d::Store> store, const std::atomic<bool>* ended = nullptr);
  StoreView(const StoreView&) = delete;
  StoreView& operator=(const StoreView&) = delete;

  const sagecomm_store* view() const {
    return &view_;
  }

  // The exception that a signal handler raised while the core waited for a key, null if none did. It outranks the
  // core's own report that the store failed.
  std::exception_ptr interrupted() const {
    return interrupted_;
  }

 private:
  using Sink = void (*)(void* ctx, const void* data, size_t n);

  static int32_t set(void* ctx, const char* key, const void* data, size_t n, char* why, size_t whyN) noexcept;
  static int32_t get(
      void* ctx, const char* key, int64_t timeoutNs, void* sinkCtx, Sink sink, char* why, size_t whyN) noexcept;

  void keepInterrupt() noexcept;
  int32_t waitFor(const std::string& key, int64_t timeoutNs, char* why, size_t whyN);

  c10::intrusive_ptr<c10d::Store> store_;
  const std::atomic<bool>* const ended_;
  sagecomm_store view_;
  std::exception_ptr interrupted_; // written by the main thread only
};

} // namespace sagecomm
