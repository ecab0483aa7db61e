// tasks.hpp queues tasks, for the files that implement calls.
#pragma once

#include "state.hpp"

namespace emulator {

inline Span span(const void *address, size_t length) { return {reinterpret_cast<uintptr_t>(address), length}; }

// Queues the task and does the work that the schedule wants done now. The place is null if the task was captured. A task
// that is refused stays the caller's.
Status queue(Call &call, Stream &stream, Task &&task, Point *point = nullptr);

}  // namespace emulator
