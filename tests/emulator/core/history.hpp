// The last accesses of every byte, for the happens-before checker.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "clock.hpp"

namespace emulator {

struct Span {
  uintptr_t address;
  size_t length;

  uintptr_t end() const { return length > UINTPTR_MAX - address ? UINTPTR_MAX : address + length; }
};

// Operation is one call of Checker::access: the `step`th point of an agent.
struct Operation {
  Agent agent = 0;
  uint64_t step = 0;
  uint64_t serial = 0;  // orders operations and allocations by their calls
  std::string what;
  std::shared_ptr<const std::string> agent_name;  // outlives the agent
  Clock clock;
};
using OperationPointer = std::shared_ptr<Operation>;

// History is a map from address ranges to the accesses that a later access may conflict with. An access is dropped when
// another one comes after it and conflicts with at least as much: who is unordered to the dropped one is unordered to
// the kept one too. So every access that has a conflict is reported, though not with each of its partners.
class History {
 public:
  // Called for each kept access that conflicts with a new one and that the new one does not come after.
  using Conflict = std::function<void(const OperationPointer &earlier, bool earlier_writes, Span where)>;

  // Records that `operation`, at the point `at`, reads or writes the range. Requires: `at` has no resolved waits.
  void access(const OperationPointer &operation, const Clock &at, bool write, Span span, const Conflict &conflict);
  // Calls `conflict` for each access of the range that `at` does not come after, and changes nothing.
  void visit(const Clock &at, Span span, const Conflict &conflict) const;
  void forget(Span span);
  void clear();
  // Drops the accesses that the condition holds for.
  void prune(const std::function<bool(const Operation &)> &condition);
  void each(const std::function<void(const Operation &)> &visitor) const;

  size_t size() const { return cells_.size(); }

 private:
  struct Cell {
    uintptr_t end = 0;
    std::vector<OperationPointer> reads, writes;
  };
  using Cells = std::map<uintptr_t, Cell>;  // by first address; cells do not overlap

  // Of the unordered accesses of a byte so many are kept, the newest ones: a bound of memory for programs that read one
  // byte with ever new threads.
  static constexpr size_t longest_list = 128;

  void split(uintptr_t address);
  void merge(uintptr_t begin, uintptr_t end);
  static void replace(std::vector<OperationPointer> &list, const Clock &at);

  Cells cells_;
};

}  // namespace emulator
