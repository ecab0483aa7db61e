#include "checker.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "wait.hpp"

namespace emulator {

using Lock = std::lock_guard<std::mutex>;

Checker::Checker(size_t limit) : reports_(limit) {}

// ---- agents

Agent Checker::add(std::string name, Kind kind) {
  Lock lock(mutex_);
  if (free_.empty() && retired_.size() >= recycle_at_) recycle();
  Agent agent;
  if (free_.empty()) {
    agent = static_cast<Agent>(agents_.size());
    agents_.emplace_back();
  } else {
    agent = free_.back();
    free_.pop_back();
  }
  Clock begin = kind == Kind::thread ? floor() : Clock();
  AgentState &state = agents_[agent];
  begin.set(agent, state.step);
  state = {std::make_shared<const std::string>(std::move(name)), kind, true, std::move(begin), state.step};
  return agent;
}

void Checker::retire(Agent agent) {
  Lock lock(mutex_);
  AgentState &state = agents_.at(agent);
  assert(state.live);
  state.live = false;
  state.clock = Clock();
  retired_.push_back(agent);
}

// Frees the numbers of retired agents that no access and no flag refers to. An older clock cannot mistake the next
// agent with the number for the old one, because steps go on.
void Checker::recycle() {
  prune_locked();
  std::vector<bool> used(agents_.size());
  history_.each([&](const Operation &operation) { used[operation.agent] = true; });
  for (const auto &pair : undecided_) used[pair.earlier->agent] = used[pair.later->agent] = true;
  for (const auto &[address, flag] : flags_) {
    for (const auto &publication : flag.history)
      if (publication.writer != everybody) used[publication.writer] = true;
    for (const auto &wait : flag.waits) used[wait->waiter->agent] = true;
  }
  std::erase_if(retired_, [&](Agent agent) {
    if (!used[agent]) free_.push_back(agent);
    return !used[agent];
  });
  recycle_at_ = std::max(smallest_recycle, 2 * retired_.size());
}

Clock Checker::step(Agent agent) {
  Lock lock(mutex_);
  AgentState &state = agents_.at(agent);
  assert(state.live);
  expand(state.clock);
  state.clock.set(agent, ++state.step);
  return state.clock;
}

Clock Checker::now(Agent agent) const {
  Lock lock(mutex_);
  AgentState &state = agents_.at(agent);
  expand(state.clock);
  return state.clock;
}

void Checker::order(Agent later, const Clock &earlier) {
  Lock lock(mutex_);
  AgentState &state = agents_.at(later);
  state.clock.join(earlier);
  expand(state.clock);
}

// What all living threads come after. Every later point of any agent comes after it.
Clock Checker::floor() const {
  Clock least;
  bool first = true;
  for (auto &state : agents_) {
    if (!state.live || state.kind != Kind::thread) continue;
    expand(state.clock);
    if (first)
      least = state.clock;
    else
      least.meet(state.clock);
    first = false;
  }
  return least;
}

void Checker::prune() {
  Lock lock(mutex_);
  prune_locked();
}

void Checker::prune_locked() {
  const Clock least = floor();
  history_.prune([&](const Operation &operation) { return least.get(operation.agent) >= operation.step; });
  prune_flags(least);
  for (auto &[key, clock] : keys_) expand(clock);
  std::erase_if(keys_, [&](const auto &key) {
    const auto flag = flags_.find(key.first);
    const bool needed = flag != flags_.end() && !flag->second.waits.empty();  // by settle(), for points of the past
    return !needed && key.second.before(least);
  });
  prune_at_ = std::max(smallest_prune, 2 * (history_.size() + flags_.size() + keys_.size()));
}

// The cost of pruning is spread over as many calls as have made the growth.
void Checker::prune_if_grown() {
  if (history_.size() + flags_.size() + keys_.size() > prune_at_) prune_locked();
}

Checker::Usage Checker::usage() const {
  Lock lock(mutex_);
  return {agents_.size(), history_.size(), flags_.size(), keys_.size(), undecided_.size()};
}

// ---- accesses

OperationPointer Checker::operation(Agent agent, const Clock &at, std::string what) {
  auto made = std::make_shared<Operation>();
  *made = {agent, at.get(agent), ++serial_, std::move(what), agents_.at(agent).name, at};
  expand(made->clock);
  return made;
}

void Checker::access(Agent agent, const Clock &at, const std::string &what, const std::vector<Span> &reads,
                     const std::vector<Span> &writes) {
  Lock lock(mutex_);
  const OperationPointer later = operation(agent, at, what);
  const Clock clock = later->clock;
  auto record = [&](const Span &span, bool write) {
    history_.access(later, clock, write, span, [&](const OperationPointer &earlier, bool earlier_writes, Span where) {
      conflict(earlier, earlier_writes, later, write, where);
    });
  };
  for (const Span &span : reads) record(span, false);
  for (const Span &span : writes) record(span, true);
  prune_if_grown();
}

// Requires: `later` does not come after `earlier` as far as it is known.
void Checker::conflict(const OperationPointer &earlier, bool earlier_writes, const OperationPointer &later,
                       bool later_writes, Span where) {
  expand(earlier->clock);
  if (earlier->agent == later->agent) return;                   // `later` was recorded late
  if (earlier->clock.get(later->agent) >= later->step) return;  // as above, or behind a wait that is resolved now
  const Undecided pair{earlier, later, earlier_writes, later_writes, where};
  if (earlier->clock.waits().empty() && later->clock.waits().empty()) {
    report(pair);
    return;
  }
  for (auto last = undecided_.rbegin(); last != undecided_.rend() && last->later == later; ++last)
    if (last->earlier == earlier) return;
  if (undecided_.size() == most_undecided)
    undecided_.erase(undecided_.begin(), undecided_.begin() + most_undecided / 2);
  undecided_.push_back(pair);
}

void Checker::report(const Undecided &pair) {
  reports_.add(*pair.earlier, pair.earlier_writes, *pair.later, pair.later_writes, pair.where,
               allocation_of(pair.where.address));
}

// ---- allocations

const Allocation *Checker::allocation_of(uintptr_t address) const {
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return nullptr;
  const Named &named = std::prev(next)->second;
  return address < named.end ? &named.allocation : nullptr;
}

// Takes the names of the range away, and returns the first of them. What is outside the range keeps its name.
std::string Checker::unname(Span span) {
  std::string name;
  auto named = allocations_.upper_bound(span.address);
  if (named != allocations_.begin()) --named;
  while (named != allocations_.end() && named->first < span.end()) {
    if (named->second.end <= span.address) {
      ++named;
      continue;
    }
    if (name.empty()) name = named->second.allocation.what;
    const uintptr_t begin = named->first;
    Named rest = std::move(named->second);
    named = allocations_.erase(named);
    if (begin < span.address) allocations_[begin] = {span.address, rest.allocation};
    if (rest.end > span.end()) allocations_[span.end()] = std::move(rest);
  }
  return name;
}

void Checker::allocate_locked(Span span, std::string what) {
  std::string previous = unname(span);
  if (span.length) allocations_[span.address] = {span.end(), {span, std::move(what), std::move(previous), ++serial_}};
}

void Checker::allocate(Span span, std::string what) {
  Lock lock(mutex_);
  allocate_locked(span, std::move(what));
}

void Checker::allocate(Span span, std::string what, Agent by) {
  Lock lock(mutex_);
  check_end(span, by, "allocation of " + what);
  history_.forget(span);
  allocate_locked(span, std::move(what));
}

void Checker::release_locked(Span span) {
  history_.forget(span);
  unname(span);
  flags_.erase(flags_.lower_bound(span.address), flags_.lower_bound(span.end()));
}

void Checker::release(Span span) {
  Lock lock(mutex_);
  release_locked(span);
}

void Checker::release(Span span, Agent by) {
  Lock lock(mutex_);
  const Allocation *allocation = allocation_of(span.address);
  check_end(span, by, "release of " + (allocation ? allocation->what : "memory"));
  release_locked(span);
}

// Reports what still uses the range when it is taken away. An access behind an unresolved wait is not ordered before.
void Checker::check_end(Span span, Agent by, const std::string &what) {
  AgentState &state = agents_.at(by);
  expand(state.clock);
  const OperationPointer end = operation(by, state.clock, what);
  history_.visit(state.clock, span, [&](const OperationPointer &earlier, bool writes, Span where) {
    report({earlier, end, writes, true, where});
  });
  for (auto flag = flags_.lower_bound(span.address); flag != flags_.end() && flag->first < span.end(); ++flag)
    for (const auto &wait : flag->second.waits)
      if (state.clock.get(wait->waiter->agent) < wait->waiter->step)
        report({wait->waiter, end, false, true, {flag->first, sizeof(uint32_t)}});
}

// ---- reports

size_t Checker::count() const {
  Lock lock(mutex_);
  return reports_.count();
}

std::vector<Report> Checker::reports() const {
  Lock lock(mutex_);
  return reports_.list();
}

std::string Checker::text() const {
  Lock lock(mutex_);
  return reports_.text();
}

void Checker::reset() {
  Lock lock(mutex_);
  reports_.clear();
  undecided_.clear();
  history_.clear();
}

}  // namespace emulator
