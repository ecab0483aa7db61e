// libhccl.so with the ABI of HCCL, on the emulator of ../core beside libascendcl.so. Prototypes and constants follow
// third_party/hccl/inc/hccl of github.com/Ascend/pytorch at commit 9e73e708, written down again here: no line of the library under test is
// included, so a mistake in either shows.
//
// It is as strict as the documentation: a thread needs a current device, the root info has 4108 bytes, all functions may wait for
// peers, a broadcast has one buffer, reductions have the types of the series A2 and A3, a batch has no item for its own rank, and nothing
// ends a kernel whose peers do not come: HcclCommDestroy() waits for it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../blocking/group.hpp"
#include "../skin/record.hpp"

using HcclResult = int;

namespace {

enum : HcclResult {
  success = 0,
  para = 1,
  ptr = 2,
  internal = 4,
  not_support = 5,
  tcp_connect = 11,
  runtime = 15,
  remote = 21
};

constexpr size_t root_bytes = 4108;
constexpr char last = 0x5a;  // the last byte of a root info

struct Item {
  int type;
  void *buffer;
  uint64_t count;
  int data_type;
  uint32_t peer;
};

struct Comm {
  blocking::StatePointer state;
};

// What a failed call leaves in the caller's handle, as HCCL may: a communicator that it has deleted. Whoever uses it ends the process.
Comm deleted;

Comm *alive(void *comm) {
  if (comm != &deleted) return static_cast<Comm *>(comm);
  fputs("a communicator is used that HCCL has deleted\n", stderr);
  abort();
}

HcclResult result(ncclResult_t of) {
  constexpr HcclResult results[] = {success, runtime, tcp_connect, internal, para, para, remote};
  return results[of];
}

// Begins a call. The fault plan may end it with a result of its own.
bool begins(const char *function, HcclResult *code) {
  emulator::Status status = emulator::enter(function);
  if (status == emulator::Status::success) return true;
  *code = status == emulator::Status::injected ? emulator::injected_code() : runtime;
  return false;
}

#define BEGIN(...)                     \
  skin::record(__func__, __VA_ARGS__); \
  HcclResult begun = success;          \
  if (!begins(__func__, &begun)) return begun
#define REQUIRE(condition, otherwise) \
  if (!(condition)) return otherwise

constexpr ncclDataType_t types[] = {
    ncclInt8,  fake_nccl::only_int16,  ncclInt32,  ncclFloat16, ncclFloat32, ncclInt64, ncclUint64,
    ncclUint8, fake_nccl::only_uint16, ncclUint32, ncclFloat64, ncclBfloat16};
enum { int8, int16, int32, fp16, fp32, int64, uint64, uint8, uint16, uint32, fp64, bf16, types_n };

HcclResult reduces(int type, int op) {
  REQUIRE(type >= 0 && type < types_n && op >= 0 && op <= 3, para);
  const bool has = type <= int64 || type == bf16, multiplies = type != int16 && type != bf16;
  return has && (op != 1 || multiplies) ? success : not_support;
}

HcclResult call(void *comm, blocking::Kind kind, const void *from, void *to, uint64_t count, int type, int op,
                uint32_t root, void *stream) {
  REQUIRE(comm != nullptr && from != nullptr && to != nullptr, ptr);
  REQUIRE(type >= 0 && type < types_n, para);
  const blocking::StatePointer &state = alive(comm)->state;
  REQUIRE(root < static_cast<uint32_t>(state->ranks), para);
  const auto late = emulator::take_late();
  const HcclResult issued = result(blocking::issue(
      state, {blocking::operation(kind, from, to, count, types[type], op, static_cast<int>(root), stream)}, late));
  if (!late || issued != success) return issued;
  skin::record("late", late->code);
  return late->code;
}

}  // namespace

extern "C" {

const char *HcclGetErrorString(HcclResult code) {
  switch (code) {
    case success:
      return "no error";
    case para:
      return "parameter error";
    case ptr:
      return "empty pointer";
    case not_support:
      return "not support feature";
    case tcp_connect:
      return "tcp connect fail";
    case runtime:
      return "call runtime api fail";
    case remote:
      return "error cqe";
    default:
      return "internal error";
  }
}

HcclResult HcclGetRootInfo(void *root) {
  BEGIN(root);
  REQUIRE(root != nullptr, ptr);
  REQUIRE(fake_nccl::current_device() >= 0, runtime);
  fake_nccl::Address address;
  REQUIRE(make_table(&address), internal);
  memset(root, 0, root_bytes);
  memcpy(root, &address, sizeof address);
  static_cast<char *>(root)[root_bytes - 1] = last;
  return success;
}

HcclResult HcclCommInitRootInfo(uint32_t ranks, const void *root, uint32_t rank, void **comm) {
  if (comm != nullptr) *comm = &deleted;
  BEGIN(ranks, root, rank, comm);
  REQUIRE(root != nullptr && comm != nullptr, ptr);
  REQUIRE(static_cast<const char *>(root)[root_bytes - 1] == last, para);
  REQUIRE(fake_nccl::current_device() >= 0, runtime);
  fake_nccl::Address address;
  memcpy(&address, root, sizeof address);
  blocking::StatePointer state;
  HcclResult joined = result(blocking::join(address, static_cast<int>(ranks), static_cast<int>(rank), &state));
  if (joined == success) *comm = new Comm{state};
  return skin::given(joined, joined == success ? *comm : nullptr);
}

HcclResult HcclCommDestroy(void *comm) {
  BEGIN(comm);
  REQUIRE(comm != nullptr, ptr);
  HcclResult finished = result(blocking::finish(alive(comm)->state));
  delete static_cast<Comm *>(comm);
  return finished;
}

HcclResult HcclGetCommAsyncError(void *comm, HcclResult *error) {
  skin::record(__func__, comm, error);
  if (comm == nullptr || error == nullptr) return ptr;
  alive(comm);
  HcclResult planned = success;
  *error = begins(__func__, &planned) ? success : planned;
  return success;
}

HcclResult HcclAllReduce(void *from, void *to, uint64_t count, int type, int op, void *comm, void *stream) {
  BEGIN(from, to, count, type, op, comm, stream);
  const HcclResult can = reduces(type, op);
  return can != success ? can : call(comm, blocking::Kind::all_reduce, from, to, count, type, op, 0, stream);
}

HcclResult HcclBroadcast(void *at, uint64_t count, int type, uint32_t root, void *comm, void *stream) {
  BEGIN(at, count, type, root, comm, stream);
  return call(comm, blocking::Kind::broadcast, at, at, count, type, 0, root, stream);
}

HcclResult HcclReduce(void *from, void *to, uint64_t count, int type, int op, uint32_t root, void *comm, void *stream) {
  BEGIN(from, to, count, type, op, root, comm, stream);
  const HcclResult can = reduces(type, op);
  return can != success ? can : call(comm, blocking::Kind::reduce, from, to, count, type, op, root, stream);
}

HcclResult HcclAllGather(void *from, void *to, uint64_t send_count, int type, void *comm, void *stream) {
  BEGIN(from, to, send_count, type, comm, stream);
  return call(comm, blocking::Kind::all_gather, from, to, send_count, type, 0, 0, stream);
}

HcclResult HcclReduceScatter(void *from, void *to, uint64_t recv_count, int type, int op, void *comm, void *stream) {
  BEGIN(from, to, recv_count, type, op, comm, stream);
  const HcclResult can = reduces(type, op);
  return can != success ? can : call(comm, blocking::Kind::reduce_scatter, from, to, recv_count, type, op, 0, stream);
}

HcclResult HcclBatchSendRecv(Item *items, uint32_t n, void *comm, void *stream) {
  BEGIN(items, n, comm, stream);
  REQUIRE(items != nullptr && comm != nullptr, ptr);
  const blocking::StatePointer &state = alive(comm)->state;
  std::vector<blocking::Operation> operations;
  for (uint32_t i = 0; i < n; i++) {
    const Item &one = items[i];
    skin::record("item", one.type, one.buffer, one.count, one.data_type, one.peer);
    const int peer = static_cast<int>(one.peer);
    REQUIRE(one.type == 0 || one.type == 1, para);
    REQUIRE(one.buffer != nullptr, ptr);
    REQUIRE(one.data_type >= 0 && one.data_type < types_n && one.peer < static_cast<uint32_t>(state->ranks) &&
                peer != state->rank,
            para);
    const auto kind = one.type == 0 ? blocking::Kind::send : blocking::Kind::recv;
    operations.push_back(blocking::operation(kind, one.type == 0 ? one.buffer : nullptr,
                                             one.type == 0 ? nullptr : one.buffer, one.count, types[one.data_type], 0,
                                             peer, stream));
  }
  return result(blocking::issue(state, operations));
}

}  // extern "C"
