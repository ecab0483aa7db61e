// errors.hpp: the core's errors as Python exceptions.
//
// They are thrown as torch's python_error that carries a Python type and its arguments. It is the one C++ type that keeps
// its Python type and attributes on every way into Python: pybind11's translators, torch's own HANDLE_TH_ERRORS (the
// autograd engine, torch.ops), and an exception_ptr that a Future raises again on another thread. Building one takes
// the GIL, so errors are kept as sagecomm_error until somebody wants to see them.
#pragma once

#include <exception>
#include <string>

#include <pybind11/pybind11.h>

#include "sagecomm.h"

namespace sagecomm {

// The classes for SAGECOMM_PEER_FAILURE, _TIMEOUT, _MISMATCH and _ABORTED, which are called with
// (message, rank, host, pid, op, sequence, group), None where one says nothing. SAGECOMM_INVALID and SAGECOMM_FORKED
// are RuntimeErrors, the rest is torch.distributed.DistBackendError. With the GIL.
void setExceptionTypes(
    const pybind11::type& peerFailure,
    const pybind11::type& timeout,
    const pybind11::type& mismatch,
    const pybind11::type& aborted);

// Throws the exception for `error`. With or without the GIL.
[[noreturn]] void raise(const sagecomm_error& error);

// The same as a value, for Futures.
std::exception_ptr toException(const sagecomm_error& error) noexcept;

// Refuses a call before it reaches the core: "sagecomm: <op>: <reason>", status INVALID.
[[noreturn]] void refuse(const char* op, const std::string& reason);

// An error of the shim's own, in the same form as the core's.
void fillError(sagecomm_error& error, int status, const char* op, const std::string& group, const std::string& text);

} // namespace sagecomm
