// late.hpp is for skins of libraries that may queue kernels behind an error, or make communicators that nobody waits for: the rule `late#N` of a fault plan.
#pragma once

namespace emulator {

// Returns the number with which the call of this thread ends that enter() has begun, although it does its work, and late; 0: no such rule.
int late_code();

}  // namespace emulator
