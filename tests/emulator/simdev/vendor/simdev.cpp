#include "simdev.h"

#include "../../core/runtime.hpp"

using emulator::Status;

namespace {

int code(Status status) { return static_cast<int>(status); }
emulator::StreamHandle stream_of(simdev_stream stream) { return static_cast<emulator::StreamHandle>(stream); }
emulator::EventHandle event_of(simdev_event event) { return static_cast<emulator::EventHandle>(event); }

// A null stream would be the emulator's default stream, which these devices do not have.
int on_stream(simdev_stream stream, Status (*call)(emulator::StreamHandle)) {
  return code(stream == nullptr ? Status::invalid_handle : call(stream_of(stream)));
}

int answer(Status status, int *complete) {
  *complete = status == Status::success ? 1 : 0;
  return code(status == Status::not_ready ? Status::success : status);
}

}  // namespace

int simdev_init(void) {
  emulator::Options options;
  options.legacy_default_stream = false;
  options.implicit_device = false;
  options.any_device_streams = false;
  options.async_host_to_host = false;
  Status status = emulator::configure(options);
  return code(status == Status::not_permitted ? Status::success : status);
}

const char *simdev_error_name(int status) {
  return status < 0 || status >= code(Status::count) ? "unknown" : emulator::name(static_cast<Status>(status));
}

int simdev_device_count(int *count) {
  *count = emulator::device_count();
  return 0;
}
int simdev_set_device(int device) { return code(emulator::set_device(device)); }
int simdev_get_device(int *device) { return code(emulator::current_device(device)); }
int simdev_device_synchronize(void) { return code(emulator::device_synchronize()); }

int simdev_malloc(size_t size, void **address) { return code(emulator::allocate(size, address)); }
int simdev_free(void *address) { return code(emulator::release(address)); }
int simdev_malloc_host(size_t size, void **address) { return code(emulator::allocate_host(size, address)); }
int simdev_free_host(void *address) { return code(emulator::release_host(address)); }
int simdev_register_host(void *address, size_t size) { return code(emulator::register_host(address, size)); }
int simdev_unregister_host(void *address) { return code(emulator::unregister_host(address)); }

int simdev_stream_create(simdev_stream *stream) {
  emulator::StreamHandle made = nullptr;
  Status status = emulator::create_stream({false, 0}, &made);
  *stream = made;
  return code(status);
}
int simdev_stream_destroy(simdev_stream stream) { return on_stream(stream, emulator::destroy_stream); }
int simdev_stream_query(simdev_stream stream, int *complete) {
  return answer(stream == nullptr ? Status::invalid_handle : emulator::stream_query(stream_of(stream)), complete);
}
int simdev_stream_synchronize(simdev_stream stream) {
  return on_stream(stream, [](emulator::StreamHandle handle) { return emulator::stream_synchronize(handle); });
}

int simdev_copy_async(void *to, const void *from, size_t size, simdev_stream stream) {
  if (stream == nullptr) return code(Status::invalid_handle);
  return code(emulator::copy_async(to, from, size, emulator::CopyKind::any, stream_of(stream)));
}
int simdev_fill_async(void *address, int byte, size_t size, simdev_stream stream) {
  if (stream == nullptr) return code(Status::invalid_handle);
  return code(emulator::fill_async(address, static_cast<unsigned char>(byte), 1, size, stream_of(stream)));
}

int simdev_event_create(simdev_event *event) {
  emulator::EventHandle made = nullptr;
  Status status = emulator::create_event({true, false}, &made);
  *event = made;
  return code(status);
}
int simdev_event_destroy(simdev_event event) { return code(emulator::destroy_event(event_of(event))); }
int simdev_event_record(simdev_event event, simdev_stream stream) {
  return code(stream == nullptr ? Status::invalid_handle : emulator::record(event_of(event), stream_of(stream)));
}
int simdev_event_query(simdev_event event, int *complete) {
  return answer(emulator::event_query(event_of(event)), complete);
}
int simdev_event_synchronize(simdev_event event) { return code(emulator::event_synchronize(event_of(event))); }
int simdev_stream_wait_event(simdev_stream stream, simdev_event event) {
  return code(stream == nullptr ? Status::invalid_handle : emulator::stream_wait(stream_of(stream), event_of(event)));
}

int simdev_stream_write_value(simdev_stream stream, uint32_t *word, uint32_t value) {
  return code(stream == nullptr ? Status::invalid_handle : emulator::write_value(stream_of(stream), word, value));
}
int simdev_stream_wait_value(simdev_stream stream, uint32_t *word, uint32_t value) {
  if (stream == nullptr) return code(Status::invalid_handle);
  return code(emulator::wait_value(stream_of(stream), word, value, emulator::Comparison::greater_or_equal));
}
int simdev_launch_host_function(simdev_stream stream, void (*function)(void *), void *argument) {
  if (stream == nullptr) return code(Status::invalid_handle);
  return code(emulator::host_function(stream_of(stream), function, argument));
}
