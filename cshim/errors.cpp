// errors.cpp maps status codes to exception classes. See errors.hpp.
#include "errors.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/csrc/Exceptions.h>

#include "core.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace sagecomm {

namespace {

// Exception classes by -status: strong references that are never given back. Guarded by the GIL.
std::array<PyObject*, 9> exceptionTypes{};
PyObject* distBackendError = nullptr;

PyObject* typeFor(int status) {
  if (status == SAGECOMM_INVALID) {
    return PyExc_RuntimeError;
  }
  const auto index = static_cast<size_t>(-status);
  if (index < exceptionTypes.size() && exceptionTypes[index] != nullptr) {
    return exceptionTypes[index];
  }
  if (distBackendError == nullptr) {
    py::object type = py::module_::import("torch.distributed").attr("DistBackendError");
    distBackendError = type.release().ptr();
  }
  return distBackendError;
}

py::object text(const char* s, size_t room) {
  PyObject* decoded = PyUnicode_DecodeUTF8(s, static_cast<Py_ssize_t>(strnlen(s, room)), "replace");
  if (decoded == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(decoded);
}

// An unknown attribute is None, so that users can test it for truth.
py::object textOrNone(const char* s, size_t room) {
  return s[0] == '\0' ? py::none() : text(s, room);
}

// Carries the arguments of an exception and not an instance, so that Python makes a new instance each time the error is
// raised. A shared instance would collect tracebacks, and their frames would keep alive the Work or Future that holds it.
// Requires: the GIL.
python_error makeError(const sagecomm_error& error) {
  PyObject* type = typeFor(error.status);
  const py::object message = text(error.message, sizeof error.message);
  const bool named = type != PyExc_RuntimeError && type != distBackendError;
  py::tuple arguments = named ? py::tuple(
                                    py::make_tuple(
                                        message,
                                        error.rank < 0 ? py::object(py::none()) : py::int_(error.rank),
                                        textOrNone(error.host, sizeof error.host),
                                        error.pid == 0 ? py::object(py::none()) : py::int_(error.pid),
                                        textOrNone(error.op, sizeof error.op),
                                        error.sequence == 0 ? py::object(py::none()) : py::int_(error.sequence),
                                        textOrNone(error.group, sizeof error.group)))
                              : py::tuple(py::make_tuple(message));
  python_error made;
  made.type = py::handle(type).inc_ref().ptr();
  made.value = arguments.release().ptr();
  made.message = message.cast<std::string>();
  return made;
}

} // namespace

void setExceptionTypes(
    const py::type& peerFailure, const py::type& timeout, const py::type& mismatch, const py::type& aborted) {
  const auto set = [](int status, const py::type& type) {
    if (PyExceptionClass_Check(type.ptr()) == 0) {
      throw py::type_error("set_exception_types: " + std::string(py::repr(type)) + " is not an exception class");
    }
    PyObject*& place = exceptionTypes[static_cast<size_t>(-status)];
    Py_INCREF(type.ptr());
    Py_XDECREF(std::exchange(place, type.ptr()));
  };
  set(SAGECOMM_PEER_FAILURE, peerFailure);
  set(SAGECOMM_TIMEOUT, timeout);
  set(SAGECOMM_MISMATCH, mismatch);
  set(SAGECOMM_ABORTED, aborted);
}

// Any thread may take it until the gate is closed. Behind that the main thread may, which ends the interpreter.
bool mayTakeGil(const CompletionGate& gate) {
  return Py_IsInitialized() != 0 && (gate.open() || holdsGil() || isMainThread());
}

void raise(const sagecomm_error& error) {
  if (error.status == SAGECOMM_FORKED) {
    C10_THROW_ERROR(Error, std::string(error.message, strnlen(error.message, sizeof error.message)));
  }
  const CompletionGate gate;
  if (!mayTakeGil(gate)) { // torch's own type needs none
    C10_THROW_ERROR(DistBackendError, std::string(error.message, strnlen(error.message, sizeof error.message)));
  }
  py::gil_scoped_acquire gil;
  throw makeError(error);
}

std::exception_ptr toException(const sagecomm_error& error) noexcept {
  try {
    raise(error);
  } catch (...) {
    return std::current_exception();
  }
}

std::string reasonOf(const std::exception_ptr& raised) {
  const auto orName = [](const char* text, const std::exception& e) {
    return *text != '\0' ? std::string(text) : c10::demangle(typeid(e).name());
  };
  try {
    std::rethrow_exception(raised);
  } catch (const c10::Error& e) {
    return orName(e.what_without_backtrace(), e);
  } catch (const std::exception& e) {
    return orName(e.what(), e);
  } catch (...) {
    return "something was thrown that is no exception";
  }
}

std::string firstLine(const std::string& text) {
  return text.substr(0, std::min<size_t>(text.find('\n'), 1000));
}

void refuse(const char* op, const std::string& reason) {
  sagecomm_error error;
  fillError(error, SAGECOMM_INVALID, op, "", reason);
  raise(error);
}

void refuseInForkedChild() {
  if (C10_UNLIKELY(forked())) {
    sagecomm_error error;
    core().group_error(0, &error);
    raise(error);
  }
}

void fillError(sagecomm_error& error, int status, const char* op, const std::string& group, const std::string& reason) {
  std::memset(&error, 0, sizeof error);
  error.status = status;
  error.rank = -1;
  std::snprintf(error.op, sizeof error.op, "%s", op);
  std::snprintf(error.group, sizeof error.group, "%s", group.c_str());
  std::snprintf(error.message, sizeof error.message, "sagecomm: %s: %s", op, reason.c_str());
}

} // namespace sagecomm
