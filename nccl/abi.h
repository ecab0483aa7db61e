/* abi.h: the types and numbers of NCCL's interface that the facade uses. They follow nccl.h of NCCL 2.30, which is not
 * needed to build. With SAGECOMM_NCCL_HEADER the sources are compiled against NVIDIA's own header instead, so that a
 * function or a number that differs from it does not compile: tests/go/nccl_test.go does that. */
#ifndef SAGECOMM_NCCL_ABI_H
#define SAGECOMM_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifdef SAGECOMM_NCCL_HEADER
#include <nccl.h>
#else

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;

typedef struct {
  char internal[128];
} ncclUniqueId;

typedef enum {
  ncclSuccess,
  ncclUnhandledCudaError,
  ncclSystemError,
  ncclInternalError,
  ncclInvalidArgument,
  ncclInvalidUsage,
  ncclRemoteError,
  ncclInProgress,
  ncclTimeout,
  ncclNumResults
} ncclResult_t;

#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_SHRINK_DEFAULT 0
#define NCCL_SHRINK_ABORT 1
#define NCCL_SUSPEND_MEM 1

/* Grows at its end. `size` says how much of it the caller knows. */
typedef struct {
  size_t size;
  unsigned int magic, version;
  int blocking;
  int cgaClusterSize, minCTAs, maxCTAs;
  const char *netName;
  int splitShare, trafficClass;
  const char *commName;
} ncclConfig_t;

typedef struct {
  size_t size;
  unsigned int magic, version;
  float estimatedTime;
} ncclSimInfo_t;

typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps, ncclMaxRedOp = INT_MAX } ncclRedOp_t;

typedef enum {
  ncclInt8,
  ncclUint8,
  ncclInt32,
  ncclUint32,
  ncclInt64,
  ncclUint64,
  ncclFloat16,
  ncclFloat32,
  ncclFloat64,
  ncclBfloat16,
  ncclFloat8e4m3,
  ncclFloat8e5m2,
  ncclNumTypes
} ncclDataType_t;

typedef enum { ncclScalarDevice, ncclScalarHostImmediate } ncclScalarResidence_t;
typedef enum {
  ncclStatGpuMemSuspend,
  ncclStatGpuMemSuspended,
  ncclStatGpuMemPersist,
  ncclStatGpuMemTotal
} ncclCommMemStat_t;
typedef struct {
  int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;

#endif

_Static_assert(sizeof(ncclUniqueId) == 128, "unique id");
_Static_assert(offsetof(ncclConfig_t, magic) == 8 && offsetof(ncclConfig_t, blocking) == 16, "config");
_Static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 && ncclInternalError == 3,
               "results");
_Static_assert(ncclInvalidArgument == 4 && ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7 &&
                   ncclTimeout == 8 && ncclNumResults == 9,
               "results");
_Static_assert(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4 && ncclNumOps == 5,
               "reductions");
_Static_assert(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3 && ncclInt64 == 4 &&
                   ncclUint64 == 5,
               "types");
_Static_assert(ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8 && ncclBfloat16 == 9 && ncclFloat8e4m3 == 10 &&
                   ncclFloat8e5m2 == 11 && ncclNumTypes == 12,
               "types");
_Static_assert(ncclScalarDevice == 0 && ncclScalarHostImmediate == 1, "residence");

/* What ncclGetVersion() gives: the oldest version that torch, vLLM and the engine `nccl` use. Programs take a newer one
 * for a promise of windows and of the device API, which are not here. */
#define FACADE_NCCL_VERSION 22707

/* What the frame (../facade) asks for. */
#define FACADE_COMM ncclComm
#define FACADE_MARK sagecomm_nccl_facade
#define FACADE_NAME "nccl"
#define FACADE_PREFIX "nccl"
#define FACADE_FILE "libsagecomm_nccl.so"
#define FACADE_DRIVER "CUDA's driver"
#define FACADE_STREAM_OF_THREAD 2 /* CU_STREAM_PER_THREAD; 0: there is none */
#define FACADE_STREAM_DEFAULT 1   /* CU_STREAM_LEGACY, besides NULL; 0: there is none */
#define FACADE_DEVICE_TYPE 1      /* c10::DeviceType::CUDA */
#define FACADE_IN_PROGRESS                                                                                      \
  "the previous call on this communicator goes on: call ncclCommGetAsyncError() until it gives something else " \
  "than ncclInProgress"
/* How long a rank waits for the others to join. The error names those that are missing. */
#define FACADE_JOIN_NS (1800 * SECOND)
/* Operations of NCCL have no timeout: their users have. It is a hundred years. */
#define FACADE_OPERATIONS_NS (INT64_C(36525) * 86400 * SECOND)

typedef ncclResult_t facade_result;
#define RESULT_OK ncclSuccess
#define RESULT_IN_PROGRESS ncclInProgress
#define RESULT_ARGUMENT ncclInvalidArgument
#define RESULT_NULL ncclInvalidArgument
#define RESULT_USAGE ncclInvalidUsage
#define RESULT_UNSUPPORTED ncclInvalidUsage
#define RESULT_REMOTE ncclRemoteError
#define RESULT_TIMEOUT ncclRemoteError
#define RESULT_SYSTEM ncclSystemError
#define RESULT_MEMORY ncclSystemError
#define RESULT_DRIVER ncclUnhandledCudaError
#define RESULT_INTERNAL ncclInternalError

extern int sagecomm_nccl_facade;

/* Stands behind the definition of each function: its second name, by which tools that wrap a function call the
 * original. */
#define EXPORTED(name) extern __typeof__(nccl##name) pnccl##name __attribute__((alias("nccl" #name), used))

#endif
