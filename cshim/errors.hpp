// errors.hpp turns the core's errors into Python exceptions. Any thread may call its functions.
//
// An error is thrown as torch's python_error, which carries a Python type and its arguments. That is the one C++
// type whose Python type and attributes survive every way into Python: pybind11's translators, torch's
// HANDLE_TH_ERRORS (the autograd engine, torch.ops), and an exception_ptr that a Future raises again on another
// thread. Making one takes the GIL, so an error stays a sagecomm_error until a caller asks for it.
#pragma once

#include <exception>
#include <string>

#include <pybind11/pybind11.h>

#include "sagecomm.h"

namespace sagecomm {

class CompletionGate; // core.hpp

// Sets the exception classes for SAGECOMM_PEER_FAILURE, _TIMEOUT, _MISMATCH and _ABORTED. They are called with
// (message, rank, host, pid, op, sequence, group), where None stands for what is not known. SAGECOMM_INVALID and
// SAGECOMM_FORKED become RuntimeError, all others torch.distributed.DistBackendError. Requires: the GIL.
void setExceptionTypes(
    const pybind11::type& peerFailure,
    const pybind11::type& timeout,
    const pybind11::type& mismatch,
    const pybind11::type& aborted);

// Reports whether this thread may take the GIL, or has it: while the interpreter ends, CPython ends threads that ask for it.
bool mayTakeGil(const CompletionGate& gate);

// Throws the exception for `error`. Called with or without the GIL. When shutdownCore() has returned, threads that have not the GIL, and
// are not Python's main one, get a DistBackendError without attributes.
[[noreturn]] void raise(const sagecomm_error& error);

// Returns the exception for `error`, for Futures.
std::exception_ptr toException(const sagecomm_error& error) noexcept;

// Returns the text of an exception, its type's name where it has none.
std::string reasonOf(const std::exception_ptr& raised);

// Returns the first line of a text, and not more than fits into an error. torch's texts have advice in further lines, Python's a stack.
std::string firstLine(const std::string& text);

// Throws a RuntimeError for a call that does not reach the core: "sagecomm: <op>: <reason>".
[[noreturn]] void refuse(const char* op, const std::string& reason);

// Throws the core's error if this process is a fork of one that has opened it.
void refuseInForkedChild();

// Fills in an error of the shim's own, in the form that the core's errors have.
void fillError(sagecomm_error& error, int status, const char* op, const std::string& group, const std::string& text);

} // namespace sagecomm
