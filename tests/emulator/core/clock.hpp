// Vector clocks of the happens-before checker.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace emulator {

// Agent is a host thread or a stream: an index into a Clock.
using Agent = int;

// Wait is a stream's wait for a value of a flag word. Its writer may be unknown for a while: see Checker::await.
struct Wait;

// Clock tells what a point comes after: the first get(a) steps of every agent a, and all that the satisfaction of the
// unresolved waits comes after. A Clock is a plain value; Checker resolves its waits.
class Clock {
 public:
  uint64_t get(Agent agent) const { return static_cast<size_t>(agent) < steps_.size() ? steps_[agent] : 0; }

  void set(Agent agent, uint64_t step) {
    if (static_cast<size_t>(agent) >= steps_.size()) steps_.resize(agent + 1);
    steps_[agent] = step;
  }

  // The least clock that comes after both.
  void join(const Clock &other) {
    if (this == &other) return;
    if (other.steps_.size() > steps_.size()) steps_.resize(other.steps_.size());
    for (size_t i = 0; i < other.steps_.size(); i++) steps_[i] = std::max(steps_[i], other.steps_[i]);
    for (const auto &wait : other.waits_) add(wait);
  }

  // The greatest clock that comes before both.
  void meet(const Clock &other) {
    steps_.resize(std::min(steps_.size(), other.steps_.size()));
    for (size_t i = 0; i < steps_.size(); i++) steps_[i] = std::min(steps_[i], other.steps_[i]);
    std::erase_if(waits_, [&](const auto &wait) { return !other.contains(wait); });
  }

  // Reports whether everything in this clock is in the other: this point comes before that one, or is the same.
  bool before(const Clock &other) const {
    for (size_t i = 0; i < steps_.size(); i++)
      if (steps_[i] > other.get(static_cast<Agent>(i))) return false;
    return waits_within(other);
  }

  // The number of agents that have a place in this clock.
  size_t size() const { return steps_.size(); }

  const std::vector<std::shared_ptr<Wait>> &waits() const { return waits_; }
  bool contains(const std::shared_ptr<Wait> &wait) const {
    return std::find(waits_.begin(), waits_.end(), wait) != waits_.end();
  }
  bool waits_within(const Clock &other) const {
    return std::all_of(waits_.begin(), waits_.end(), [&](const auto &wait) { return other.contains(wait); });
  }
  void add(const std::shared_ptr<Wait> &wait) {
    if (!contains(wait)) waits_.push_back(wait);
  }
  std::vector<std::shared_ptr<Wait>> take_waits() { return std::exchange(waits_, {}); }

 private:
  std::vector<uint64_t> steps_;
  std::vector<std::shared_ptr<Wait>> waits_;
};

}  // namespace emulator
