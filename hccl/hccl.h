/* hccl.h declares what this library exports. The declarations are our own. Each row names the line of
 * third_party/hccl/inc/hccl/hccl.h at commit 9e73e708 of github.com/Ascend/pytorch that it follows; counts are
 * elements. */
#ifndef SAGECOMM_HCCL_FACADE_H
#define SAGECOMM_HCCL_FACADE_H

#include "../facade/facade.h"

/* Result, name, parameters. */
#define HCCL_EXPORTED(X)                                                                                               \
  X(HcclResult, HcclCommInitClusterInfo, (const char *table, uint32_t rank, HcclComm *comm)) /* :30 */                 \
  X(HcclResult, HcclCommInitClusterInfoConfig,                                                                         \
    (const char *table, uint32_t rank, HcclCommConfig *config, HcclComm *comm)) /* :42 */                              \
  X(HcclResult, HcclCreateSubCommConfig,                                                                               \
    (HcclComm * parent, uint32_t n, uint32_t *ranks, uint64_t id, uint32_t rank, HcclCommConfig *config,               \
     HcclComm *comm))                                   /* :58 */                                                      \
  X(HcclResult, HcclGetRootInfo, (HcclRootInfo * root)) /* :67 */                                                      \
  X(HcclResult, HcclCommInitRootInfo,                                                                                  \
    (uint32_t size, const HcclRootInfo *root, uint32_t rank, HcclComm *comm)) /* :79 */                                \
  X(HcclResult, HcclCommInitRootInfoConfig,                                                                            \
    (uint32_t size, const HcclRootInfo *root, uint32_t rank, const HcclCommConfig *config, HcclComm *comm)) /* :92 */  \
  X(HcclResult, HcclSetConfig, (int32_t config, HcclConfigValue value))                                     /* :103 */ \
  X(HcclResult, HcclGetConfig, (int32_t config, HcclConfigValue *value))                                    /* :104 */ \
  X(HcclResult, HcclGetCommName, (HcclComm comm, char *name))                                               /* :115 */ \
  X(HcclResult, HcclAllReduce,                                                                                         \
    (void *from, void *to, uint64_t count, int32_t type, int32_t op, HcclComm comm, HcclStream stream)) /* :131 */     \
  X(HcclResult, HcclBroadcast,                                                                                         \
    (void *buffer, uint64_t count, int32_t type, uint32_t root, HcclComm comm, HcclStream stream)) /* :146 */          \
  X(HcclResult, HcclReduceScatter,                                                                                     \
    (void *from, void *to, uint64_t count, int32_t type, int32_t op, HcclComm comm, HcclStream stream)) /* :162 */     \
  X(HcclResult, HcclReduceScatterV,                                                                                    \
    (void *from, const void *counts, const void *offsets, void *to, uint64_t count, int32_t type, int32_t op,          \
     HcclComm comm, HcclStream stream)) /* :181 */                                                                     \
  X(HcclResult, HcclScatter,                                                                                           \
    (void *from, void *to, uint64_t count, int32_t type, uint32_t root, HcclComm comm, HcclStream stream)) /* :196 */  \
  X(HcclResult, HcclAllGather,                                                                                         \
    (void *from, void *to, uint64_t count, int32_t type, HcclComm comm, HcclStream stream)) /* :211 */                 \
  X(HcclResult, HcclAllGatherV,                                                                                        \
    (void *from, uint64_t count, void *to, const void *counts, const void *offsets, int32_t type, HcclComm comm,       \
     HcclStream stream))                                          /* :229 */                                           \
  X(HcclResult, HcclGetRankSize, (HcclComm comm, uint32_t *size)) /* :239 */                                           \
  X(HcclResult, HcclGetRankId, (HcclComm comm, uint32_t *rank))   /* :248 */                                           \
  X(HcclResult, HcclBarrier, (HcclComm comm, HcclStream stream))  /* :256 */                                           \
  X(HcclResult, HcclSend,                                                                                              \
    (void *from, uint64_t count, int32_t type, uint32_t peer, HcclComm comm, HcclStream stream)) /* :270 */            \
  X(HcclResult, HcclRecv,                                                                                              \
    (void *to, uint64_t count, int32_t type, uint32_t peer, HcclComm comm, HcclStream stream)) /* :284 */              \
  X(HcclResult, HcclAlltoAllVC,                                                                                        \
    (const void *from, const void *matrix, int32_t from_type, const void *to, int32_t to_type, HcclComm comm,          \
     HcclStream stream)) /* :301 */                                                                                    \
  X(HcclResult, HcclAlltoAllV,                                                                                         \
    (const void *from, const void *counts, const void *offsets, int32_t from_type, const void *to,                     \
     const void *to_counts, const void *to_offsets, int32_t to_type, HcclComm comm, HcclStream stream)) /* :323 */     \
  X(HcclResult, HcclAlltoAll,                                                                                          \
    (const void *from, uint64_t count, int32_t from_type, const void *to, uint64_t to_count, int32_t to_type,          \
     HcclComm comm, HcclStream stream)) /* :342 */                                                                     \
  X(HcclResult, HcclReduce,                                                                                            \
    (void *from, void *to, uint64_t count, int32_t type, int32_t op, uint32_t root, HcclComm comm,                     \
     HcclStream stream))                                                          /* :360 */                           \
  X(HcclResult, HcclCommDestroy, (HcclComm comm))                                 /* :370 */                           \
  X(HcclResult, HcclCommInitAll, (uint32_t n, int32_t *devices, HcclComm *comms)) /* :381 */                           \
  X(HcclResult, HcclGetCommAsyncError, (HcclComm comm, HcclResult * error))       /* :388 */                           \
  X(const char *, HcclGetErrorString, (HcclResult code))                          /* :394 */                           \
  X(HcclResult, HcclBatchSendRecv,                                                                                     \
    (HcclSendRecvItem * items, uint32_t n, HcclComm comm, HcclStream stream)) /* :403 */                               \
  X(uint32_t, HcclGetCommConfigCapability, (void))                            /* :408 */                               \
  X(HcclResult, HcclCommSuspend, (HcclComm comm))                             /* :456 */                               \
  X(HcclResult, HcclCommResume, (HcclComm comm))                              /* :462 */                               \
  X(HcclResult, HcclCommSetMemoryRange,                                                                                \
    (HcclComm comm, void *base, size_t bytes, size_t alignment, uint64_t flags)) /* :472 */                            \
  X(HcclResult, HcclCommUnsetMemoryRange, (HcclComm comm, void *base))           /* :479 */                            \
  X(HcclResult, HcclCommActivateCommMemory,                                                                            \
    (HcclComm comm, void *at, size_t bytes, size_t offset, void *handle, uint64_t flags))             /* :490 */       \
  X(HcclResult, HcclCommDeactivateCommMemory, (HcclComm comm, void *at))                              /* :497 */       \
  X(HcclResult, HcclCommWorkingDevNicSet, (HcclComm comm, uint32_t *ranks, bool *backup, uint32_t n)) /* :506 */       \
  X(HcclResult, HcclGroupStart, (void))                                                               /* :511 */       \
  X(HcclResult, HcclGroupEnd, (void))                                                                 /* :516 */       \
  X(HcclResult, HcclCommRegister,                                                                                      \
    (HcclComm comm, void *memory, uint64_t bytes, void **handle, uint32_t flag))                 /* :537 */            \
  X(HcclResult, HcclCommDeregister, (HcclComm comm, void *handle))                               /* :544 */            \
  X(HcclResult, HcclCommExchangeMem, (HcclComm comm, void *window, uint32_t *peers, uint32_t n)) /* :553 */            \
  /* hccl_comm.h of later releases of CANN has the next four. */                                                       \
  X(HcclResult, HcclGetRootInfoScalable, (HcclRootInfo * root))                                                        \
  X(HcclResult, HcclCommInitRootInfoScalable,                                                                          \
    (uint32_t size, uint32_t n, const HcclRootInfo *roots, uint32_t rank, uint32_t more, const HcclCommConfig *config, \
     HcclComm *comm))                                                                                                  \
  X(HcclResult, HcclCommSymWinRegister, (HcclComm comm, void *memory, uint64_t bytes, void **window, uint32_t flag))   \
  X(HcclResult, HcclCommSymWinDeregister, (void *window))

#define X(result, name, parameters) result name parameters;
HCCL_EXPORTED(X)
#undef X

#endif
