/* The numbers by which the kernels of ../nccl know results, types and reductions, for libraries that are built without NVIDIA's nccl.h.
 * They are NCCL's. */
#pragma once

typedef enum {
  ncclSuccess,
  ncclUnhandledCudaError,
  ncclSystemError,
  ncclInternalError,
  ncclInvalidArgument,
  ncclInvalidUsage,
  ncclRemoteError,
  ncclInProgress
} ncclResult_t;

typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps, ncclMaxRedOp = 0x7fffffff } ncclRedOp_t;

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
  ncclMaxDataType = 0xff
} ncclDataType_t;
