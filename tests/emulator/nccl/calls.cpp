// The functions of libnccl.so.2, over the emulator. Generated stubs refuse those that are not here.
//
// The first operation of a kind waits until all ranks call one, as NCCL's connections do: in the call, or, in a communicator
// that does not block, behind the call, which has returned ncclInProgress. Then its operations are queued when its user asks for
// its state. So a command that its user queues too early stands in front of the kernel.
//
// An operation in a stream that is being captured becomes a part of the graph, if the ranks are connected for it.
//
// The end of a communicator waits for that of the other ranks. NCCL_COMM_BLOCKING makes all communicators block, or none.
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "../core/late.hpp"
#include "../skin/record.hpp"
#include "communicator.hpp"

using namespace fake_nccl;

struct ncclComm {
  StatePointer state;
};

namespace {

std::mutex mutex;
std::string calls;
std::vector<std::weak_ptr<State>> joined;  // of all communicators
thread_local std::string last_error;

thread_local int depth = 0;
thread_local std::vector<std::pair<ncclComm_t, Operation>> grouped;

void note(const std::string &call) {
  std::lock_guard lock(mutex);
  calls += call + "\n";
}

// Begins a call. The fault plan may end it with a result of its own.
bool begins(const char *function, ncclResult_t *result) {
  switch (emulator::enter(function)) {
    case emulator::Status::success:
      return true;
    case emulator::Status::injected:
      *result = static_cast<ncclResult_t>(emulator::injected_code());
      last_error = *result == ncclSuccess ? "" : std::string("injected into ") + function;
      return false;
    default:
      *result = fail(ncclUnhandledCudaError, "Cuda failure 'driver shutting down'");
      return false;
  }
}

#define BEGIN                       \
  ncclResult_t begun = ncclSuccess; \
  if (!begins(__func__, &begun)) return begun

// Queues operations. Requires: they are of one communicator.
ncclResult_t issue(ncclComm_t communicator, const std::vector<Operation> &operations) {
  const StatePointer state = communicator->state;
  const std::deque<Operation> all(operations.begin(), operations.end());
  std::unique_lock lock(state->mutex);
  if (state->error != ncclSuccess) return fail(state->error, "the communicator has failed");
  if (!state->ready) return fail(ncclInvalidUsage, "the communicator is not ready");
  if (!state->waiting.empty()) return fail(ncclInvalidUsage, "the communicator is in progress");
  const auto captures = [](const Operation &one) { return captured(one.stream); };
  if (std::any_of(all.begin(), all.end(), captures)) {
    if (!std::all_of(all.begin(), all.end(), captures))
      return fail(ncclInvalidUsage,
                  "Streams given to a communicator within a NCCL group must either be all uncaptured "
                  "or all captured by the same graph.");
    // The first operation of a kind connects the ranks, with calls that a capture may forbid.
    if (!connecting(*state, operations))
      return fail(ncclUnhandledCudaError, "Cuda failure 'operation not permitted when stream is capturing'");
  }
  connect(*state, operations);
  if (!state->blocking) {
    state->waiting = all;
    return ncclInProgress;
  }
  while (!connected(*state, all)) {
    if (state->aborted) return fail(ncclInternalError, "the communicator was aborted");
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  return launch(state, operations);
}

ncclResult_t call(const char *name, ncclComm_t communicator, Operation operation) {
  if (communicator == nullptr) return fail(ncclInvalidArgument, std::string(name) + " : comm argument is NULL");
  const State &state = *communicator->state;
  if (size_of(operation.type) == 0) return fail(ncclInvalidArgument, std::string(name) + " : invalid type");
  if (operation.root < 0 || operation.root >= state.ranks)
    return fail(ncclInvalidArgument, std::string(name) + " : invalid root " + std::to_string(operation.root));
  note(std::string(name) + " count " + std::to_string(operation.count) + " type " + std::to_string(operation.type) +
       " op " + std::to_string(operation.reduction.op) + " root " + std::to_string(operation.root));
  // All functions in one order of arguments: nccl.h has compared that of each.
  skin::record(("nccl" + std::string(name)).c_str(), operation.from, operation.to, operation.count, operation.type,
               operation.reduction.op, operation.root, communicator, operation.stream);
  if (operation.reduction.op >= ncclNumOps) {
    std::lock_guard lock(communicator->state->mutex);
    const size_t at = static_cast<size_t>(operation.reduction.op) - ncclNumOps;
    if (at >= state.made.size()) return fail(ncclInvalidArgument, std::string(name) + " : invalid reduction operation");
    operation.reduction = state.made[at];
  }
  if (depth == 0) return issue(communicator, {operation});
  grouped.emplace_back(communicator, operation);
  return ncclSuccess;
}

Operation operation(Kind kind, const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                    cudaStream_t stream) {
  return {kind, from, to, count, type, {op, 1}, root, reinterpret_cast<emulator::StreamHandle>(stream)};
}

ncclResult_t init(ncclComm_t *communicator, int ranks, const ncclUniqueId &id, int rank, bool blocking) {
  Address address;
  memcpy(&address, id.internal, sizeof address);
  if (const char *set = getenv("NCCL_COMM_BLOCKING"); set != nullptr) blocking = atoi(set) != 0;
  StatePointer state;
  ncclResult_t result = join(address, ranks, rank, blocking, &state);
  if (result != ncclSuccess) return result;
  note("Init " + std::to_string(rank) + " of " + std::to_string(ranks));
  {
    std::lock_guard lock(mutex);
    joined.emplace_back(state);
  }
  for (result = ncclInProgress; blocking && result == ncclInProgress;) {
    {
      std::lock_guard lock(state->mutex);
      result = look(*state);
    }
    if (result == ncclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (result == ncclSuccess || result == ncclInProgress) *communicator = new ncclComm{state};
  return result;
}

// Queues operations in a thread of the library, whose call has returned an error: when the end of the communicator has begun, which joins the
// thread. The communicator is in progress until then.
void launch_late(const StatePointer &state, const std::vector<Operation> &operations, const emulator::Late &late) {
  connect(*state, operations);
  std::lock_guard lock(state->mutex);
  state->queueing++;
  state->late.emplace_back([state, operations, late] {
    while (!state->ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    await_late(late);
    std::lock_guard lock(state->mutex);
    note(launch(state, operations) == ncclSuccess ? "late kernels" : "late kernels failed");
    state->queueing--;
  });
}

void join_late(State &state) {
  state.ends = true;
  for (std::thread &one : state.late) one.join();
  state.late.clear();
}

// The end of a communicator, an abort too, waits until all graphs are destroyed that have operations of it.
void await_graphs(const State &state) {
  while (state.graphs > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A function that ends a communicator makes its device current, and then the one that was: a context on device 0, if the
// thread had none. The calls tell where that happens.
void note_device(const char *function, const State &state) {
  const int current = current_device();
  if (current != state.device) note(std::string(function) + " made a context on device " + std::to_string(current));
}

}  // namespace

ncclResult_t fake_nccl::fail(ncclResult_t result, const std::string &why) {
  last_error = why;
  return result;
}

extern "C" {

// The calls so far, one a line. The text is cut to `size` bytes with its NUL.
void fake_nccl_calls(char *text, size_t size) {
  std::lock_guard lock(mutex);
  text[calls.copy(text, size - 1)] = '\0';
}

// Ends the connections of this process, as its death will: ranks of other hosts get the result before anything else tells them.
void fake_nccl_breaks(int result) {
  std::lock_guard lock(mutex);
  for (const auto &one : joined)
    if (const StatePointer state = one.lock()) state->me().broken.store(result);
}

// Returns whether the users of all those ranks have got the result.
int fake_nccl_all_told() {
  std::lock_guard lock(mutex);
  for (const auto &one : joined)
    if (const StatePointer state = one.lock(); state && !all_told(*state)) return 0;
  return 1;
}

ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                      "internal error - please report this issue to the NCCL developers",
                                      "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                      "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t /*communicator*/) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  BEGIN;
  Address address;
  if (!make_table(&address)) return fail(ncclSystemError, "cannot make memory to share");
  memset(id, 0, sizeof *id);
  memcpy(id->internal, &address, sizeof address);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank) {
  BEGIN;
  return init(communicator, ranks, id, rank, true);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
  BEGIN;
  static const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  if (config != nullptr && config->magic != initial.magic)
    return fail(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  const bool blocking = config == nullptr || config->blocking != 0;
  skin::record(__func__, ranks, rank, blocking);
  return init(communicator, ranks, id, rank, blocking);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *communicator, int ranks, int rank, int /*ids*/, ncclUniqueId *id,
                                      ncclConfig_t *config) {
  return ncclCommInitRankConfig(communicator, ranks, *id, rank, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  skin::record(__func__, communicator);
  BEGIN;
  State &state = *communicator->state;
  note_device(__func__, state);
  leave(state);
  if (state.blocking) {
    await_graphs(state);
    return ncclSuccess;
  }
  std::lock_guard lock(state.mutex);
  state.finalizing = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  skin::record(__func__, communicator);
  BEGIN;
  note("Destroy");
  note_device(__func__, *communicator->state);
  leave(*communicator->state);
  join_late(*communicator->state);
  await_graphs(*communicator->state);
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  skin::record(__func__, communicator);
  BEGIN;
  note("Abort");
  note_device(__func__, *communicator->state);
  leave(*communicator->state);
  communicator->state->aborted = true;
  join_late(*communicator->state);
  await_graphs(*communicator->state);
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *error) {
  State &state = *communicator->state;
  std::lock_guard lock(state.mutex);
  ncclResult_t planned = ncclSuccess;
  if (!begins(__func__, &planned)) state.error = planned;
  if (state.ready && state.error == ncclSuccess) look_for_deaths(state);
  *error = state.queueing > 0 ? ncclInProgress : look(state);
  if (*error == ncclSuccess &&
      (state.finalizing ? !alone(state) || state.graphs > 0 : !connected(state, state.waiting)))
    *error = ncclInProgress;
  if (*error == ncclSuccess && !state.waiting.empty()) {
    std::vector<Operation> operations(state.waiting.begin(), state.waiting.end());
    state.waiting.clear();
    *error = state.error = launch(communicator->state, std::move(operations));
  }
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int *count) {
  *count = communicator->state->ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int *rank) {
  *rank = communicator->state->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t /*communicator*/, void *memory, size_t /*size*/, void **handle) {
  *handle = memory;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t /*communicator*/, void * /*handle*/) { return ncclSuccess; }

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *factor, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t communicator) {
  BEGIN;
  skin::record(__func__, type, residence, communicator);
  if (residence != ncclScalarHostImmediate) return fail(ncclInvalidArgument, "only scalars of the host are emulated");
  std::lock_guard lock(communicator->state->mutex);
  auto &made = communicator->state->made;
  made.push_back({ncclSum, scalar(factor, type)});
  *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(made.size()) - 1);
  return ncclSuccess;
}

// The number is not used again.
ncclResult_t ncclRedOpDestroy(ncclRedOp_t /*op*/, ncclComm_t /*communicator*/) {
  BEGIN;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--depth > 0) return ncclSuccess;
  std::map<ncclComm_t, std::vector<Operation>> lists;
  for (const auto &[communicator, operation] : grouped) lists[communicator].push_back(operation);
  grouped.clear();
  BEGIN;
  ncclResult_t result = ncclSuccess;
  if (const auto late = emulator::take_late()) {
    for (const auto &[communicator, list] : lists) launch_late(communicator->state, list, *late);
    return fail(static_cast<ncclResult_t>(late->code), "late");
  }
  for (const auto &[communicator, list] : lists)
    if (ncclResult_t one = issue(communicator, list); one != ncclSuccess) result = one;
  return result;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) {
  BEGIN;
  return call("AllReduce", communicator, operation(Kind::all_reduce, from, to, count, type, op, 0, stream));
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  BEGIN;
  return call("Reduce", communicator, operation(Kind::reduce, from, to, count, type, op, root, stream));
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  BEGIN;
  return call("Broadcast", communicator, operation(Kind::broadcast, from, to, count, type, ncclSum, root, stream));
}

ncclResult_t ncclBcast(void *at, size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                       cudaStream_t stream) {
  return ncclBroadcast(at, at, count, type, root, communicator, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  BEGIN;
  return call("AllGather", communicator, operation(Kind::all_gather, from, to, count, type, ncclSum, 0, stream));
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t communicator, cudaStream_t stream) {
  BEGIN;
  return call("ReduceScatter", communicator, operation(Kind::reduce_scatter, from, to, count, type, op, 0, stream));
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  BEGIN;
  return call("Send", communicator, operation(Kind::send, from, nullptr, count, type, ncclSum, peer, stream));
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  BEGIN;
  return call("Recv", communicator, operation(Kind::recv, nullptr, to, count, type, ncclSum, peer, stream));
}

// Called by generated stubs.
ncclResult_t fake_nccl_unsupported(const char *name, int * /*told*/) {
  note(std::string(name) + " refused");
  return ncclInvalidUsage;
}

}  // extern "C"
