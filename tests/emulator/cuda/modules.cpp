// Modules of PTX and launches of their kernels, which ../ptx interprets.
//
// The checker must know what a kernel reads and writes when it is queued. So each launch runs the kernel twice: when it is queued
// on memory that is all zeros, which gives the addresses, and in its stream. Kernels whose addresses follow from data are not
// emulated.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "../ptx/module.hpp"
#include "accesses.hpp"
#include "driver.hpp"

using driver::result;
using driver::stream;

namespace {

struct Function {
  const ptx::Kernel *kernel;
  int device;
};

struct Loaded {
  std::shared_ptr<const ptx::Module> kernels;  // a launch that is queued outlives the module
  int device;
  std::map<std::string, Function> functions;
};

struct Modules {
  std::mutex mutex;
  std::set<Loaded *> all;

  bool has(Loaded *module) {
    std::lock_guard lock(mutex);
    return all.contains(module);
  }
  // Returns the module of a function, null if there is none.
  Loaded *of(const Function *function) {
    std::lock_guard lock(mutex);
    for (Loaded *module : all)
      for (const auto &[name, known] : module->functions)
        if (&known == function) return module;
    return nullptr;
  }
};

Modules &modules() {
  static auto *all = new Modules;
  return *all;
}

// Writes what is wrong with a text where the caller wants it.
void log(const std::string &why, unsigned count, const CUjit_option *options, void *const *values) {
  char *buffer = nullptr;
  size_t size = 0;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = static_cast<char *>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = reinterpret_cast<size_t>(values[i]);
  }
  if (buffer != nullptr && size > 0) snprintf(buffer, size, "ptxas application ptx input, %s\n", why.c_str());
}

CUresult load(CUmodule *handle, const void *image, unsigned count, const CUjit_option *options, void **values) {
  for (unsigned i = 0; i < count; i++) skin::record("CUjit_option", options[i], values[i]);
  REQUIRE(handle != nullptr && image != nullptr, CUDA_ERROR_INVALID_VALUE);
  auto module = std::make_unique<Loaded>();
  module->device = driver::current_device();
  try {
    module->kernels = std::make_shared<ptx::Module>(ptx::parse(static_cast<const char *>(image)));
  } catch (const ptx::Refused &refused) {
    log(refused.what(), count, options, values);
    return CUDA_ERROR_INVALID_PTX;
  }
  // As a real driver does, whether it has room for the code or not.
  CUresult idle = result(emulator::device_synchronize_alone());
  REQUIRE(idle == CUDA_SUCCESS, idle);
  for (const auto &[name, kernel] : *module->kernels) module->functions[name] = {&kernel, module->device};
  *handle = reinterpret_cast<CUmodule>(module.get());
  std::lock_guard lock(modules().mutex);
  modules().all.insert(module.release());
  return driver::given(CUDA_SUCCESS, *handle);
}

CUresult trapped(const ptx::Kernel &kernel, const ptx::Trap &trap) {
  fprintf(stderr, "fake CUDA: kernel %s: %s\n", kernel.name.c_str(), trap.what());
  switch (trap.kind) {
    case ptx::Trap::misaligned_address:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case ptx::Trap::illegal_address:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    default:
      return CUDA_ERROR_LAUNCH_TIMEOUT;
  }
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule *handle, const void *image) {
  BEGIN_IN_CONTEXT(handle, image);
  return load(handle, image, 0, nullptr, nullptr);
}

CUresult cuModuleLoadDataEx(CUmodule *handle, const void *image, unsigned count, CUjit_option *options, void **values) {
  BEGIN_IN_CONTEXT(handle, image, count, options, values);
  return load(handle, image, count, options, values);
}

CUresult cuModuleUnload(CUmodule handle) {
  BEGIN_IN_CONTEXT(handle);
  auto *module = reinterpret_cast<Loaded *>(handle);
  REQUIRE(modules().has(module), CUDA_ERROR_INVALID_HANDLE);
  std::lock_guard lock(modules().mutex);
  modules().all.erase(module);
  delete module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
  BEGIN_IN_CONTEXT(function, handle, name);
  auto *module = reinterpret_cast<Loaded *>(handle);
  REQUIRE(function != nullptr && name != nullptr, CUDA_ERROR_INVALID_VALUE);
  skin::record_text("text", name);
  REQUIRE(modules().has(module), CUDA_ERROR_INVALID_HANDLE);
  auto found = module->functions.find(name);
  REQUIRE(found != module->functions.end(), CUDA_ERROR_NOT_FOUND);
  *function = reinterpret_cast<CUfunction>(&found->second);
  return driver::given(CUDA_SUCCESS, *function);
}

// What a device reports after a kernel has run, a wrong address, is the result of the launch here.
CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream on, void **parameters,
                        void **extra) {
  BEGIN_IN_CONTEXT(handle, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, on, parameters, extra);
  auto *function = reinterpret_cast<Function *>(handle);
  const Loaded *module = modules().of(function);
  REQUIRE(module != nullptr && function->device == driver::current_device(), CUDA_ERROR_INVALID_HANDLE);
  const ptx::Kernel &kernel = *function->kernel;
  REQUIRE(grid_x > 0 && block_x > 0 && block_x <= kernel.most_threads, CUDA_ERROR_INVALID_VALUE);
  REQUIRE(grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1 && shared == 0 && extra == nullptr,
          CUDA_ERROR_NOT_SUPPORTED);
  std::vector<unsigned char> arguments(kernel.parameter_bytes);
  for (size_t i = 0; i < kernel.parameters.size(); i++)
    memcpy(&arguments[kernel.parameters[i].offset], parameters[i], kernel.parameters[i].size);
  for (const auto &one : kernel.parameters) skin::record_words("kernelParam", &arguments[one.offset], one.size);
  try {
    driver::Tracer tracer;
    kernel.run(grid_x, block_x, arguments, tracer);
    const std::vector<emulator::Range> reads = tracer.reads(), writes = tracer.writes();
    auto run = [=, kernels = module->kernels, kernel = &kernel] {
      driver::Views views(reads, writes);
      kernel->run(grid_x, block_x, arguments, views);
    };
    return result(emulator::launch(stream(on), "kernel " + kernel.name, reads, writes, run));
  } catch (const ptx::Trap &trap) {
    return trapped(kernel, trap);
  }
}

}  // extern "C"
