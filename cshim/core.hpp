// core.hpp: the one libsagecomm.so of this process, and the end of the process as far as the shim is concerned.
#pragma once

#include <cstdint>
#include <string>

#include "sagecomm.h"

namespace sagecomm {

// Opens the library and checks that it speaks our ABI; returns its version. The first call decides: the same path again
// changes nothing, another one is an error, because Go's runtime can be neither unloaded nor started twice.
std::string loadCore(const std::string& path);

// The function table; throws if loadCore() has not been called.
const sagecomm_api& core();

// Whether loadCore() has succeeded.
bool coreLoaded() noexcept;

// Whether this process is a fork of the one that opened the library. Nothing of the core may be touched then; the core
// refuses by itself, this is for destructors, which have nobody to tell.
bool forked() noexcept;

// Says goodbye for all groups and closes the gate below. Called by Python's atexit, while every thread may still take
// the GIL; idempotent; without the GIL.
void shutdownCore();

// Whether shutdownCore() has begun: from then on no thread of the core may wait for the GIL, because the interpreter
// may be gone, and CPython ends a foreign thread that asks for it, through our frames and Go's.
bool exiting() noexcept;

// Held by a thread of the core while it runs code of ours that may take the GIL. shutdownCore() closes the gate and then
// waits for those inside, a bounded time; whoever finds it closed leaves what it came to release to the end of the
// process.
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
