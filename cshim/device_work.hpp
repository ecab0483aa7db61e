// device_work.hpp is the device's part of one call, which is one operation or several coalesced ones: sagecomm_bridge on c10's
// streams and events. The core moves the memory of a device through pinned memory. While it issues the operation it queues
// commands here.
//
// Where the streams of the device can wait for a word in host memory, the core queues the whole operation while it issues it,
// and says in which stream it ends: it is *joined*. Whoever waits for it makes a stream wait and never blocks the host.
//
// Elsewhere the core says which copies into the device end the operation, and the Work queues these when the operation is
// complete. A stream cannot wait for an event that is not recorded, so whoever waits for the operation first waits on the host
// until the last copies are queued.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include "sagecomm.h"
#include "tensors.hpp"

namespace sagecomm {

// A DeviceWork is made on the thread that calls torch and used there until the core has issued the operation. After that
// the thread that completes the operation uses it, and then any thread may ask and wait. No function needs the GIL.
class DeviceWork {
 public:
  // `tensors` are all whose memory the operation uses, those of the user and copies that stand for some; `outputs` are where those of the
  // user lie that a collective writes. The memory stays until the operation has ended on the host, and its device has passed it or the
  // stream of the call waits for it, whatever becomes of the tensors.
  DeviceWork(c10::Device device, const std::vector<at::Tensor>& tensors, std::vector<Footprint> outputs);
  // Ends the operation if that was not done.
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  // Fills in what the core needs to issue the operation, or one of several. The core waits for no operation on a device
  // while it issues it; it may wait for peers that connect with this rank. The last call of c10 is that for op.stream:
  // some devices order a native handle behind what torch has launched by the time of that call only. So a handle is
  // never kept.
  void describe(sagecomm_op& op, bool async);

  // Asks for takeFuture(). `outputs` are its value.
  void promise(c10::ArrayRef<at::Tensor> outputs) {
    promised_ = outputs.vec();
    promises_ = true;
  }
  // Queues what is left to queue when the core has issued the operation, whose buffers these are.
  void issued(Buffers& buffers) noexcept;
  // Returns what is to end the call: what a signal handler has raised while the core waited for peers in issue(), or what a copy has
  // raised in issued() and is meant to end the program; null: nothing. Called without the GIL.
  std::exception_ptr ending() const;
  // Returns why an operation that was queued whole has no end; null: it has one.
  const std::exception_ptr& broken() const {
    return broken_;
  }
  // Reports whether all commands of the operation are queued. Requires: issued() was called.
  bool joined() const {
    return joined_;
  }

  // Returns, once, a complete Future whose waiters wait for this operation and for nothing that was issued later; null where the operation
  // has several streams or is not joined, or promise() was not called. It holds the outputs. Requires: issued() was called.
  c10::intrusive_ptr<c10::ivalue::Future> takeFuture() {
    return joined_ ? std::move(future_) : nullptr;
  }
  // Reports whether the current stream is being captured, and must not wait for this operation, which is in no graph. Requires: the operation is
  // joined or has ended.
  bool refusesCapture() const;

  // Reports whether a caller who waits has to wait on the host, even if all is queued: a barrier promises the host that peers
  // have come, and a recv from any source has to tell it the source.
  bool tellsTheHost() const {
    return tellsTheHost_;
  }

  // One of these ends the operation, once. After succeed() the outputs are what streams see behind stream(), and the copies of
  // `buffers` are written back. If succeed() throws, some outputs are not. fail() is for an operation that was not issued, or
  // that failed. It does nothing if the operation has ended.
  void succeed(Buffers& buffers);
  void fail() noexcept;

  // --- the memory, see device_memory.cpp ---

  // The operation has ended on the host: one of the two was called, and the core uses the memory no more. After a failure the device may be
  // out of order, and is asked before memory is given back.
  void ended(bool failed) noexcept;
  bool hasEnded() const {
    return ended_.load(std::memory_order_acquire);
  }
  // Releases the memory if the device has passed an operation that has ended, and else keeps it, also where the device cannot be asked now.
  // Reports whether it was released.
  bool releaseIfPassed() noexcept;
  // Reports whether it has ended and holds no memory.
  bool isOver() const noexcept;
  // Reports whether it is a collective that writes the memory, and a stream can wait for its end.
  bool writes(const Footprint& memory) const;

  // Asks the device, while the operation waits on the host for its own stream. If the device is out of order, the group fails on all ranks,
  // since nothing that is queued there will end. Reports whether that is so. Requires: issued() was called.
  bool failIfBroken(sagecomm_group group, const char* op, uint64_t sequence) noexcept;
  // Keeps the memory for good. Where a device is out of order, the allocator's error ends a process that gives it back.
  void abandon() noexcept;

  // --- when the operation is joined or has ended ---

  // Makes the calling thread's current stream of the device wait for the outputs; after a failure, for those commands that
  // still read the inputs, if they are known.
  void awaitInCurrentStream();
  // The same for a copy that the library makes, for which nobody has waited. Returns false if the commands are not known.
  bool blockCurrentStream();
  // The same for an operation that has failed, whose error a fault of the device does not replace.
  void awaitAfterError() noexcept;
  // Reports whether the operation is a part of a graph. Then the host has waited for nothing.
  bool captured() const {
    return captured_;
  }
  // Reports whether it is known to be issued in a capture, also if it could not be made a part of the graph.
  bool isInCapture() const {
    return captured_ || bridge_.may_be_captured == SAGECOMM_CAPTURED;
  }
  // Reports whether the device has written the outputs; of an operation that a graph has got, always. While the current
  // stream is being captured, which a question to the driver would break, the answer may be false for too long.
  bool passed();
  // Returns a stream that is behind the outputs. Requires: succeed() was called.
  c10::Stream stream();
  c10::Device device() const {
    return device_;
  }

 private:
  template <class F>
  static int32_t call(void* ctx, char* why, size_t n, F&& f) noexcept;
  static int32_t makeStream(void* ctx, uint64_t* stream, char* why, size_t n) noexcept;
  static int32_t pin(void* ctx, uint64_t bytes, void** memory, void** owner, char* why, size_t n) noexcept;
  static int32_t fork(void* ctx, uint64_t stream, char* why, size_t n) noexcept;
  static int32_t copyIn(void* ctx, uint64_t stream, const sagecomm_copy* copy, char* why, size_t n) noexcept;
  static int32_t writeValue(void* ctx, uint64_t stream, uint32_t* word, uint32_t value, char* why, size_t n) noexcept;
  static int32_t adoptStream(void* ctx, void* handle, uint64_t* stream, char* why, size_t n) noexcept;
  static int32_t streamHandle(void* ctx, uint64_t stream, void** handle, char* why, size_t n) noexcept;
  static int32_t interrupted(void* ctx) noexcept;
  static int32_t joinNow(void* ctx, uint64_t stream, char* why, size_t n) noexcept;
  static int32_t keepMemory(void* ctx, char* why, size_t n) noexcept;
  static int32_t multiply(
      void* ctx,
      uint64_t stream,
      uint8_t dtype,
      const sagecomm_segment* pieces,
      uint32_t count,
      double factor,
      void** product,
      char* why,
      size_t n) noexcept;
  static int32_t divide(
      void* ctx,
      uint64_t stream,
      uint8_t dtype,
      const sagecomm_segment* pieces,
      uint32_t count,
      double divisor,
      char* why,
      size_t n) noexcept;
  static int32_t joinLater(
      void* ctx,
      uint64_t stream,
      const sagecomm_copy* copies,
      uint32_t count,
      uint32_t* word,
      uint32_t value,
      char* why,
      size_t n) noexcept;

  // Returns false if the list has the stream already.
  static bool addOnce(std::vector<c10::Stream>& streams, const c10::Stream& stream);
  c10::Stream current() const;
  // The current stream waits for the operation. If it is the stream of the call, memory that comes from it may be used again there. In
  // another stream the memory is kept until the device has passed the operation: some allocators are not told of streams.
  void waited() noexcept;
  bool mayRelease() const; // requires: held_
  void release() noexcept;
  void dropProducts() noexcept;
  void leak() noexcept; // requires: held_, or that nobody else uses this
  static bool allPassed(const std::vector<std::unique_ptr<c10::Event>>& ends);
  bool laterEndsPassed(); // asks the streams of an operation whose end is unknown, as far as they are known
  std::optional<std::string> fault() const; // why the device is out of order
  void use(const c10::Stream& stream);
  // Returns elements of a type in the memory of the operation, as a tensor that shares the storage. Requires: the operation is being issued.
  at::Tensor elements(at::ScalarType type, const sagecomm_segment& piece);
  void recordEnd(const c10::Stream& stream);
  void keepPromise() noexcept;
  void queueEnd(Buffers& buffers) noexcept;
  // Makes the first of several streams come behind the others.
  static void join(const std::vector<c10::Stream>& streams);
  void store() noexcept;

  const c10::Device device_;
  const std::string deviceName_; // of the type: "cuda", "npu" ...
  sagecomm_bridge bridge_;
  std::vector<c10::Stream> readers_; // what fork() was called with
  std::vector<c10::Stream> users_; // streams of which the allocator knows
  std::optional<c10::Stream> caller_; // that was current when the operation was described
  std::unique_ptr<c10::Event> start_; // recorded in caller_ by the first fork(); null: there was none
  size_t found_ = 0; // the place in memory_ of what elements() has returned

  mutable std::mutex held_; // guards what follows, once the operation is issued; who holds it waits for nothing
  std::vector<c10::Storage> memory_;
  std::vector<c10::Storage> products_; // of multiply(); none once the operation is joined
  const std::vector<Footprint> outputs_;
  bool waited_ = false;

  std::atomic<bool> ended_{false};

  std::vector<c10::Stream> joins_; // what joinNow() was called with
  bool joined_ = false;
  bool promises_ = false;
  std::vector<at::Tensor> promised_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool tellsTheHost_ = false;
  std::exception_ptr raised_;
  std::exception_ptr broken_; // why an operation that was queued whole has no end
  // What joinLater() was called with: once for each collective and p2p operation that the call is made of.
  struct End {
    c10::Stream stream;
    std::vector<sagecomm_copy> copies;
    uint32_t* word; // null: the write of the value is queued
    uint32_t value;
  };
  std::vector<End> ends_; // of those that have not ended
  std::vector<c10::Stream> queued_; // in which succeed() has begun to queue copies into the device
  std::optional<c10::Stream> stream_; // that has written the outputs, unless the operation is joined
  bool captured_ = false; // the operation is a part of a graph, and end events are in the capture

  // Recorded behind the outputs, in each stream that writes any, after a failure behind what uses the tensors; none if there is
  // nothing to wait for. Pointers, because a forked child leaves them.
  std::vector<std::unique_ptr<c10::Event>> endEvents_;
  std::atomic<bool> passed_{false};

  // Of an operation that has failed, where the device refused the events. Some stream may still use its memory.
  bool endUnknown_ = false;
  bool streamsKnown_ = true; // false: there was no memory for the list
  std::mutex late_; // guards what follows; who does not get it goes on without
  std::vector<c10::Stream> unordered_; // streams that have no event yet
  std::vector<std::unique_ptr<c10::Event>> lateEnds_;
};

// Refuses an operation whose tensors are on a device: "sagecomm: send: p2p operations are not supported on cuda yet; ...".
[[noreturn]] void refuseOnDevice(const char* op, const char* what, c10::Device device);

} // namespace sagecomm
