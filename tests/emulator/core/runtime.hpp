// runtime.hpp is what skins (libcuda, libcudart, acl, cnrt) and the torch device call: an accelerator with devices, memory,
// streams and events, run by the CPU. It keeps the ordering rules of CUDA and lets work run as late, or in as strange an
// order, as these rules permit. config.hpp has the environment variables.
//
// A skin's function begins with `enter("cudaMalloc")` and returns what it returns unless that is success. All functions
// may be called by any thread. Those of host_function() may call nothing here.
//
// Addresses of device memory are reserved but not accessible; host_view() gives the accessible alias to code that runs as
// a task of a stream.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "status.hpp"

namespace emulator {

// ---- process

// What differs between the runtimes that skins imitate. The defaults are CUDA's.
struct Options {
  bool legacy_default_stream = true;  // the default stream and the blocking streams of a device order each other
  bool implicit_device = true;        // a thread that chose no device has device 0; else: no_current_device
  bool any_device_streams = true;     // a stream may be used while another device is current; else: wrong_device
  // Freeing device or pinned memory, unregistering memory and closing memory of other processes waits for the work of the
  // device, and calls of other threads for this device wait meanwhile.
  bool free_synchronizes = true;
  bool async_host_to_host = true;  // an asynchronous copy may go from host to host; else: not_supported
  // What a query of an event found complete is known to all threads: allocators ask one thread's events and give the memory
  // to another thread, under locks that the checker does not see.
  bool shared_queries = true;
  // Called around a call that may wait for tasks, with what the first returned: a skin under Python releases its lock here.
  void *(*before_wait)() = nullptr;
  void (*after_wait)(void *) = nullptr;
};

// Sets the options. Requires: no other call of the process came before; else the result is not_permitted.
Status configure(const Options &options);

// Begins a call of a skin's symbol: refuses calls after a fork, at exit and from host functions, and has the fault plan's
// status if this call is to fail. With Status::injected the number to return is injected_code().
Status enter(const char *symbol);
int injected_code();
// Reports whether the fault plan says that a symbol cannot be found (for skins that look symbols up for their callers).
bool symbol_missing(const char *symbol);

// Gives the schedule, the seed and the state of all streams, for the text of a failure.
std::string describe();

// ---- devices; the current device belongs to the calling thread

int device_count();
Status set_device(int device);
Status current_device(int *device);
Status device_synchronize();  // of the current device
// The same, and calls of other threads for this device wait meanwhile, as they do while memory is freed.
Status device_synchronize_alone();
Status can_access_peer(int device, int peer, bool *can);
Status enable_peer_access(int peer);
Status disable_peer_access(int peer);

// ---- memory

enum class MemoryKind { pageable, pinned, registered, device, imported };
struct MemoryAttributes {
  MemoryKind kind = MemoryKind::pageable;
  int device = -1;       // of device and imported memory; for pinned memory the device that was current
  void *base = nullptr;  // of the allocation or registration that the address lies in
  size_t size = 0;
};

// Allocations are aligned to 256 bytes and to no more, and are not zero. A size of 0 gives a null address.
Status allocate(size_t size, void **address);  // on the current device
Status release(void *address);                 // null is legal
Status release_unused(void *address);          // the same, and waits for nothing
Status memory_info(int device, size_t *free, size_t *total);
Status memory_attributes(const void *address, MemoryAttributes *attributes);
Status allocate_host(size_t size, void **address);
Status release_host(void *address);
Status register_host(void *address, size_t size);
Status unregister_host(void *address);
// Returns the address by which the CPU reaches memory of any kind. For use inside tasks and by tests.
void *host_view(const void *address);

// ---- streams

// An opaque number that is never used twice. Null is the default stream of the current device.
using StreamHandle = struct StreamName *;
inline const StreamHandle default_stream = nullptr;
inline const StreamHandle legacy_stream = reinterpret_cast<StreamHandle>(1);
inline const StreamHandle thread_stream =
    reinterpret_cast<StreamHandle>(2);  // default stream of this thread and device

struct StreamFlags {
  bool blocking = true;  // ordered with the legacy default stream
  int priority = 0;      // lower numbers come first
};
Status create_stream(const StreamFlags &flags, StreamHandle *stream);  // may wait as freeing memory does (config.hpp)
Status destroy_stream(StreamHandle stream);  // returns at once; work that is queued still runs
Status stream_query(StreamHandle stream);    // success or not_ready; runs nothing
Status stream_synchronize(StreamHandle stream);
Status stream_synchronize(StreamHandle stream, int64_t timeout_ms);  // timeout
Status stream_device(StreamHandle stream, int *device);
Status stream_flags(StreamHandle stream, StreamFlags *flags);
Status stream_number(StreamHandle stream, uint64_t *number);  // unique in the process, as reports name it

// Nothing on the stream begins while it is held.
Status hold(StreamHandle stream);
Status release_held(StreamHandle stream);
// Waits until nothing can run: all queues are empty or blocked by a hold, a flag or another process. For tests.
Status run_all();

// ---- tasks

struct Range {
  const void *address;
  size_t length;
};
// Queues a function as a kernel. It runs on a thread of the emulator and may call host_view(), and nothing else here. The
// ranges are what the checker and the memory rules see; they are given in the callers' addresses.
Status launch(StreamHandle stream, const std::string &what, const std::vector<Range> &reads,
              const std::vector<Range> &writes, std::function<void()> run);
// The same for a kernel that waits for other processes: it begins when ready() holds, which must not change back. ready()
// is called often, under the emulator's lock, and may call nothing here.
Status launch_when(std::function<bool()> ready, StreamHandle stream, const std::string &what,
                   const std::vector<Range> &reads, const std::vector<Range> &writes, std::function<void()> run);
// Queues a function that may block without blocking other streams. It runs on a thread of its own kind, where calls of
// the runtime fail with not_permitted.
Status host_function(StreamHandle stream, void (*function)(void *), void *argument);
bool inside_host_function();
// Makes the calling thread one on which calls of the runtime fail with not_permitted.
void forbid_calls();

// The number of a skin's objects that graphs may hold, of which the end is told, until that is done.
extern std::atomic<size_t> objects;

// ---- copies

// What the caller says about the operands; `any` derives it from the addresses.
enum class CopyKind { host_to_host, host_to_device, device_to_host, device_to_device, any };
Status copy(void *to, const void *from, size_t size,
            CopyKind kind);  // on the default stream, complete as CUDA documents
Status copy_async(void *to, const void *from, size_t size, CopyKind kind, StreamHandle stream);
struct Copy2D {
  void *to;
  size_t to_pitch;
  const void *from;
  size_t from_pitch;
  size_t width;  // bytes of a row
  size_t height;
};
Status copy_2d(const Copy2D &copy, CopyKind kind);
Status copy_2d_async(const Copy2D &copy, CopyKind kind, StreamHandle stream);
// Sets `count` elements of `width` bytes (1, 2 or 4).
Status fill(void *address, uint32_t value, size_t width, size_t count);
Status fill_async(void *address, uint32_t value, size_t width, size_t count, StreamHandle stream);

// ---- flags: 32-bit words in device, pinned or registered memory

enum class Comparison { equal, greater_or_equal, bitwise_and, bitwise_nor };
Status write_value(StreamHandle stream, void *address, uint32_t value);
Status wait_value(StreamHandle stream, void *address, uint32_t value, Comparison comparison);

// ---- events

using EventHandle = struct EventName *;
struct EventFlags {
  bool timing = true;
  bool interprocess = false;
};
Status create_event(const EventFlags &flags, EventHandle *event);
Status destroy_event(EventHandle event);  // legal while its record is pending
Status record(EventHandle event, StreamHandle stream);
Status event_query(EventHandle event);  // success before the first record; runs nothing
Status event_synchronize(EventHandle event);
Status event_synchronize(EventHandle event, int64_t timeout_ms);  // timeout
Status stream_wait(StreamHandle stream, EventHandle event);       // for the newest record; none: nothing to wait for
Status elapsed(EventHandle from, EventHandle to, float *milliseconds);

// ---- other processes on the same device

struct IpcHandle {
  unsigned char bytes[64];
};
Status export_memory(void *base, IpcHandle *handle);            // invalid_value unless it is the base of an allocation
Status import_memory(const IpcHandle &handle, void **address);  // the memory outlives the exporter
Status close_memory(void *address);
// Maps whole pages of such memory at a place that the caller has reserved with mmap(). This process may be the exporter.
Status map_memory(const IpcHandle &handle, void *place, size_t size);
Status unmap_memory(void *place);  // waits for nothing; the place stays reserved
Status export_event(EventHandle event, IpcHandle *handle);
Status import_event(const IpcHandle &handle, EventHandle *event);

// ---- capture

enum class CaptureMode { global, thread_local_, relaxed };
enum class CaptureStatus { none, active, invalidated };
using GraphHandle = struct GraphName *;
Status begin_capture(StreamHandle stream, CaptureMode mode);
Status end_capture(StreamHandle stream, GraphHandle *graph);
Status capture_status(StreamHandle stream, CaptureStatus *status, uint64_t *id);
// Exchanges the calling thread's mode, which decides what calls a capture of any thread forbids to it.
Status exchange_capture_mode(CaptureMode *mode);
// Runs the graph's tasks on the stream, one after the other in the order of capture: an order that CUDA permits.
Status launch_graph(GraphHandle graph, StreamHandle stream);
Status destroy_graph(GraphHandle graph);
Status graph_size(GraphHandle graph, size_t *tasks);
// The graph that an active capture makes; null without one. Until the capture ends it can only be told to keep something.
Status captured_graph(StreamHandle stream, GraphHandle *graph);
// A graph keeps something until it is destroyed and none of its launches is under way. What ends then calls nothing here.
Status graph_keeps(GraphHandle graph, std::shared_ptr<void> kept);

// ---- reports of the happens-before checker and of the memory rules

size_t report_count();
std::string report_text();  // begins with the schedule and the seed
void reset_reports();

}  // namespace emulator
