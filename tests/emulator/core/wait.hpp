// A stream's wait for a value of a flag word, as the happens-before checker sees it.
#pragma once
#include <cstdint>
#include <functional>

#include "clock.hpp"
#include "history.hpp"

namespace emulator {

struct Wait {
  uintptr_t flag;
  OperationPointer waiter;
  std::function<bool(uint32_t)> condition;
  bool resolved = false;
  Clock clock;  // what the satisfaction comes after, when it is resolved
};

}  // namespace emulator
