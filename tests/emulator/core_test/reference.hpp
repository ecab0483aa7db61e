// The checker's rules once more, without clocks: what comes before a point is a set of points, nothing is ever dropped, and
// conflicts are decided at the end. Slow and small; for histories of a few hundred points.
#pragma once
#include <bitset>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace emulator_test {

constexpr size_t most_points = 1024;
using Points = std::bitset<most_points>;
using Bytes = uint32_t;  // of a memory of 32 bytes

// Knowledge is what comes before a point: points, and what the satisfaction of waits comes after.
struct Knowledge {
  Points points;
  std::set<size_t> waits;

  void join(const Knowledge &other) {
    points |= other.points;
    waits.insert(other.waits.begin(), other.waits.end());
  }
  void meet(const Knowledge &other) {
    points &= other.points;
    std::erase_if(waits, [&](size_t wait) { return !other.waits.count(wait); });
  }
};

class Reference {
 public:
  size_t add(bool thread) {
    Agent agent{thread, true, {}};
    if (thread) agent.knowledge = known_to_all_threads();
    agents_.push_back(agent);
    return agents_.size() - 1;
  }
  void retire(size_t agent) { agents_[agent].live = false; }

  // A new point; `point` is its number.
  Knowledge step(size_t agent, size_t *point) {
    *point = points_++;
    agents_[agent].knowledge.points.set(*point);
    return agents_[agent].knowledge;
  }
  const Knowledge &now(size_t agent) const { return agents_[agent].knowledge; }
  void order(size_t later, const Knowledge &earlier) { agents_[later].knowledge.join(earlier); }

  void access(size_t operation, size_t point, const Knowledge &at, Bytes reads, Bytes writes) {
    const Access later{operation, point, at, reads, writes};
    for (const Access &earlier : accesses_) {
      const Bytes bytes = (earlier.writes & (reads | writes)) | (earlier.reads & writes);
      if (bytes) pairs_.push_back({earlier, later, bytes});
    }
    accesses_.push_back(later);
  }

  // Takes bytes away; adds to `users` the operations that still use them.
  void release(Bytes bytes, size_t agent, std::set<size_t> *users) {
    const Points before = closure(agents_[agent].knowledge).points;
    for (Access &access : accesses_) {
      if (((access.reads | access.writes) & bytes) && !before.test(access.point)) users->insert(access.operation);
      access.reads &= ~bytes;
      access.writes &= ~bytes;
    }
  }

  void publish(size_t flag, uint32_t value, size_t point, const Knowledge &at) {
    const Knowledge before = closure(at);
    flags_[flag].push_back({value, point, at});
    for (size_t i = 0; i < waits_.size(); i++)
      if (!waits_[i].resolved && waits_[i].flag == flag && waits_[i].condition(value) && !before.waits.count(i))
        resolve(i, at);
  }

  void observe(size_t flag, uint32_t value, size_t agent) {
    Knowledge common;
    if (common_to(flag, [value](uint32_t v) { return v == value; }, agent, &common)) order(agent, common);
  }

  // Returns the number of the wait.
  size_t await(size_t flag, std::function<bool(uint32_t)> condition, size_t agent) {
    Knowledge common;
    const bool there = common_to(flag, condition, agent, &common);
    waits_.push_back({flag, std::move(condition), there, {}});
    if (there)
      order(agent, common);
    else
      agents_[agent].knowledge.waits.insert(waits_.size() - 1);
    return waits_.size() - 1;
  }

  void settle(size_t wait) {
    if (waits_[wait].resolved) return;
    const Knowledge key = keys_[waits_[wait].flag];
    resolve(wait, closure(key).waits.count(wait) ? Knowledge() : key);
  }

  void release_key(size_t key, const Knowledge &at) { keys_[key].join(at); }
  void acquire_key(size_t key, size_t agent) { order(agent, keys_[key]); }

  // The conflicts: operations without an order, and the bytes that both use. Requires: all waits are settled.
  std::map<std::pair<size_t, size_t>, Bytes> conflicts() const {
    std::map<std::pair<size_t, size_t>, Bytes> found;
    for (const auto &[earlier, later, bytes] : pairs_) {
      if (closure(later.at).points.test(earlier.point) || closure(earlier.at).points.test(later.point)) continue;
      found[{earlier.operation, later.operation}] |= bytes;
    }
    return found;
  }

 private:
  struct Agent {
    bool thread, live;
    Knowledge knowledge;
  };
  struct Access {
    size_t operation, point;
    Knowledge at;
    Bytes reads, writes;
  };
  struct Pair {
    Access earlier, later;
    Bytes bytes;
  };
  struct Wait {
    size_t flag;
    std::function<bool(uint32_t)> condition;
    bool resolved;
    Knowledge source;
  };
  struct Publication {
    uint32_t value;
    size_t point;
    Knowledge at;
  };

  // Replaces resolved waits by what they come after.
  Knowledge closure(const Knowledge &knowledge) const {
    Knowledge all;
    all.points = knowledge.points;
    std::set<size_t> seen;
    std::vector<size_t> open(knowledge.waits.begin(), knowledge.waits.end());
    while (!open.empty()) {
      const size_t wait = open.back();
      open.pop_back();
      if (!seen.insert(wait).second) continue;
      if (!waits_[wait].resolved) {
        all.waits.insert(wait);
        continue;
      }
      all.points |= waits_[wait].source.points;
      open.insert(open.end(), waits_[wait].source.waits.begin(), waits_[wait].source.waits.end());
    }
    return all;
  }

  void resolve(size_t wait, const Knowledge &source) {
    waits_[wait].resolved = true;
    waits_[wait].source = source;
  }

  Knowledge known_to_all_threads() const {
    Knowledge known;
    bool first = true;
    for (const Agent &agent : agents_) {
      if (!agent.thread || !agent.live) continue;
      const Knowledge knowledge = closure(agent.knowledge);
      if (first)
        known = knowledge;
      else
        known.meet(knowledge);
      first = false;
    }
    return known;
  }

  bool common_to(size_t flag, const std::function<bool(uint32_t)> &condition, size_t agent, Knowledge *common) const {
    const auto found = flags_.find(flag);
    if (found == flags_.end()) return false;
    const auto &history = found->second;
    const Points before = closure(agents_[agent].knowledge).points;
    bool any = false;
    for (size_t i = 0; i < history.size(); i++) {
      bool possible = condition(history[i].value);
      for (size_t j = i + 1; j < history.size() && possible; j++)
        possible = !closure(history[j].at).points.test(history[i].point) || !before.test(history[j].point);
      if (!possible) continue;
      const Knowledge source = closure(history[i].at);
      if (any)
        common->meet(source);
      else
        *common = source;
      any = true;
    }
    return any;
  }

  size_t points_ = 0;
  std::vector<Agent> agents_;
  std::vector<Access> accesses_;
  std::vector<Pair> pairs_;
  std::vector<Wait> waits_;
  std::map<size_t, std::vector<Publication>> flags_;
  std::map<size_t, Knowledge> keys_;
};

}  // namespace emulator_test
