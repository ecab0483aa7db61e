// gil.hpp: leaving Python's lock, and looking for signals while waiting without it.
#pragma once

#include <Python.h>

#include <exception>
#include <thread>

namespace sagecomm {

// PyGILState_Check() says yes on every thread once a subinterpreter has been made.
inline bool holdsGil() {
#if PY_VERSION_HEX >= 0x030D0000
  PyThreadState* const current = PyThreadState_GetUnchecked();
#else
  PyThreadState* const current = _PyThreadState_UncheckedGet();
#endif
  return current != nullptr && current == PyGILState_GetThisThreadState();
}

// Releases the GIL if this thread holds it. torch's bindings have released it on most ways into the shim, but not on
// all (destructors, C++ callers).
class WithoutGil {
 public:
  WithoutGil() : state_(holdsGil() ? PyEval_SaveThread() : nullptr) {
  }
  ~WithoutGil() {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Remembers which thread runs Python's signal handlers. Called once, with the GIL, when the module is imported.
void rememberMainThread();

// Runs pending signal handlers if that is this thread's task; throws python_error if one of them raised. Called without
// the GIL. Other threads return at once: they would take the GIL for nothing, and a daemon thread that asks for it while
// the interpreter ends is killed by it.
void checkSignals();

// Whether what was raised ends the program rather than telling of a failure: KeyboardInterrupt, SystemExit and their like,
// which are no Exception. Called without the GIL.
bool endsProgram(const std::exception_ptr& raised);

// What to do between two waits: a signal's handler must run within 200 ms.
constexpr long long kSliceNs = 100'000'000;

} // namespace sagecomm
