#include "status.hpp"

#include <array>

namespace emulator {
namespace {

constexpr std::array<const char *, static_cast<size_t>(Status::count)> names = {
    "success",
    "not_ready",
    "invalid_value",
    "invalid_handle",
    "no_device",
    "invalid_device",
    "no_current_device",
    "wrong_device",
    "out_of_memory",
    "not_permitted",
    "not_supported",
    "not_initialized",
    "shutting_down",
    "already_registered",
    "not_registered",
    "already_mapped",
    "peer_access_enabled",
    "peer_access_not_enabled",
    "peer_gone",
    "system_error",
    "timeout",
    "symbol_missing",
    "device_failed",
    "capture_unsupported",
    "capture_invalidated",
    "capture_unmatched",
    "capture_unjoined",
    "capture_isolation",
    "capture_implicit",
    "capture_wrong_thread",
    "captured_event",
    "injected",
};
static_assert(names.back() != nullptr, "a status has no name");

}  // namespace

const char *name(Status status) {
  auto index = static_cast<size_t>(status);
  return index < names.size() ? names[index] : "unknown status";
}

std::optional<Status> status_named(std::string_view name) {
  for (size_t i = 0; i < names.size(); i++)
    if (name == names[i]) return static_cast<Status>(i);
  return std::nullopt;
}

}  // namespace emulator
