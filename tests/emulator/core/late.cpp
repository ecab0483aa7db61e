#include "late.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "state.hpp"

namespace emulator {

std::optional<Late> take_late() { return std::exchange(this_thread().late, std::nullopt); }

void await_late(const Late &late) {
  using std::chrono::milliseconds;
  for (const char *file = getenv("EMULATOR_LATE_UNTIL"); file != nullptr && access(file, F_OK) != 0;)
    std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(late.ms));
}

}  // namespace emulator
