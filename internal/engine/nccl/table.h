/* table.h has the functions of libnccl.so.2 that the engine calls, as nccl.h declares them. The library is opened at run time, and
 * its header is not needed to build; tests/emulator/cuda_test/nccl_abi.c compares the two. */
#ifndef SCN_TABLE_H
#define SCN_TABLE_H

#include <limits.h>
#include <stddef.h>

typedef struct scn_id {
  char internal[128];
} scn_id;

/* What ncclConfig_t began with in NCCL 2.14. A library reads as many bytes as `size` says. */
typedef struct scn_config {
  size_t size;
  unsigned magic, version;
  int blocking;
} scn_config;
#define SCN_CONFIG_MAGIC 0xcafebeefU
#define SCN_CONFIG_VERSION 21400U
/* NCCL 2.27. In 2.25, ncclCommAbort() hangs (pytorch issue 149153); in 2.26, communicators that do not block hang at random
 * (pytorch issue 153960), and torch has not used them since. */
#define SCN_LEAST_VERSION 22700

typedef struct ncclComm *scn_comm;
typedef struct CUstream_st *scn_stream;

enum { SCN_SUCCESS = 0, SCN_INVALID_ARGUMENT = 4, SCN_INVALID_USAGE = 5, SCN_IN_PROGRESS = 7 };
enum {
  SCN_INT8,
  SCN_UINT8,
  SCN_INT32,
  SCN_UINT32,
  SCN_INT64,
  SCN_UINT64,
  SCN_FLOAT16,
  SCN_FLOAT32,
  SCN_FLOAT64,
  SCN_BFLOAT16
};
enum { SCN_SUM, SCN_PROD, SCN_MAX, SCN_MIN, SCN_AVG };
enum { SCN_HOST_IMMEDIATE = 1 };

/* Name, result, parameters. */
#define SCN_FUNCTIONS(X)                                                                \
  X(GetVersion, int, (int *))                                                           \
  X(GetErrorString, const char *, (int))                                                \
  X(GetLastError, const char *, (scn_comm))                                             \
  X(GetUniqueId, int, (scn_id *))                                                       \
  X(CommInitRankConfig, int, (scn_comm *, int, scn_id, int, scn_config *))              \
  X(CommFinalize, int, (scn_comm))                                                      \
  X(CommDestroy, int, (scn_comm))                                                       \
  X(CommAbort, int, (scn_comm))                                                         \
  X(CommGetAsyncError, int, (scn_comm, int *))                                          \
  X(GroupStart, int, (void))                                                            \
  X(GroupEnd, int, (void))                                                              \
  X(AllReduce, int, (const void *, void *, size_t, int, int, scn_comm, scn_stream))     \
  X(Broadcast, int, (const void *, void *, size_t, int, int, scn_comm, scn_stream))     \
  X(Reduce, int, (const void *, void *, size_t, int, int, int, scn_comm, scn_stream))   \
  X(AllGather, int, (const void *, void *, size_t, int, scn_comm, scn_stream))          \
  X(ReduceScatter, int, (const void *, void *, size_t, int, int, scn_comm, scn_stream)) \
  X(Send, int, (const void *, size_t, int, int, scn_comm, scn_stream))                  \
  X(Recv, int, (void *, size_t, int, int, scn_comm, scn_stream))                        \
  X(RedOpCreatePreMulSum, int, (int *, void *, int, int, scn_comm))                     \
  X(RedOpDestroy, int, (int, scn_comm))

typedef struct scn_table {
#define SCN_FIELD(name, result, parameters) result(*name) parameters;
  SCN_FUNCTIONS(SCN_FIELD)
#undef SCN_FIELD
} scn_table;

#endif
