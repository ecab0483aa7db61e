// Events, also those of other processes.
#include <cstring>

#include "driver.hpp"

using driver::event;
using driver::result;
using driver::stream;

extern "C" {

CUresult cuEventCreate(CUevent *handle, unsigned flags) {
  BEGIN_IN_CONTEXT(handle, flags);
  constexpr unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  REQUIRE(handle != nullptr && (flags & ~known) == 0, CUDA_ERROR_INVALID_VALUE);
  emulator::EventFlags wanted;
  wanted.timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  wanted.interprocess = (flags & CU_EVENT_INTERPROCESS) != 0;
  emulator::EventHandle made = nullptr;
  CUresult status = result(emulator::create_event(wanted, &made));
  *handle = reinterpret_cast<CUevent>(made);
  return driver::given(status, made);
}

CUresult cuEventDestroy(CUevent handle) {
  BEGIN(handle);
  return result(emulator::destroy_event(event(handle)));
}

CUresult cuEventRecord(CUevent handle, CUstream on) {
  BEGIN_IN_CONTEXT(handle, on);
  return result(emulator::record(event(handle), stream(on)));
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream on, unsigned flags) {
  BEGIN_IN_CONTEXT(handle, on, flags);
  REQUIRE(flags == CU_EVENT_RECORD_DEFAULT, CUDA_ERROR_NOT_SUPPORTED);
  return result(emulator::record(event(handle), stream(on)));
}

CUresult cuEventQuery(CUevent handle) {
  BEGIN(handle);
  return result(emulator::event_query(event(handle)));
}

CUresult cuEventSynchronize(CUevent handle) {
  BEGIN(handle);
  return result(emulator::event_synchronize(event(handle)));
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  BEGIN(milliseconds, from, to);
  return result(emulator::elapsed(event(from), event(to), milliseconds));
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent of) {
  BEGIN_IN_CONTEXT(handle, of);
  static_assert(sizeof(emulator::IpcHandle) == sizeof *handle);
  return result(emulator::export_event(event(of), reinterpret_cast<emulator::IpcHandle *>(handle)));
}

CUresult cuIpcOpenEventHandle(CUevent *opened, CUipcEventHandle handle) {
  BEGIN_IN_CONTEXT(opened, driver::fingerprint(handle));
  emulator::IpcHandle bytes;
  memcpy(&bytes, &handle, sizeof bytes);
  emulator::EventHandle made = nullptr;
  CUresult status = result(emulator::import_event(bytes, &made));
  *opened = reinterpret_cast<CUevent>(made);
  return status;
}

}  // extern "C"
