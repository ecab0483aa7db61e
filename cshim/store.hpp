// store.hpp shows torch's key-value store to the core during group_create(). lasting_store.hpp does so for as long as a group lives.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sagecomm.h"

namespace sagecomm {

// StoreView lends a c10d::Store to the core. The core calls it without the GIL, on any of its threads; a store that is
// written in Python takes the GIL by itself. It must outlive the group_create() call that it is given to.
class StoreView {
 public:
  // `interrupted`, unless it is null, ends waits for keys once it is true. Writing goes on.
  explicit StoreView(c10::intrusive_ptr<c10d::Store> store, const std::atomic<bool>* interrupted = nullptr);
  StoreView(const StoreView&) = delete;
  StoreView& operator=(const StoreView&) = delete;

  const sagecomm_store* view() const {
    return &view_;
  }

  // Returns the exception that a signal handler raised while the core waited for a key, null if none did. Callers raise it
  // instead of the core's report that the store failed.
  std::exception_ptr raised() const {
    return raised_;
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
  const std::atomic<bool>* const interrupted_; // null: nothing interrupts it
  sagecomm_store view_;
  std::exception_ptr raised_; // written by the main thread only
};

} // namespace sagecomm
