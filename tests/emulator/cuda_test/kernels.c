// Modules of PTX: texts that are refused, launches with wrong arguments, memory that a kernel may not use, and instructions
// whose results are easily wrong. driver_test.go runs it.
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"

static const char head[] =
    ".version 8.0\n"
    ".target sm_75\n"
    ".address_size 64\n"
    ".visible .entry compute(\n"
    ".param .u64 compute_param_0,\n"
    ".param .u64 compute_param_1\n"
    ")\n"
    ".maxntid 4, 1, 1\n"
    "{\n"
    ".reg .pred %p<3>;\n"
    ".reg .b16 %rs<4>;\n"
    ".reg .f32 %f<4>;\n"
    ".reg .b32 %r<6>;\n"
    ".reg .f64 %fd<4>;\n"
    ".reg .b64 %rd<8>;\n"
    "ld.param.u64 %rd1, [compute_param_0];\n"
    "ld.param.u64 %rd2, [compute_param_1];\n"
    "cvta.to.global.u64 %rd3, %rd1;\n";
static const char tail[] =
    "ret;\n"
    "}\n";

static CUmodule module;
static CUfunction kernel;
static CUstream stream;

static void load(const char *body) {
  char text[4096];
  snprintf(text, sizeof text, "%s%s%s", head, body, tail);
  if (module != NULL) OK(cuModuleUnload(module));
  OK(cuModuleLoadData(&module, text));
  OK(cuModuleGetFunction(&kernel, module, "compute"));
}

static CUresult launch(CUdeviceptr at, uint64_t value, unsigned threads) {
  void *parameters[] = {&at, &value};
  return cuLaunchKernel(kernel, 1, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
}

// Runs a kernel that computes %rd4 of %rd2.
static uint64_t result_of(const char *body, uint64_t value) {
  char text[2048];
  CUdeviceptr memory = 0;
  uint64_t *result = NULL;
  snprintf(text, sizeof text, "%sst.global.u64 [%%rd3], %%rd4;\n", body);
  load(text);
  OK(cuMemAlloc(&memory, sizeof *result));
  OK(cuMemHostAlloc((void **)&result, sizeof *result, 0));
  OK(launch(memory, value, 1));
  OK(cuMemcpyDtoHAsync(result, memory, sizeof *result, stream));
  OK(cuStreamSynchronize(stream));
  const uint64_t given = *result;
  OK(cuMemFreeHost(result));
  OK(cuMemFree(memory));
  return given;
}

static uint64_t bits(double value) {
  uint64_t all;
  memcpy(&all, &value, sizeof all);
  return all;
}

static void refused(const char *body, const char *expected) {
  char text[4096], log[256] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {log, (void *)sizeof log};
  CUmodule none = NULL;
  snprintf(text, sizeof text, "%s%s%s", head, body, tail);
  IS(cuModuleLoadDataEx(&none, text, 2, options, values), CUDA_ERROR_INVALID_PTX);
  if (strstr(log, expected) == NULL) {
    fprintf(stderr, "the log is '%s', expected '%s'\n", log, expected);
    exit(1);
  }
}

static void texts(void) {
  refused("add.rm.f32 %f1, %f1, %f2;\n", "line 19: unknown instruction: add.rm.f32 %f1, %f1, %f2");
  refused("red.global.add.u32 [%rd3], %r1;\n", "line 19: unknown instruction: red.global.add.u32");
  refused("bar.sync 0;\n", "line 19: unknown instruction: bar.sync 0");
  refused("add.s32 %r1, %r2;\n", "line 19: unknown instruction: add.s32 %r1, %r2");
  refused("add.s32 %r1, %r2, %r9;\n", "line 19: unknown operand %r9");
  refused("add.s32 %r1, %r2, 1; ret;\n.shared .b32 x;\n", "line 19: unknown operand 1; ret");
  refused("bra nowhere;\n", "line 19: a branch to nowhere, which is not in this kernel");
  refused("cvt.s32.f32 %r1, %f1;\n", "line 19: unknown instruction: cvt.s32.f32");
}

static void launches(CUcontext other) {
  CUdeviceptr memory = 0;
  CUfunction none = NULL;
  load("st.global.u32 [%rd3+4], 7;\n");
  OK(cuMemAlloc(&memory, 8));
  IS(cuModuleGetFunction(&none, module, "absent"), CUDA_ERROR_NOT_FOUND);
  OK(launch(memory, 0, 4));
  IS(launch(memory, 0, 5), CUDA_ERROR_INVALID_VALUE);  // more threads than the kernel says
  IS(launch(memory + 2, 0, 1), CUDA_ERROR_MISALIGNED_ADDRESS);
  IS(launch(memory + 4, 0, 1), CUDA_ERROR_ILLEGAL_ADDRESS);  // behind the allocation
  IS(launch((CUdeviceptr)(uintptr_t)&memory, 0, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  OK(cuCtxPushCurrent(other));
  IS(launch(memory, 0, 1), CUDA_ERROR_INVALID_HANDLE);  // a module belongs to a context
  OK(cuCtxPopCurrent(&other));
  load("again:\nbra again;\n");
  IS(launch(memory, 0, 1), CUDA_ERROR_LAUNCH_TIMEOUT);
  OK(cuModuleUnload(module));
  module = NULL;
  IS(launch(memory, 0, 1), CUDA_ERROR_INVALID_HANDLE);
  OK(cuStreamSynchronize(stream));
  OK(cuMemFree(memory));
}

static void results(void) {
  IS(result_of("add.s64 %rd4, %rd2, -1;\n", 0), -1);
  IS(result_of("cvt.u32.u64 %r1, %rd2;\nadd.s32 %r1, %r1, 1;\ncvt.u64.u32 %rd4, %r1;\n", 0xffffffff), 0);
  IS(result_of("cvt.u32.u64 %r1, %rd2;\nmul.wide.u32 %rd4, %r1, %r1;\n", 0xffffffff), 0xfffffffe00000001);
  IS(result_of("div.s64 %rd4, %rd2, -1;\n", INT64_MIN), INT64_MIN);
  IS(result_of("shl.b64 %rd4, %rd2, 64;\n", 1), 0);
  IS(result_of("cvt.u16.u64 %rs1, %rd2;\nshr.s16 %rs2, %rs1, 8;\ncvt.u64.u16 %rd4, %rs2;\n", 0x8000), 0xff80);
  IS(result_of("cvt.u32.u64 %r1, %rd2;\ncvt.s32.s8 %r2, %r1;\ncvt.u64.u32 %rd4, %r2;\n", 0x80), 0xffffff80);
  IS(result_of("cvt.u32.u64 %r1, %rd2;\nprmt.b32 %r2, %r1, 0, 0x8123;\ncvt.u64.u32 %rd4, %r2;\n", 0xa1b2c3d4),
     0xffc3b2a1);
  IS(result_of("mov.b64 {%r1, %r2}, %rd2;\nmov.b64 %rd4, {%r2, %r1};\n", 0x1122334455667788), 0x5566778811223344);
  IS(result_of("mov.u64 %rd4, 1;\nsetp.ge.u64 %p1, %rd2, 5;\n@!%p1 bra end;\nmov.u64 %rd4, 2;\nend:\n", 5), 2);
  IS(result_of("mov.u64 %rd4, 1;\nsetp.ge.u64 %p1, %rd2, 5;\n@!%p1 bra end;\nmov.u64 %rd4, 2;\nend:\n", 4), 1);
  // Halves round to even, once, and numbers below the smallest normal one stay.
  const char *half =
      "mov.b64 %fd1, %rd2;\ncvt.rn.f32.f64 %f1, %fd1;\ncvt.rn.f16.f32 %rs1, %f1;\ncvt.u64.u16 %rd4, %rs1;\n";
  IS(result_of(half, bits(2049)), 0x6800);
  IS(result_of(half, bits(2051)), 0x6802);
  IS(result_of(half, bits(65520)), 0x7c00);
  IS(result_of(half, bits(0x1p-24)), 1);
  IS(result_of(half, bits(0x1p-25)), 0);
  IS(result_of(half, bits(-0.0)), 0x8000);
  // A comparison with a NaN does not hold, but for that which asks for one.
  const char *ordered = "mov.b64 %fd1, %rd2;\nsetp.ne.f64 %p1, %fd1, %fd1;\nselp.b64 %rd4, 1, 0, %p1;\n";
  const char *nan = "mov.b64 %fd1, %rd2;\nsetp.nan.f64 %p1, %fd1, %fd1;\nselp.b64 %rd4, 1, 0, %p1;\n";
  IS(result_of(ordered, 0x7ff8000000000000), 0);
  IS(result_of(nan, 0x7ff8000000000000), 1);
  IS(result_of(nan, bits(1)), 0);
  // PTX's minimum is the other number where one is a NaN, and -0 is less than 0.
  IS(result_of("mov.b64 %fd1, %rd2;\nmin.f64 %fd2, %fd1, 0d3FF0000000000000;\nmov.b64 %rd4, %fd2;\n",
               0x7ff8000000000000),
     bits(1));
  IS(result_of("mov.b64 %fd1, %rd2;\nmin.f64 %fd2, 0d0000000000000000, %fd1;\nmov.b64 %rd4, %fd2;\n", bits(-0.0)),
     bits(-0.0));
  IS(result_of("mov.b64 %fd1, %rd2;\ncvt.rzi.s32.f64 %r1, %fd1;\ncvt.u64.u32 %rd4, %r1;\n", bits(3e9)), INT32_MAX);
  IS(result_of("mov.b64 %fd1, %rd2;\ncvt.rzi.s32.f64 %r1, %fd1;\ncvt.u64.u32 %rd4, %r1;\n", bits(-2.9)), 0xfffffffe);
}

int main(void) {
  CUcontext first = NULL, second = NULL;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&first, 0));
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(first));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  texts();
  launches(second);
  results();
  return 0;
}
