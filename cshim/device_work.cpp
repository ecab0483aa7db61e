// device_work.cpp orders one operation among the commands of a device. See device_work.hpp.
#include "device_work.hpp"

#include <algorithm>
#include <string>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "annotate.hpp"
#include "compat.hpp"
#include "core.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "relaxed.hpp"
#include "streams.hpp"

namespace sagecomm {

using c10::impl::VirtualGuardImpl;

bool DeviceWork::addOnce(std::vector<c10::Stream>& streams, const c10::Stream& stream) {
  if (std::find(streams.begin(), streams.end(), stream) != streams.end()) {
    return false;
  }
  streams.push_back(stream);
  return true;
}

DeviceWork::DeviceWork(c10::Device device, const std::vector<at::Tensor>& tensors, std::vector<Footprint> outputs)
    : device_(device),
      deviceName_(c10::DeviceTypeName(device.type(), /*lower_case=*/true)),
      bridge_{},
      outputs_(std::move(outputs)) {
  for (const at::Tensor& t : tensors) {
    memory_.push_back(t.storage());
  }
}

DeviceWork::~DeviceWork() {
  if (forked()) { // the device's driver does not exist here, and pinned memory is the parent's
    for (std::unique_ptr<c10::Event>& end : endEvents_) {
      static_cast<void>(end.release());
    }
    for (std::unique_ptr<c10::Event>& end : lateEnds_) {
      static_cast<void>(end.release());
    }
    static_cast<void>(future_.release()); // it has an event, too
    static_cast<void>(start_.release());
    leak(); // the allocator would record events; a thread of the parent may have had the mutex
    return;
  }
  store();
}

c10::Stream DeviceWork::current() const {
  return VirtualGuardImpl(device_.type()).getStream(device_);
}

void DeviceWork::describe(sagecomm_op& op, bool async) {
  op.flags |= SAGECOMM_ASYNC;
  const bool fromAnySource = op.kind == SAGECOMM_RECV && op.root == SAGECOMM_ANY_SOURCE;
  tellsTheHost_ = tellsTheHost_ || op.kind == SAGECOMM_BARRIER || fromAnySource;
  bridge_.struct_size = sizeof bridge_;
  caller_ = current();
  const Capture captured = captureOf(*caller_);
  bridge_.may_be_captured = captured == Capture::kYes ? SAGECOMM_CAPTURED : captured == Capture::kUnknown ? 1 : 0;
  bridge_.ctx = this;
  bridge_.make_stream = &makeStream;
  bridge_.pin = &pin;
  bridge_.fork = &fork;
  bridge_.copy_in = &copyIn;
  bridge_.write_value = &writeValue;
  bridge_.adopt_stream = &adoptStream;
  bridge_.join = &joinNow;
  bridge_.join_later = &joinLater;
  bridge_.device_name = deviceName_.c_str();
  bridge_.stream_handle = &streamHandle;
  bridge_.interrupted = &interrupted;
  bridge_.keep = &keepMemory;
  bridge_.multiply = &multiply;
  bridge_.divide = &divide;
  op.bridge = &bridge_;
  op.device_type = static_cast<uint8_t>(device_.type());
  op.device_index = device_.index();
  op.ordering = async ? SAGECOMM_BESIDE : SAGECOMM_IN_STREAM;
  op.stream = nativeHandle(current());
}

// ---- the end ----

// Copies for tensors that are not contiguous are written back here where all is queued, since nothing calls the device later.
// They alone make the streams of several operations wait for each other: a peer may bring what one recv needs only when it has
// got what a later operation in the stream of another one sends.
void DeviceWork::issued(Buffers& buffers) noexcept {
  queueEnd(buffers);
  promised_.clear(); // the Future has them
}

// What is gathered comes into the stream of the last part: that of an earlier one may have become full, and another group's.
void DeviceWork::queueEnd(Buffers& buffers) noexcept {
  if (joins_.empty() || !ends_.empty() || broken_) { // parts of a coalesced call end later
    return;
  }
  try {
    if (buffers.staged()) {
      std::swap(joins_.front(), joins_.back());
      join(joins_);
      joins_.resize(1, joins_.front());
      const c10::StreamGuard on(joins_.front());
      buffers.copyBack();
      endEvents_.clear();
      recordEnd(joins_.front());
      keepPromise();
    }
    joined_ = true;
    dropProducts();
  } catch (...) { // the operation is under way; its end raises the error
    broken_ = keepRaised();
  }
  noteReleased(this);
}

std::exception_ptr DeviceWork::ending() const {
  if (!raised_ && broken_ && endsProgram(broken_)) {
    return broken_;
  }
  return raised_;
}

// If a command fails, those in front of it may still use the pinned memory. Then the value is never written, and the library
// does without that memory.
void DeviceWork::succeed(Buffers& buffers) {
  if (broken_) {
    std::rethrow_exception(broken_);
  }
  if (joined()) { // all is queued
    return;
  }
  std::vector<c10::Stream> writers;
  for (End& end : ends_) {
    noteAcquired(end.word); // the library has read the input and written the output in pinned memory
    if (end.copies.empty()) {
      continue;
    }
    uint32_t* const word = std::exchange(end.word, nullptr);
    addOnce(queued_, end.stream);
    for (const sagecomm_copy& copy : end.copies) {
      queueCopyToDevice(end.stream, copy);
    }
    queueWrite(end.stream, word, end.value);
    addOnce(writers, end.stream);
  }
  // Copies back come behind those parts, too, that were queued whole; see queueEnd() for the order.
  if (buffers.staged()) {
    for (auto part = joins_.rbegin(); part != joins_.rend(); ++part) {
      addOnce(writers, *part);
    }
  }
  store();
  // An operation that has used no stream of the library is in the current one, which is being captured.
  if (bridge_.may_be_captured != 0 && readers_.empty() && joins_.empty() && !stream_) {
    captured_ = true;
    stream_ = current();
    writers.push_back(*stream_);
  }
  if (writers.empty() && buffers.staged() && stream_) {
    writers.push_back(*stream_);
  }
  if (!writers.empty()) {
    join(writers);
    stream_ = writers.front();
    const c10::StreamGuard on(*stream_);
    buffers.copyBack();
    if (buffers.staged()) {
      endEvents_.clear(); // of what this stream is behind
    }
    recordEnd(*stream_);
  }
  noteReleased(this);
}

// Where some of several operations are joined, what writes their outputs is queued, too.
void DeviceWork::fail() noexcept {
  if (forked()) { // the device's driver does not exist here, and pinned memory is the parent's
    return;
  }
  store();
  if (joined()) {
    return;
  }
  std::vector<c10::Stream> users;
  bool known = false;
  try {
    users = readers_;
    for (const c10::Stream& stream : joins_) {
      addOnce(users, stream);
    }
    for (const c10::Stream& stream : queued_) {
      addOnce(users, stream);
    }
    if (users.empty()) {
      return;
    }
    known = true;
    join(users);
    endEvents_.clear();
    recordEnd(users.front());
  } catch (...) {
    LOG(ERROR) << "sagecomm: a failed operation cannot be ordered on " << device_
               << ", and no stream waits for it; its memory is kept until the device tells: "
               << firstLine(reasonOf(std::current_exception()));
    endEvents_.clear();
    unordered_ = std::move(users);
    streamsKnown_ = known;
    endUnknown_ = true;
  }
}

void DeviceWork::recordEnd(const c10::Stream& stream) {
  const c10::OptionalDeviceGuard on(device_);
  auto end = std::make_unique<c10::Event>(device_.type());
  end->record(stream);
  endEvents_.push_back(std::move(end));
}

// A Future records its event in the current stream, which is to be behind this operation and no other one: a peer may bring what another
// one needs only when it has got what the waiter sends. So it is made when the end of the operation is recorded.
void DeviceWork::keepPromise() noexcept {
  future_.reset();
  if (!promises_ || joins_.size() != 1) {
    return;
  }
  try {
    auto made = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device_});
    const c10::StreamGuard on(joins_.front());
    made->markCompleted(c10::IValue(promised_));
    future_ = std::move(made);
  } catch (const std::exception& e) { // a Future is made when it is asked for, and completed with the operation
    LOG(ERROR) << "sagecomm: a future cannot be ordered on " << device_ << ": " << e.what();
  }
}

bool DeviceWork::refusesCapture() const {
  if (captured_ || endEvents_.empty() || passed_.load(std::memory_order_acquire)) {
    return false;
  }
  const c10::OptionalDeviceGuard on(device_);
  return captureOf(current()) == Capture::kYes;
}

void DeviceWork::join(const std::vector<c10::Stream>& streams) {
  const c10::OptionalDeviceGuard on(streams.front().device());
  for (auto other = streams.begin() + 1; other != streams.end(); ++other) {
    c10::Event there(other->device_type());
    there.record(*other);
    there.block(streams.front());
  }
}

void DeviceWork::store() noexcept {
  for (const End& end : std::exchange(ends_, {})) {
    if (end.word != nullptr) {
      noteAcquired(end.word); // the library reads the input no more, also after an error
      noteReleased(end.word);
      __atomic_store_n(end.word, end.value, __ATOMIC_RELEASE);
    }
  }
}

// Without outputs there is nothing for a stream to wait for: the host has waited until the input was read.
void DeviceWork::awaitInCurrentStream() {
  if (blockCurrentStream()) {
    waited();
  }
}

bool DeviceWork::blockCurrentStream() {
  noteAcquired(this);
  if (endUnknown_) {
    return false;
  }
  if (!captured_ && passed_.load(std::memory_order_acquire)) {
    return true; // a stream that is being captured could not wait
  }
  const c10::OptionalDeviceGuard on(device_);
  // For an operation in a graph, a stream that is not a part of the capture yet comes into it. Once the capture is over the device
  // refuses the event: a stream that launches the graph is behind the outputs in any case.
  try {
    for (const std::unique_ptr<c10::Event>& end : endEvents_) {
      end->block(current());
    }
  } catch (const c10::Error&) {
    if (!captured_ || captureOf(current()) == Capture::kYes) {
      throw;
    }
  }
  return true;
}

void DeviceWork::awaitAfterError() noexcept {
  if (forked()) {
    return;
  }
  try {
    if (!refusesCapture()) { // which goes on
      awaitInCurrentStream();
    }
  } catch (...) {
    LOG(ERROR) << "sagecomm: no stream waits for what a failed operation still reads on " << device_
               << "; its memory is kept until the device has passed it: "
               << firstLine(reasonOf(std::current_exception()));
  }
}

bool DeviceWork::passed() {
  if (endEvents_.empty() && !endUnknown_) {
    noteAcquired(this); // no event says that the input was read: the thread that has completed the operation knows it
    return true;
  }
  if (captured_ || passed_.load(std::memory_order_acquire)) {
    return true;
  }
  if (forked()) {
    return false;
  }
  const c10::OptionalDeviceGuard on(device_);
  if (captureOf(current()) == Capture::kYes) {
    return false;
  }
  const Relaxed captures(device_.type());
  if (!(endUnknown_ ? laterEndsPassed() : allPassed(endEvents_))) {
    return false;
  }
  passed_.store(true, std::memory_order_release);
  return true;
}

bool DeviceWork::allPassed(const std::vector<std::unique_ptr<c10::Event>>& ends) {
  return std::all_of(ends.begin(), ends.end(), [](const std::unique_ptr<c10::Event>& end) { return end->query(); });
}

// Other groups may have these streams by now. So no stream waits here, and each has an event of its own.
bool DeviceWork::laterEndsPassed() {
  const std::unique_lock<std::mutex> one(late_, std::try_to_lock);
  if (!one || !streamsKnown_) {
    return false;
  }
  for (; !unordered_.empty(); unordered_.pop_back()) {
    auto end = std::make_unique<c10::Event>(device_.type());
    end->record(unordered_.back());
    lateEnds_.push_back(std::move(end));
  }
  return allPassed(lateEnds_);
}

c10::Stream DeviceWork::stream() {
  noteAcquired(this); // as in passed(): without an output it is the current stream
  if (joins_.empty()) {
    return stream_ ? *stream_ : current();
  }
  const c10::OptionalDeviceGuard on(device_); // operations that were issued later may hold up the streams of this one
  const c10::Stream behind = orderingStream(device_);
  for (const std::unique_ptr<c10::Event>& end : endEvents_) {
    end->block(behind);
  }
  return behind;
}

} // namespace sagecomm
