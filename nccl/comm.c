/* comm.c: functions for communicators that exist, and errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../facade/facade.h"

/* The engine of NVIDIA's library must not call this one: internal/engine/nccl looks for this symbol. */
int sagecomm_nccl_facade = 1;

/* NCCL prints its errors where NCCL_DEBUG is set, and its users look for them there. */
void facade_print(const char *text) {
  const char *level = getenv("NCCL_DEBUG");
  if (level == NULL || (strcasecmp(level, "WARN") && strcasecmp(level, "INFO") && strcasecmp(level, "TRACE"))) return;
  fprintf(stderr, "NCCL WARN %s\n", text);
}

ncclResult_t ncclGetVersion(int *version) {
  if (version == NULL) return fail(NULL, ncclInvalidArgument, "sagecomm: ncclGetVersion: version is NULL");
  *version = FACADE_NCCL_VERSION;
  return ncclSuccess;
}
EXPORTED(GetVersion);

const char *ncclGetErrorString(ncclResult_t result) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                      "internal error - please report this issue to the sagecomm developers",
                                      "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                      "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress",
                                      "timeout"};
  _Static_assert(sizeof texts / sizeof texts[0] == ncclNumResults, "a text for each result");
  return (int)result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}
EXPORTED(GetErrorString);

const char *ncclGetLastError(ncclComm_t comm) { return newest_error(comm); }
EXPORTED(GetLastError);

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return comm == NULL ? ncclSuccess : comm_end(comm, "ncclCommDestroy", NULL);
}
EXPORTED(CommDestroy);

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return comm == NULL ? ncclSuccess : comm_end(comm, "ncclCommAbort", "ncclCommAbort() was called");
}
EXPORTED(CommAbort);

/* Waits for the operations and destroys the group; what is left is for ncclCommDestroy(). */
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm_finalize(comm, "ncclCommFinalize"); }
EXPORTED(CommFinalize);

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  return comm_state(comm, "ncclCommGetAsyncError", error);
}
EXPORTED(CommGetAsyncError);

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  return comm_ask(comm, "ncclCommCount", ASK_SIZE, count);
}
EXPORTED(CommCount);

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  return comm_ask(comm, "ncclCommUserRank", ASK_RANK, rank);
}
EXPORTED(CommUserRank);

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
  return comm_ask(comm, "ncclCommCuDevice", ASK_DEVICE, device);
}
EXPORTED(CommCuDevice);

/* Of nccl_device.h. It grows at its end; `size` says how much of it the caller knows. */
struct ncclCommProperties {
  size_t size;
  unsigned int magic, version;
  int rank, nRanks, cudaDev, nvmlDev;
  bool deviceApiSupport, multimemSupport;
  int ginType, nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
};

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, struct ncclCommProperties *properties);

/* The device API, multimem and one-sided operations are not there, and each rank is alone in its team of those that
 * reach each other's memory. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, struct ncclCommProperties *properties) {
  static const char *const function = "ncclCommQueryProperties";
  if (properties == NULL || properties->magic != NCCL_API_MAGIC) {
    return fail(NULL, ncclInvalidArgument, "sagecomm: %s: props is not initialised by NCCL_COMM_PROPERTIES_INITIALIZER",
                function);
  }
  ncclResult_t result = comm_enter(comm, function);
  if (result != ncclSuccess) return result;
  struct ncclCommProperties known = {.size = properties->size,
                                     .magic = properties->magic,
                                     .version = properties->version,
                                     .rank = comm->rank,
                                     .nRanks = comm->size,
                                     .cudaDev = comm->device,
                                     .nvmlDev = comm->device,
                                     .nLsaTeams = comm->size};
  memcpy(properties, &known, known.size < sizeof known ? known.size : sizeof known);
  comm_release(comm);
  return ncclSuccess;
}
EXPORTED(CommQueryProperties);
