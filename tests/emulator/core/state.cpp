#include "state.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace emulator {
namespace {

constexpr size_t most_reports = 100;

std::atomic<bool> made{false};    // the state exists
std::atomic<bool> forked{false};  // in a process whose parent had made it; its lock may be held for ever
std::atomic<bool> exiting{false};

// Work that is queued at exit is left as it is: it may own objects of a program that is going away.
void at_exit() {
  if (forked) return;
  exiting = true;
  State &all = state();
  Lock lock(all.mutex);
  all.scheduler.stop(lock);
}

}  // namespace

bool is_forked() { return forked; }

State &state() {
  static State *const all = new State;
  return *all;
}

State::State() : config(read_config()) {
  if (const char *plan = getenv("EMULATOR_FAULTS")) {
    std::string wrong = faults.parse(plan);
    if (!wrong.empty()) bad_variable("EMULATOR_FAULTS", plan, wrong.c_str());
  }
  size_t bytes = faults.memory() != 0 ? faults.memory() : config.memory;
  if (!memory.add_devices(config.devices, bytes)) {
    fprintf(stderr, "emulator: no shared memory for %d devices of %zu bytes\n", config.devices, bytes);
    abort();
  }
  Lock lock(mutex);
  streams.add_devices(config.devices);
  auto devices = static_cast<size_t>(config.devices);
  peers.assign(devices, std::vector<bool>(devices));
  alone.assign(devices, "");
  kept.assign(devices, 0);
  pthread_atfork(nullptr, nullptr, [] { forked = made.load(); });
  atexit(at_exit);
  made = true;
}

std::string State::header() const {
  return std::string("EMULATOR_SCHEDULE=") + name(config.schedule) + " EMULATOR_SEED=" + std::to_string(config.seed);
}

void State::report(const std::string &text) {
  if (reports.size() < most_reports)
    reports.push_back(text);
  else
    reports_left_out++;
}

Thread &this_thread() {
  thread_local Thread thread;
  return thread;
}

void Thread::refuse_late() const {
  if (!late) return;
  fprintf(stderr, "emulator: EMULATOR_FAULTS: %s has no way to be late\n", symbol.c_str());
  abort();
}

Thread::~Thread() {
  if (forked || exiting) return;
  refuse_late();
  if ((agent < 0 && streams.empty())) return;
  State &all = state();
  Lock lock(all.mutex);
  for (Stream *stream : streams)
    if (stream != nullptr) all.streams.destroy(*stream);
  if (agent >= 0) all.checker.retire(agent);
}

Status fault(const State &state) {
  if (!state.broken) return Status::success;
  this_thread().injected_code = state.broken->code;
  return state.broken->status;
}

Agent host_agent(State &state) {
  if (!state.config.thread_clocks) {
    if (state.shared_agent < 0) state.shared_agent = state.checker.add("the host");
    return state.shared_agent;
  }
  Thread &thread = this_thread();
  if (thread.agent < 0) thread.agent = state.checker.add("host thread " + std::to_string(++state.threads));
  if (thread.queries != state.queries) {
    state.checker.acquire_key(reinterpret_cast<uintptr_t>(&state.queries), thread.agent);
    thread.queries = state.queries;
  }
  return thread.agent;
}

void host_follows(State &state, const Point &point) { state.checker.order(host_agent(state), point->clock); }

void all_follow(State &state, const Point &point) {
  state.checker.release_key(reinterpret_cast<uintptr_t>(&state.queries), point->clock);
  state.queries++;
}

Call::Call(Entry entry) : status_(Status::success) {
  if (forked) {
    status_ = Status::not_initialized;
    return;
  }
  if (this_thread().in_task) {
    status_ = Status::not_permitted;
    return;
  }
  if (exiting) {
    status_ = Status::shutting_down;
    return;
  }
  state_ = &emulator::state();
  lock_ = Lock(state_->mutex);
  state_->used = true;
  host_agent(*state_);
  if (entry == in_turn) status_ = wait_for_turn();
  if (entry == in_turn && status_ == Status::success) status_ = fault(*state_);
}

// A thread without a device has nothing to wait for: its call fails.
Status Call::wait_for_turn() {
  int current = 0;
  if (device(&current) != Status::success) return Status::success;
  const auto at = static_cast<size_t>(current);
  const std::string &taken = state_->alone[at];
  state_->kept[at]++;
  Status status = state_->scheduler.wait_for_turn(lock_, [&] { return taken.empty() ? nullptr : taken.c_str(); });
  state_->kept[at]--;
  return status;
}

Status Call::device(int *device) const {
  if (state_->config.devices == 0) return Status::no_device;
  int chosen = this_thread().device;
  if (chosen < 0 && !state_->options.implicit_device) return Status::no_current_device;
  *device = chosen < 0 ? 0 : chosen;
  return Status::success;
}

Status Call::stream(StreamHandle handle, Stream **stream) const {
  int current = 0;
  if (handle == default_stream || handle == legacy_stream || handle == thread_stream) {
    Status status = device(&current);
    if (status != Status::success) return status;
    *stream = handle == thread_stream ? &state_->streams.of_thread(current) : &state_->streams.legacy(current);
    return Status::success;
  }
  *stream = state_->streams.find(handle);
  if (*stream == nullptr) return Status::invalid_handle;
  if (state_->options.any_device_streams) return Status::success;
  Status status = device(&current);
  if (status != Status::success) return status;
  return (*stream)->device == current ? Status::success : Status::wrong_device;
}

Status Call::wait(const Point &point, int64_t timeout_ms) {
  Status status = state_->scheduler.wait(lock_, point, timeout_ms);
  if (status == Status::success) host_follows(*state_, point);
  return status;
}

Status Call::wait_for_device(int device) {
  for (const Point &place : state_->streams.tails(device)) {
    Status status = wait(place);
    if (status != Status::success) return status;
  }
  return Status::success;
}

Status Call::wait_alone(int device, bool follows) {
  auto first = state_->alone.begin(), last = state_->alone.end();
  if (device >= 0) last = (first += device) + 1;
  Status status = state_->scheduler.wait_for_turn(lock_, [=] {
    auto taken = std::find_if(first, last, [](const std::string &call) { return !call.empty(); });
    return taken == last ? nullptr : taken->c_str();
  });
  if (status != Status::success) return status;
  const std::string &symbol = this_thread().symbol;
  std::fill(first, last, symbol.empty() ? "a call" : symbol);
  for (const Point &place : state_->streams.tails(device)) {
    if (status == Status::success) status = follows ? wait(place) : state_->scheduler.wait(lock_, place, -1);
  }
  std::fill(first, last, "");
  state_->scheduler.changed();
  return status;
}

}  // namespace emulator
