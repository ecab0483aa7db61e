// Copies and fills. A copy reads its source when it runs, except from pageable memory, which it reads before the call
// returns; a copy to pageable memory is complete when the call returns.
#include <cstring>
#include <vector>

#include "runtime.hpp"
#include "tasks.hpp"

namespace emulator {
namespace {

struct Operand {
  const Block *block = nullptr;  // null: pageable memory
  unsigned char *view = nullptr;
  size_t pitch = 0;

  bool on_device() const {
    return block != nullptr && (block->kind == MemoryKind::device || block->kind == MemoryKind::imported);
  }
  const char *kind() const { return on_device() ? "device" : block != nullptr ? "pinned" : "pageable"; }
};

// Looks up an operand of `height` rows. Reports whether all its memory exists.
bool look_up(const Memory &memory, const void *address, size_t pitch, const Copy2D &copy, Operand *operand) {
  size_t extent = (copy.height - 1) * pitch + copy.width;
  if (!memory.classify(address, extent, &operand->block)) return false;
  operand->view = static_cast<unsigned char *>(memory.view(address));
  operand->pitch = pitch;
  return true;
}

bool suits(const Operand &operand, bool device) {
  return operand.block == nullptr ? !device : operand.on_device() == device;
}

// Reports whether the operands are what the caller says.
bool suits(const Operand &to, const Operand &from, CopyKind kind) {
  switch (kind) {
    case CopyKind::host_to_host:
      return suits(to, false) && suits(from, false);
    case CopyKind::host_to_device:
      return suits(to, true) && suits(from, false);
    case CopyKind::device_to_host:
      return suits(to, false) && suits(from, true);
    case CopyKind::device_to_device:
      return suits(to, true) && suits(from, true);
    default:
      return true;
  }
}

std::vector<Span> rows(const void *address, size_t pitch, const Copy2D &copy) {
  if (pitch == copy.width) return {span(address, copy.width * copy.height)};
  std::vector<Span> all;
  for (size_t i = 0; i < copy.height; i++)
    all.push_back(span(static_cast<const unsigned char *>(address) + i * pitch, copy.width));
  return all;
}

void copy_rows(unsigned char *to, size_t to_pitch, const unsigned char *from, size_t from_pitch, size_t width,
               size_t height) {
  for (size_t i = 0; i < height; i++) memmove(to + i * to_pitch, from + i * from_pitch, width);
}

// Reports whether a copy writes one word of pinned memory. The CPU may look at such a word as at a flag.
bool is_word(const Copy2D &copy, const Operand &to) {
  return copy.width == sizeof(uint32_t) && copy.height == 1 && to.block != nullptr && !to.on_device() &&
         reinterpret_cast<uintptr_t>(copy.to) % sizeof(uint32_t) == 0;
}

// Makes the copy a hand-over to whoever has seen the word and acquires its address, as the write of a flag is one.
void hand_over(State &state, const void *word, Task *task) {
  task->publish = [&state, word, run = std::move(task->run)](Agent, const Clock &at) {
    return [&state, word, run, at] {
      state.checker.release_key(reinterpret_cast<uintptr_t>(word), at);
      run();
    };
  };
}

// Carries out a copy; with `wait` it is complete when the call returns, as far as CUDA documents it.
Status carry_out(const Copy2D &copy, CopyKind kind, StreamHandle handle, bool wait) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success && wait) status = call.state().captures.unsafe_call();
  if (status != Status::success || copy.width == 0 || copy.height == 0) return status;
  if (copy.height > 1 && (copy.to_pitch < copy.width || copy.from_pitch < copy.width)) return Status::invalid_value;
  Operand to, from;
  const Memory &memory = call.state().memory;
  if (!look_up(memory, copy.to, copy.to_pitch, copy, &to) ||
      !look_up(memory, copy.from, copy.from_pitch, copy, &from) || !suits(to, from, kind))
    return Status::invalid_value;
  bool between_hosts = !to.on_device() && !from.on_device();
  if (between_hosts && !wait && !call.state().options.async_host_to_host) return Status::not_supported;
  bool pageable = to.block == nullptr || from.block == nullptr;
  if (pageable && stream->capture != nullptr) return call.state().captures.unsafe_on(*stream);

  Task task;
  task.what = std::string("copy from ") + from.kind() + " to " + to.kind() + " memory, " +
              std::to_string(copy.width * copy.height) + " bytes";
  if (from.block != nullptr) task.reads = rows(copy.from, copy.from_pitch, copy);
  if (to.block != nullptr) task.writes = rows(copy.to, copy.to_pitch, copy);
  size_t width = copy.width, height = copy.height;
  if (from.block == nullptr) {
    auto staged = std::make_shared<std::vector<unsigned char>>(width * height);
    copy_rows(staged->data(), width, from.view, from.pitch, width, height);
    task.run = [=] { copy_rows(to.view, to.pitch, staged->data(), width, width, height); };
  } else {
    task.run = [=] { copy_rows(to.view, to.pitch, from.view, from.pitch, width, height); };
  }
  if (is_word(copy, to)) hand_over(call.state(), copy.to, &task);
  bool complete =
      to.block == nullptr || between_hosts || (wait && from.block != nullptr && !(to.on_device() && from.on_device()));
  Point point;
  status = queue(call, *stream, std::move(task), &point);
  return status == Status::success && complete && point != nullptr ? call.wait(point) : status;
}

Copy2D flat(void *to, const void *from, size_t size) { return {to, size, from, size, size, 1}; }

Status carry_out_fill(void *address, uint32_t value, size_t width, size_t count, StreamHandle handle, bool wait) {
  Call call;
  Stream *stream = nullptr;
  Status status = call ? call.stream(handle, &stream) : call.status();
  if (status == Status::success && wait) status = call.state().captures.unsafe_call();
  if (status != Status::success || count == 0) return status;
  if ((width != 1 && width != 2 && width != 4) || reinterpret_cast<uintptr_t>(address) % width != 0)
    return Status::invalid_value;
  if (count > SIZE_MAX / width) return Status::invalid_value;
  const Block *block = nullptr;
  if (!call.state().memory.classify(address, count * width, &block) || block == nullptr) return Status::invalid_value;
  auto *view = static_cast<unsigned char *>(call.state().memory.view(address));
  Task task;
  task.what = "fill of " + std::to_string(count * width) + " bytes";
  task.writes = {span(address, count * width)};
  task.run = [=] {
    for (size_t i = 0; i < count; i++) memcpy(view + i * width, &value, width);  // the low bytes come first
  };
  bool complete = wait && block->kind != MemoryKind::device && block->kind != MemoryKind::imported;
  Point point;
  status = queue(call, *stream, std::move(task), &point);
  return status == Status::success && complete && point != nullptr ? call.wait(point) : status;
}

}  // namespace

Status copy(void *to, const void *from, size_t size, CopyKind kind) {
  return carry_out(flat(to, from, size), kind, default_stream, true);
}

Status copy_async(void *to, const void *from, size_t size, CopyKind kind, StreamHandle stream) {
  return carry_out(flat(to, from, size), kind, stream, false);
}

Status copy_2d(const Copy2D &copy, CopyKind kind) { return carry_out(copy, kind, default_stream, true); }

Status copy_2d_async(const Copy2D &copy, CopyKind kind, StreamHandle stream) {
  return carry_out(copy, kind, stream, false);
}

Status fill(void *address, uint32_t value, size_t width, size_t count) {
  return carry_out_fill(address, value, width, count, default_stream, true);
}

Status fill_async(void *address, uint32_t value, size_t width, size_t count, StreamHandle stream) {
  return carry_out_fill(address, value, width, count, stream, false);
}

}  // namespace emulator
