/* vendor.h is what device.c calls of a vendor's runtime, as a program does that is written for that vendor. */
#ifndef CABI_VENDOR_H
#define CABI_VENDOR_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifndef CHECK /* nccl_ranks.h has its own */
#include "check.h"
#endif

/* Each function succeeds or ends the program. A stream is late until the host stores to a word of allocate_host(). */
static struct {
  uint8_t device_type;
  uintptr_t (*allocate)(size_t bytes);
  void *(*allocate_host)(size_t bytes);
  void *(*make_stream)(void);
  void (*copy_in)(uintptr_t to, const void *from, size_t bytes, void *stream);
  void (*copy_out)(void *to, uintptr_t from, size_t bytes, void *stream);
  void (*wait_value)(void *stream, volatile void *word, uint32_t value);
  void (*synchronize)(void *stream);
} vendor;

static void *vendor_library;

static void *vendor_function(const char *name) {
  void *f = dlsym(vendor_library, name);
  if (f == NULL) fprintf(stderr, "the vendor's library has no %s\n", name);
  CHECK(f != NULL);
  return f;
}

static void open_vendor(const char *library) {
  vendor_library = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (vendor_library == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(vendor_library != NULL);
}

/* ---- CUDA's driver; types as in cuda.h ---- */

static struct {
  int (*init)(unsigned);
  int (*retain)(void **context, int device);
  int (*push)(void *context);
  int (*allocate)(unsigned long long *to, size_t bytes);
  int (*make_stream)(void **stream, unsigned flags);
  int (*copy_in)(unsigned long long to, const void *from, size_t bytes, void *stream);
  int (*copy_out)(void *to, unsigned long long from, size_t bytes, void *stream);
  int (*synchronize)(void *stream);
  int (*wait_value)(void *stream, unsigned long long at, uint32_t value, unsigned flags);
  int (*allocate_host)(void **memory, size_t bytes, unsigned flags);
} cu;

static uintptr_t cuda_allocate(size_t bytes) {
  unsigned long long at = 0;
  CHECK(cu.allocate(&at, bytes) == 0);
  return (uintptr_t)at;
}

static void *cuda_allocate_host(size_t bytes) {
  void *memory = NULL;
  CHECK(cu.allocate_host(&memory, bytes, 0) == 0);
  return memory;
}

static void *cuda_make_stream(void) {
  void *stream = NULL;
  CHECK(cu.make_stream(&stream, 1) == 0);
  return stream;
}

static void cuda_copy_in(uintptr_t to, const void *from, size_t bytes, void *stream) {
  CHECK(cu.copy_in(to, from, bytes, stream) == 0);
}

static void cuda_copy_out(void *to, uintptr_t from, size_t bytes, void *stream) {
  CHECK(cu.copy_out(to, from, bytes, stream) == 0);
}

static void cuda_wait_value(void *stream, volatile void *word, uint32_t value) {
  CHECK(cu.wait_value(stream, (unsigned long long)(uintptr_t)word, value, 0) == 0);
}

static void cuda_synchronize(void *stream) { CHECK(cu.synchronize(stream) == 0); }

static void load_cuda(void) {
  open_vendor("libcuda.so.1");
  *(void **)&cu.init = vendor_function("cuInit");
  *(void **)&cu.retain = vendor_function("cuDevicePrimaryCtxRetain");
  *(void **)&cu.push = vendor_function("cuCtxPushCurrent_v2");
  *(void **)&cu.allocate = vendor_function("cuMemAlloc_v2");
  *(void **)&cu.make_stream = vendor_function("cuStreamCreate");
  *(void **)&cu.copy_in = vendor_function("cuMemcpyHtoDAsync_v2");
  *(void **)&cu.copy_out = vendor_function("cuMemcpyDtoHAsync_v2");
  *(void **)&cu.synchronize = vendor_function("cuStreamSynchronize");
  *(void **)&cu.wait_value = vendor_function("cuStreamWaitValue32_v2");
  *(void **)&cu.allocate_host = vendor_function("cuMemHostAlloc");
  void *context = NULL;
  CHECK(cu.init(0) == 0 && cu.retain(&context, 0) == 0 && cu.push(context) == 0);
  vendor.device_type = 1;
  vendor.allocate = cuda_allocate;
  vendor.allocate_host = cuda_allocate_host;
  vendor.make_stream = cuda_make_stream;
  vendor.copy_in = cuda_copy_in;
  vendor.copy_out = cuda_copy_out;
  vendor.wait_value = cuda_wait_value;
  vendor.synchronize = cuda_synchronize;
}

/* ---- AscendCL; types as in acl_rt.h ---- */

static struct {
  int (*init)(const char *);
  int (*set_device)(int32_t);
  int (*allocate)(void **to, size_t bytes, int policy);
  int (*make_stream)(void **stream);
  int (*copy)(void *to, size_t room, const void *from, size_t bytes, int kind, void *stream);
  int (*synchronize)(void *stream);
  int (*wait_value)(void *at, uint64_t value, uint32_t flag, void *stream);
  int (*allocate_host)(void **memory, size_t bytes);
  int (*map)(void *memory, uint64_t bytes, int type, void **device);
} acl;

static uintptr_t npu_allocate(size_t bytes) {
  void *at = NULL;
  CHECK(acl.allocate(&at, bytes, 0) == 0);
  return (uintptr_t)at;
}

static void *npu_allocate_host(size_t bytes) {
  void *memory = NULL;
  CHECK(acl.allocate_host(&memory, bytes + 4096) == 0);
  memset(memory, 0, bytes + 4096); /* words have 64 bits, of which device.c stores the lower half */
  return (char *)memory + (-(uintptr_t)memory & 4095);
}

static void *npu_make_stream(void) {
  void *stream = NULL;
  CHECK(acl.make_stream(&stream) == 0);
  return stream;
}

static void npu_copy_in(uintptr_t to, const void *from, size_t bytes, void *stream) {
  CHECK(acl.copy((void *)to, bytes, from, bytes, 1, stream) == 0);
}

static void npu_copy_out(void *to, uintptr_t from, size_t bytes, void *stream) {
  CHECK(acl.copy(to, bytes, (void *)from, bytes, 2, stream) == 0);
}

static void npu_wait_value(void *stream, volatile void *word, uint32_t value) {
  static volatile void *known;
  static void *mapped;
  if (known != word) CHECK(acl.map((void *)(uintptr_t)word, 8, 0, &mapped) == 0);
  known = word;
  CHECK(acl.wait_value(mapped, value, 0, stream) == 0);
}

static void npu_synchronize(void *stream) { CHECK(acl.synchronize(stream) == 0); }

static void load_npu(void) {
  open_vendor("libascendcl.so");
  *(void **)&acl.init = vendor_function("aclInit");
  *(void **)&acl.set_device = vendor_function("aclrtSetDevice");
  *(void **)&acl.allocate = vendor_function("aclrtMalloc");
  *(void **)&acl.make_stream = vendor_function("aclrtCreateStream");
  *(void **)&acl.copy = vendor_function("aclrtMemcpyAsync");
  *(void **)&acl.synchronize = vendor_function("aclrtSynchronizeStream");
  *(void **)&acl.wait_value = vendor_function("aclrtValueWait");
  *(void **)&acl.allocate_host = vendor_function("aclrtMallocHost");
  *(void **)&acl.map = vendor_function("aclrtHostRegister");
  CHECK(acl.init(NULL) == 0 && acl.set_device(0) == 0);
  vendor.device_type = 20;
  vendor.allocate = npu_allocate;
  vendor.allocate_host = npu_allocate_host;
  vendor.make_stream = npu_make_stream;
  vendor.copy_in = npu_copy_in;
  vendor.copy_out = npu_copy_out;
  vendor.wait_value = npu_wait_value;
  vendor.synchronize = npu_synchronize;
}

static void load_vendor(const char *name) {
  if (strcmp(name, "npu") == 0)
    load_npu();
  else
    load_cuda();
}

#endif
