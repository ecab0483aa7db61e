// Calls about the process and the devices.
#include "runtime.hpp"

#include <algorithm>

#include "state.hpp"

namespace emulator {

Status configure(const Options &options) {
  State &all = state();
  Lock lock(all.mutex);
  if (all.used) return Status::not_permitted;
  all.options = options;
  return Status::success;
}

Status enter(const char *symbol) {
  Call call(Call::at_once);
  if (!call) return call.status();
  this_thread().refuse_late();
  this_thread().symbol = symbol;
  auto fault = call.state().faults.call(symbol);
  if (!fault) return Status::success;
  if (fault->status == Status::success) {
    this_thread().late = Late{fault->code, fault->late_ms};
    return Status::success;
  }
  this_thread().injected_code = fault->code;
  return fault->status;
}

int injected_code() { return this_thread().injected_code; }

bool symbol_missing(const char *symbol) {
  Call call(Call::at_once);
  return call && call.state().faults.missing(symbol);
}

std::string describe() {
  Call call(Call::at_once);
  if (!call) return name(call.status());
  return call.state().header() + "\n" + call.state().streams.describe();
}

int device_count() {
  Call call(Call::at_once);
  return call ? call.state().config.devices : 0;
}

Status set_device(int device) {
  Call call(Call::at_once);
  if (!call) return call.status();
  if (device < 0 || device >= call.state().config.devices) return Status::invalid_device;
  this_thread().device = device;
  return Status::success;
}

Status current_device(int *device) {
  Call call(Call::at_once);
  return call ? call.device(device) : call.status();
}

Status device_synchronize() {
  Call call;
  if (!call) return call.status();
  int device = 0;
  Status status = call.device(&device);
  if (status == Status::success) status = call.state().captures.unsafe_call();
  return status == Status::success ? call.wait_for_device(device) : status;
}

Status device_synchronize_alone() {
  Call call;
  int device = 0;
  Status status = call ? call.device(&device) : call.status();
  return status == Status::success ? call.wait_alone(device) : status;
}

Status can_access_peer(int device, int peer, bool *can) {
  Call call(Call::at_once);
  if (!call) return call.status();
  int count = call.state().config.devices;
  if (device < 0 || device >= count || peer < 0 || peer >= count) return Status::invalid_device;
  *can = device != peer;
  return Status::success;
}

namespace {

Status set_peer_access(int peer, bool enabled, Status already) {
  Call call;
  if (!call) return call.status();
  int device = 0;
  Status status = call.device(&device);
  if (status != Status::success) return status;
  if (peer < 0 || peer >= call.state().config.devices || peer == device) return Status::invalid_device;
  auto access = call.state().peers[static_cast<size_t>(device)].begin() + peer;
  if (*access == enabled) return already;
  *access = enabled;
  return Status::success;
}

}  // namespace

Status enable_peer_access(int peer) { return set_peer_access(peer, true, Status::peer_access_enabled); }
Status disable_peer_access(int peer) { return set_peer_access(peer, false, Status::peer_access_not_enabled); }

size_t report_count() {
  if (is_forked()) return 0;
  State &all = state();
  Lock lock(all.mutex);
  return all.checker.count() + all.reports.size() + all.reports_left_out;
}

std::string report_text() {
  if (is_forked()) return "";
  State &all = state();
  Lock lock(all.mutex);
  std::string text = all.header() + "\n";
  for (const std::string &report : all.reports) text += report + "\n";
  if (all.reports_left_out > 0) text += "and " + std::to_string(all.reports_left_out) + " reports about memory more\n";
  return text + all.checker.text();
}

void reset_reports() {
  if (is_forked()) return;
  State &all = state();
  Lock lock(all.mutex);
  all.reports.clear();
  all.reports_left_out = 0;
  all.checker.reset();
}

}  // namespace emulator
