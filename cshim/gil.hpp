// gil.hpp releases Python's global interpreter lock around calls that may block, and runs signal handlers during waits.
#pragma once

#include <Python.h>

#include <exception>
#include <thread>

namespace sagecomm {

// Reports whether this thread holds the GIL. PyGILState_Check() cannot be used: it returns 1 on every thread once a
// subinterpreter has been made.
inline bool holdsGil() {
#if PY_VERSION_HEX >= 0x030D0000
  PyThreadState* const current = PyThreadState_GetUnchecked();
#else
  PyThreadState* const current = _PyThreadState_UncheckedGet();
#endif
  return current != nullptr && current == PyGILState_GetThisThreadState();
}

// WithoutGil releases the GIL for its lifetime if this thread holds it. Torch's bindings have released it on most ways
// into the shim, but not on all (destructors, C++ callers).
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

// Remembers which thread runs Python's signal handlers. Called once, when the module is imported. Requires: the GIL.
void rememberMainThread();

// Reports whether this is the thread that runs them.
bool isMainThread();

// Runs pending signal handlers on Python's main thread; throws python_error if one of them raised. Called without the
// GIL. Other threads return at once: they would take the GIL for nothing, and CPython ends a daemon thread that asks for
// it while the interpreter shuts down.
void checkSignals();

// Returns the exception that is being handled. One of Python's that its thrower has left in the state of this thread is taken from there,
// so that other threads may have it. Called in a `catch`, without the GIL.
std::exception_ptr keepRaised();

// Reports whether `raised` is meant to end the program: KeyboardInterrupt, SystemExit and the like, which are not derived
// from Exception. Called without the GIL.
bool endsProgram(const std::exception_ptr& raised);

} // namespace sagecomm
