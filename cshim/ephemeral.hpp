// ephemeral.hpp: time that a group's operations are given on top of their timeout for a while. torch: it counts for all
// that is issued after the call, until the first of it has completed; several calls add up, and each expires by itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

namespace sagecomm {

// One group's. Shared with its Works, which may outlive it.
class EphemeralTimeout {
 public:
  // What an operation is given, and what of it ends with that operation: what was added since the one before it. If there
  // is no operation after all, the next one gets it.
  class Share {
   public:
    Share() = default;
    Share(EphemeralTimeout& from, int64_t extra, int64_t owned) : from_(&from), extra_(extra), owned_(owned) {
    }
    Share(Share&& other) noexcept : from_(other.from_), extra_(other.extra_), owned_(std::exchange(other.owned_, 0)) {
    }
    Share& operator=(Share&& other) noexcept {
      putBack();
      from_ = other.from_;
      extra_ = other.extra_;
      owned_ = std::exchange(other.owned_, 0);
      return *this;
    }
    ~Share() {
      putBack();
    }
    std::chrono::milliseconds extra() const {
      return std::chrono::milliseconds(extra_);
    }
    // The operation has ended.
    void end() {
      if (owned_ != 0) {
        from_->end(std::exchange(owned_, 0));
      }
    }

   private:
    void putBack() {
      if (owned_ != 0) {
        from_->putBack(std::exchange(owned_, 0));
      }
    }

    EphemeralTimeout* from_ = nullptr;
    int64_t extra_ = 0; // milliseconds
    int64_t owned_ = 0;
  };

  void add(std::chrono::milliseconds extra) {
    std::lock_guard<std::mutex> lock(mutex_);
    active_.store(active_.load() + extra.count());
  }
  // For an operation that is issued now. It must not outlive this object.
  Share take() {
    if (active_.load(std::memory_order_relaxed) == 0) {
      return {};
    }
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t before = std::exchange(inFlight_, active_.load());
    return {*this, inFlight_, inFlight_ - before};
  }

 private:
  void end(int64_t owned) {
    std::lock_guard<std::mutex> lock(mutex_);
    active_.store(active_.load() - owned);
    inFlight_ -= owned;
  }
  void putBack(int64_t owned) {
    std::lock_guard<std::mutex> lock(mutex_);
    inFlight_ -= owned;
  }

  std::mutex mutex_;
  std::atomic<int64_t> active_{0}; // milliseconds; changed under mutex_
  int64_t inFlight_ = 0; // what of it some operation owns
};

} // namespace sagecomm
