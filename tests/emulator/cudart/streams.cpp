// Streams, events, captures and graphs.
#include <cstring>

#include "runtime.hpp"

using runtime::leave;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamCreateWithPriority(stream, flags, priority));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamCreate(stream, flags));
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamCreate(stream, CU_STREAM_DEFAULT));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamDestroy(stream));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamGetPriority(stream, priority));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamQuery(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamSynchronize(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
  BEGIN_IN_CONTEXT;
  return leave(cuLaunchHostFunc(stream, function, argument));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *argument, unsigned flags) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamAddCallback(stream, reinterpret_cast<CUstreamCallback>(function), argument, flags));
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  BEGIN_IN_CONTEXT;
  return leave(cuEventCreate(event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  BEGIN_IN_CONTEXT;
  return leave(cuEventCreate(event, CU_EVENT_DEFAULT));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  BEGIN_IN_CONTEXT;
  return leave(cuEventDestroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  return leave(cuEventRecord(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  BEGIN_IN_CONTEXT;
  return leave(cuEventRecordWithFlags(event, stream, flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  BEGIN_IN_CONTEXT;
  return leave(cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BEGIN_IN_CONTEXT;
  return leave(cuEventSynchronize(event));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  BEGIN_IN_CONTEXT;
  return leave(cuEventElapsedTime(milliseconds, from, to));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
  BEGIN_IN_CONTEXT;
  return leave(cuIpcGetEventHandle(reinterpret_cast<CUipcEventHandle *>(handle), event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
  BEGIN_IN_CONTEXT;
  CUipcEventHandle bytes;
  memcpy(&bytes, &handle, sizeof bytes);
  return leave(cuIpcOpenEventHandle(event, bytes));
}

// ---- captures and graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamEndCapture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  BEGIN_IN_CONTEXT;
  return leave(cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus *>(status)));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
  BEGIN_IN_CONTEXT;
  cuuint64_t number = 0;
  CUresult result = cuStreamGetCaptureInfo(stream, reinterpret_cast<CUstreamCaptureStatus *>(status), &number, graph,
                                           nodes, reinterpret_cast<const CUgraphEdgeData **>(edges), count);
  if (id != nullptr) *id = number;
  return leave(result);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  BEGIN;
  return leave(cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode *>(mode)));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
  BEGIN_IN_CONTEXT;
  return leave(cuGraphInstantiate(executable, graph, flags));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
  BEGIN_IN_CONTEXT;
  return leave(cuGraphInstantiate(executable, graph, flags));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  BEGIN_IN_CONTEXT;
  return leave(cuGraphLaunch(executable, stream));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  BEGIN_IN_CONTEXT;
  return leave(cuGraphExecDestroy(executable));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  BEGIN_IN_CONTEXT;
  return leave(cuGraphDestroy(graph));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  BEGIN_IN_CONTEXT;
  return leave(cuGraphGetNodes(graph, nodes, count));
}

// ---- user objects

cudaError_t cudaUserObjectCreate(cudaUserObject_t *made, void *argument, cudaHostFn_t destroy, unsigned references,
                                 unsigned flags) {
  BEGIN;
  return leave(cuUserObjectCreate(made, argument, destroy, references, flags));
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  BEGIN;
  return leave(cuUserObjectRetain(object, count));
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  BEGIN;
  return leave(cuUserObjectRelease(object, count));
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) {
  BEGIN;
  return leave(cuGraphRetainUserObject(graph, object, count, flags));
}

}  // extern "C"
