// Streams, host functions, and flags that streams write and wait for.
#include <algorithm>
#include <cstdlib>

#include "driver.hpp"

using driver::pointer;
using driver::result;
using driver::stream;

namespace {

CUresult create(CUstream *handle, unsigned flags, int priority) {
  REQUIRE(handle != nullptr && (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) == 0, CUDA_ERROR_INVALID_VALUE);
  emulator::StreamFlags wanted;
  wanted.blocking = flags == CU_STREAM_DEFAULT;
  wanted.priority = std::clamp(priority, driver::greatest_priority(), driver::least_priority);
  emulator::StreamHandle made = nullptr;
  CUresult status = result(emulator::create_stream(wanted, &made));
  *handle = reinterpret_cast<CUstream>(made);
  return driver::given(status, made);
}

struct Callback {
  CUstreamCallback function;
  CUstream stream;
  void *argument;
};

void run_callback(void *argument) {
  auto *callback = static_cast<Callback *>(argument);
  callback->function(callback->stream, CUDA_SUCCESS, callback->argument);
  delete callback;
}

CUresult write_value(CUstream on, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  REQUIRE(flags <= CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER, CUDA_ERROR_INVALID_VALUE);
  return result(emulator::write_value(stream(on), pointer(at), value));
}

CUresult wait_value(CUstream on, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  using emulator::Comparison;
  constexpr Comparison comparisons[] = {Comparison::greater_or_equal, Comparison::equal, Comparison::bitwise_and,
                                        Comparison::bitwise_nor};
  unsigned comparison = flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH);
  REQUIRE(comparison <= CU_STREAM_WAIT_VALUE_NOR, CUDA_ERROR_INVALID_VALUE);
  return result(emulator::wait_value(stream(on), pointer(at), value, comparisons[comparison]));
}

bool is_known(CUstreamBatchMemOpType type) {
  return type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
         type == CU_STREAM_MEM_OP_BARRIER || type == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
}

}  // namespace

int driver::greatest_priority() {
  static const int priorities = [] {
    const char *named = getenv("FAKE_CUDA_PRIORITIES");
    return named != nullptr ? std::max(1, atoi(named)) : 6;
  }();
  return least_priority + 1 - priorities;
}

extern "C" {

CUresult cuStreamCreate(CUstream *handle, unsigned flags) {
  BEGIN_IN_CONTEXT(handle, flags);
  return create(handle, flags, driver::least_priority);
}

CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority) {
  BEGIN_IN_CONTEXT(handle, flags, priority);
  return create(handle, flags, priority);
}

CUresult cuStreamDestroy(CUstream handle) {
  BEGIN(handle);
  return result(emulator::destroy_stream(stream(handle)));
}

CUresult cuStreamQuery(CUstream handle) {
  BEGIN_IN_CONTEXT(handle);
  return result(emulator::stream_query(stream(handle)));
}

CUresult cuStreamSynchronize(CUstream handle) {
  BEGIN_IN_CONTEXT(handle);
  return result(emulator::stream_synchronize(stream(handle)));
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  BEGIN_IN_CONTEXT(handle, event, flags);
  REQUIRE(flags <= CU_EVENT_WAIT_EXTERNAL, CUDA_ERROR_INVALID_VALUE);
  return result(emulator::stream_wait(stream(handle), driver::event(event)));
}

CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  BEGIN_IN_CONTEXT(handle, flags);
  emulator::StreamFlags known;
  CUresult status = result(emulator::stream_flags(stream(handle), &known));
  *flags = known.blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  return status;
}

CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  BEGIN_IN_CONTEXT(handle, priority);
  emulator::StreamFlags known;
  CUresult status = result(emulator::stream_flags(stream(handle), &known));
  *priority = known.priority;
  return status;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device) {
  BEGIN_IN_CONTEXT(handle, device);
  return result(emulator::stream_device(stream(handle), device));
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
  BEGIN_IN_CONTEXT(handle, context);
  int device = 0;
  CUresult status = result(emulator::stream_device(stream(handle), &device));
  *context = driver::primary_context(device);
  return status;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
  BEGIN_IN_CONTEXT(handle, id);
  uint64_t number = 0;
  CUresult status = result(emulator::stream_number(stream(handle), &number));
  *id = number;
  return status;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument) {
  BEGIN_IN_CONTEXT(handle, function, argument);
  REQUIRE(function != nullptr, CUDA_ERROR_INVALID_VALUE);
  return result(emulator::host_function(stream(handle), function, argument));
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *argument, unsigned flags) {
  BEGIN_IN_CONTEXT(handle, function, argument, flags);
  REQUIRE(function != nullptr && flags == 0, CUDA_ERROR_INVALID_VALUE);
  auto capture = emulator::CaptureStatus::none;
  uint64_t id = 0;
  CUresult status = result(emulator::capture_status(stream(handle), &capture, &id));
  REQUIRE(status == CUDA_SUCCESS, status);
  REQUIRE(capture == emulator::CaptureStatus::none, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  auto *callback = new Callback{function, handle, argument};
  status = result(emulator::host_function(stream(handle), run_callback, callback));
  if (status != CUDA_SUCCESS) delete callback;
  return status;
}

CUresult cuStreamWriteValue32(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  BEGIN_IN_CONTEXT(handle, at, value, flags);
  return write_value(handle, at, value, flags);
}

CUresult cuStreamWaitValue32(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  BEGIN_IN_CONTEXT(handle, at, value, flags);
  return wait_value(handle, at, value, flags);
}

// Flags have 32 bits here. Nothing is queued if one of the operations is unknown.
CUresult cuStreamBatchMemOp(CUstream handle, unsigned count, CUstreamBatchMemOpParams *all, unsigned flags) {
  BEGIN_IN_CONTEXT(handle, count, all, flags);
  REQUIRE(flags == 0 && count < 256 && all != nullptr, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(std::all_of(all, all + count, [](auto &one) { return is_known(one.operation); }), CUDA_ERROR_NOT_SUPPORTED);
  CUresult status = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && status == CUDA_SUCCESS; i++) {
    const auto &wait = all[i].waitValue;
    const auto &write = all[i].writeValue;
    if (all[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32)
      status = wait_value(handle, wait.address, wait.value, wait.flags);
    else if (all[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
      status = write_value(handle, write.address, write.value, write.flags);
  }
  return status;
}

}  // extern "C"
