/* The functions and numbers that internal/engine/nccl/table.h gives NCCL, compared with those of nccl.h: driver_test.go compiles it. */
#include <nccl.h>

#include "../../../internal/engine/nccl/table.h"

/* Enumerations and structures are passed as integers, and as structures of the same size. */
_Static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
                   sizeof(ncclRedOp_t) == sizeof(int),
               "int");
_Static_assert(sizeof(scn_id) == sizeof(ncclUniqueId), "unique id");
_Static_assert(offsetof(scn_config, size) == offsetof(ncclConfig_t, size), "config");
_Static_assert(offsetof(scn_config, magic) == offsetof(ncclConfig_t, magic), "config");
_Static_assert(offsetof(scn_config, version) == offsetof(ncclConfig_t, version), "config");
_Static_assert(offsetof(scn_config, blocking) == offsetof(ncclConfig_t, blocking), "config");
_Static_assert(SCN_CONFIG_MAGIC == NCCL_API_MAGIC && SCN_LEAST_VERSION == NCCL_VERSION(2, 27, 0), "config");
_Static_assert(SCN_SUCCESS == ncclSuccess && SCN_IN_PROGRESS == ncclInProgress, "results");
_Static_assert(SCN_INT8 == ncclInt8 && SCN_UINT8 == ncclUint8 && SCN_INT32 == ncclInt32 && SCN_UINT32 == ncclUint32,
               "types");
_Static_assert(SCN_INT64 == ncclInt64 && SCN_UINT64 == ncclUint64 && SCN_FLOAT16 == ncclFloat16, "types");
_Static_assert(SCN_FLOAT32 == ncclFloat32 && SCN_FLOAT64 == ncclFloat64 && SCN_BFLOAT16 == ncclBfloat16, "types");
_Static_assert(SCN_SUM == ncclSum && SCN_PROD == ncclProd && SCN_MAX == ncclMax && SCN_MIN == ncclMin &&
                   SCN_AVG == ncclAvg,
               "ops");
_Static_assert(SCN_HOST_IMMEDIATE == ncclScalarHostImmediate, "residence");

/* Each function is called with the arguments of the table. Pointers to enumerations are converted, the rest is checked. */
#define R(t) ((t *)(void *)p)
ncclResult_t check(void *p, size_t n, int i, ncclComm_t c, cudaStream_t s, ncclUniqueId id);
ncclResult_t check(void *p, size_t n, int i, ncclComm_t c, cudaStream_t s, ncclUniqueId id) {
  scn_comm ours = c; /* the same type */
  scn_stream stream = s;
  const char *text = ncclGetErrorString(i);
  text = ncclGetLastError(ours);
  (void)text;
  return ncclGetVersion(p) + ncclGetUniqueId(p) + ncclCommInitRankConfig(p, i, id, i, p) + ncclCommFinalize(ours) +
         ncclCommDestroy(ours) + ncclCommAbort(ours) + ncclCommGetAsyncError(ours, R(ncclResult_t)) + ncclGroupStart() +
         ncclGroupEnd() + ncclAllReduce(p, p, n, i, i, ours, stream) + ncclBroadcast(p, p, n, i, i, ours, stream) +
         ncclReduce(p, p, n, i, i, i, ours, stream) + ncclAllGather(p, p, n, i, ours, stream) +
         ncclReduceScatter(p, p, n, i, i, ours, stream) + ncclSend(p, n, i, i, ours, stream) +
         ncclRecv(p, n, i, i, ours, stream) + ncclRedOpCreatePreMulSum(R(ncclRedOp_t), p, i, i, ours) +
         ncclRedOpDestroy(i, ours);
}
