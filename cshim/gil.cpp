// gil.cpp runs Python's signal handlers for waits that do not hold the GIL. See gil.hpp.
#include "gil.hpp"

#include <torch/csrc/Exceptions.h>

#include "core.hpp"

namespace sagecomm {

namespace {
unsigned long mainThread = 0;
} // namespace

void rememberMainThread() {
  mainThread = pybind11::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
}

bool isMainThread() {
  return PyThread_get_thread_ident() == mainThread;
}

void checkSignals() {
  if (!isMainThread() || exiting()) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    python_error raised;
    raised.persist();
    throw raised;
  }
}

std::exception_ptr keepRaised() {
  try {
    throw;
  } catch (python_error& e) {
    pybind11::gil_scoped_acquire gil;
    e.persist();
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
}

bool endsProgram(const std::exception_ptr& raised) {
  try {
    std::rethrow_exception(raised);
  } catch (pybind11::error_already_set& e) {
    pybind11::gil_scoped_acquire gil;
    return !e.matches(PyExc_Exception);
  } catch (const python_error& e) { // torch's, of a function that it calls from C++
    pybind11::gil_scoped_acquire gil;
    return e.type != nullptr && PyErr_GivenExceptionMatches(e.type, PyExc_Exception) == 0;
  } catch (...) {
    return false;
  }
}

} // namespace sagecomm
