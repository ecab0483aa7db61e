/* refused.c: functions of HCCL that this library has, because programs look them up, and does not carry out. */
#include "hccl.h"

#define WINDOWS "windows are not supported: the collectives of this library take any memory, without them"
#define TABLES                                                                                                    \
  "rank tables are not supported, because they hold no secret at which ranks could meet: unset RANK_TABLE_FILE, " \
  "or use HcclGetRootInfo() and HcclCommInitRootInfo()"

static HcclResult refuse(const char *function, const char *why) {
  return refused(fail(NULL, HCCL_E_NOT_SUPPORT, "sagecomm: %s: %s", function, why));
}

/* Name, parameters, and why. */
#define REFUSED(name, parameters, why) \
  HcclResult name parameters { return refuse(#name, why); }

#pragma GCC diagnostic ignored "-Wunused-parameter"

REFUSED(HcclCommInitClusterInfo, (const char *table, uint32_t rank, HcclComm *comm), TABLES)
REFUSED(HcclCommInitClusterInfoConfig, (const char *table, uint32_t rank, HcclCommConfig *config, HcclComm *comm),
        TABLES)

REFUSED(HcclCommRegister, (HcclComm comm, void *memory, uint64_t bytes, void **handle, uint32_t flag), WINDOWS)
REFUSED(HcclCommDeregister, (HcclComm comm, void *handle), WINDOWS)
REFUSED(HcclCommExchangeMem, (HcclComm comm, void *window, uint32_t *peers, uint32_t n), WINDOWS)
REFUSED(HcclCommSymWinRegister, (HcclComm comm, void *memory, uint64_t bytes, void **window, uint32_t flag), WINDOWS)
REFUSED(HcclCommSymWinDeregister, (void *window), WINDOWS)
REFUSED(HcclCommSetMemoryRange, (HcclComm comm, void *base, size_t bytes, size_t alignment, uint64_t flags), WINDOWS)
REFUSED(HcclCommUnsetMemoryRange, (HcclComm comm, void *base), WINDOWS)
REFUSED(HcclCommActivateCommMemory,
        (HcclComm comm, void *at, size_t bytes, size_t offset, void *handle, uint64_t flags), WINDOWS)
REFUSED(HcclCommDeactivateCommMemory, (HcclComm comm, void *at), WINDOWS)

REFUSED(HcclCommSuspend, (HcclComm comm), "a communicator cannot be suspended: destroy it, and make a new one")
REFUSED(HcclCommResume, (HcclComm comm), "no communicator was suspended")
REFUSED(HcclCommWorkingDevNicSet, (HcclComm comm, uint32_t *ranks, bool *backup, uint32_t n),
        "networks of devices are not used, so there is none to change")
