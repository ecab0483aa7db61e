// Streams, events, callbacks and captures.
#include <map>
#include <mutex>

#include "acl.hpp"

namespace {

constexpr uint32_t event_sync = 0x1;
constexpr uint32_t known_event_flags = 0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40;

std::mutex mutex;
std::map<void *, uint32_t> flags_of;  // of events

uint32_t event_flags(void *event) {
  std::lock_guard lock(mutex);
  auto found = flags_of.find(event);
  return found == flags_of.end() ? 0 : found->second;
}

aclError create_stream(void **stream) {
  REQUIRE(stream != nullptr, acl::invalid_param);
  emulator::StreamHandle made = nullptr;
  aclError status = acl::result(emulator::create_stream({false, 0}, &made));
  *stream = made;
  return skin::given(status, *stream);
}

}  // namespace

extern "C" {

aclError aclrtCreateStream(void **stream) {
  BEGIN_IN_CONTEXT(stream);
  return create_stream(stream);
}

aclError aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag) {
  BEGIN_IN_CONTEXT(stream, priority, flag);
  REQUIRE(priority <= 7 && flag < 0x40, acl::invalid_param);
  return create_stream(stream);
}

aclError aclrtSynchronizeStream(void *stream) {
  BEGIN_IN_CONTEXT(stream);
  return acl::result(emulator::stream_synchronize(acl::stream(stream)));
}

aclError aclrtSynchronizeStreamWithTimeout(void *stream, int32_t timeout) {
  BEGIN_IN_CONTEXT(stream, timeout);
  REQUIRE(timeout >= -1, acl::invalid_param);
  return acl::result(emulator::stream_synchronize(acl::stream(stream), timeout));
}

aclError aclrtSynchronizeDevice() {
  BEGIN_IN_CONTEXT();
  return acl::result(emulator::device_synchronize());
}

// COMPLETE is 0 here and 1 in aclrtQueryEventStatus().
aclError aclrtStreamQuery(void *stream, int *status) {
  BEGIN_IN_CONTEXT(stream, status);
  emulator::Status found = emulator::stream_query(acl::stream(stream));
  *status = found == emulator::Status::not_ready ? 1 : 0;
  return found == emulator::Status::not_ready ? acl::success : acl::result(found);
}

aclError aclrtCreateEventExWithFlag(void **event, uint32_t flag) {
  BEGIN_IN_CONTEXT(event, flag);
  REQUIRE(event != nullptr && flag != 0 && (flag & ~known_event_flags) == 0, acl::invalid_param);
  emulator::EventFlags wanted;
  wanted.timing = (flag & 0x8) != 0;
  emulator::EventHandle made = nullptr;
  aclError status = acl::result(emulator::create_event(wanted, &made));
  *event = made;
  if (status == acl::success) {
    std::lock_guard lock(mutex);
    flags_of[*event] = flag;
  }
  return skin::given(status, *event);
}

aclError aclrtRecordEvent(void *event, void *stream) {
  BEGIN_IN_CONTEXT(event, stream);
  return acl::result(emulator::record(acl::event(event), acl::stream(stream)));
}

aclError aclrtStreamWaitEvent(void *stream, void *event) {
  BEGIN_IN_CONTEXT(stream, event);
  REQUIRE((event_flags(event) & event_sync) != 0, acl::rt_param_invalid);
  return acl::result(emulator::stream_wait(acl::stream(stream), acl::event(event)));
}

// NOT_READY is 0 here, and COMPLETE is 1.
aclError aclrtQueryEventStatus(void *event, int *status) {
  BEGIN_IN_CONTEXT(event, status);
  emulator::Status found = emulator::event_query(acl::event(event));
  *status = found == emulator::Status::not_ready ? 0 : 1;
  return found == emulator::Status::not_ready ? acl::success : acl::result(found);
}

// Asks about a wait and not about the record. Events of the extended kind are refused.
aclError aclrtQueryEventWaitStatus(void *event, int *status) {
  BEGIN_IN_CONTEXT(event, status);
  return acl::rt_param_invalid;
}

aclError aclrtDestroyEvent(void *event) {
  BEGIN_IN_CONTEXT(event);
  std::lock_guard lock(mutex);
  flags_of.erase(event);
  return acl::result(emulator::destroy_event(acl::event(event)));
}

// Nobody has subscribed a thread to a stream here.
aclError aclrtLaunchCallback(void (*function)(void *), void *argument, int blocks, void *stream) {
  BEGIN_IN_CONTEXT(reinterpret_cast<void *>(function), argument, blocks, stream);
  return acl::stream_not_subscribe;
}

aclError aclrtLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
  BEGIN_IN_CONTEXT(stream, reinterpret_cast<void *>(function), argument);
  return acl::result(emulator::host_function(acl::stream(stream), function, argument));
}

aclError aclmdlRICaptureGetInfo(void *stream, int *status, void **model) {
  BEGIN_IN_CONTEXT(stream, status, model);
  auto capture = emulator::CaptureStatus::none;
  uint64_t id = 0;
  aclError found = acl::result(emulator::capture_status(acl::stream(stream), &capture, &id));
  *status = static_cast<int>(capture);
  return found;
}

aclError aclmdlRICaptureBegin(void *stream, int mode) {
  BEGIN_IN_CONTEXT(stream, mode);
  return acl::result(emulator::begin_capture(acl::stream(stream), static_cast<emulator::CaptureMode>(mode)));
}

}  // extern "C"
