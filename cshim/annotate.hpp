// annotate.hpp tells an emulator of devices, where the process runs on one, how threads and streams hand pinned memory over
// to each other (tests/emulator/core/annotate.h). Without an emulator each function is the test of a pointer.
#pragma once

extern "C" {
__attribute__((weak)) void emulator_release(const void* key);
__attribute__((weak)) void emulator_acquire(const void* key);
}

namespace sagecomm {

// The thread goes on with what other threads did before they released the word.
inline void noteAcquired(const void* word) {
  if (emulator_acquire != nullptr) {
    emulator_acquire(word);
  }
}

// The thread is about to store a value to the word.
inline void noteReleased(const void* word) {
  if (emulator_release != nullptr) {
    emulator_release(word);
  }
}

} // namespace sagecomm
