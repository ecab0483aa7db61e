// The happens-before checker: reports accesses of the same memory that nothing orders, whatever order they ran in.
//
// Points are ordered by vector clocks that are taken when calls are made, so a report depends on the order of calls and
// not on the schedule. A point is one step of an agent (a host thread or a stream). The core
// - adds an agent for each host thread and each stream, and retires it;
// - for each operation on a stream: order(stream, now(thread)), order(stream, clock of what else it waits for),
//   at = step(stream), access(stream, at, ...);
// - for an event: keeps now(stream) at the record; a stream wait is order(stream, clock), a host wait that ended or a
//   query that gave "complete" is order(thread, clock);
// - for write value: at = step(stream), publish(flag, value, stream, at); for wait value: step(stream), then
//   wait = await(flag, condition, stream), and settle(wait) when the wait is satisfied.
// Flag words take part in publish, observe and await only; their accesses are atomic and never conflict.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "clock.hpp"
#include "history.hpp"
#include "reports.hpp"

namespace emulator {

// A thread acts of itself. A stream acts only when a thread enqueues something: each of its steps comes after a step of
// a living thread, so what all threads know is known to every later step of a stream.
enum class Kind { thread, stream };

class Checker {  // thread-safe; calls no other part of the emulator
 public:
  // Keeps that many different reports; what is beyond is counted only.
  explicit Checker(size_t limit = 100);

  // A new thread comes after everything that all living threads come after: nothing else is known about its start.
  Agent add(std::string name, Kind kind = Kind::thread);
  // The agent does nothing more; what it did stays. Its number is given to another one when nothing refers to it.
  // Requires: its work is done (a stream that was destroyed retires when its queue is empty).
  void retire(Agent agent);

  // A new point in the agent's own order; returns its clock.
  Clock step(Agent agent);
  // The agent's last point, and what it was ordered after since.
  Clock now(Agent agent) const;
  // Everything that `later` does from here on comes after `earlier`.
  void order(Agent later, const Clock &earlier);

  // Records one operation at the point `at` of `agent`; conflicts with unordered earlier accesses become reports.
  // Requires: no other operation has this point. If it is not the agent's newest one (a host function that tells of its
  // accesses when it runs), a conflict may be missed, but none is invented.
  void access(Agent agent, const Clock &at, const std::string &what, const std::vector<Span> &reads,
              const std::vector<Span> &writes);

  // Later reports name the allocation. Earlier accesses of the range stay: a later access that does not come after them
  // is reported as a reuse. If `by` is given, those that its last point does not come after are reported now, and all
  // are forgotten.
  void allocate(Span span, std::string what);
  void allocate(Span span, std::string what, Agent by);
  // Forgets the name, the accesses and the flag words of the range. If `by` is given, accesses and waits that its last
  // point does not come after are reported.
  void release(Span span);
  void release(Span span, Agent by);

  // `writer` writes a flag word at the point `at`. Requires: `at` is the writer's newest step; the call precedes the
  // store, so that nobody can see the value before.
  void publish(uintptr_t flag, uint32_t value, Agent writer, const Clock &at);
  // `reader` read this value: it comes after its writer.
  void observe(uintptr_t flag, uint32_t value, Agent reader);
  // `waiter` goes on when the flag has a value that satisfies the condition: it comes after the earliest write of such
  // a value that may still be there (after what is common to them, if several writers have no order), or else after the
  // first later one. Conflicts of what is behind the wait are decided when that is known.
  // Requires: `condition` depends on its argument only.
  std::shared_ptr<Wait> await(uintptr_t flag, std::function<bool(uint32_t)> condition, Agent waiter);
  // The wait was satisfied. If nobody published the value, it comes after what release_key() was told for the flag.
  void settle(const std::shared_ptr<Wait> &wait);

  // What comes before `at` comes before everything that an agent does after a later acquire_key() of the same key. For
  // a write value that was carried out the core calls release_key() with the flag as the key and the point of the
  // write.
  void release_key(uintptr_t key, const Clock &at);
  void acquire_key(uintptr_t key, Agent agent);

  // The number of different conflicts (beyond the limit: of all conflicts).
  size_t count() const;
  std::vector<Report> reports() const;
  std::string text() const;
  // Forgets all reports and all accesses; agents, their order, allocations and flags stay.
  void reset();

  // What is kept, for tests of its bounds.
  struct Usage {
    size_t agents, cells, flags, keys, undecided;
  };
  Usage usage() const;
  // Drops what can conflict with nothing any more. Called by the other functions as memory grows.
  void prune();

 private:
  struct AgentState {
    std::shared_ptr<const std::string> name;
    Kind kind = Kind::thread;
    bool live = false;
    Clock clock;
    uint64_t step = 0;  // goes on from one agent with this number to the next
  };
  struct Publication {
    uint32_t value;
    Agent writer;  // everybody: all threads come after it, its clock is not needed
    uint64_t step;
    Clock clock;
  };
  struct Flag {
    std::vector<Publication> history;          // in the order of the calls
    std::vector<std::shared_ptr<Wait>> waits;  // unresolved
  };
  struct Named {
    uintptr_t end;
    Allocation allocation;
  };
  // A conflict that an unresolved wait may still order.
  struct Undecided {
    OperationPointer earlier, later;
    bool earlier_writes, later_writes;
    Span where;
  };
  static constexpr Agent everybody = -1;
  static constexpr size_t longest_history = 64;      // of a flag; older values are forgotten
  static constexpr size_t most_undecided = 1 << 13;  // older conflicts are forgotten

  Clock floor() const;
  void prune_locked();
  void prune_if_grown();
  void recycle();
  OperationPointer operation(Agent agent, const Clock &at, std::string what);
  void conflict(const OperationPointer &earlier, bool earlier_writes, const OperationPointer &later, bool later_writes,
                Span where);
  void report(const Undecided &pair);
  const Allocation *allocation_of(uintptr_t address) const;
  std::string unname(Span span);
  void allocate_locked(Span span, std::string what);
  void release_locked(Span span);
  void check_end(Span span, Agent by, const std::string &what);

  // Waits; in waits.cpp.
  void expand(Clock &clock) const;
  bool overwritten(Flag &flag, size_t index, const Clock &at) const;
  std::optional<Clock> common(Flag &flag, const std::function<bool(uint32_t)> &condition, const Clock &at) const;
  void resolve(const std::shared_ptr<Wait> &wait, const Clock &clock);
  void decide();
  void prune_flags(const Clock &floor);

  mutable std::mutex mutex_;
  mutable std::vector<AgentState> agents_;  // by number; clocks are expanded when they are looked at
  std::vector<Agent> retired_, free_;
  History history_;
  std::map<uintptr_t, Named> allocations_;  // by first address; they do not overlap
  std::map<uintptr_t, Flag> flags_;
  std::map<uintptr_t, Clock> keys_;
  std::vector<Undecided> undecided_;
  Reports reports_;
  uint64_t serial_ = 0;
  size_t prune_at_ = smallest_prune, recycle_at_ = smallest_recycle;
  static constexpr size_t smallest_prune = 1024, smallest_recycle = 16;
};

}  // namespace emulator
