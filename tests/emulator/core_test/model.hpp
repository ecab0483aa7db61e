// What the checker's tests have in common: agents that do one thing a line.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "../core/checker.hpp"

namespace emulator_test {

using emulator::Agent;
using emulator::Checker;
using emulator::Clock;
using emulator::Kind;
using emulator::Span;

// Actor is an agent that acts at the newest point of the test's order of calls.
struct Actor {
  Checker &checker;
  Agent agent;

  Actor(Checker &owner, std::string name, Kind kind = Kind::thread)
      : checker(owner), agent(owner.add(std::move(name), kind)) {}

  Clock now() const { return checker.now(agent); }
  Clock step() const { return checker.step(agent); }
  void after(const Clock &clock) const { checker.order(agent, clock); }
  void read(Span span, const std::string &what) const { checker.access(agent, step(), what, {span}, {}); }
  void write(Span span, const std::string &what) const { checker.access(agent, step(), what, {}, {span}); }
  void publish(uintptr_t flag, uint32_t value) const { checker.publish(flag, value, agent, step()); }
  auto await(uintptr_t flag, uint32_t value) const {
    step();
    return checker.await(flag, [value](uint32_t v) { return static_cast<int32_t>(v - value) >= 0; }, agent);
  }
};

inline bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

}  // namespace emulator_test
