// core.hpp opens the one libsagecomm.so of this process, and orders what the shim does when the process ends. Any thread
// may call its functions.
#pragma once

#include <cstdint>
#include <string>

#include "sagecomm.h"

namespace sagecomm {

// Opens the library, checks that it speaks our ABI, and returns its version. The same path again changes nothing. Another
// path is an error, because Go's runtime can be neither unloaded nor started twice.
std::string loadCore(const std::string& path);

// Returns the function table. Throws if loadCore() has not been called.
const sagecomm_api& core();

// Returns how long the shim waits, as the core has it. Requires: coreLoaded().
const sagecomm_waits& waits() noexcept;

// Reports whether loadCore() has succeeded.
bool coreLoaded() noexcept;

// Reports whether this process is a fork of the one that opened the library. Go's threads do not exist here. The core
// refuses calls by itself; destructors, which cannot raise, ask first.
bool forked() noexcept;

// Says goodbye to the peers of all groups, which ends all operations, and then closes the gate below. Python's atexit calls it,
// while every thread may still take the GIL. Called without the GIL; idempotent.
void shutdownCore();

// Reports whether shutdownCore() has begun. When it has returned, no thread of the core may wait for the GIL: the interpreter may
// be gone, and CPython ends a foreign thread that asks for the GIL, unwinding through our frames and Go's.
bool exiting() noexcept;

// CompletionGate encloses code of the shim that a thread of the core runs and that may take the GIL. shutdownCore()
// closes the gate and waits a bounded time for the threads inside. A thread that finds the gate closed releases
// nothing; the end of the process frees everything.
class CompletionGate {
 public:
  CompletionGate() noexcept;
  ~CompletionGate();
  CompletionGate(const CompletionGate&) = delete;
  CompletionGate& operator=(const CompletionGate&) = delete;
  bool open() const noexcept {
    return open_;
  }

 private:
  bool open_;
};

} // namespace sagecomm
