// What waits for all streams of a context, and keeps other threads' calls into it meanwhile, and what returns at once. driver_test.go
// runs it. The arguments are "calls", "streams" (EMULATOR_STREAM_WAITS=1) or "at-once", and the file of fake CUDA's runtime.
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../core/annotate.h"
#include "expect.h"

enum { size = 4096, block = 2 << 20 };

static const char kernel_text[] =
    ".version 8.0\n"
    ".target sm_75\n"
    ".address_size 64\n"
    ".visible .entry compute(\n"
    ".param .u64 compute_param_0\n"
    ")\n"
    ".maxntid 1, 1, 1\n"
    "{\n"
    ".reg .b64 %rd<3>;\n"
    "ld.param.u64 %rd1, [compute_param_0];\n"
    "cvta.to.global.u64 %rd2, %rd1;\n"
    "st.global.u32 [%rd2], 7;\n"
    "ret;\n"
    "}\n";

static CUcontext context;
static CUstream waiting, other;
static CUfunction kernel;
static CUdeviceptr filled, written;
static uint32_t *word;
static int from_exporter;

// ---- calls that wait

static char pages[size] __attribute__((aligned(4096)));

static CUdeviceptr device_memory(void) {
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, size));
  return memory;
}

static void *host_memory(void) {
  void *memory = NULL;
  OK(cuMemHostAlloc(&memory, size, 0));
  return memory;
}

static void *registered_memory(void) {
  OK(cuMemHostRegister(pages, size, 0));
  return pages;
}

static CUdeviceptr memory_of_a_peer(void) {
  CUipcMemHandle handle;
  CUdeviceptr memory = 0;
  IS(read(from_exporter, &handle, sizeof handle), sizeof handle);
  OK(cuIpcOpenMemHandle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  return memory;
}

static void *prepare_device(void) { return (void *)device_memory(); }
static void *prepare_peer(void) { return (void *)memory_of_a_peer(); }
static void *prepare_nothing(void) { return NULL; }
static int free_device(void *memory) { return cuMemFree((CUdeviceptr)memory); }
static int free_host(void *memory) { return cuMemFreeHost(memory); }
static int unregister_host(void *memory) { return cuMemHostUnregister(memory); }
static int close_peer(void *memory) { return cuIpcCloseMemHandle((CUdeviceptr)memory); }
static int load_module(void *nothing) {
  (void)nothing;
  CUmodule module = NULL;
  return cuModuleLoadData(&module, kernel_text);
}
static int create_stream(void *nothing) {
  (void)nothing;
  CUstream stream = NULL;
  return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
}
static int create_stream_with_priority(void *nothing) {
  (void)nothing;
  CUstream stream = NULL;
  return cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1);
}

static int (*runtime_free)(void *), (*runtime_free_host)(void *), (*runtime_unregister)(void *),
    (*runtime_close)(void *);
static int free_by_runtime(void *memory) { return runtime_free(memory); }
static int free_host_by_runtime(void *memory) { return runtime_free_host(memory); }
static int unregister_by_runtime(void *memory) { return runtime_unregister(memory); }
static int close_by_runtime(void *memory) { return runtime_close(memory); }

typedef struct {
  const char *name;
  void *(*prepare)(void);
  int (*call)(void *);
} Case;

static const Case calls[] = {
    {"cuMemFree", prepare_device, free_device},
    {"cuMemFreeHost", host_memory, free_host},
    {"cuMemHostUnregister", registered_memory, unregister_host},
    {"cuIpcCloseMemHandle", prepare_peer, close_peer},
    {"cuModuleLoadData", prepare_nothing, load_module},
    {"cudaFree", prepare_device, free_by_runtime},
    {"cudaFreeHost", host_memory, free_host_by_runtime},
    {"cudaHostUnregister", registered_memory, unregister_by_runtime},
    {"cudaIpcCloseMemHandle", prepare_peer, close_by_runtime},
    {NULL, NULL, NULL},
};

static const Case streams[] = {
    {"cuStreamCreate", prepare_nothing, create_stream},
    {"cuStreamCreateWithPriority", prepare_nothing, create_stream_with_priority},
    {NULL, NULL, NULL},
};

// ---- threads

typedef struct {
  const Case *of;
  void *prepared;
  int orders;
  atomic_int returned;
} Caller;

static void *call(void *argument) {
  Caller *caller = argument;
  emulator_acquire(caller);
  OK(cuCtxSetCurrent(context));
  OK(caller->of->call(caller->prepared));
  IS(__atomic_load_n(word, __ATOMIC_SEQ_CST), 1);
  atomic_store(&caller->returned, 1);
  if (caller->orders) OK(cuMemsetD8Async(filled, 2, size, other));  // behind the fill of the stream that waited
  return NULL;
}

static void *launch(void *argument) {
  Caller *caller = argument;
  void *parameters[] = {&written};
  emulator_acquire(caller);
  OK(cuCtxSetCurrent(context));
  OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, other, parameters, NULL));
  IS(__atomic_load_n(word, __ATOMIC_SEQ_CST), 1);
  atomic_store(&caller->returned, 1);
  return NULL;
}

// Waits until so many threads are kept. Fails if the caller returns before.
static void until_kept(const Caller *caller, int threads) {
  for (;;) {
    const int returned = atomic_load(&caller->returned);
    if (emulator_kept_threads(0) == threads) return;
    if (returned) {
      fprintf(stderr, "%s has returned at once\n", caller->of->name);
      exit(1);
    }
    sched_yield();
  }
}

static void let_a_stream_wait(CUstream stream) {
  __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
  OK(cuStreamWaitValue32(stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void write_the_word(void) {
  emulator_release(word);
  __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
}

static void waits(const Case *of, CUstream stream, int orders) {
  Caller first = {of, of->prepare(), orders, 0}, second = {&(Case){"cuLaunchKernel", NULL, NULL}, NULL, 0, 0};
  pthread_t threads[2];
  let_a_stream_wait(stream);
  OK(cuMemsetD8Async(filled, 1, size, stream));
  emulator_release(&first);
  emulator_release(&second);
  IS(pthread_create(&threads[0], NULL, call, &first), 0);
  until_kept(&first, 1);
  IS(pthread_create(&threads[1], NULL, launch, &second), 0);
  until_kept(&second, 2);
  write_the_word();
  for (int i = 0; i < 2; i++) IS(pthread_join(threads[i], NULL), 0);
  OK(cuCtxSynchronize());
  char text[4096];
  emulator_report_text(text, sizeof text);
  if (emulator_reports() != 0) fprintf(stderr, "%s: %s\n", of->name, text);
  IS(emulator_reports(), 0);
}

// ---- calls that return at once

static void create_memory(void) {
  const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
  const CUmemAccessDesc access = {here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle memory = 0;
  CUdeviceptr at = 0;
  OK(cuMemCreate(&memory, block, &properties, 0));
  OK(cuMemAddressReserve(&at, block, 0, 0, 0));
  OK(cuMemMap(at, block, 0, memory, 0));
  OK(cuMemSetAccess(at, block, &access, 1));
  OK(cuMemUnmap(at, block));
  OK(cuMemRelease(memory));
  OK(cuMemAddressFree(at, block));
}

static void launch_graph(CUstream stream) {
  CUgraph graph = NULL;
  CUgraphExec executable = NULL;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemsetD8Async(filled, 3, size, stream));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, stream));
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}

static void at_once(CUmodule module, CUstream stream) {
  static char pageable[size];
  CUstream made = NULL, prior = NULL;
  CUevent event = NULL;
  CUfunction function = NULL;
  CUcontext popped = NULL;
  CUipcMemHandle handle;
  CUdeviceptr alias = 0;
  void *parameters[] = {&written};
  let_a_stream_wait(stream);
  const CUdeviceptr memory = device_memory();
  void *host = host_memory();
  OK(cuMemHostRegister(pages, size, 0));
  OK(cuMemHostGetDevicePointer(&alias, pages, 0));
  OK(cuIpcGetMemHandle(&handle, memory));
  const CUdeviceptr of_a_peer = memory_of_a_peer();
  OK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreateWithPriority(&prior, CU_STREAM_NON_BLOCKING, -1));
  OK(cuStreamDestroy(prior));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventRecord(event, stream));
  IS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  OK(cuEventDestroy(event));
  OK(cuModuleGetFunction(&function, module, "compute"));
  OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, made, parameters, NULL));
  OK(cuMemsetD8(memory, 1, size));
  OK(cuMemcpyHtoDAsync(filled, host, size, made));
  OK(cuMemcpyHtoDAsync(filled, pageable, size, made));
  OK(cuMemcpyDtoHAsync(host, filled, size, made));
  OK(cuMemcpyDtoHAsync(pageable, filled, size, made));
  OK(cuMemcpyDtoDAsync(filled, written, size, made));
  create_memory();
  launch_graph(made);
  OK(cuCtxPushCurrent(context));
  OK(cuCtxPopCurrent(&popped));
  OK(cuStreamSynchronize(made));
  OK(cuStreamDestroy(made));
  IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  write_the_word();
  OK(cuCtxSynchronize());
  OK(cuIpcCloseMemHandle(of_a_peer));
  OK(cuMemHostUnregister(pages));
  OK(cuMemFreeHost(host));
  OK(cuMemFree(memory));
  IS(emulator_reports(), 0);
}

// ---- the process whose memory this one opens

static pid_t start_exporter(void) {
  int names[2], alive[2];
  IS(pipe(names), 0);
  IS(pipe(alive), 0);
  const pid_t child = fork();
  if (child == 0) {
    char end;
    CUipcMemHandle handle;
    close(alive[1]);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 8; i++) {
      OK(cuIpcGetMemHandle(&handle, device_memory()));
      IS(write(names[1], &handle, sizeof handle), sizeof handle);
    }
    _exit(read(alive[0], &end, 1) == 0 ? 0 : 1);
  }
  close(alive[0]);
  close(names[1]);
  from_exporter = names[0];
  return child;  // it ends when this process does
}

int main(int count, char **arguments) {
  IS(count, 3);
  (void)start_exporter();
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  void *runtime = dlopen(arguments[2], RTLD_NOW);
  if (runtime == NULL) fprintf(stderr, "%s\n", dlerror());
  IS(runtime != NULL, 1);
  *(void **)&runtime_free = dlsym(runtime, "cudaFree");
  *(void **)&runtime_free_host = dlsym(runtime, "cudaFreeHost");
  *(void **)&runtime_unregister = dlsym(runtime, "cudaHostUnregister");
  *(void **)&runtime_close = dlsym(runtime, "cudaIpcCloseMemHandle");

  CUmodule module = NULL;
  OK(cuModuleLoadData(&module, kernel_text));
  OK(cuModuleGetFunction(&kernel, module, "compute"));
  OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  filled = device_memory();
  written = device_memory();
  word = host_memory();

  const CUstream legacy = NULL;
  const CUstream each[] = {waiting, legacy};
  for (int i = 0; i < 2; i++) {
    if (strcmp(arguments[1], "at-once") == 0) {
      OK(cuModuleLoadData(&module, kernel_text));
      at_once(module, each[i]);
    } else {
      const int orders = strcmp(arguments[1], "calls") == 0;
      for (const Case *one = orders ? calls : streams; one->name != NULL; one++) waits(one, each[i], orders);
    }
  }
  return 0;
}
