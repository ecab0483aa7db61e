// What the happens-before checker has found: merged and bounded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "history.hpp"

namespace emulator {

struct Allocation {
  Span span;  // as it was allocated; a part of it may have another name since
  std::string what;
  std::string previous;  // what had the memory before
  uint64_t serial;       // operations with a lower one belong to what had the memory before
};

// Report is a conflict of two accesses, and how often it was met.
struct Report {
  struct Side {
    Agent agent;
    std::string agent_name, what;
    bool writes;
  };
  Side earlier, later;
  Span where;         // of the first of these times
  std::string place;  // the same as an offset in its allocation
  std::string missing;
  size_t times;

  std::string text() const;
};

class Reports {
 public:
  explicit Reports(size_t limit) : limit_(limit) {}

  // Adds a conflict, or counts it where one between the same operations of the same agents is there.
  void add(const Operation &earlier, bool earlier_writes, const Operation &later, bool later_writes, Span where,
           const Allocation *allocation);
  size_t count() const { return list_.size() + omitted_; }
  std::string text() const;
  const std::vector<Report> &list() const { return list_; }
  void clear();

 private:
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  struct Known {
    size_t index;
    uint64_t earlier, later;  // the last two operations, which may conflict in several pieces
  };

  size_t limit_;
  size_t omitted_ = 0;
  std::vector<Report> list_;
  std::map<Key, Known> known_;
};

}  // namespace emulator
