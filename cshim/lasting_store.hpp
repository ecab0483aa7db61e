// lasting_store.hpp shows torch's key-value store to the core for as long as a group lives.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sagecomm.h"
#include "store.hpp"

namespace sagecomm {

// LastingStore makes a clone of a c10d::Store for the core, which lasts as long as the group: another thread of the user's may wait in the
// store itself, and a TCPStore is locked meanwhile. All groups of the process share one connection to a TCPStore's server. It must outlive the
// group_create() call that it is given to; the clone outlives both.
class LastingStore {
 public:
  // prepare() begins the clone of a TCPStore, for which claim() waits. It waits itself for that of another store: within `timeout` and within
  // 10 s, and ends early at the interruption, which outlives this. The group may be made without the store then.
  LastingStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::nanoseconds timeout, Interruption& interruption);
  LastingStore(const LastingStore&) = delete;
  LastingStore& operator=(const LastingStore&) = delete;

  const sagecomm_lasting_store* view() const {
    return &view_;
  }

 private:
  using Sink = void (*)(void* ctx, const void* data, size_t n);
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  static int32_t prepare(void* ctx, void** claimer, char* why, size_t whyN) noexcept;
  static int32_t claim(
      void* claimer,
      const char* key,
      const void* data,
      size_t n,
      void* sinkCtx,
      Sink sink,
      char* why,
      size_t whyN) noexcept;
  static void release(void* claimer) noexcept;

  StorePtr cloneOf(const StorePtr& store);

  StorePtr store_;
  const std::chrono::steady_clock::time_point deadline_;
  Interruption& interruption_;
  sagecomm_lasting_store view_;
};

} // namespace sagecomm
