// hand_over.hpp passes the annotations of annotate.h to the checker: accesses by the CPU, and how threads order each other.
//
// Requires, for everything here: the lock of the state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "stream.hpp"

namespace emulator {

class HandOver {
 public:
  explicit HandOver(State &state) : state_(state) {}
  void access(const void *address, size_t length, const char *what, bool write);
  void release(const void *key);
  void acquire(const void *key);
  void store(const void *flag, uint32_t value);
  // Gives a host function that is queued an agent of its own, whose accesses come before what the stream does later.
  void host_function_queued(Stream &stream, Task &task);
  // Passes the accesses of a host function to the checker, when it has run.
  void host_function_done(Task &task);

 private:
  State &state_;
};

}  // namespace emulator
