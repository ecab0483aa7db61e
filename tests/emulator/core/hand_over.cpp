#include "hand_over.hpp"

#include "annotate.h"
#include "state.hpp"

namespace emulator {

// A host function gets an agent of its own, since its accesses come when its stream has other steps already. It takes one
// step, at its end; the stream comes after this step from now on.
void HandOver::host_function_queued(Stream &stream, Task &task) {
  Checker &checker = state_.checker;
  task.host_agent = checker.add("a host function on " + stream.name);
  checker.order(task.host_agent, task.mark->clock);
  task.host_clock = checker.now(task.host_agent);
  task.host_clock.set(task.host_agent, task.host_clock.get(task.host_agent) + 1);
  checker.order(stream.agent, task.host_clock);
  task.mark->clock.join(task.host_clock);
}

void HandOver::host_function_done(Task &task) {
  Checker &checker = state_.checker;
  Clock at = checker.step(task.host_agent);
  if (!task.host_reads.empty() || !task.host_writes.empty())
    checker.access(task.host_agent, at, task.what, task.host_reads, task.host_writes);
  checker.retire(task.host_agent);
}

void HandOver::access(const void *address, size_t length, const char *what, bool write) {
  const Block *block = nullptr;
  if (!state_.memory.classify(address, length, &block) || block == nullptr || length == 0) return;
  Span span{reinterpret_cast<uintptr_t>(address), length};
  Thread &thread = this_thread();
  if (thread.task != nullptr) {
    (write ? thread.task->host_writes : thread.task->host_reads).push_back(span);
    thread.task->what += std::string(", ") + what;
    return;
  }
  Agent agent = host_agent(state_);
  Clock at = state_.checker.step(agent);
  if (write)
    state_.checker.access(agent, at, what, {}, {span});
  else
    state_.checker.access(agent, at, what, {span}, {});
}

void HandOver::release(const void *key) {
  const std::shared_ptr<Task> &task = this_thread().task;
  Clock at = task != nullptr ? task->host_clock : state_.checker.now(host_agent(state_));
  state_.checker.release_key(reinterpret_cast<uintptr_t>(key), at);
}

void HandOver::acquire(const void *key) {
  const std::shared_ptr<Task> &task = this_thread().task;
  auto number = reinterpret_cast<uintptr_t>(key);
  if (task != nullptr) state_.checker.acquire_key(number, task->mark->stream->agent);
  state_.checker.acquire_key(number, task != nullptr ? task->host_agent : host_agent(state_));
}

void HandOver::store(const void *flag, uint32_t value) {
  const std::shared_ptr<Task> &task = this_thread().task;
  auto number = reinterpret_cast<uintptr_t>(flag);
  Agent agent = task != nullptr ? task->host_agent : host_agent(state_);
  Clock at = task != nullptr ? task->host_clock : state_.checker.step(agent);
  state_.checker.publish(number, value, agent, at);
  state_.checker.release_key(number, at);
}

namespace {

// Runs the function under the lock. Tasks other than host functions tell the checker of their accesses when they are queued.
template <class Function>
void with_state(Function function) {
  Thread &thread = this_thread();
  if (is_forked() || (thread.in_task && thread.task == nullptr)) return;
  State &all = state();
  Lock lock(all.mutex);
  function(all);
}

}  // namespace
}  // namespace emulator

using emulator::State;
using emulator::with_state;

extern "C" {

void emulator_host_read(const void *address, size_t length, const char *what) {
  with_state([=](State &all) { all.hand_over.access(address, length, what, false); });
}

void emulator_host_write(const void *address, size_t length, const char *what) {
  with_state([=](State &all) { all.hand_over.access(address, length, what, true); });
}

void emulator_release(const void *key) {
  with_state([=](State &all) { all.hand_over.release(key); });
}

void emulator_acquire(const void *key) {
  with_state([=](State &all) { all.hand_over.acquire(key); });
}

void emulator_store(const void *flag, uint32_t value) {
  with_state([=](State &all) { all.hand_over.store(flag, value); });
}

size_t emulator_reports(void) { return emulator::report_count(); }

size_t emulator_report_text(char *text, size_t size) {
  std::string all = emulator::report_text();
  if (size > 0) {
    size_t length = all.copy(text, size - 1);
    text[length] = '\0';
  }
  return all.size();
}

void emulator_reset_reports(void) { emulator::reset_reports(); }

int emulator_plan(const char *rules) {
  State &all = emulator::state();
  emulator::Lock lock(all.mutex);
  all.faults = {};
  return all.faults.parse(rules).empty() ? 0 : -1;
}

size_t emulator_finished(const char *begin) {
  State &all = emulator::state();
  emulator::Lock lock(all.mutex);
  return all.streams.finished(begin);
}

size_t emulator_waited_records(void) {
  State &all = emulator::state();
  emulator::Lock lock(all.mutex);
  return all.events.waited();
}

size_t emulator_bytes(const char *kind) {
  State &all = emulator::state();
  emulator::Lock lock(all.mutex);
  return all.memory.bytes(kind).now;
}

size_t emulator_most_bytes(const char *kind) {
  State &all = emulator::state();
  emulator::Lock lock(all.mutex);
  return all.memory.bytes(kind).most;
}

size_t emulator_objects(void) { return emulator::objects.load(); }

int emulator_kept_threads(int device) {
  State &all = emulator::state();
  emulator::Lock lock(all.mutex);
  auto at = static_cast<size_t>(device);
  return all.alone.at(at).empty() ? 0 : 1 + all.kept.at(at);
}

int emulator_hold(void *stream) {
  return emulator::hold(static_cast<emulator::StreamHandle>(stream)) == emulator::Status::success ? 0 : -1;
}

int emulator_release_stream(void *stream) {
  return emulator::release_held(static_cast<emulator::StreamHandle>(stream)) == emulator::Status::success ? 0 : -1;
}

}  // extern "C"
