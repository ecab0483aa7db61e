// What the compiler's code calls for kernels. No kernel runs here: torch's operators run as CPU kernels (../operators), and a
// launch that is left names its kernel and fails.
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>

#include "runtime.hpp"

namespace {

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void *, const char *> names;  // of libraries that stay loaded
  std::set<const void *> told;
};

Kernels &kernels() {
  static auto *all = new Kernels;
  return *all;
}

struct Launch {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local Launch pushed;

cudaError_t refuse(const void *function) {
  Kernels &all = kernels();
  std::lock_guard lock(all.mutex);
  auto found = all.names.find(function);
  if (found == all.names.end()) return runtime::leave(cudaErrorInvalidDeviceFunction);
  if (all.told.insert(function).second) {
    int status = 0;
    char *readable = abi::__cxa_demangle(found->second, nullptr, nullptr, &status);
    fprintf(stderr, "fake CUDA: kernels are not emulated: %.300s\n", readable == nullptr ? found->second : readable);
    free(readable);
  }
  return runtime::leave(cudaErrorNotSupported);
}

}  // namespace

extern "C" {

void **__cudaRegisterFatBinary(void * /*binary*/) {
  static void *handle[1];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void ** /*handle*/) {}
void __cudaUnregisterFatBinary(void ** /*handle*/) {}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}

void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, void *, void *, void *, void *,
                            int *) {
  Kernels &all = kernels();
  std::lock_guard lock(all.mutex);
  all.names[host] = name;
}

// The compiler's launch code asks for a handle first. The host address serves as one.
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void *>(host));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void **, size_t, cudaStream_t) {
  return refuse(kernel);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  memcpy(stream, &pushed.stream, sizeof pushed.stream);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3, dim3, void **, size_t, cudaStream_t) {
  return refuse(function);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *function, void **) { return refuse(function); }

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3, dim3, void **, size_t, cudaStream_t) {
  return refuse(function);
}

// Torch asks for these before it launches, and for some operators before it decides how.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void * /*function*/) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

}  // extern "C"
