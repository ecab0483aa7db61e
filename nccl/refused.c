/* refused.c: functions of NCCL that the facade has, because programs are linked to them, and does not carry out. */
#include "../facade/facade.h"

#define DEVICE_API \
  "kernels cannot reach the memory of other ranks through this library: use a collective, or NVIDIA's NCCL"
#define WINDOWS "windows are not supported: the collectives of this library take any memory, without them"
#define ONE_SIDED "one-sided operations are not supported: use ncclSend() and ncclRecv()"

static ncclResult_t refuse(const char *function, const char *why) {
  return refused(fail(NULL, ncclInvalidUsage, "sagecomm: %s: %s", function, why));
}

/* Name, parameters with types as in nccl.h, and why. */
#define REFUSED(name, parameters, why)                                     \
  ncclResult_t nccl##name parameters { return refuse("nccl" #name, why); } \
  EXPORTED(name)

#pragma GCC diagnostic ignored "-Wunused-parameter"

REFUSED(WinGetUserPtr, (ncclComm_t comm, ncclWindow_t window, void **memory), WINDOWS);

REFUSED(PutSignal,
        (const void *from, size_t count, ncclDataType_t type, int peer, ncclWindow_t window, size_t offset, int signal,
         int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream),
        ONE_SIDED);
REFUSED(Signal, (int peer, int signal, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream),
        ONE_SIDED);
REFUSED(WaitSignal, (int n, ncclWaitSignalDesc_t *signals, ncclComm_t comm, cudaStream_t stream), ONE_SIDED);

REFUSED(CommRevoke, (ncclComm_t comm, int flags), "use ncclCommAbort() and make a new communicator");
REFUSED(CommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id), "communicators do not grow: make a new one");
REFUSED(CommGrow,
        (ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *grown, ncclConfig_t *config),
        "communicators do not grow: make a new one");

/* The device API of nccl_device.h, whose structures are opaque here. */
struct ncclDevComm;
struct ncclDevCommRequirements;
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const struct ncclDevCommRequirements *wants, struct ncclDevComm *made);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const struct ncclDevComm *made);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void **pointer);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **pointer);

REFUSED(DevCommCreate, (ncclComm_t comm, const struct ncclDevCommRequirements *wants, struct ncclDevComm *made),
        DEVICE_API);
REFUSED(DevCommDestroy, (ncclComm_t comm, const struct ncclDevComm *made), DEVICE_API);
REFUSED(GetLsaMultimemDevicePointer, (ncclWindow_t window, size_t offset, void **pointer), DEVICE_API);
REFUSED(GetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void **pointer), DEVICE_API);

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int rank, void **pointer);
REFUSED(GetLsaDevicePointer, (ncclWindow_t window, size_t offset, int rank, void **pointer), DEVICE_API);

typedef struct {
  int ranks, rank, stride;
} team;
team ncclTeamLsa(ncclComm_t comm);

/* It cannot fail. No rank reaches the memory of another one, so this rank is a team. */
team ncclTeamLsa(ncclComm_t comm) { return (team){1, 0, 1}; }
EXPORTED(TeamLsa);
