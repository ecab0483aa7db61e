// device_bridge.cpp is what the core calls while it issues an operation on a device: sagecomm_bridge. See device_work.hpp.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device_work.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "plainly.hpp"
#include "relaxed.hpp"
#include "streams.hpp"

namespace sagecomm {

using c10::impl::VirtualGuardImpl;

namespace {

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

at::ScalarType scaledType(uint8_t dtype) {
  switch (dtype) {
    case SAGECOMM_FLOAT16:
      return at::kHalf;
    case SAGECOMM_BFLOAT16:
      return at::kBFloat16;
    case SAGECOMM_FLOAT32:
      return at::kFloat;
    case SAGECOMM_FLOAT64:
      return at::kDouble;
    default:
      TORCH_CHECK(false, "elements of type ", static_cast<int>(dtype), " are not scaled");
  }
}

} // namespace

// Calls f(*this) for the core, which no exception may pass.
template <class F>
int32_t DeviceWork::call(void* ctx, char* why, size_t n, F&& f) noexcept {
  try {
    f(*static_cast<DeviceWork*>(ctx));
    return 0;
  } catch (...) { // a kernel may be a function of Python
    try {
      const std::string reason = reasonOf(keepRaised()); // of torch_npu its further lines have the cause
      std::snprintf(
          why, n, "%s", reason.substr(0, reason.find("\n\nAt:\n")).c_str()); // there pybind11 has a stack of Python
    } catch (...) {
      std::snprintf(why, n, "%s", "no memory for the reason");
    }
  }
  std::replace(why, why + std::strlen(why), '\n', ' '); // an error has one line
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

// Tells the allocator that the stream uses the memory, so that what is given back is not used again before the stream has come past. The
// operation holds memory until the stream of its call waits for it, which says nothing of memory that was made in another stream: that is
// given back there, where nothing waits, and programs need not know that streams of the library use it. Commands that are queued later are
// covered by memory_.
void DeviceWork::use(const c10::Stream& stream) {
  if (!addOnce(users_, stream)) {
    return;
  }
  const VirtualGuardImpl guard(device_.type());
  for (const c10::Storage& storage : memory_) {
    if (const c10::DataPtr& memory = storage.data_ptr(); memory.get() != nullptr) {
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
    for (const c10::Storage& storage : w.memory_) {
      leakMemory(storage);
    }
    for (const c10::Storage& product : w.products_) {
      leakMemory(product);
    }
  });
}

// A part of the user's own storage, because kernels of some devices take no memory that their allocator has not described. Pieces mostly come
// in the order of the tensors, of which there may be a thousand.
at::Tensor DeviceWork::elements(at::ScalarType type, const sagecomm_segment& piece) {
  const auto* const at = static_cast<const char*>(piece.data);
  const auto size = static_cast<uint64_t>(c10::elementSize(type));
  for (size_t i = 0; i < memory_.size(); i++) {
    const size_t place = (found_ + i) % memory_.size();
    const c10::Storage& storage = memory_[place];
    const auto* const from = static_cast<const char*>(storage.data());
    if (from == nullptr || at < from || at + piece.bytes > from + storage.nbytes()) {
      continue;
    }
    found_ = place;
    const auto skipped = static_cast<uint64_t>(at - from);
    TORCH_CHECK(skipped % size == 0, "elements of ", type, " begin ", skipped, " bytes behind their storage");
    at::Tensor part = at::empty({0}, at::TensorOptions().dtype(type).device(device_));
    return part.set_(
        storage, static_cast<int64_t>(skipped / size), {static_cast<int64_t>(piece.bytes / size)}, {int64_t{1}});
  }
  TORCH_CHECK(false, "no tensor of the operation has the ", piece.bytes, " bytes at ", piece.data);
}

// The product's memory comes from the stream that uses it, and goes back there when the commands that read it are queued: see queueEnd(). Until
// then it stays with the operation. If that fails, a library may use it until the process ends: see keepMemory().
int32_t DeviceWork::multiply(
    void* ctx,
    uint64_t stream,
    uint8_t dtype,
    const sagecomm_segment* pieces,
    uint32_t count,
    double factor,
    void** product,
    char* why,
    size_t n) noexcept {
  return call(ctx, why, n, [&](DeviceWork& w) {
    const at::ScalarType type = scaledType(dtype);
    const Plainly plainly;
    const c10::StreamGuard on(streamOf(stream));
    int64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
      total += static_cast<int64_t>(pieces[i].bytes / c10::elementSize(type));
    }
    const at::Tensor all = [&] {
      const Relaxed captures(w.device_.type());
      return at::empty({total}, at::TensorOptions().dtype(type).device(w.device_));
    }();
    w.products_.push_back(all.storage());
    const at::Tensor by = at::native::wrapped_scalar_tensor(factor);
    int64_t done = 0;
    for (uint32_t i = 0; i < count; i++) {
      const at::Tensor part = w.elements(type, pieces[i]);
      at::Tensor to = all.narrow(0, done, part.numel());
      at::mul_out(to, part, by);
      done += part.numel();
    }
    *product = all.mutable_data_ptr();
  });
}

int32_t DeviceWork::divide(
    void* ctx,
    uint64_t stream,
    uint8_t dtype,
    const sagecomm_segment* pieces,
    uint32_t count,
    double divisor,
    char* why,
    size_t n) noexcept {
  return call(ctx, why, n, [&](DeviceWork& w) {
    const at::ScalarType type = scaledType(dtype);
    const Plainly plainly;
    const c10::StreamGuard on(streamOf(stream));
    for (uint32_t i = 0; i < count; i++) {
      w.elements(type, pieces[i]).div_(divisor);
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
