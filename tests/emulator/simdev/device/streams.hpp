// streams.hpp has the streams of the devices, as c10 sees them, and the two ways of putting work on them.
//
// With the launch queue a stream of c10 is a pair of emulated streams. What the queue hands over goes to `queued`, what
// callers put on the native handle goes to `native`. An entry of the queue waits for what was on the native stream when
// it was pushed; taking the native handle makes the native stream wait for all entries so far. So the emulator orders
// what torch_npu orders and nothing else: vendor calls on a native handle that was taken earlier have no order with
// operators that were launched since, which the checker reports under every schedule.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "../../core/runtime.hpp"

namespace simdev {

struct Stream {
  int device = 0;
  c10::StreamId id = 0;  // 0 is the default stream of the device
  emulator::StreamHandle native = nullptr;
  emulator::StreamHandle queued = nullptr;  // the same without a launch queue
};

// Streams are never destroyed: copies of a c10::Stream may be anywhere.
Stream &find_stream(const c10::Stream &stream);
Stream &current_stream(int device);
c10::Stream public_stream(const Stream &stream);
c10::Stream exchange_stream(const c10::Stream &stream);
// Returns streams in turns, so that users of the pool share streams.
Stream &pool_stream(int device, bool high_priority);
Stream &new_stream(int device, int priority);

using StreamCall = std::function<emulator::Status(emulator::StreamHandle)>;
// Makes the call, with the stream's device as the current one, now or by the launch queue.
void submit(Stream &stream, const std::string &what, StreamCall call);
// Makes the call on this thread, after the entries of the launch queue. For calls that read host memory before they
// return, or wait.
void submit_now(Stream &stream, const std::string &what, const StreamCall &call);

// Returns the handle for calls of the emulator. Everything that was launched so far is in front of them.
emulator::StreamHandle native_handle(Stream &stream);
bool query(Stream &stream);
void synchronize(Stream &stream);
void synchronize_device(int device);
bool is_capturing(Stream &stream);

// An event of c10. Entries of the launch queue share it, so that it may be destroyed before they are handed over.
class Event {
 public:
  Event(int device, bool timing);
  ~Event();
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;

  int device() const { return device_; }
  static void record(const std::shared_ptr<Event> &event, Stream &stream);
  // The stream waits for the newest record.
  static void block(const std::shared_ptr<Event> &event, Stream &stream);
  bool query();
  void synchronize();
  double elapsed(Event &later);

 private:
  int device_;
  emulator::EventHandle handle_ = nullptr;
  std::atomic<int> unrecorded_{0};  // records that are in the launch queue
};

}  // namespace simdev
