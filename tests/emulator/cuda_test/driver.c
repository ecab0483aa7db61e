// A client of libcuda.so.1 without torch, as the Go core is one: contexts, memory, copies, flags, events, host functions, forks,
// user objects, functions by name, and the checker. driver_test.go runs it under several schedules.
#include <cuda.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../core/annotate.h"
#include "expect.h"

enum { count = 1024, size = count * sizeof(uint32_t) };

static uint32_t *pinned(void) {
  void *memory = NULL;
  OK(cuMemHostAlloc(&memory, size, 0));
  memset(memory, 0, size);
  return memory;
}

static CUstream new_stream(void) {
  CUstream stream = NULL;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

static void contexts(void) {
  int number = 0;
  CUdeviceptr memory = 0;
  IS(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
  OK(cuInit(0));
  OK(cuDeviceGetCount(&number));
  IS(number, 2);
  IS(cuMemAlloc(&memory, size), CUDA_ERROR_INVALID_CONTEXT);  // a thread without a context

  CUcontext first = NULL, second = NULL, current = NULL;
  CUdevice device = -1;
  OK(cuDevicePrimaryCtxRetain(&first, 0));
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(first));
  OK(cuCtxPushCurrent(second));
  OK(cuCtxGetDevice(&device));
  IS(device, 1);
  OK(cuCtxPopCurrent(&current));
  IS(current == second, 1);
  OK(cuCtxGetDevice(&device));
  IS(device, 0);
  IS(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
}

static void memory_and_copies(void) {
  CUdeviceptr memory = 0, base = 0;
  size_t length = 0;
  unsigned type = 0;
  uint32_t *host = pinned();
  OK(cuMemAlloc(&memory, size));
  OK(cuMemGetAddressRange(&base, &length, memory + 100));
  IS(base, memory);
  IS(length, size);
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 100));
  IS(type, CU_MEMORYTYPE_DEVICE);
  IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&type),
     CUDA_ERROR_INVALID_VALUE);

  CUstream stream = new_stream();
  for (uint32_t i = 0; i < count; i++) host[i] = i;
  OK(cuMemcpyHtoDAsync(memory, host, size, stream));
  OK(cuMemsetD32Async(memory, 7, 10, stream));
  OK(cuMemcpyDtoHAsync(host, memory, size, stream));
  OK(cuStreamSynchronize(stream));
  IS(host[9], 7);
  IS(host[10], 10);
  IS(cuMemcpyHtoDAsync(memory, host, size + 1, stream), CUDA_ERROR_INVALID_VALUE);
  OK(cuStreamDestroy(stream));
  IS(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  OK(cuMemFree(memory));
  OK(cuMemFreeHost(host));
}

static void flags_and_events(void) {
  uint32_t *flag = pinned(), *to = pinned(), *from = pinned();
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, size));
  CUstream consumer = new_stream(), producer = new_stream();
  CUevent done = NULL;
  OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  IS(cuEventQuery(done), CUDA_SUCCESS);  // before the first record
  from[0] = 5;
  OK(cuStreamWaitValue32(consumer, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuMemcpyAsync(memory, (CUdeviceptr)from, size, consumer));
  OK(cuMemcpyAsync((CUdeviceptr)to, memory, size, consumer));
  OK(cuEventRecord(done, consumer));
  IS(cuEventQuery(done), CUDA_ERROR_NOT_READY);
  OK(cuStreamWriteValue32(producer, (CUdeviceptr)flag, 1, 0));
  OK(cuEventSynchronize(done));
  IS(to[0], 5);

  // The CPU writes a flag, too, and says so.
  OK(cuStreamWaitValue32(consumer, (CUdeviceptr)flag, 0x7fffffff, CU_STREAM_WAIT_VALUE_GEQ));
  IS(cuStreamQuery(consumer), CUDA_ERROR_NOT_READY);
  emulator_release(flag);
  __atomic_store_n(flag, 0x7fffffff, __ATOMIC_SEQ_CST);
  OK(cuStreamSynchronize(consumer));

  CUstreamBatchMemOpParams both[2];
  memset(both, 0, sizeof both);
  both[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  both[0].writeValue.address = (CUdeviceptr)(flag + 1);
  both[0].writeValue.value = 3;
  both[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  both[1].waitValue.address = (CUdeviceptr)(flag + 1);
  both[1].waitValue.value = 3;
  both[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  OK(cuStreamBatchMemOp(producer, 2, both, 0));
  OK(cuStreamSynchronize(producer));
  IS(flag[1], 3);
  both[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  IS(cuStreamBatchMemOp(producer, 2, both, 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void call_the_driver(void *result) {
  CUdeviceptr memory = 0;
  *(CUresult *)result = cuMemAlloc(&memory, size);
}

static void host_functions_and_forks(void) {
  CUresult inside = CUDA_SUCCESS;
  CUstream stream = new_stream();
  OK(cuLaunchHostFunc(stream, call_the_driver, &inside));
  OK(cuStreamSynchronize(stream));
  IS(inside, CUDA_ERROR_NOT_PERMITTED);
  int status = 0;
  pid_t child = fork();
  if (child == 0) {
    call_the_driver(&inside);
    _exit(inside == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
}

static int destroyed; /* user objects */
static CUresult in_destructor;

static void destroy_object(void *object) {
  CUdeviceptr memory = 0;
  in_destructor = cuMemAlloc(&memory, size);
  __atomic_fetch_add((int *)object, 1, __ATOMIC_RELEASE);
}

static int destroyed_so_far(void) { return __atomic_load_n(&destroyed, __ATOMIC_ACQUIRE); }

/* Objects are destroyed one after the other, so once one that is released now is gone, those before it are. */
static void expect_destroyed(int n) {
  static int passed;
  int before = __atomic_load_n(&passed, __ATOMIC_ACQUIRE);
  CUuserObject last = NULL;
  OK(cuUserObjectCreate(&last, &passed, destroy_object, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuUserObjectRelease(last, 1));
  while (__atomic_load_n(&passed, __ATOMIC_ACQUIRE) == before) sched_yield();
  IS(destroyed_so_far(), n);
}

static void await_destroyed(int n) {
  while (destroyed_so_far() < n) sched_yield();
  expect_destroyed(n);
}

static CUuserObject new_object(void) {
  CUuserObject object = NULL;
  OK(cuUserObjectCreate(&object, &destroyed, destroy_object, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  return object;
}

/* A graph of one fill, which holds an object. */
static CUgraph holding_graph(CUstream stream, CUdeviceptr memory) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph captured = NULL, graph = NULL;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(memory, 1, size, stream));
  OK(cuStreamGetCaptureInfo(stream, &status, &id, &captured, NULL, NULL, NULL));
  OK(cuGraphRetainUserObject(captured, new_object(), 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(cuStreamEndCapture(stream, &graph));
  IS(graph == captured, 1);
  return graph;
}

/* What a graph holds is there until the graph, its executables and their launches are gone. */
static void user_objects(void) {
  CUstream stream = new_stream();
  CUdeviceptr memory = 0;
  CUgraphExec executable = NULL;
  uint32_t *flag = pinned();
  OK(cuMemAlloc(&memory, size));
  CUuserObject object = new_object();
  OK(cuUserObjectRetain(object, 2));
  OK(cuUserObjectRelease(object, 2));
  expect_destroyed(0);
  OK(cuUserObjectRelease(object, 1));
  await_destroyed(1);
  IS(in_destructor, CUDA_ERROR_NOT_PERMITTED);
  IS(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);

  OK(cuGraphDestroy(holding_graph(stream, memory)));
  await_destroyed(2);

  CUgraph graph = holding_graph(stream, memory);
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  OK(cuGraphLaunch(executable, stream));
  OK(cuStreamSynchronize(stream));
  expect_destroyed(2);
  OK(cuStreamWaitValue32(stream, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuGraphLaunch(executable, stream));
  OK(cuGraphExecDestroy(executable));
  IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  expect_destroyed(2);
  emulator_release(flag);
  __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
  OK(cuStreamSynchronize(stream));
  await_destroyed(3);

  /* A capture that comes to nothing holds nothing. */
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamGetCaptureInfo(stream, &status, &id, &graph, NULL, NULL, NULL));
  OK(cuGraphRetainUserObject(graph, new_object(), 1, CU_GRAPH_USER_OBJECT_MOVE));
  IS(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  await_destroyed(4);
}

static void functions_by_name(void) {
  void *found = NULL;
  OK(cuGetProcAddress("cuMemAlloc", &found, 13000, 0, NULL));
  IS(found == (void *)cuMemAlloc, 1);
  OK(cuGetProcAddress("cuCtxCreate", &found, 12000, 0, NULL));
  IS(found == (void *)cuCtxCreate, 0);
  OK(cuGetProcAddress("cuCtxCreate", &found, 13000, 0, NULL));
  IS(found == (void *)cuCtxCreate, 1);
  IS(cuGetProcAddress("cuNoSuchFunction", &found, 13000, 0, NULL), CUDA_ERROR_NOT_FOUND);
}

static void checker(void) {
  char text[4096];
  CUdeviceptr memory = 0;
  CUstream one = new_stream(), other = new_stream();
  CUevent written = NULL;
  OK(cuEventCreate(&written, CU_EVENT_DISABLE_TIMING));
  OK(cuMemAlloc(&memory, size));
  IS(emulator_reports(), 0);
  OK(cuMemsetD8Async(memory, 1, size, one));
  OK(cuEventRecord(written, one));
  OK(cuStreamWaitEvent(other, written, 0));
  OK(cuMemsetD8Async(memory, 2, size, other));
  IS(emulator_reports(), 0);
  OK(cuMemsetD8Async(memory, 3, size, one));
  IS(emulator_reports(), 1);
  emulator_report_text(text, sizeof text);
  IS(strstr(text, "fill of 4096 bytes") != NULL, 1);
  emulator_reset_reports();
  OK(cuCtxSynchronize());
}

int main(void) {
  contexts();
  memory_and_copies();
  flags_and_events();
  host_functions_and_forks();
  user_objects();
  functions_by_name();
  checker();
  return 0;
}
