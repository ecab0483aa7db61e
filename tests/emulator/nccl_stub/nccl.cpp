// A libnccl.so.2 for groups of one rank. Collectives copy their input to their output on the caller's stream. It exists to
// show that torch's own ProcessGroupNCCL runs on fake CUDA; generated stubs refuse the functions that are not here.
#include <cuda.h>
#include <nccl.h>

#include <cstring>
#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string calls;

void note(const std::string &call) {
  std::lock_guard lock(mutex);
  calls += call + "\n";
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

ncclResult_t copy(const char *name, const void *from, void *to, size_t count, ncclDataType_t type,
                  cudaStream_t stream) {
  note(std::string(name) + " " + std::to_string(count));
  if (from == to || count == 0) return ncclSuccess;
  auto source = reinterpret_cast<CUdeviceptr>(from), target = reinterpret_cast<CUdeviceptr>(to);
  return cuMemcpyAsync(target, source, count * size_of(type), stream) == CUDA_SUCCESS ? ncclSuccess
                                                                                      : ncclUnhandledCudaError;
}

ncclResult_t begin(ncclComm_t *communicator, int ranks, int rank) {
  if (ranks != 1 || rank != 0) return ncclInvalidUsage;
  note("Init");
  *communicator = reinterpret_cast<ncclComm_t>(&calls);
  return ncclSuccess;
}

}  // namespace

extern "C" {

// The calls so far, one a line. The text is cut to `size` bytes with its NUL.
void nccl_stub_calls(char *text, size_t size) {
  std::lock_guard lock(mutex);
  text[calls.copy(text, size - 1)] = '\0';
}

ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t /*result*/) { return "an error of the stub of NCCL"; }
const char *ncclGetLastError(ncclComm_t /*communicator*/) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  memset(id, 7, sizeof *id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId /*id*/, int rank) {
  return begin(communicator, ranks, rank);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks, ncclUniqueId /*id*/, int rank,
                                    ncclConfig_t * /*config*/) {
  return begin(communicator, ranks, rank);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *communicator, int ranks, int rank, int /*ids*/, ncclUniqueId * /*id*/,
                                      ncclConfig_t * /*config*/) {
  return begin(communicator, ranks, rank);
}

ncclResult_t ncclCommFinalize(ncclComm_t /*communicator*/) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t /*communicator*/) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t /*communicator*/) { return ncclSuccess; }

ncclResult_t ncclCommGetAsyncError(ncclComm_t /*communicator*/, ncclResult_t *error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t /*communicator*/, int *count) {
  *count = 1;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t /*communicator*/, int *rank) {
  *rank = 0;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t /*communicator*/, void *memory, size_t /*size*/, void **handle) {
  *handle = memory;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t /*communicator*/, void * /*handle*/) { return ncclSuccess; }

ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t /*reduction*/,
                           ncclComm_t /*communicator*/, cudaStream_t stream) {
  return copy("AllReduce", from, to, count, type, stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t /*reduction*/,
                        int /*root*/, ncclComm_t /*communicator*/, cudaStream_t stream) {
  return copy("Reduce", from, to, count, type, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int /*root*/,
                           ncclComm_t /*communicator*/, cudaStream_t stream) {
  return copy("Broadcast", from, to, count, type, stream);
}

ncclResult_t ncclBcast(void *at, size_t count, ncclDataType_t type, int /*root*/, ncclComm_t /*communicator*/,
                       cudaStream_t stream) {
  return copy("Broadcast", at, at, count, type, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t /*communicator*/,
                           cudaStream_t stream) {
  return copy("AllGather", from, to, count, type, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t /*reduction*/,
                               ncclComm_t /*communicator*/, cudaStream_t stream) {
  return copy("ReduceScatter", from, to, count, type, stream);
}

// Called by generated stubs.
ncclResult_t nccl_stub_unsupported(const char *name, int * /*told*/) {
  note(std::string(name) + " refused");
  return ncclInvalidUsage;
}

}  // extern "C"
