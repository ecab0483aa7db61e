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
  Clock clock;                                    // kept only while it has unresolved waits
};
using OperationPointer = std::shared_ptr<Operation>;

// History is a map from address ranges to the accesses that a later access may conflict with. An access that comes before
// a kept one that conflicts with at least as much is dropped: whoever is unordered to the dropped one is unordered to the
// kept one too, so no conflict is lost.
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
  // Drops what the condition holds for, joins equal neighbours, and returns the agents of what is left.
  std::vector<bool> prune(const std::function<bool(const Operation &)> &condition);

  size_t size() const { return cells_.size(); }

 private:
  struct Cell {
    uintptr_t end = 0;
    std::vector<OperationPointer> reads, writes;
  };
  using Cells = std::map<uintptr_t, Cell>;  // by first address; cells do not overlap

  void split(uintptr_t address);
  static void replace(std::vector<OperationPointer> &list, const Operation &by, const Clock &at);

  Cells cells_;
};

}  // namespace emulator
