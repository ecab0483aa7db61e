// Flags that streams write and wait for. Their accesses are atomic and conflict with nothing.
#include "runtime.hpp"
#include "tasks.hpp"

namespace emulator {
namespace {

bool satisfies(uint32_t flag, uint32_t value, Comparison comparison) {
  switch (comparison) {
    case Comparison::equal:
      return flag == value;
    case Comparison::greater_or_equal:  // cyclic, as the hardware compares
      return static_cast<int32_t>(flag - value) >= 0;
    case Comparison::bitwise_and:
      return (flag & value) != 0;
    default:
      return ~(flag | value) != 0;
  }
}

// Finds the word by its address, in memory that a device can reach.
Status find_word(const State &all, void *address, uint32_t **word) {
  const Block *block = nullptr;
  if (reinterpret_cast<uintptr_t>(address) % sizeof(uint32_t) != 0 ||
      !all.memory.classify(address, sizeof(uint32_t), &block) || block == nullptr)
    return Status::invalid_value;
  *word = static_cast<uint32_t *>(all.memory.view(address));
  return Status::success;
}

std::string number_of(uint32_t value) { return std::to_string(value); }

}  // namespace

Status write_value(StreamHandle handle, void *address, uint32_t value) {
  Call call;
  Stream *stream = nullptr;
  uint32_t *word = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success) status = find_word(call.state(), address, &word);
  if (status != Status::success) return status;
  State &all = call.state();
  Task task;
  task.what = "write of flag value " + number_of(value);
  task.flag = span(address, sizeof(uint32_t));
  auto flag = reinterpret_cast<uintptr_t>(address);
  // A graph queues the task again and again: each time it has another place.
  task.publish = [&all, flag, word, value](Agent agent, const Clock &at) {
    all.checker.publish(flag, value, agent, at);
    return [&all, flag, word, value, at] {
      all.checker.release_key(flag, at);
      __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    };
  };
  return queue(call, *stream, std::move(task));
}

Status wait_value(StreamHandle handle, void *address, uint32_t value, Comparison comparison) {
  Call call;
  Stream *stream = nullptr;
  uint32_t *word = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success) status = find_word(call.state(), address, &word);
  if (status != Status::success) return status;
  State &all = call.state();
  Task task;
  task.what = "wait for flag value " + number_of(value);
  task.flag = span(address, sizeof(uint32_t));
  task.condition = std::make_shared<Condition>();
  task.condition->holds = [=] { return satisfies(__atomic_load_n(word, __ATOMIC_SEQ_CST), value, comparison); };
  task.condition->await = [&all, address, value, comparison](Agent agent) {
    return all.checker.await(
        reinterpret_cast<uintptr_t>(address), [=](uint32_t flag) { return satisfies(flag, value, comparison); }, agent);
  };
  return queue(call, *stream, std::move(task));
}

}  // namespace emulator
