// duration.hpp converts durations: torch counts milliseconds, the core nanoseconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace sagecomm {

// A duration beyond the core's range becomes the longest that the core can express.
inline int64_t toNs(std::chrono::milliseconds ms) {
  constexpr int64_t kNsPerMs = 1'000'000;
  return std::min<int64_t>(ms.count(), INT64_MAX / kNsPerMs) * kNsPerMs;
}

} // namespace sagecomm
