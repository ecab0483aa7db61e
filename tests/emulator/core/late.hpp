// late.hpp is for skins of libraries that may queue kernels behind an error, or make communicators that nobody waits for: the rule `late#N@MS` of
// a fault plan.
#pragma once

#include <optional>

namespace emulator {

// How a call does its work late.
struct Late {
  int code = 0;  // its result
  int ms = 0;
};

// Returns how late the call of this thread is that enter() has begun; nothing: it has no such rule. A call that has one and does not ask ends the
// process, in the thread's next call or with the thread: the rule would do nothing.
std::optional<Late> take_late();

// Waits until the file exists that EMULATOR_LATE_UNTIL names, if it is set, and then as long as the rule says.
void await_late(const Late &late);

}  // namespace emulator
