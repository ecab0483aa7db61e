// ephemeral_timeout.hpp keeps the time that torch's addEphemeralTimeout() adds to the timeouts of a group for a while.
// The extra time counts for every operation that is issued after the call, until the first of them has completed.
// Several calls add up, and each expires by itself. Any thread may add, take or end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

namespace sagecomm {

// The ephemeral timeout of one group. Works share it, because they may outlive the group.
class EphemeralTimeout {
 public:
  // The extra time of one operation. The operation owns the part of it that was added since the operation before: that
  // part expires when the operation ends. A Share that is destroyed without end() belongs to an operation that was never
  // issued; the next operation then owns its part.
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
    // Expires the part that the operation owns. Called once the operation has ended.
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
    int64_t owned_ = 0; // milliseconds
  };

  void add(std::chrono::milliseconds extra) {
    std::lock_guard<std::mutex> lock(mutex_);
    active_.store(active_.load() + extra.count());
  }
  // Returns the Share of an operation that is issued now. The Share must not outlive this object.
  Share take() {
    if (active_.load(std::memory_order_relaxed) == 0) {
      return {};
    }
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t before = std::exchange(owned_, active_.load());
    return {*this, owned_, owned_ - before};
  }

 private:
  void end(int64_t owned) {
    std::lock_guard<std::mutex> lock(mutex_);
    active_.store(active_.load() - owned);
    owned_ -= owned;
  }
  void putBack(int64_t owned) {
    std::lock_guard<std::mutex> lock(mutex_);
    owned_ -= owned;
  }

  std::mutex mutex_;
  std::atomic<int64_t> active_{0}; // milliseconds that count now; changed under mutex_
  int64_t owned_ = 0; // the part of active_ that some operation owns; guarded by mutex_
};

} // namespace sagecomm
