// libcncl.so with the ABI of CNCL, on the emulator of ../core beside libcnrt.so. Prototypes and constants follow cncl.h 1.25.0, written
// down again here: no line of the library under test is included, so a mistake in either shows.
//
// A clique id has 136 bytes, and a process joins with it once. All functions may wait for peers. Sends and recvs of a group are
// queued at its end. The state of a communicator is the result itself: 0x06 is no error. There is no AVG, and no double.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "../blocking/group.hpp"
#include "../skin/record.hpp"

using cnclResult_t = int;

namespace {

enum : cnclResult_t {
  success = 0,
  internal = 0x01,
  unsupported = 0x11,
  null_pointer = 0x21,
  init_failed = 0x51,
  reinit = 0x71,
  sys_socket = 0x22,
  mlu_runtime = 0x03,
  async_in_progress = 0x06,
  async_error = 0x16,
  arguments = 0x07,
};

struct Id {
  char data[128];
  uint64_t hash;
};

struct Comm {
  blocking::StatePointer state;
};

// What a failed call leaves in the caller's handle: a communicator that was deleted. Whoever uses it ends the process.
Comm deleted;

Comm *alive(Comm *comm) {
  if (comm != &deleted) return comm;
  fputs("a communicator is used that CNCL has deleted\n", stderr);
  abort();
}

std::mutex mutex;
std::set<uint64_t> joined;  // cliques of this process

thread_local int depth = 0;
thread_local std::vector<blocking::Operation> grouped;
thread_local blocking::StatePointer of_group;

cnclResult_t result(ncclResult_t of) {
  constexpr cnclResult_t results[] = {success, mlu_runtime, sys_socket, internal, arguments, init_failed, async_error};
  return results[of];
}

// Begins a call. The fault plan may end it with a result of its own.
bool begins(const char *function, cnclResult_t *code) {
  emulator::Status status = emulator::enter(function);
  if (status == emulator::Status::success) return true;
  *code = status == emulator::Status::injected ? emulator::injected_code() : mlu_runtime;
  return false;
}

#define BEGIN(...)                                   \
  skin::record(__func__ __VA_OPT__(, ) __VA_ARGS__); \
  cnclResult_t begun = success;                      \
  if (!begins(__func__, &begun)) return begun
#define REQUIRE(condition, otherwise) \
  if (!(condition)) return otherwise

// False: no such type.
bool type_of(int type, ncclDataType_t *of) {
  constexpr ncclDataType_t floats[] = {ncclFloat16, ncclBfloat16, ncclFloat32};
  constexpr ncclDataType_t integers[] = {ncclInt8, fake_nccl::only_int16, ncclInt32, ncclInt64};
  constexpr ncclDataType_t naturals[] = {ncclUint8, fake_nccl::only_uint16, ncclUint32, ncclUint64};
  const int low = type & 0xf;
  switch (type >> 4) {
    case 1:
      return low < 3 ? *of = floats[low], true : false;
    case 2:
      return low < 4 ? *of = integers[low], true : false;
    case 3:
      return low < 4 ? *of = naturals[low], true : false;
    default:
      return false;
  }
}

// The types that are known to be reduced.
bool reduces(int type) { return type != 0x21 && (type <= 0x30); }

cnclResult_t call(Comm *comm, blocking::Kind kind, const void *from, void *to, size_t count, int type, int op, int root,
                  void *queue) {
  REQUIRE(comm != nullptr, null_pointer);
  alive(comm);
  ncclDataType_t of{};
  REQUIRE(type_of(type, &of) && op >= 0 && op <= 3 && root >= 0 && root < comm->state->ranks, arguments);
  const bool p2p = kind == blocking::Kind::send || kind == blocking::Kind::recv;
  REQUIRE(!p2p || root != comm->state->rank, unsupported);
  REQUIRE(p2p || depth == 0, unsupported);
  const blocking::Operation one = blocking::operation(kind, from, to, count, of, op, root, queue);
  if (depth == 0) {
    const auto late = emulator::take_late();
    const cnclResult_t issued = result(blocking::issue(comm->state, {one}, late));
    if (!late || issued != success) return issued;
    skin::record("late", late->code);
    return late->code;
  }
  grouped.push_back(one);
  of_group = comm->state;
  return success;
}

}  // namespace

extern "C" {

const char *cnclGetErrorStr(cnclResult_t code) {
  switch (code) {
    case success:
      return "CNCL_RET_SUCCESS";
    case unsupported:
      return "CNCL_RET_ERR_UNSUPPORTED";
    case init_failed:
      return "CNCL_RET_ERR_INIT";
    case reinit:
      return "CNCL_RET_ERR_REINIT";
    case async_error:
      return "CNCL_RET_ASYNC_ERROR";
    case arguments:
      return "CNCL_RET_ERR_ARGUMENTS";
    default:
      return "CNCL error";
  }
}

cnclResult_t cnclGetCliqueId(Id *id) {
  BEGIN(id);
  REQUIRE(id != nullptr, arguments);
  fake_nccl::Address address;
  REQUIRE(make_table(&address), internal);
  memset(id, 0, sizeof *id);
  memcpy(id->data, &address, sizeof address);
  id->hash = ~address.nonce;
  return success;
}

cnclResult_t cnclInitComms(Comm **comms, int n, const int *devices, const int *ranks, int size, const Id *id) {
  if (comms != nullptr && n > 0) comms[0] = &deleted;
  BEGIN(comms, n, devices, ranks, size, id);
  REQUIRE(comms != nullptr && devices != nullptr && ranks != nullptr && id != nullptr, null_pointer);
  REQUIRE(n == 1, unsupported);  // of this emulator
  skin::record("place", devices[0], ranks[0]);
  fake_nccl::Address address;
  memcpy(&address, id->data, sizeof address);
  REQUIRE(id->hash == ~address.nonce, arguments);
  REQUIRE(fake_nccl::current_device() == devices[0], mlu_runtime);
  {
    std::lock_guard lock(mutex);
    REQUIRE(joined.insert(address.nonce).second, reinit);
  }
  blocking::StatePointer state;
  const cnclResult_t made = result(blocking::join(address, size, ranks[0], &state));
  if (made == success) comms[0] = new Comm{state};
  return skin::given(made, made == success ? comms[0] : nullptr);
}

// Waits for the other ranks, too.
cnclResult_t cnclFreeComm(Comm *comm) {
  BEGIN(comm);
  REQUIRE(comm != nullptr, arguments);
  leave(*alive(comm)->state);
  while (!alone(*comm->state) && !comm->state->aborted) usleep(1000);
  const cnclResult_t finished = result(blocking::finish(comm->state));
  delete comm;
  return finished;
}

cnclResult_t cnclAbortComm(Comm *comm) {
  BEGIN(comm);
  REQUIRE(comm != nullptr, arguments);
  alive(comm)->state->aborted = true;
  return success;
}

cnclResult_t cnclGetCommAsyncError(Comm *comm) {
  skin::record(__func__, comm);
  REQUIRE(comm != nullptr, arguments);
  alive(comm);
  cnclResult_t planned = success;
  if (!begins(__func__, &planned)) return planned;
  return comm->state->me().done[fake_nccl::called].load() == comm->state->called.all ? success : async_in_progress;
}

cnclResult_t cnclGroupStart() {
  BEGIN();
  depth++;
  return success;
}

cnclResult_t cnclGroupEnd() {
  BEGIN();
  REQUIRE(depth > 0, arguments);
  if (--depth > 0 || grouped.empty()) return success;
  std::vector<blocking::Operation> operations;
  operations.swap(grouped);
  const blocking::StatePointer state = std::move(of_group);
  return result(blocking::issue(state, operations));
}

cnclResult_t cnclAllReduce(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *queue) {
  BEGIN(from, to, count, type, op, comm, queue);
  REQUIRE(reduces(type), unsupported);
  return call(comm, blocking::Kind::all_reduce, from, to, count, type, op, 0, queue);
}

cnclResult_t cnclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm, void *queue) {
  BEGIN(from, to, count, type, root, comm, queue);
  return call(comm, blocking::Kind::broadcast, from, to, count, type, 0, root, queue);
}

cnclResult_t cnclReduce(const void *from, void *to, size_t count, int type, int op, int root, Comm *comm, void *queue) {
  BEGIN(from, to, count, type, op, root, comm, queue);
  REQUIRE(reduces(type), unsupported);
  return call(comm, blocking::Kind::reduce, from, to, count, type, op, root, queue);
}

cnclResult_t cnclAllGather(const void *from, void *to, size_t count, int type, Comm *comm, void *queue) {
  BEGIN(from, to, count, type, comm, queue);
  return call(comm, blocking::Kind::all_gather, from, to, count, type, 0, 0, queue);
}

cnclResult_t cnclReduceScatter(const void *from, void *to, size_t recv_count, int type, int op, Comm *comm,
                               void *queue) {
  BEGIN(from, to, recv_count, type, op, comm, queue);
  REQUIRE(reduces(type), unsupported);
  return call(comm, blocking::Kind::reduce_scatter, from, to, recv_count, type, op, 0, queue);
}

cnclResult_t cnclSend(void *at, size_t count, int type, int peer, Comm *comm, void *queue) {
  BEGIN(at, count, type, peer, comm, queue);
  return call(comm, blocking::Kind::send, at, nullptr, count, type, 0, peer, queue);
}

cnclResult_t cnclRecv(void *at, size_t count, int type, int peer, Comm *comm, void *queue) {
  BEGIN(at, count, type, peer, comm, queue);
  return call(comm, blocking::Kind::recv, nullptr, at, count, type, 0, peer, queue);
}

}  // extern "C"
