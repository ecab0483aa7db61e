// streams.hpp has the streams of the library and what it queues in them, on devices of any type: c10's interface of device
// guards, streams and copy_() are all that is used. Any thread may call these functions. They throw torch's errors, wait for
// no device and do not need the GIL.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "sagecomm.h"

namespace sagecomm {

// Makes a stream that no other caller of makeStream() gets, and returns its number. Numbers begin at 1 and stay valid until the
// process ends.
//
// Torch's CUDA build makes no streams: getNewStream() there hands out those of a pool in turns, 32 for each priority and
// device. A stream that was handed out before is left out, because an operation that waits in a stream would hold up those of
// other groups. When a pool has no other stream left, makeStream() throws. A user's own streams may come from the same pool,
// so streams are ordered by events even where a stream could be waiting for itself.
uint64_t makeStream(c10::Device device);

// Returns a stream of the process for a device, in which nothing waits for long: it is made to wait for operations only that have
// ended, to record behind them.
c10::Stream orderingStream(c10::Device device);

// Returns the number of a stream that the device's runtime has made, which torch then calls an external one. Throws where torch
// cannot use it: so it is on devices whose streams have no native handle in torch, or another one.
uint64_t adoptStream(c10::Device device, void* handle);

// Returns the stream with that number.
c10::Stream streamOf(uint64_t number);

// Returns the native handle of a stream. What torch has launched so far is in the stream then. Throws where streams have none.
void* handleOf(uint64_t number);

// Queues a copy between memory of the stream's device and pinned memory.
void queueCopyToHost(const c10::Stream& stream, const sagecomm_copy& copy);
void queueCopyToDevice(const c10::Stream& stream, const sagecomm_copy& copy);

// Queues a write of a value, at most SAGECOMM_MAX_VALUE, to a word of pinned memory. Requires: the stream comes from
// makeStream().
void queueWrite(const c10::Stream& stream, uint32_t* word, uint32_t value);

// Pinned is pinned host memory that all devices of a type can use.
struct Pinned {
  at::Tensor tensor;
  void* memory; // aligned
};
Pinned allocatePinned(uint64_t bytes);

} // namespace sagecomm
