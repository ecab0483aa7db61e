// The part of the happens-before checker that orders agents by flag words and by keys.
#include <algorithm>
#include <utility>

#include "checker.hpp"
#include "wait.hpp"

namespace emulator {

using Lock = std::lock_guard<std::mutex>;

// Replaces resolved waits by what they come after. Ends, because resolved waits form no cycle: see publish().
void Checker::expand(Clock &clock) const {
  if (clock.waits().empty()) return;
  auto open = clock.take_waits();
  std::vector<std::shared_ptr<Wait>> seen;
  while (!open.empty()) {
    auto wait = std::move(open.back());
    open.pop_back();
    if (!wait->resolved) {
      clock.add(wait);
      continue;
    }
    if (std::find(seen.begin(), seen.end(), wait) != seen.end()) continue;
    Clock satisfaction = wait->clock;
    for (auto &inner : satisfaction.take_waits()) open.push_back(std::move(inner));
    clock.join(satisfaction);
    seen.push_back(std::move(wait));
  }
}

// Reports whether a later value has replaced this one before the point.
bool Checker::overwritten(Flag &flag, size_t index, const Clock &at) const {
  const Publication &old = flag.history[index];
  for (size_t i = index + 1; i < flag.history.size(); i++) {
    Publication &next = flag.history[i];
    expand(next.clock);
    const bool after = old.writer == everybody || next.clock.get(old.writer) >= old.step;
    const bool seen = next.writer == everybody || at.get(next.writer) >= next.step;
    if (after && seen) return true;
  }
  return false;
}

// Returns what comes before all satisfying values that may still be in the flag after the point; nothing if there are
// none.
std::optional<Clock> Checker::common(Flag &flag, const std::function<bool(uint32_t)> &condition,
                                     const Clock &at) const {
  std::optional<Clock> least;
  for (size_t i = 0; i < flag.history.size(); i++) {
    if (!condition(flag.history[i].value) || overwritten(flag, i, at)) continue;
    Clock &clock = flag.history[i].clock;
    expand(clock);
    if (least)
      least->meet(clock);
    else
      least = clock;
  }
  return least;
}

void Checker::publish(uintptr_t flag, uint32_t value, Agent writer, const Clock &at) {
  Lock lock(mutex_);
  Clock clock = at;
  expand(clock);
  Flag &state = flags_[flag];
  state.history.push_back({value, writer, at.get(writer), clock});
  if (state.history.size() > longest_history) state.history.erase(state.history.begin());
  std::vector<std::shared_ptr<Wait>> satisfied;
  std::erase_if(state.waits, [&](const auto &wait) {
    // A write behind the wait itself does not satisfy it. This also keeps resolved waits free of cycles.
    if (clock.contains(wait) || !wait->condition(value)) return false;
    satisfied.push_back(wait);
    return true;
  });
  for (const auto &wait : satisfied) resolve(wait, clock);
  if (!satisfied.empty()) decide();
  prune_if_grown();
}

void Checker::observe(uintptr_t flag, uint32_t value, Agent reader) {
  Lock lock(mutex_);
  auto state = flags_.find(flag);
  if (state == flags_.end()) return;
  Clock &clock = agents_.at(reader).clock;
  expand(clock);
  auto least = common(state->second, [&](uint32_t written) { return written == value; }, clock);
  if (least) clock.join(*least);
}

std::shared_ptr<Wait> Checker::await(uintptr_t flag, std::function<bool(uint32_t)> condition, Agent waiter) {
  Lock lock(mutex_);
  Clock &clock = agents_.at(waiter).clock;
  expand(clock);
  auto wait = std::make_shared<Wait>();
  wait->flag = flag;
  wait->waiter = operation(waiter, clock, "wait for a flag");
  wait->waiter->clock = Clock();  // or waits would keep each other
  Flag &state = flags_[flag];
  if (auto least = common(state, condition, clock)) {
    clock.join(*least);
    wait->resolved = true;
    return wait;
  }
  wait->condition = std::move(condition);
  clock.add(wait);
  state.waits.push_back(wait);
  prune_if_grown();
  return wait;
}

void Checker::settle(const std::shared_ptr<Wait> &wait) {
  Lock lock(mutex_);
  if (wait->resolved) return;
  auto flag = flags_.find(wait->flag);
  if (flag != flags_.end()) std::erase(flag->second.waits, wait);
  Clock clock;
  auto key = keys_.find(wait->flag);
  if (key != keys_.end()) {
    expand(key->second);
    if (!key->second.contains(wait)) clock = key->second;
  }
  resolve(wait, clock);
  decide();
}

// Requires: an expanded clock that does not contain the wait.
void Checker::resolve(const std::shared_ptr<Wait> &wait, const Clock &clock) {
  wait->resolved = true;
  wait->clock = clock;
  wait->condition = nullptr;
}

// Decides the conflicts whose waits are all resolved, and those that turn out to be ordered.
void Checker::decide() {
  std::erase_if(undecided_, [&](const Undecided &pair) {
    Operation &earlier = *pair.earlier, &later = *pair.later;
    expand(earlier.clock);
    expand(later.clock);
    if (later.clock.get(earlier.agent) >= earlier.step || earlier.clock.get(later.agent) >= later.step) return true;
    if (!earlier.clock.waits().empty() || !later.clock.waits().empty()) return false;
    report(pair);
    return true;
  });
}

void Checker::release_key(uintptr_t key, const Clock &at) {
  Lock lock(mutex_);
  Clock &clock = keys_[key];
  clock.join(at);
  expand(clock);
  prune_if_grown();
}

void Checker::acquire_key(uintptr_t key, Agent agent) {
  Lock lock(mutex_);
  auto found = keys_.find(key);
  if (found == keys_.end()) return;
  Clock &clock = agents_.at(agent).clock;
  clock.join(found->second);
  expand(clock);
}

// Values that all threads know to be overwritten cannot satisfy a later wait. The last value stays, without its clock
// when all threads come after it.
void Checker::prune_flags(const Clock &floor) {
  for (auto &[address, flag] : flags_) {
    for (size_t i = flag.history.size(); i-- > 0;)
      if (overwritten(flag, i, floor)) flag.history.erase(flag.history.begin() + static_cast<ptrdiff_t>(i));
    if (flag.history.size() != 1) continue;
    Publication &last = flag.history.front();
    if (last.writer == everybody || floor.get(last.writer) < last.step) continue;
    last = {last.value, everybody, 0, Clock()};
  }
}

}  // namespace emulator
