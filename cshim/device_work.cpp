// device_work.cpp orders one operation among the commands of a device. See device_work.hpp.
#include "device_work.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/COW.h>
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

namespace {

// Returns false if the list has the stream already.
bool addOnce(std::vector<c10::Stream>& streams, const c10::Stream& stream) {
  if (std::find(streams.begin(), streams.end(), stream) != streams.end()) {
    return false;
  }
  streams.push_back(stream);
  return true;
}

// Takes the memory of a storage away from whoever would free it. Memory that is copied when it is written has several owners, of which one
// more is made and never goes.
void leakMemory(const c10::Storage& storage) {
  if (!storage || storage.data_ptr().get_context() == nullptr) { // it owns none
    return;
  }
  c10::StorageImpl& owner = *storage.unsafeGetStorageImpl();
  if (c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) {
    static_cast<void>(c10::impl::cow::lazy_clone_storage(owner).release());
    return;
  }
  c10::DataPtr lasting(storage.data_ptr().get(), storage.device());
  static_cast<void>(owner.set_data_ptr(std::move(lasting)).release_context());
}

} // namespace

DeviceWork::DeviceWork(c10::Device device, std::vector<at::Tensor>&& tensors, std::vector<Footprint> outputs)
    : device_(device),
      deviceName_(c10::DeviceTypeName(device.type(), /*lower_case=*/true)),
      bridge_{},
      tensors_(std::move(tensors)),
      outputs_(std::move(outputs)) {
}

DeviceWork::~DeviceWork() {
  if (forked()) { // the device's driver does not exist here, and pinned memory is the parent's
    for (std::unique_ptr<c10::Event>& end : endEvents_) {
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
  store();
  if (joined()) {
    return;
  }
  try {
    std::vector<c10::Stream> users = readers_;
    for (const c10::Stream& stream : joins_) {
      addOnce(users, stream);
    }
    for (const c10::Stream& stream : queued_) {
      addOnce(users, stream);
    }
    if (users.empty()) {
      return;
    }
    join(users);
    endEvents_.clear();
    recordEnd(users.front());
  } catch (...) {
    LOG(ERROR) << "sagecomm: a failed operation cannot be ordered on " << device_ << ": "
               << firstLine(reasonOf(std::current_exception()));
    abandon();
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
void DeviceWork::awaitInCurrentStream() const {
  noteAcquired(this);
  if (!captured_ && passed_.load(std::memory_order_acquire)) {
    return; // a stream that is being captured could not wait
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
}

void DeviceWork::awaitAfterError() noexcept {
  try {
    if (!refusesCapture()) { // which goes on
      awaitInCurrentStream();
    }
  } catch (...) {
    LOG(ERROR) << "sagecomm: no stream waits for what a failed operation still reads on " << device_ << ": "
               << firstLine(reasonOf(std::current_exception()));
    abandon();
  }
}

bool DeviceWork::passed() {
  if (endEvents_.empty() || captured_ || passed_.load(std::memory_order_acquire)) {
    return true;
  }
  const c10::OptionalDeviceGuard on(device_);
  if (captureOf(current()) == Capture::kYes) {
    return false;
  }
  const Relaxed captures(device_.type());
  for (const std::unique_ptr<c10::Event>& end : endEvents_) {
    if (!end->query()) {
      return false;
    }
  }
  passed_.store(true, std::memory_order_release);
  return true;
}

c10::Stream DeviceWork::stream() {
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

// ---- the bridge ----

// Calls f(*this) for the core, which no exception may pass.
template <class F>
int32_t DeviceWork::call(void* ctx, char* why, size_t n, F&& f) noexcept {
  try {
    f(*static_cast<DeviceWork*>(ctx));
    return 0;
  } catch (const c10::Error& e) {
    std::snprintf(why, n, "%s", e.what_without_backtrace());
  } catch (const std::exception& e) {
    std::snprintf(why, n, "%s", e.what());
  } catch (...) {
    std::snprintf(why, n, "%s", "something was thrown that is no exception");
  }
  return -1;
}

int32_t DeviceWork::makeStream(void* ctx, uint64_t* stream, char* why, size_t n) noexcept {
  return call(ctx, why, n, [&](const DeviceWork& w) { *stream = sagecomm::makeStream(w.device_); });
}

int32_t DeviceWork::pin(void* ctx, uint64_t bytes, void** memory, void** owner, char* why, size_t n) noexcept {
  return call(ctx, why, n, [&](const DeviceWork& w) {
    const c10::OptionalDeviceGuard on(w.device_);
    const Relaxed captures(w.device_.type());
    auto made = std::make_unique<Pinned>(allocatePinned(bytes));
    *memory = made->memory;
    *owner = made.release();
  });
}

// Tells the allocator that the stream uses the tensors' memory, so that memory which is given back is not used again before
// the stream has come past. Commands that are queued later are covered by tensors_.
void DeviceWork::use(const c10::Stream& stream) {
  if (!addOnce(users_, stream)) {
    return;
  }
  const VirtualGuardImpl guard(device_.type());
  for (const at::Tensor& t : tensors_) {
    if (const c10::DataPtr& memory = t.storage().data_ptr(); memory.get() != nullptr) {
      guard.recordDataPtrOnStream(memory, stream);
    }
  }
}

int32_t DeviceWork::fork(void* ctx, uint64_t stream, char* why, size_t n) noexcept {
  return call(ctx, why, n, [&](DeviceWork& w) {
    const c10::OptionalDeviceGuard on(w.device_);
    const c10::Stream to = streamOf(stream);
    w.use(to);
    if (!addOnce(w.readers_, to)) { // nothing has come into the current stream since
      return;
    }
    auto start = std::make_unique<c10::Event>(w.device_.type());
    start->record(w.current());
    start->block(to);
    if (!w.start_) {
      w.start_ = std::move(start);
    }
  });
}

int32_t DeviceWork::copyIn(void* ctx, uint64_t stream, const sagecomm_copy* copy, char* why, size_t n) noexcept {
  return call(ctx, why, n, [&](const DeviceWork&) { queueCopyToHost(streamOf(stream), *copy); });
}

int32_t DeviceWork::writeValue(
    void* ctx, uint64_t stream, uint32_t* word, uint32_t value, char* why, size_t n) noexcept {
  return call(ctx, why, n, [&](const DeviceWork&) { queueWrite(streamOf(stream), word, value); });
}

int32_t DeviceWork::adoptStream(void* ctx, void* handle, uint64_t* stream, char* why, size_t n) noexcept {
  return call(ctx, why, n, [&](const DeviceWork& w) { *stream = sagecomm::adoptStream(w.device_, handle); });
}

int32_t DeviceWork::streamHandle(void* ctx, uint64_t stream, void** handle, char* why, size_t n) noexcept {
  return call(ctx, why, n, [&](const DeviceWork&) { *handle = sagecomm::handleOf(stream); });
}

int32_t DeviceWork::interrupted(void* ctx) noexcept {
  auto& self = *static_cast<DeviceWork*>(ctx);
  try {
    checkSignals();
  } catch (...) {
    self.raised_ = std::current_exception();
  }
  return self.raised_ ? -1 : 0;
}

int32_t DeviceWork::joinNow(void* ctx, uint64_t stream, char* why, size_t n) noexcept {
  return call(ctx, why, n, [&](DeviceWork& w) {
    const c10::OptionalDeviceGuard on(w.device_);
    const c10::Stream in = streamOf(stream);
    w.use(in);
    // Recorded now and not in issued(): no other thread can have queued an operation behind this one yet.
    const auto at = std::find(w.joins_.begin(), w.joins_.end(), in) - w.joins_.begin();
    const bool first = addOnce(w.joins_, in);
    if (w.broken_) {
      return; // the operation is not issued
    }
    try {
      if (first) {
        w.endEvents_.push_back(std::make_unique<c10::Event>(w.device_.type()));
      } else { // the stream of the last part is the last one
        std::rotate(w.joins_.begin() + at, w.joins_.begin() + at + 1, w.joins_.end());
        std::rotate(w.endEvents_.begin() + at, w.endEvents_.begin() + at + 1, w.endEvents_.end());
      }
      w.endEvents_.back()->record(in);
      w.keepPromise();
    } catch (...) { // an event that was not recorded would be one for which nobody waits
      w.broken_ = std::current_exception();
      w.endEvents_.clear();
      throw;
    }
  });
}

// Commands may still come that use the tensors' memory, behind all events that the allocator would wait for. So the allocator does not get it
// back, also if the storage is resized. Tensors stay as they are.
int32_t DeviceWork::keepMemory(void* ctx, char* why, size_t n) noexcept {
  return call(ctx, why, n, [](const DeviceWork& w) {
    for (const at::Tensor& t : w.tensors_) {
      leakMemory(t.storage());
    }
  });
}

int32_t DeviceWork::joinLater(
    void* ctx,
    uint64_t stream,
    const sagecomm_copy* copies,
    uint32_t count,
    uint32_t* word,
    uint32_t value,
    char* why,
    size_t n) noexcept {
  return call(ctx, why, n, [&](DeviceWork& w) {
    const c10::OptionalDeviceGuard on(w.device_);
    const c10::Stream in = streamOf(stream);
    w.ends_.push_back({in, {copies, copies + count}, word, value});
    if (!w.stream_) {
      w.stream_ = in;
    }
    w.use(in);
  });
}

void refuseOnDevice(const char* op, const char* what, c10::Device device) {
  const std::string type = c10::Device(device.type()).str();
  refuse(
      op,
      std::string(what) + " are not supported on " + type +
          " yet; move the tensor to the CPU, or name another backend for " + type + ", as in cpu:sagecomm," + type +
          ":NAME");
}

} // namespace sagecomm
