// status.hpp has the results of the emulator's calls. A skin maps each status to the number of its own API.
#pragma once

#include <optional>
#include <string_view>

namespace emulator {

enum class [[nodiscard]] Status {
  success = 0,
  not_ready,           // a query: the work is not complete
  invalid_value,       // an argument is outside its range, or memory is not what the call needs
  invalid_handle,      // a stream, event or graph does not exist, or belongs to another device
  no_device,           // the process has no device
  invalid_device,      // no device has this number
  no_current_device,   // the thread has chosen no device, and the skin chooses none for it
  wrong_device,        // a stream is used while another device is the current one
  out_of_memory,       // the budget of the device, or the address range, is used up
  not_permitted,       // a host function called the runtime
  not_supported,       // the emulator, or the fault plan, does not have the feature
  not_initialized,     // the process is a fork of one that used the runtime
  shutting_down,       // the process exits
  already_registered,  // host memory is registered twice
  not_registered,      // host memory was never registered
  already_mapped,      // an allocation of this process is opened as if it came from another one
  peer_access_enabled,
  peer_access_not_enabled,
  peer_gone,     // the process that exported a handle has ended, or has freed the memory
  system_error,  // the operating system refused shared memory
  timeout,       // a bounded wait reached its bound
  symbol_missing,
  device_failed,         // injected: the device reports a fault
  capture_unsupported,   // the call is not allowed while a stream captures
  capture_invalidated,   // an earlier error broke the capture
  capture_unmatched,     // the stream that ends a capture did not begin it
  capture_unjoined,      // a stream that joined the capture was not waited for before its end
  capture_isolation,     // a captured stream waits for work outside its capture
  capture_implicit,      // the legacy default stream would order captured work
  capture_wrong_thread,  // another thread ends a capture that is not relaxed
  captured_event,        // an event recorded by a capture is queried or waited for by the host
  injected,              // the fault plan gives a number of the skin: injected_code()
  count                  // how many there are
};

const char *name(Status status);

// Returns the status with this name, none if there is no such name.
std::optional<Status> status_named(std::string_view name);

}  // namespace emulator
